"""The key that all replicas on one database share."""

import psycopg

from . import failures


async def read(url: str) -> str:
    """64 hexadecimal digits. Raises StoreUnavailable."""
    with failures.as_ours():
        async with await psycopg.AsyncConnection.connect(url, connect_timeout=5) as connection:
            cursor = await connection.execute("SELECT key FROM outlast.server_key")
            (row,) = await cursor.fetchall()  # the migration that made the table wrote the row
    return str(row[0])
