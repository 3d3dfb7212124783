"""The connections of one process to PostgreSQL: one bounded pool for reads and the run queue."""

import asyncio
import os
import socket
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import psycopg_pool
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row

from ..domain import errors
from . import failures

POOL_SIZE_MAX = (
    8  # reads are short: more connections would only queue inside PostgreSQL on a few cores
)
POOL_WAIT_S_MAX = 3.0  # a request that finds no connection this long gets StoreUnavailable
# A pool doubles its pause between tries to connect; after this long it begins anew with the next
# request. The library's five minutes would let an outage go on for as long again after its end.
RECONNECT_S_MAX = 3.0
STATEMENT_S_MAX = 10.0  # a statement unanswered this long gets StoreUnavailable: nobody is there

KEEPALIVE: Mapping[str, Any] = {
    "connect_timeout": 3,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}

# What a server keeps for itself cannot be had; a role's and a database's own limit is -1 for none.
_ALLOWED = """
SELECT least(
    current_setting('max_connections')::int
        - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true)::int, 0),
    (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user),
    (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database())
)
"""

# A plan is made once for a connection and kept while the tables grow: it goes by index from the
# first row on. One that reads a small table whole would still do so a hundred thousand rows later.
_PLANS = (
    "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off;"
    " SET enable_hashjoin = off; SET enable_mergejoin = off"
)

Row = tuple[Any, ...]


async def _by_index(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.execute(_PLANS)


def settings_of(url: str) -> dict[str, Any]:
    """What to connect with: all that the URL says, over our keep-alives."""
    return {**KEEPALIVE, **conninfo_to_dict(url)}


def hang_up(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """End a connection whose other side is silent; who waits on it gets an OperationalError now.

    To close or cancel it in the driver's way would first wait for an answer.
    """
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


@contextmanager
def answered_within(
    seconds: float, connection: psycopg.AsyncConnection[Any]
) -> Generator[None, None, None]:
    """Hang up when the block is not done in time, and raise StoreUnavailable."""
    loop = asyncio.get_running_loop()
    timer = loop.call_later(seconds, hang_up, connection)
    try:
        yield
    except psycopg.OperationalError as error:
        if loop.time() >= timer.when():
            raise errors.StoreUnavailable from error
        raise
    finally:
        timer.cancel()


async def connections_allowed(url: str) -> int:
    """How many connections this role may have to this database. Raises StoreUnavailable."""
    with failures.as_ours():
        async with await psycopg.AsyncConnection.connect(**settings_of(url)) as connection:
            cursor = await connection.execute(_ALLOWED)
            row = await cursor.fetchone()
    return int(row[0]) if row else 0


class Database:
    """Runs single statements in autocommit; each is its own transaction."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._pool = psycopg_pool.AsyncConnectionPool(
            kwargs={**settings_of(url), "autocommit": True, "row_factory": tuple_row},
            configure=_by_index,
            min_size=1,
            max_size=POOL_SIZE_MAX,
            timeout=POOL_WAIT_S_MAX,
            reconnect_timeout=RECONNECT_S_MAX,
            open=False,
            name="outlast",
        )
        self._running: set[asyncio.Task[Sequence[Row]]] = set()

    async def open(self) -> None:
        """Start the pool; does not wait for a connection."""
        await self._pool.open()

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.close()

    def use(self) -> Mapping[str, int]:
        """How many connections there are, how many of them are free, and who waits for one."""
        found = self._pool.get_stats()
        return {
            "open": found.get("pool_size", 0),
            "free": found.get("pool_available", 0),
            "waiting": found.get("requests_waiting", 0),
        }

    async def rows(self, statement: str, *params: object) -> Sequence[Row]:
        """All rows of one statement, none for one that returns none. Raises StoreUnavailable."""
        with failures.as_ours():
            # After a restart of the server every connection of the pool may be dead.
            for _ in range(POOL_SIZE_MAX):
                try:
                    return await self._whole(statement, params)
                except psycopg.errors.DeadlockDetected:
                    continue  # undone as a whole, and whoever stood in the way goes on
                except psycopg.OperationalError as error:
                    if not failures.is_lost_connection(error):
                        raise
            return await self._whole(statement, params)

    def _whole(self, statement: str, params: tuple[object, ...]) -> "asyncio.Future[Sequence[Row]]":
        """The rows, read to the end even when the caller is cancelled meanwhile.

        The pool loses a connection whose borrower is cancelled while giving it back, and forgets
        who waited for it. A statement is short, and nobody is left waiting for one in vain.
        """
        running = asyncio.create_task(self._rows(statement, params))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return asyncio.shield(running)

    async def _rows(self, statement: str, params: tuple[object, ...]) -> Sequence[Row]:
        async with self._pool.connection() as connection:
            with answered_within(STATEMENT_S_MAX, connection):
                cursor = await connection.execute(statement, params, prepare=True)  # pyright: ignore[reportArgumentType]  # a literal of ours
            return await cursor.fetchall() if cursor.description else []
