"""What all replicas on one database share: its key, and the name of its log."""

import psycopg

from . import failures


async def read(url: str) -> tuple[str, int]:
    """The key, 64 hexadecimal digits, and the epoch of the log. Raises StoreUnavailable."""
    with failures.as_ours():
        async with await psycopg.AsyncConnection.connect(url, connect_timeout=5) as connection:
            cursor = await connection.execute(
                "SELECT key, epoch FROM outlast.server_key, outlast.log_epoch"
            )
            (row,) = await cursor.fetchall()  # the migrations that made the tables wrote the rows
    return str(row[0]), int(row[1])
