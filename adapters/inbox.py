"""Deliveries that a webhook receiver has acknowledged, in a SQLite file of the client's own.

This is a client's file, not a store of tasks: those live in PostgreSQL alone.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from ..domain import errors
from ..domain.ports import Clock

KEEP_S = 8 * 86_400.0  # ids of what was handed on: longer than any sender tries, and a day more
PURGE_MAX = 100  # rows a store call; more than one call adds, so that the file stops growing
BACKLOG_MAX = 100_000  # beyond, nothing is taken: the sender keeps it and tries again
LOCK_S_MAX = 5.0

# A body is there as long as it waits; the id stays behind it. FULL: a commit is on the disk when it
# returns, and not just in the operating system's hands.
_OPENING = f"""
    PRAGMA busy_timeout = {int(LOCK_S_MAX * 1000)};
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    CREATE TABLE IF NOT EXISTS deliveries (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        subscription_id TEXT NOT NULL,
        webhook_id TEXT NOT NULL,
        received_at REAL NOT NULL,
        body BLOB,
        UNIQUE (subscription_id, webhook_id)
    );
    CREATE INDEX IF NOT EXISTS waiting ON deliveries (number) WHERE body IS NOT NULL;
    CREATE INDEX IF NOT EXISTS done ON deliveries (received_at) WHERE body IS NULL;
    CREATE TABLE IF NOT EXISTS cursors (
        subscription_id TEXT PRIMARY KEY,
        cursor TEXT NOT NULL
    );
"""
_STORE = """
    INSERT INTO deliveries (subscription_id, webhook_id, received_at, body) VALUES (?, ?, ?, ?)
    ON CONFLICT DO NOTHING
"""
_MOVE = """
    INSERT INTO cursors (subscription_id, cursor) VALUES (?, ?)
    ON CONFLICT (subscription_id) DO UPDATE SET cursor = excluded.cursor
"""
_IS_FULL = "SELECT 1 FROM deliveries WHERE body IS NOT NULL LIMIT 1 OFFSET ?"
_PURGE = """
    DELETE FROM deliveries WHERE number IN (
        SELECT number FROM deliveries WHERE body IS NULL AND received_at < ? LIMIT ?
    )
"""
_WAITING = """
    SELECT number, subscription_id, webhook_id, body FROM deliveries
    WHERE body IS NOT NULL ORDER BY number LIMIT ?
"""
_DONE = "UPDATE deliveries SET body = NULL WHERE number = ?"
_CURSOR = "SELECT cursor FROM cursors WHERE subscription_id = ?"

Result = TypeVar("Result")
Row = tuple[int, str, str, bytes]


class SqliteInbox:
    """The inbox of one client; several processes may share the file. Only its owner can read it."""

    def __init__(self, path: Path, connection: sqlite3.Connection, clock: Clock) -> None:
        self.path = path
        self._connection, self._now = connection, clock
        # One statement at a time, off the event loop.
        self._turn = anyio.CapacityLimiter(1)
        self._running: set[asyncio.Task[Any]] = set()

    @classmethod
    async def open(cls, path: Path, clock: Clock) -> "SqliteInbox":
        """Open the file, or make it. Raises StoreUnavailable."""

        def connect() -> sqlite3.Connection:
            _make_private(path)
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            try:
                connection.executescript(_OPENING)
            except BaseException:
                connection.close()
                raise
            return connection

        with _as_ours():
            return cls(path, await anyio.to_thread.run_sync(connect), clock)

    async def close(self) -> None:
        """Idempotent."""
        await self._call(self._connection.close)

    async def store(
        self, subscription_id: str, webhook_id: str, cursor: str | None, body: bytes
    ) -> bool:
        """Keep it and move the cursor, in one commit; False for an id that came before."""
        now = self._now().timestamp()

        def store() -> bool:
            with self._commit() as connection:
                if connection.execute(_IS_FULL, (BACKLOG_MAX - 1,)).fetchone():
                    raise errors.StoreUnavailable("Too much waits to be handed on")
                row = (subscription_id, webhook_id, now, body)
                is_new = connection.execute(_STORE, row).rowcount == 1
                if is_new and cursor is not None:
                    connection.execute(_MOVE, (subscription_id, cursor))
                connection.execute(_PURGE, (now - KEEP_S, PURGE_MAX))
            return is_new

        return await self._call(store)

    async def waiting(self, limit: int) -> Sequence[Row]:
        """What is not done, oldest first: number, subscription, webhook id, body."""
        return await self._call(lambda: self._connection.execute(_WAITING, (limit,)).fetchall())

    async def done(self, number: int) -> None:
        """It was handed on; its id is kept."""
        await self._call(lambda: self._connection.execute(_DONE, (number,)))

    async def cursor_of(self, subscription_id: str) -> str | None:
        """The cursor stored last, or None."""
        row = await self._call(
            lambda: self._connection.execute(_CURSOR, (subscription_id,)).fetchone()
        )
        return None if row is None else str(row[0])

    async def _call(self, work: Callable[[], Result]) -> Result:
        """Run it to its end in a task of its own, also when the caller is cancelled meanwhile.

        Else the turn would go to the next one while the thread still works: SQLite dies of that.
        """

        async def run() -> Result:
            return await anyio.to_thread.run_sync(work, limiter=self._turn)

        running = asyncio.create_task(run())
        self._running.add(running)
        running.add_done_callback(self._forget)
        with _as_ours():
            return await asyncio.shield(running)

    def _forget(self, running: "asyncio.Task[Any]") -> None:
        self._running.discard(running)
        if not running.cancelled():
            running.exception()  # whoever called may be gone; asyncio would complain

    @contextmanager
    def _commit(self) -> Generator[sqlite3.Connection]:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


@contextmanager
def _as_ours() -> Generator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise errors.StoreUnavailable(f"The inbox cannot be used: {error}") from error


def _make_private(path: Path) -> None:
    """Made by hand before SQLite sees it: what SQLite puts beside it takes over the mode."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        path.chmod(0o600)
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name of the file, too, has to outlast a loss of power
    finally:
        os.close(folder)
