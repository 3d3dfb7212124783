"""A SQLite file of a client's own, which nobody else can read. Several processes may share it."""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from ..domain import errors

LOCK_S_MAX = 5.0
AGAIN_S = 0.02  # between two tries to open

# FULL: a commit is on the disk when it returns, and not just in the operating system's hands.
_OPENING = f"""
    PRAGMA busy_timeout = {int(LOCK_S_MAX * 1000)};
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
"""

Result = TypeVar("Result")
Work = Callable[[sqlite3.Connection], Result]


class PrivateSqlite:
    """The connection to one file. `name` stands in messages. All raise StoreUnavailable."""

    def __init__(self, name: str, connection: sqlite3.Connection) -> None:
        self._name, self._connection = name, connection
        # One statement at a time, off the event loop.
        self._turn = anyio.CapacityLimiter(1)
        self._running: set[asyncio.Task[Any]] = set()

    @classmethod
    async def open(cls, name: str, path: Path, schema: str) -> "PrivateSqlite":
        """Open the file, or make it, and run `schema`, which may meet its own tables."""

        def connect() -> sqlite3.Connection:
            _make_private(path)
            until = time.monotonic() + LOCK_S_MAX
            while True:
                try:
                    return _connected(path, _OPENING + schema)
                except sqlite3.OperationalError as error:
                    if not _is_busy(error) or time.monotonic() >= until:
                        raise
                # The switch to WAL heeds no busy_timeout: another process is at it right now.
                time.sleep(AGAIN_S)

        with _as_ours(name):
            return cls(name, await anyio.to_thread.run_sync(connect))

    async def close(self) -> None:
        """Idempotent."""
        await self.call(sqlite3.Connection.close)

    async def call(self, work: Work[Result]) -> Result:
        """Run it to its end in a task of its own, also when the caller is cancelled meanwhile.

        Else the turn would go to the next one while the thread still works: SQLite dies of that.
        """

        async def run() -> Result:
            return await anyio.to_thread.run_sync(work, self._connection, limiter=self._turn)

        running = asyncio.create_task(run())
        self._running.add(running)
        running.add_done_callback(self._forget)
        with _as_ours(self._name):
            return await asyncio.shield(running)

    async def commit(self, work: Work[Result]) -> Result:
        """The same in one transaction: all of it, or nothing."""

        def whole(connection: sqlite3.Connection) -> Result:
            with _transaction(connection):
                return work(connection)

        return await self.call(whole)

    def _forget(self, running: "asyncio.Task[Any]") -> None:
        self._running.discard(running)
        if not running.cancelled():
            running.exception()  # whoever called may be gone; asyncio would complain


def _connected(path: Path, script: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.executescript(script)
    except BaseException:
        connection.close()
        raise
    return connection


def _is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds the lock: the primary code, whatever the extended one."""
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Generator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _as_ours(name: str) -> Generator[None]:
    try:
        yield
    except (sqlite3.Error, OSError, ValueError) as error:
        raise errors.StoreUnavailable(f"The {name} cannot be used: {error}") from error


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
