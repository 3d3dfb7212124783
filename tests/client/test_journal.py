"""The journal's port, over the file and over its twin."""

import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from outlast.adapters import journal as journals
from outlast.adapters.journal import MemoryJournal, SqliteJournal
from outlast.domain import errors
from outlast.domain.clienting import Entry, Journal
from outlast.service.wiring.client import owner_of, socket_url

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def entry(name: str = "1", **facts: Any) -> Entry:
    return Entry(name, "http://s/mcp", "anonymous", NOW, **facts)


@pytest.fixture(params=["file", "memory"])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Journal]:
    if request.param == "memory":
        yield MemoryJournal()
        return
    kept = await SqliteJournal.open(tmp_path / "j.db", lambda: NOW)
    yield kept
    await kept.close()


async def test_an_entry_comes_back_as_it_was_and_in_order(journal: Journal):
    odd = {"text": "\ud800", "big": 2**70, "none": None}
    first = entry("1", tool="a", digest="d", idempotency_key="k", is_keyed=True, arguments=odd)
    await journal.begin(first)
    await journal.begin(entry("2", task_id="t"))
    assert list(await journal.entries()) == [first, entry("2", task_id="t")]


async def test_a_task_takes_the_place_of_the_arguments(journal: Journal):
    await journal.begin(entry(arguments={"secret": 1}))
    await journal.accept("1", "t")
    assert list(await journal.entries()) == [entry(task_id="t")]


async def test_answers_add_up_and_can_be_taken_back(journal: Journal):
    await journal.begin(entry(task_id="t"))
    await journal.answer("1", {"a": {"x": 1}, "b": {}})
    await journal.answer("1", {"b": None, "c": {"y": 2}})
    assert list(await journal.entries()) == [
        entry(task_id="t", answers={"a": {"x": 1}, "c": {"y": 2}})
    ]


async def test_the_end_forgets_what_is_secret_and_is_final(journal: Journal):
    await journal.begin(entry(arguments={"secret": 1}, answers={"a": {}}))
    await journal.end("1", "completed")
    await journal.end("1", "lost")
    await journal.answer("1", {"b": {}})
    assert list(await journal.entries()) == [entry(ended="completed")]


async def test_a_call_that_was_taken_for_lost_and_is_answered_goes_on(journal: Journal):
    await journal.begin(entry())
    await journal.end("1", "lost")
    await journal.accept("1", "t")
    assert list(await journal.entries()) == [entry(task_id="t")]


@pytest.mark.promise("client-loses-no-task")
@pytest.mark.parametrize("how", ["lost", "refused", "answered"])
async def test_a_call_that_became_a_task_meanwhile_ends_only_as_tasks_do(
    journal: Journal, how: str
):
    await journal.begin(entry())
    await journal.accept("1", "t")
    await journal.answer("1", {"a": {}})
    assert await journal.end("1", how) is False
    assert list(await journal.entries()) == [entry(task_id="t", answers={"a": {}})]
    assert await journal.end("1", "completed") is True


async def test_who_ends_an_entry_learns_whether_it_was_the_first(journal: Journal):
    await journal.begin(entry())
    assert [await journal.end("1", "lost") for _ in range(2)] == [True, False]
    assert await journal.end("9", "lost") is False


async def test_unknown_entries_are_ignored(journal: Journal):
    await journal.accept("9", "t")
    await journal.answer("9", {"a": {}})
    await journal.end("9", "lost")
    assert list(await journal.entries()) == []


async def test_two_processes_share_a_file_and_old_ends_leave_it(tmp_path: Path):
    clock = [NOW]
    one = await SqliteJournal.open(tmp_path / "j.db", lambda: clock[0])
    two = await SqliteJournal.open(tmp_path / "j.db", lambda: clock[0])
    await one.begin(entry("1"))
    await two.end("1", "lost")
    assert [e.ended for e in await one.entries()] == ["lost"]
    clock[0] += timedelta(seconds=journals.KEEP_S + 1)
    await one.begin(entry("2"))
    await one.end("2", "completed")
    assert [e.id for e in await two.entries()] == ["2"]
    await one.close()
    await two.close()


async def test_a_file_that_is_no_journal_is_said_to_be_unusable(tmp_path: Path):
    (tmp_path / "j.db").write_text("this is no database, however long it is" * 100)
    with pytest.raises(errors.StoreUnavailable):
        await SqliteJournal.open(tmp_path / "j.db", lambda: NOW)
    kept = await SqliteJournal.open(tmp_path / "k.db", lambda: NOW)
    await kept.close()
    with pytest.raises(errors.StoreUnavailable):
        await kept.entries()


async def test_a_commit_is_on_the_disk_when_it_returns(tmp_path: Path):
    kept = await SqliteJournal.open(tmp_path / "j.db", lambda: NOW)
    connection: sqlite3.Connection = kept._file._connection
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    await kept.close()


def test_a_jwt_that_is_renewed_is_the_same_owner_and_no_token_is_kept():
    # {"iss": "i", "sub": "s", "exp": 1} and the same with another exp
    one = "e30.eyJpc3MiOiAiaSIsICJzdWIiOiAicyIsICJleHAiOiAxfQ.x"
    two = "e30.eyJpc3MiOiAiaSIsICJzdWIiOiAicyIsICJleHAiOiAyfQ.y"
    assert owner_of(one) == owner_of(two)
    others = {owner_of(token) for token in (None, "a.b.c", "opaque", one, "e30.bm8.x")}
    assert len(others) == 5
    assert "opaque" not in owner_of("opaque")


@pytest.mark.parametrize(
    ("url", "socket"),
    [
        ("http://h:1/mcp", "ws://h:1/ws"),
        ("https://h/a/mcp/", "wss://h/a/ws"),
        ("https://h/", "wss://h/ws"),
    ],
)
def test_the_socket_is_beside_the_endpoint(url: str, socket: str):
    assert socket_url(url) == socket
