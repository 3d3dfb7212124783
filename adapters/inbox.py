"""Deliveries that a webhook receiver has acknowledged, in a SQLite file of the client's own.

This is a client's file, not a store of tasks: those live in PostgreSQL alone.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from ..domain import errors
from ..domain.ports import Clock
from .private_sqlite import PrivateSqlite

KEEP_S = 8 * 86_400.0  # ids of what was handed on: longer than any sender tries, and a day more
PURGE_MAX = 100  # rows a store call; more than one call adds, so that the file stops growing
BACKLOG_MAX = 100_000  # beyond, nothing is taken: the sender keeps it and tries again

# A body is there as long as it waits; the id stays behind it.
_SCHEMA = """
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

Row = tuple[int, str, str, bytes]


class SqliteInbox:
    """The inbox of one client; several processes may share the file. Only its owner can read it."""

    def __init__(self, path: Path, file: PrivateSqlite, clock: Clock) -> None:
        self.path = path
        self._file, self._now = file, clock

    @classmethod
    async def open(cls, path: Path, clock: Clock) -> "SqliteInbox":
        """Open the file, or make it. Raises StoreUnavailable."""
        return cls(path, await PrivateSqlite.open("inbox", path, _SCHEMA), clock)

    async def close(self) -> None:
        """Idempotent."""
        await self._file.close()

    async def store(
        self, subscription_id: str, webhook_id: str, cursor: str | None, body: bytes
    ) -> bool:
        """Keep it and move the cursor, in one commit; False for an id that came before."""
        now = self._now().timestamp()

        def store(connection: sqlite3.Connection) -> bool:
            if connection.execute(_IS_FULL, (BACKLOG_MAX - 1,)).fetchone():
                raise errors.StoreUnavailable("Too much waits to be handed on")
            row = (subscription_id, webhook_id, now, body)
            is_new = connection.execute(_STORE, row).rowcount == 1
            if is_new and cursor is not None:
                connection.execute(_MOVE, (subscription_id, cursor))
            connection.execute(_PURGE, (now - KEEP_S, PURGE_MAX))
            return is_new

        return await self._file.commit(store)

    async def waiting(self, limit: int) -> Sequence[Row]:
        """What is not done, oldest first: number, subscription, webhook id, body."""
        return await self._file.call(lambda db: db.execute(_WAITING, (limit,)).fetchall())

    async def done(self, number: int) -> None:
        """It was handed on; its id is kept."""
        await self._file.call(lambda db: db.execute(_DONE, (number,)))

    async def cursor_of(self, subscription_id: str) -> str | None:
        """The cursor stored last, or None."""
        row = await self._file.call(lambda db: db.execute(_CURSOR, (subscription_id,)).fetchone())
        return None if row is None else str(row[0])
