"""The small SQLite file that several processes share, at the moment when it is made."""

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.adapters import private_sqlite
from outlast.adapters.private_sqlite import PrivateSqlite
from outlast.domain import errors
from outlast.tests.acceptance.waiting import until

pytestmark = pytest.mark.anyio

PATIENCE_S = 20.0
SCHEMA = "CREATE TABLE IF NOT EXISTS things (name TEXT);"
OPENERS, FILES = 8, 10


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Somebody in the middle of making the file, before it is in WAL mode."""
    connection = sqlite3.connect(tmp_path / "c.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("CREATE TABLE other (name TEXT)")
    yield connection
    connection.close()


async def test_a_file_that_another_process_is_making_is_opened_once_it_is_made(
    tmp_path: Path, holder: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
):
    tries: list[Any] = []
    connect = sqlite3.connect

    def counted(*given: Any, **facts: Any) -> sqlite3.Connection:
        tries.append(given)
        return connect(*given, **facts)

    monkeypatch.setattr(sqlite3, "connect", counted)
    opening = asyncio.ensure_future(PrivateSqlite.open("file", tmp_path / "c.db", SCHEMA))

    async def is_trying_again() -> bool:
        return len(tries) > 1 or opening.done()

    await until(is_trying_again, PATIENCE_S)
    holder.execute("COMMIT")
    file = await opening
    rows = await file.call(lambda it: it.execute("PRAGMA journal_mode").fetchall())
    assert rows == [("wal",)]
    await file.close()


async def test_a_file_that_stays_locked_is_given_up(
    tmp_path: Path, holder: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(private_sqlite, "LOCK_S_MAX", 0.1)
    with pytest.raises(errors.StoreUnavailable, match="The file cannot be used: database is lock"):
        await PrivateSqlite.open("file", tmp_path / "c.db", SCHEMA)


async def test_many_may_begin_one_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(private_sqlite, "LOCK_S_MAX", 60.0)  # whose turn it is, nobody says
    for number in range(FILES):
        path = tmp_path / f"{number}.db"
        opening = [PrivateSqlite.open("file", path, SCHEMA) for _ in range(OPENERS)]
        for file in await asyncio.gather(*opening):
            await file.close()
