"""The promise of `OpenRequests`: who waits longest comes first, and only who waits comes at all."""

from dataclasses import dataclass

import pytest

from outlast.adapters.memory import MemoryStore
from outlast.adapters.memory_inbox import MemoryOpenRequests
from outlast.adapters.open_requests import PostgresOpenRequests
from outlast.adapters.postgres import Database
from outlast.domain.inbox import OpenRequests, Place
from outlast.domain.task import Task
from outlast.tests.contracts.stores import Ports, happens, open_task
from outlast.tests.domain.given import (
    DEPLOY,
    NO,
    OPENED,
    REGION,
    YES,
    answers,
    asks,
    cancels,
    starts as begins,
)

pytestmark = [pytest.mark.anyio, pytest.mark.promise("twins-keep-the-same-contract")]

BOB = "another-owner"


@dataclass(frozen=True)
class Inbox:
    """The store, and who waits in it."""

    ports: Ports
    requests: OpenRequests

    async def asked(self, task_id: str, seconds: float, owner: str = OPENED.owner) -> Task:
        """A task that asks since then."""
        task = await open_task(self.ports.log, task_id, owner=owner)
        return await happens(self.ports.log, task, begins(), asks(DEPLOY, seconds=seconds))

    async def ids(self, owner: str | None = None, after: Place | None = None) -> list[str]:
        return [each.task_id for each in await self.requests.waiting(owner, after, 10)]


@pytest.fixture
async def inbox(ports: Ports, store_url: str | None):
    if store_url is None:
        assert isinstance(ports.log, MemoryStore)
        yield Inbox(ports, MemoryOpenRequests(ports.log))
        return
    database = Database(store_url)
    await database.open()
    try:
        yield Inbox(ports, PostgresOpenRequests(database))
    finally:
        await database.close()


async def test_a_task_is_there_from_its_first_question_to_its_last_answer(inbox: Inbox) -> None:
    log = inbox.ports.log
    task = await happens(log, await open_task(log), begins())
    assert await inbox.ids() == []
    task = await happens(log, task, asks(DEPLOY, REGION))
    (told,) = await inbox.requests.waiting()
    assert (told.task_id, told.owner, told.tool) == (task.id, OPENED.owner, OPENED.tool)
    task = await happens(log, task, answers({"in-1": YES}))
    assert await inbox.ids() == [task.id]
    await happens(log, task, answers({"in-2": NO}))
    assert await inbox.ids() == []


async def test_a_cancelled_and_a_forgotten_one_wait_no_more(inbox: Inbox) -> None:
    cancelled = await inbox.asked("cancelled", 3)
    await inbox.asked("forgotten", 4)
    await inbox.asked("kept", 5)
    await happens(inbox.ports.log, cancelled, cancels())
    await inbox.ports.views.forget(["forgotten"])
    assert await inbox.ids() == ["kept"]


async def test_of_one_owner_or_of_all_who_waits_longest_comes_first(inbox: Inbox) -> None:
    await inbox.asked("z-first", 3)
    await inbox.asked("bobs", 4, BOB)
    await inbox.asked("a-last", 5)
    assert await inbox.ids() == ["z-first", "bobs", "a-last"]
    assert await inbox.ids(OPENED.owner) == ["z-first", "a-last"]
    assert await inbox.ids(BOB) == ["bobs"]
    assert await inbox.ids("nobody") == []


async def test_pages_leave_none_out_and_repeat_none_while_it_changes(inbox: Inbox) -> None:
    for number in range(5):
        task = await inbox.asked(f"task-{number}", 3 + number)
        del task
    first = await inbox.requests.waiting(None, None, 2)
    assert [each.task_id for each in first] == ["task-0", "task-1"]
    await inbox.ports.views.forget(["task-0", "task-1", "task-2"])
    await inbox.asked("task-5", 9)
    assert await inbox.ids(after=first[-1].place) == ["task-3", "task-4", "task-5"]


async def test_one_that_asks_again_stands_at_the_end(inbox: Inbox) -> None:
    again = await inbox.asked("again", 3)
    await inbox.asked("other", 4)
    await happens(inbox.ports.log, again, answers({"in-1": YES}), begins(), asks(REGION, seconds=9))
    assert await inbox.ids() == ["other", "again"]
