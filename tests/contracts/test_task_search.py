"""The promise of `TaskSearch`: every task once, newest first, and nothing of another owner's."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from outlast.adapters.bus import Bus
from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.memory import MemoryStore
from outlast.adapters.memory_search import MemoryTaskSearch
from outlast.adapters.postgres import Database
from outlast.adapters.sealing import Sealer
from outlast.adapters.task_search import PostgresTaskSearch
from outlast.adapters.task_view import PostgresTaskViews
from outlast.domain import decisions
from outlast.domain.ports import EventLog, TaskViews
from outlast.domain.searching import TaskFilter, TaskPlace, TaskSearch
from outlast.domain.task import TaskStatus
from outlast.tests.contracts.stores import happens, open_task
from outlast.tests.domain.given import (
    DEPLOY,
    OPENED,
    Wish,
    asks,
    at,
    cancels,
    completes,
    fails,
    starts,
)
from outlast.tests.support.sealed import sealer

pytestmark = [pytest.mark.anyio, pytest.mark.promise("the-list-of-tasks-finds-every-task")]

SEALED = "postgres-sealed"  # as `conftest.py` names it
ALL = TaskFilter()
OTHER = "another-owner"
MANY = 7


@dataclass(frozen=True)
class World:
    log: EventLog
    views: TaskViews
    search: TaskSearch
    is_sealed: bool

    async def open(self, task_id: str, seconds: float = 0, *wishes: Wish, **more: object) -> None:
        task = await open_task(self.log, task_id, at=decisions.instant(at(seconds)), **more)
        await happens(self.log, task, *wishes)

    async def ids(self, wanted: TaskFilter) -> list[str]:
        page = await self.search.page(wanted, 100)
        return [task.task_id for task in page.tasks]


@pytest.fixture
async def world(store_url: str | None, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if store_url is None:
        store = MemoryStore(Bus())
        yield World(store, store, MemoryTaskSearch(store), is_sealed=False)
        return
    is_sealed = SEALED in request.node.callspec.params.values()
    database = Database(store_url)
    keeper = sealer(database) if is_sealed else Sealer(database)
    log = PostgresEventLog(database, sealer=keeper)
    await database.open()
    try:
        views = PostgresTaskViews(database, keeper)
        yield World(log, views, PostgresTaskSearch(database, keeper), is_sealed)
    finally:
        log.close()
        await database.close()


async def pages_older(search: TaskSearch, wanted: TaskFilter, limit: int) -> list[list[str]]:
    found: list[list[str]] = []
    place: TaskPlace | None = None
    while True:
        page = await search.page(wanted, limit, before=place)
        found.append([task.task_id for task in page.tasks])
        if page.older is None:
            return found
        place = page.older


async def test_an_empty_store_has_an_empty_list(world: World) -> None:
    page = await world.search.page(ALL, 5)
    assert (list(page.tasks), page.newer, page.older, page.is_cut) == ([], None, None, False)


async def test_tasks_come_newest_first_as_of_their_last_append(world: World) -> None:
    await world.open("first", 0, starts(), completes())
    await world.open("last", 20, starts())
    await world.open("middle", 10, starts(), asks(DEPLOY))
    page = await world.search.page(ALL, 5)
    assert [(task.task_id, task.status, task.version) for task in page.tasks] == [
        ("last", TaskStatus.WORKING, 2),
        ("middle", TaskStatus.INPUT_REQUIRED, 4),
        ("first", TaskStatus.COMPLETED, 3),
    ]
    assert {(task.owner, task.tool) for task in page.tasks} == {(OPENED.owner, OPENED.tool)}
    assert [task.created_at for task in page.tasks] == [at(20), at(10), at(0)]
    assert (page.newer, page.older) == (None, None)


@pytest.mark.parametrize("apart_s", [0, 1])
async def test_pages_hold_every_task_once_both_ways(world: World, apart_s: int) -> None:
    for number in range(MANY):
        await world.open(f"task-{number}", number * apart_s, *([starts()] if number % 2 else []))
    newest_first = [f"task-{number}" for number in reversed(range(MANY))]
    assert await pages_older(world.search, ALL, 3) == [
        newest_first[:3],
        newest_first[3:6],
        newest_first[6:],
    ]
    end = TaskPlace(at(0), "task-0")
    page = await world.search.page(ALL, 3, after=end)
    assert [task.task_id for task in page.tasks] == newest_first[-4:-1]
    assert page.older == TaskPlace(page.tasks[-1].created_at, "task-1")
    back = await world.search.page(ALL, 3, after=page.newer)
    assert [task.task_id for task in back.tasks] == newest_first[:3]
    assert back.newer is None
    assert (await world.search.page(ALL, 3, before=back.older)).newer is not None


async def test_a_task_that_comes_meanwhile_moves_no_page(world: World) -> None:
    for number in range(4):
        await world.open(f"task-{number}", number)
    first = await world.search.page(ALL, 2)
    await world.open("newer", 10)
    second = await world.search.page(ALL, 2, before=first.older)
    assert [task.task_id for task in second.tasks] == ["task-1", "task-0"]


async def test_each_filter_finds_its_own(world: World) -> None:
    await world.open("done", 0, starts(), completes())
    await world.open("failed", 1, starts(), fails(), tool="other_tool")
    await world.open("cancelled", 2, cancels(), owner=OTHER)
    await world.open("asking", 3, starts(), asks(DEPLOY), owner=OTHER)
    await world.open("working", 4, starts(), owner=OTHER, tool="other_tool")
    names = ("working", "asking", "done", "failed", "cancelled")
    one_of = frozenset

    assert await world.ids(TaskFilter(owner=OPENED.owner)) == ["failed", "done"]
    assert await world.ids(TaskFilter(owner=OTHER)) == ["working", "asking", "cancelled"]
    assert await world.ids(TaskFilter(owner="nobody")) == []
    assert await world.ids(TaskFilter(tool="other_tool")) == ["working", "failed"]
    assert await world.ids(TaskFilter(tool="other_tool", owner=OTHER)) == ["working"]
    for status, task_id in zip(TaskStatus, names, strict=True):
        assert await world.ids(TaskFilter(statuses=one_of({status}))) == [task_id]
    ended = one_of({TaskStatus.FAILED, TaskStatus.CANCELLED})
    assert await world.ids(TaskFilter(statuses=ended)) == ["cancelled", "failed"]
    assert await world.ids(TaskFilter(statuses=ended, owner=OTHER)) == ["cancelled"]
    assert await world.ids(TaskFilter(statuses=ended, tool="other_tool")) == ["failed"]
    assert await world.ids(TaskFilter(statuses=one_of(()))) == []
    assert await world.ids(TaskFilter(since=at(1), until=at(3))) == ["cancelled", "failed"]


async def test_a_beginning_of_an_id_finds_it_within_the_other_filters(world: World) -> None:
    long = "Zk-_" + "a" * 39
    for task_id in (long, "Zk-_b", "zk-_a", "A"):
        await world.open(task_id)
    assert await world.ids(TaskFilter(id_prefix=long)) == [long]
    assert await world.ids(TaskFilter(id_prefix=long[:20])) == [long]
    assert set(await world.ids(TaskFilter(id_prefix="Zk-_"))) == {long, "Zk-_b"}
    assert await world.ids(TaskFilter(id_prefix=long + "a")) == []
    assert await world.ids(TaskFilter(id_prefix="%")) == []
    assert await world.ids(TaskFilter(id_prefix="A", owner=OTHER)) == []
    assert await world.ids(TaskFilter(id_prefix="A", tool="other_tool")) == []
    assert await world.ids(TaskFilter(id_prefix="A", since=at(1))) == []
    page = await world.search.page(TaskFilter(id_prefix="Zk"), 1)
    assert (len(page.tasks), page.is_cut) == (1, True)


async def test_a_part_of_the_last_message_finds_it_unless_it_is_sealed(world: World) -> None:
    await world.open("disk", 0, starts(), fails())
    await world.open("asks", 1, starts(), asks(DEPLOY), owner=OTHER)
    await world.open("none", 2)
    shown = {task.task_id: task.message for task in (await world.search.page(ALL, 5)).tasks}
    said = {name: text for name, text in shown.items() if text}
    assert said  # at least one of them tells something; sealed ones open for who holds the key
    for task_id, text in said.items():
        found = await world.ids(TaskFilter(message=text.upper()))
        assert (task_id in found) == (not world.is_sealed)
    assert await world.ids(TaskFilter(message="no message says this")) == []


async def test_a_key_finds_its_owners_task_unless_it_is_sealed(world: World) -> None:
    await world.open("mine", 0, idempotency_key="key")
    await world.open("other", 0, owner=OTHER, idempotency_key="key")
    mine = [] if world.is_sealed else ["mine"]
    assert await world.ids(TaskFilter(key="key", owner=OPENED.owner)) == mine
    assert await world.ids(TaskFilter(key="KEY", owner=OPENED.owner)) == []
    assert await world.ids(TaskFilter(key="key")) == []


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"])
async def test_what_no_store_can_hold_finds_nothing(world: World, text: str) -> None:
    await world.open("task")
    for wanted in (
        TaskFilter(owner=text),
        TaskFilter(tool=text),
        TaskFilter(id_prefix=text),
        TaskFilter(message=text),
    ):
        assert await world.ids(wanted) == []


async def test_a_forgotten_task_is_in_no_list(world: World) -> None:
    await world.open("gone")
    await world.open("kept")
    await world.views.forget(["gone"])
    assert await world.ids(ALL) == ["kept"]
    assert await world.ids(TaskFilter(id_prefix="gone")) == []
