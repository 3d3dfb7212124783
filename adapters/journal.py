"""What a client must not forget, in a SQLite file that nobody else can read, and its twin.

This is a client's file, not a store of tasks: those live in PostgreSQL alone.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from ..domain import errors
from ..domain.clienting import Entry
from ..domain.ports import Clock

KEEP_S = 30 * 86_400.0  # of what has ended: how long `tasks` can still show it
LOCK_S_MAX = 5.0

# FULL: a commit is on the disk when it returns. What is forgotten is overwritten as well.
_OPENING = f"""
    PRAGMA busy_timeout = {int(LOCK_S_MAX * 1000)};
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
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
_END = """
    UPDATE entries SET ended = ?, ended_at = ?, arguments = NULL, answers = '{}'
    WHERE id = ? AND ended IS NULL
"""
_PURGE = "DELETE FROM entries WHERE ended_at < ?"
_ENTRIES = f"SELECT {_COLUMNS} FROM entries ORDER BY number"

Result = TypeVar("Result")


class SqliteJournal:
    """`Journal` in a file; several processes may share it."""

    def __init__(self, path: Path, connection: sqlite3.Connection, clock: Clock) -> None:
        self.path = path
        self._connection, self._now = connection, clock
        # One statement at a time, off the event loop. A call that has begun is waited for even when
        # its caller is cancelled, so that no transaction meets another's statements.
        self._turn = anyio.CapacityLimiter(1)

    @classmethod
    async def open(cls, path: Path, clock: Clock) -> "SqliteJournal":
        """Open the file, or make it, and its folder. Raises StoreUnavailable."""

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

    async def begin(self, entry: Entry) -> None:
        """See `Journal.begin`."""
        await self._call(lambda: self._connection.execute(_BEGIN, _row(entry)))

    async def accept(self, entry_id: str, task_id: str) -> None:
        """See `Journal.accept`."""
        await self._call(lambda: self._connection.execute(_ACCEPT, (task_id, entry_id)))

    async def answer(self, entry_id: str, answers: Mapping[str, Mapping[str, Any] | None]) -> None:
        """See `Journal.answer`."""

        def answer() -> None:
            with self._commit() as connection:
                row = connection.execute(_ANSWERS, (entry_id,)).fetchone()
                if row is None:
                    return
                merged = {**json.loads(row[0]), **answers}
                kept = {key: value for key, value in merged.items() if value is not None}
                connection.execute(_ANSWER, (json.dumps(kept), entry_id))

        await self._call(answer)

    async def end(self, entry_id: str, how: str) -> None:
        """See `Journal.end`."""
        now = self._now().timestamp()

        def end() -> None:
            with self._commit() as connection:
                connection.execute(_END, (how, now, entry_id))
                connection.execute(_PURGE, (now - KEEP_S,))

        await self._call(end)

    async def entries(self) -> Sequence[Entry]:
        """See `Journal.entries`."""
        rows = await self._call(lambda: self._connection.execute(_ENTRIES).fetchall())
        return [_entry(row) for row in rows]

    async def _call(self, work: Callable[[], Result]) -> Result:
        with _as_ours():
            return await anyio.to_thread.run_sync(work, limiter=self._turn)

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

    async def end(self, entry_id: str, how: str) -> None:
        """See `Journal.end`."""
        entry = self._entries.get(entry_id)
        if entry is not None and entry.ended is None:
            self._change(entry_id, ended=how, arguments=None, answers={})

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


@contextmanager
def _as_ours() -> Generator[None]:
    try:
        yield
    except (sqlite3.Error, OSError, ValueError) as error:
        raise errors.StoreUnavailable(f"The journal cannot be used: {error}") from error


def _make_private(path: Path) -> None:
    """Made by hand before SQLite sees it: what SQLite puts beside it takes over the mode."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
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
