"""The connections of one process to PostgreSQL: one bounded asynchronous pool for reads and the run queue."""

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
import psycopg_pool
from psycopg.rows import tuple_row

from . import failures

POOL_SIZE_MAX = 8  # reads are short: more connections would only queue inside PostgreSQL on a few cores
POOL_WAIT_S_MAX = 3.0  # a request that finds no connection this long is answered with StoreUnavailable

KEEPALIVE: Mapping[str, Any] = {
    "connect_timeout": 3,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}

Row = tuple[Any, ...]


class Database:
    """Runs single statements in autocommit; each is its own transaction."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._pool = psycopg_pool.AsyncConnectionPool(
            url,
            kwargs={"autocommit": True, "row_factory": tuple_row, **KEEPALIVE},
            min_size=1,
            max_size=POOL_SIZE_MAX,
            timeout=POOL_WAIT_S_MAX,
            open=False,
            name="outlast",
        )

    async def open(self) -> None:
        """Start the pool; does not wait for a connection."""
        await self._pool.open()

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.close()

    async def rows(self, statement: str, *params: object) -> Sequence[Row]:
        """All rows of one statement; an empty list for one that returns none. Raises StoreUnavailable."""
        with failures.as_ours():
            try:
                return await self._rows(statement, params)
            except psycopg.OperationalError as error:
                if not failures.is_passing(error) or isinstance(error, psycopg_pool.PoolTimeout):
                    raise
                # The pool may hold more connections that died with this one, after a restart of the server.
                await self._pool.check()
                return await self._rows(statement, params)

    async def _rows(self, statement: str, params: tuple[object, ...]) -> Sequence[Row]:
        async with self._pool.connection() as connection:
            cursor = await connection.execute(statement, params, prepare=True)  # pyright: ignore[reportArgumentType]  # every statement is a literal of ours
            return await cursor.fetchall() if cursor.description else []
