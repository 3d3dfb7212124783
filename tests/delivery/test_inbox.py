"""The receiver's file: what it keeps, for how long, for whose eyes, and when it is on the disk."""

import shutil
import sqlite3
import stat
import sys
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from outlast.adapters import inbox as module
from outlast.adapters.inbox import SqliteInbox
from outlast.delivery.webhook.receiver import Inbox
from outlast.domain import errors

pytestmark = pytest.mark.anyio


class Time:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 29, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
async def inbox(tmp_path: Path, time: Time) -> AsyncGenerator[SqliteInbox]:
    opened = await SqliteInbox.open(tmp_path / "inbox.db", time)
    yield opened
    await opened.close()


async def ids(inbox: Inbox) -> list[str]:
    return [webhook_id for _, _, webhook_id, _ in await inbox.waiting(1000)]


async def finish(inbox: SqliteInbox) -> None:
    for number, *_ in await inbox.waiting(1000):
        await inbox.done(number)


async def test_what_was_stored_waits_in_order_until_it_is_done(inbox: SqliteInbox):
    for number in (3, 1, 2):
        assert await inbox.store("sub_1", f"evt_{number}", None, b"body %d" % number)
    assert await inbox.waiting(2) == [
        (1, "sub_1", "evt_3", b"body 3"),
        (2, "sub_1", "evt_1", b"body 1"),
    ]
    await inbox.done(1)
    await inbox.done(1)
    assert await ids(inbox) == ["evt_1", "evt_2"]


async def test_an_id_counts_once_a_subscription_also_when_it_is_done(inbox: SqliteInbox):
    assert await inbox.store("sub_1", "evt_1", "c1", b"{}")
    assert not await inbox.store("sub_1", "evt_1", "c2", b"{}")
    assert await inbox.store("sub_2", "evt_1", "c3", b"{}")
    await finish(inbox)
    assert not await inbox.store("sub_1", "evt_1", "c4", b"{}")
    assert await ids(inbox) == []
    assert (await inbox.cursor_of("sub_1"), await inbox.cursor_of("sub_2")) == ("c1", "c3")


async def test_the_cursor_is_the_last_that_was_stored_and_no_null_overwrites_it(
    inbox: SqliteInbox,
):
    assert await inbox.cursor_of("sub_1") is None
    for number, cursor in enumerate(["c2", "c1", None]):
        await inbox.store("sub_1", f"evt_{number}", cursor, b"{}")
    assert await inbox.cursor_of("sub_1") == "c1"


async def test_event_and_cursor_are_stored_both_or_neither(inbox: SqliteInbox):
    connection = sqlite3.connect(inbox.path)
    connection.execute(
        "CREATE TRIGGER no_cursor BEFORE INSERT ON cursors BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    connection.close()
    with pytest.raises(errors.StoreUnavailable):
        await inbox.store("sub_1", "evt_1", "c1", b"{}")
    assert await ids(inbox) == []
    assert await inbox.store("sub_1", "evt_1", None, b"{}")


async def test_ids_are_kept_for_a_week_and_a_day_after_which_they_go(
    inbox: SqliteInbox, time: Time
):
    await inbox.store("sub_1", "evt_1", None, b"{}")
    await finish(inbox)
    time.now += timedelta(days=7, hours=23)
    await inbox.store("sub_1", "evt_2", None, b"{}")
    assert not await inbox.store("sub_1", "evt_1", None, b"{}")
    time.now += timedelta(hours=2)
    await inbox.store("sub_1", "evt_3", None, b"{}")
    assert await inbox.store("sub_1", "evt_1", None, b"{}")


async def test_what_still_waits_is_never_purged(inbox: SqliteInbox, time: Time):
    await inbox.store("sub_1", "evt_1", None, b"{}")
    time.now += timedelta(days=365)
    await inbox.store("sub_1", "evt_2", None, b"{}")
    assert await ids(inbox) == ["evt_1", "evt_2"]


async def test_a_full_inbox_takes_nothing_until_something_is_done(
    inbox: SqliteInbox, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "BACKLOG_MAX", 2)
    await inbox.store("sub_1", "evt_1", None, b"{}")
    await inbox.store("sub_1", "evt_2", None, b"{}")
    with pytest.raises(errors.StoreUnavailable):
        await inbox.store("sub_1", "evt_3", "c3", b"{}")
    assert await inbox.cursor_of("sub_1") is None
    await inbox.done(1)
    assert await inbox.store("sub_1", "evt_3", "c3", b"{}")


async def test_only_the_owner_may_read_the_files(tmp_path: Path, time: Time):
    path = tmp_path / "open.db"
    path.touch(0o644)
    for inbox_path in (path, tmp_path / "new.db"):
        inbox = await SqliteInbox.open(inbox_path, time)
        await inbox.store("sub_1", "evt_1", "c1", b"{}")
        found = sorted(tmp_path.glob(f"{inbox_path.name}*"))
        assert len(found) == 3  # the file, its log and the log's index
        assert [stat.S_IMODE(file.stat().st_mode) for file in found] == [0o600] * 3
        await inbox.close()


async def test_a_commit_is_forced_to_the_disk_and_not_left_to_the_system(inbox: SqliteInbox):
    # What a killed process leaves behind cannot show this: only the setting can.
    ask = inbox._file._connection.execute
    assert ask("PRAGMA journal_mode").fetchone() == ("wal",)
    assert ask("PRAGMA synchronous").fetchone() == (2,)


async def test_what_store_returned_for_is_in_the_files_at_that_moment(
    inbox: SqliteInbox, tmp_path: Path, time: Time
):
    for number in range(20):
        await inbox.store("sub_1", f"evt_{number}", f"c{number}", b"{}")
        copy = tmp_path / f"copy-{number}"
        copy.mkdir()
        for file in tmp_path.glob("inbox.db*"):
            shutil.copy(file, copy)
        found = await SqliteInbox.open(copy / "inbox.db", time)
        assert (await ids(found))[-1] == f"evt_{number}"
        assert await found.cursor_of("sub_1") == f"c{number}"
        await found.close()


async def test_two_processes_may_share_the_file(inbox: SqliteInbox, time: Time):
    other = await SqliteInbox.open(inbox.path, time)
    fresh: list[bool] = []

    async def store(into: SqliteInbox, webhook_id: str) -> None:
        fresh.append(await into.store("sub_1", webhook_id, "c1", b"{}"))

    async with anyio.create_task_group() as group:
        for number in range(30):
            for each in (inbox, other):
                group.start_soon(store, each, f"evt_{number}")
    assert (fresh.count(True), fresh.count(False)) == (30, 30)
    assert len(await ids(other)) == 30
    await other.close()


async def test_a_cancelled_call_leaves_no_half_of_a_transaction(inbox: SqliteInbox):
    for number in range(30):
        with anyio.move_on_after(0.0005 * (number % 7)):
            await inbox.store("sub_1", f"evt_{number}", f"c{number}", b"{}")
        assert await inbox.store("sub_2", f"evt_{number}", None, b"{}")
    stored = [row for row in await inbox.waiting(1000) if row[1] == "sub_1"]
    if stored:
        assert await inbox.cursor_of("sub_1") == f"c{stored[-1][2].removeprefix('evt_')}"


CANCELLING = """
import asyncio, datetime, pathlib, sys
from outlast.adapters.inbox import SqliteInbox

async def main() -> None:
    for turns in range(40):
        path = pathlib.Path(sys.argv[1]) / f"{turns}.db"
        inbox = await SqliteInbox.open(path, lambda: datetime.datetime.now(datetime.UTC))
        storing = asyncio.create_task(inbox.store("sub_1", "evt_1", None, bytes(200_000)))
        for _ in range(turns % 5):
            await asyncio.sleep(0)
        storing.cancel()
        await inbox.close()

asyncio.run(main())
"""


async def test_closing_behind_a_cancelled_call_waits_for_it(tmp_path: Path):
    """It once ended the process, so it is tried in another one."""
    command = [sys.executable, "-c", CANCELLING, str(tmp_path)]
    ended = await anyio.run_process(command, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize("content", [b"this is not a database, by no means " * 50, None])
async def test_a_file_that_cannot_be_used_is_unavailable(
    tmp_path: Path, time: Time, content: bytes | None
):
    path = tmp_path / "inbox.db" if content else tmp_path / "no" / "inbox.db"
    if content:
        path.write_bytes(content)
    with pytest.raises(errors.StoreUnavailable):
        await SqliteInbox.open(path, time)


async def test_a_closed_inbox_is_unavailable(tmp_path: Path, time: Time):
    inbox = await SqliteInbox.open(tmp_path / "inbox.db", time)
    await inbox.close()
    await inbox.close()
    with pytest.raises(errors.StoreUnavailable):
        await inbox.store("sub_1", "evt_1", None, b"{}")
