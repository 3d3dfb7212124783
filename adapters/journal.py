"""What a client must not forget, in a SQLite file that nobody else can read, and its twin.

This is a client's file, not a store of tasks: those live in PostgreSQL alone.
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from ..domain import errors
from ..domain.clienting import WITHOUT_TASK, Entry
from ..domain.ports import Clock
from .private_sqlite import PrivateSqlite

KEEP_S = 30 * 86_400.0  # of what has ended: how long `tasks` can still show it

# What is forgotten is overwritten as well.
_SCHEMA = """
    PRAGMA secure_delete = ON;
    CREATE TABLE IF NOT EXISTS entries (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        server TEXT NOT NULL,
        owner TEXT NOT NULL,
        made_at TEXT NOT NULL,
        tool TEXT,
        digest TEXT,
        idempotency_key TEXT,
        is_keyed INTEGER NOT NULL,
        arguments TEXT,
        task_id TEXT,
        answers TEXT NOT NULL,
        ended TEXT,
        ended_at REAL
    );
    CREATE INDEX IF NOT EXISTS ended ON entries (ended_at) WHERE ended_at IS NOT NULL;
"""
_NAMES = tuple(field.name for field in fields(Entry))
_COLUMNS = ", ".join(_NAMES)
_BEGIN = f"INSERT INTO entries ({_COLUMNS}) VALUES ({', '.join('?' * len(_NAMES))})"
# Also after another process has taken the call for lost.
_ACCEPT = """
    UPDATE entries SET task_id = ?, arguments = NULL, ended = NULL, ended_at = NULL WHERE id = ?
"""
_ANSWERS = "SELECT answers FROM entries WHERE id = ? AND ended IS NULL"
_ANSWER = "UPDATE entries SET answers = ? WHERE id = ?"
# What ends a mere call ends no task: another process may have written its id down meanwhile.
_END = """
    UPDATE entries SET ended = ?, ended_at = ?, arguments = NULL, answers = '{}'
    WHERE id = ? AND ended IS NULL AND (task_id IS NULL OR NOT ?)
"""
_PURGE = "DELETE FROM entries WHERE ended_at < ?"
_ENTRIES = f"SELECT {_COLUMNS} FROM entries ORDER BY number"


class SqliteJournal:
    """`Journal` in a file; several processes may share it."""

    def __init__(self, file: PrivateSqlite, clock: Clock) -> None:
        self._file, self._now = file, clock

    @classmethod
    async def open(cls, path: Path, clock: Clock) -> "SqliteJournal":
        """Open the file, or make it, and its folder. Raises StoreUnavailable."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise errors.StoreUnavailable(f"The journal cannot be used: {error}") from error
        return cls(await PrivateSqlite.open("journal", path, _SCHEMA), clock)

    async def close(self) -> None:
        """Idempotent."""
        await self._file.close()

    async def begin(self, entry: Entry) -> None:
        """See `Journal.begin`."""
        await self._file.call(lambda db: db.execute(_BEGIN, _row(entry)))

    async def accept(self, entry_id: str, task_id: str) -> None:
        """See `Journal.accept`."""
        await self._file.call(lambda db: db.execute(_ACCEPT, (task_id, entry_id)))

    async def answer(self, entry_id: str, answers: Mapping[str, Mapping[str, Any] | None]) -> None:
        """See `Journal.answer`."""

        def answer(connection: sqlite3.Connection) -> None:
            row = connection.execute(_ANSWERS, (entry_id,)).fetchone()
            if row is None:
                return
            merged = {**json.loads(row[0]), **answers}
            kept = {key: value for key, value in merged.items() if value is not None}
            connection.execute(_ANSWER, (json.dumps(kept), entry_id))

        await self._file.commit(answer)

    async def end(self, entry_id: str, how: str) -> bool:
        """See `Journal.end`."""
        now = self._now().timestamp()

        def end(connection: sqlite3.Connection) -> bool:
            ended = connection.execute(_END, (how, now, entry_id, how in WITHOUT_TASK))
            connection.execute(_PURGE, (now - KEEP_S,))
            return ended.rowcount > 0

        return await self._file.commit(end)

    async def entries(self) -> Sequence[Entry]:
        """See `Journal.entries`."""
        rows = await self._file.call(lambda db: db.execute(_ENTRIES).fetchall())
        return [_entry(row) for row in rows]


class MemoryJournal:
    """`Journal` for as long as the process lives."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    async def begin(self, entry: Entry) -> None:
        """See `Journal.begin`."""
        self._entries[entry.id] = entry

    async def accept(self, entry_id: str, task_id: str) -> None:
        """See `Journal.accept`."""
        self._change(entry_id, task_id=task_id, arguments=None, ended=None)

    async def answer(self, entry_id: str, answers: Mapping[str, Mapping[str, Any] | None]) -> None:
        """See `Journal.answer`."""
        entry = self._entries.get(entry_id)
        if entry is not None and entry.ended is None:
            merged = {**entry.answers, **answers}
            self._change(
                entry_id, answers={key: value for key, value in merged.items() if value is not None}
            )

    async def end(self, entry_id: str, how: str) -> bool:
        """See `Journal.end`."""
        entry = self._entries.get(entry_id)
        if entry is None or entry.ended is not None:
            return False
        if entry.task_id is not None and how in WITHOUT_TASK:
            return False
        self._change(entry_id, ended=how, arguments=None, answers={})
        return True

    async def entries(self) -> Sequence[Entry]:
        """See `Journal.entries`."""
        return list(self._entries.values())

    def _change(self, entry_id: str, **changes: Any) -> None:
        if entry_id in self._entries:
            self._entries[entry_id] = replace(self._entries[entry_id], **changes)


def _row(entry: Entry) -> tuple[Any, ...]:
    given = {name: getattr(entry, name) for name in _NAMES}
    given["made_at"] = entry.made_at.isoformat()
    given["is_keyed"] = int(entry.is_keyed)
    given["answers"] = json.dumps(dict(entry.answers))
    if entry.arguments is not None:
        given["arguments"] = json.dumps(dict(entry.arguments))
    return tuple(given[name] for name in _NAMES)


def _entry(row: Sequence[Any]) -> Entry:
    given: dict[str, Any] = dict(zip(_NAMES, row, strict=True))
    given["made_at"] = datetime.fromisoformat(given["made_at"])
    given["is_keyed"] = bool(given["is_keyed"])
    given["answers"] = json.loads(given["answers"])
    if given["arguments"] is not None:
        given["arguments"] = json.loads(given["arguments"])
    return Entry(**given)
