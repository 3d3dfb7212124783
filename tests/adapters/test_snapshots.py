"""Where the fold of a long stream begins: the same task, and no secret that stays behind."""

import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from eventsourcing.persistence import StoredEvent
from hypothesis import example, given, strategies as st

from outlast.adapters import codec, snapshots
from outlast.adapters.event_log import PostgresEventLog, TaskEventMapper
from outlast.adapters.postgres import Database
from outlast.adapters.rebuild import Rebuild
from outlast.adapters.sealing import Sealer
from outlast.adapters.task_view import PostgresTaskViews
from outlast.domain import errors
from outlast.domain.events import ProgressReported, TaskEvent
from outlast.domain.task import Task, fold
from outlast.tests.contracts.stores import happens, open_task, progresses
from outlast.tests.domain.given import (
    DEPLOY,
    NO,
    OPENED,
    REGION,
    YES,
    Wish,
    after,
    answers,
    asks,
    at,
    calls_back,
    calls_back_with,
    cancels,
    completes,
    delegates,
    fails,
    holds,
    opened,
    starts,
)
from outlast.tests.domain.golden import GOLDEN
from outlast.tests.support.sealed import sealer

pytestmark = pytest.mark.anyio

LONG = 2 * snapshots.EVERY + 100
WISHES: Sequence[Wish] = (
    starts(),
    starts("worker-b"),
    progresses(3),
    progresses(0.5),
    asks(DEPLOY),
    asks(DEPLOY, REGION, state=None),
    holds(REGION),
    answers({"in-1": YES}),
    answers({"in-1": NO, "in-2": {"odd": ["a\x00b\ud800", 2**70, -0.0]}}),
    delegates(),
    delegates(at(3_600)),
    calls_back("call-1", 2),
    calls_back_with(callback_id="call-2"),
    cancels(),
    completes(),
    fails(),
)


def _history(wishes: Sequence[Wish]) -> list[TaskEvent]:
    """What comes of the wishes that are heard."""
    task, history = opened(), list[TaskEvent]([OPENED])
    for wish in wishes:
        try:
            events = wish(task)
        except errors.OutlastError:
            continue
        history += events
        task = after(task, events)
    return history


@pytest.mark.promise("a-long-task-is-folded-from-a-snapshot")
@example([starts(), delegates(at(3_600)), calls_back("call-1"), calls_back_with()])
@example([starts(), asks(DEPLOY, REGION), answers({"in-1": YES}), starts(), holds(REGION), fails()])
@given(st.lists(st.sampled_from(WISHES), max_size=25))
def test_a_snapshot_and_what_follows_make_the_same_task_as_the_whole(
    wishes: Sequence[Wish],
) -> None:
    history = _history([starts(), *wishes])
    for place in range(1, len(history) + 1):
        then = fold(history[:place])
        assert then is not None
        kept = snapshots.decoded(snapshots.encoded(then))
        assert kept == then
        assert fold(history[place:], kept) == fold(history)


def test_what_events_mean_has_changed_only_together_with_the_rules() -> None:
    """A snapshot that an older `evolve` made must not be folded on: raise RULES with the digest.

    Lines that were only added to the golden events change the digest alone.
    """
    tasks: dict[str, Task | None] = {}
    for line in GOLDEN:
        state = codec.encode(line["state"] | {"class_version": line["class_version"]})
        row = StoredEvent(line["task_id"], line["version"], line["topic"], state)
        event = TaskEventMapper().to_domain_event(row)
        tasks[event.task_id] = fold([event], tasks.get(event.task_id))
    told = b"\n".join(snapshots.encoded(task) for _, task in sorted(tasks.items()) if task)
    assert (snapshots.RULES, hashlib.sha256(told).hexdigest()[:16]) == (2, "b0db736da3c5942b")


@dataclass
class World:
    """A store with a long task, and a process that has not met it."""

    url: str
    database: Database
    seals: bool

    def __post_init__(self) -> None:
        self.sealer = sealer(self.database) if self.seals else Sealer(self.database)
        self.log = PostgresEventLog(self.database, sealer=self.sealer)
        self.views = PostgresTaskViews(self.database, self.sealer)

    async def long_task(self) -> Task:
        """One with very many events."""
        task = await happens(self.log, await open_task(self.log), starts())
        told = (
            ProgressReported(task.id, version, OPENED.at, 1, version, LONG, "a secret step")
            for version in range(task.version + 1, LONG + 1)
        )
        return await self.log.append(task, tuple(told))

    async def loaded(self) -> tuple[Task | None, int]:
        """The task as it is loaded, and of how many events."""
        task, events = await self.log.tail(OPENED.task_id)
        return fold(events, task), len(events)

    def asked(self, statement: str, *params: object) -> Any:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), params)
            return cursor.fetchall() if cursor.description else None

    def kept(self) -> list[tuple[int, bytes]]:
        return self.asked("SELECT version, state FROM outlast.task_snapshots")


@pytest.fixture(params=[False, True], ids=["plain", "sealed"])
async def world(database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    database = Database(database_url)
    await database.open()
    world = World(database_url, database, request.param)
    yield world
    world.log.close()
    await database.close()


@pytest.mark.promise("a-long-task-is-folded-from-a-snapshot")
async def test_a_long_task_is_read_whole_once_and_then_from_a_snapshot(world: World) -> None:
    task = await world.long_task()
    whole = fold(await world.log.read(task.id))
    assert await world.loaded() == (whole, LONG - 2 * snapshots.EVERY)
    ((version, state),) = world.kept()
    assert version == 2 * snapshots.EVERY
    assert (b"secret" in state) is not world.seals
    assert await world.loaded() == (whole, LONG - 2 * snapshots.EVERY)
    task = await happens(world.log, task, completes())
    assert await world.loaded() == (task, LONG - 2 * snapshots.EVERY + 1)


async def test_a_short_task_leaves_no_snapshot(world: World) -> None:
    await happens(world.log, await open_task(world.log), starts(), completes())
    assert (await world.loaded())[1] == 3
    assert world.kept() == []


async def test_who_asks_for_an_earlier_version_is_given_no_later_task(world: World) -> None:
    await world.long_task()
    await world.loaded()
    version = 2 * snapshots.EVERY
    before, events = await world.log.tail(OPENED.task_id, version - 1)
    assert (before, len(events)) == (None, LONG)
    before, events = await world.log.tail(OPENED.task_id, version)
    assert before is not None
    assert (before.version, len(events)) == (version, LONG - version)


@pytest.mark.promise("a-snapshot-is-no-truth")
async def test_a_snapshot_of_another_shape_is_passed_and_made_anew(world: World) -> None:
    await world.long_task()
    right = await world.loaded()
    world.asked("UPDATE outlast.task_snapshots SET shape = 'another', state = '{}'")
    assert await world.loaded() == right
    assert world.asked("SELECT shape FROM outlast.task_snapshots") == [(snapshots.SHAPE,)]


@pytest.mark.promise("a-snapshot-is-no-truth")
@pytest.mark.parametrize("stored", [b"", b"{}", b"[]", b"{", b"\x01sealed?"])
async def test_a_snapshot_that_cannot_be_opened_is_as_good_as_none(
    world: World, stored: bytes
) -> None:
    await world.long_task()
    task, _ = await world.loaded()
    world.asked("UPDATE outlast.task_snapshots SET state = %s", stored)
    assert await world.loaded() == (task, LONG)


async def test_another_tasks_snapshot_is_not_taken_for_this_ones(world: World) -> None:
    await world.long_task()
    task, _ = await world.loaded()
    other = await open_task(world.log, "other")
    assert task is not None
    world.asked(
        "UPDATE outlast.task_snapshots SET task_id = 'other', version = 1 WHERE task_id = %s",
        task.id,
    )
    before, events = await world.log.tail("other")
    assert fold(events, before) == other


@pytest.mark.promise("a-snapshot-is-no-truth")
async def test_a_snapshot_goes_with_its_task_and_does_not_come_back(world: World) -> None:
    await world.long_task()
    task, _ = await world.log.tail(OPENED.task_id)
    assert task is not None
    await world.views.forget([OPENED.task_id])
    assert world.kept() == []
    # Somebody had read all of it just before, and is only now done with folding.
    late = snapshots.Snapshots(world.database, world.sealer)
    told = [ProgressReported(task.id, n, OPENED.at, 1, n, None, None) for n in range(501, 1_001)]
    await late.shortened(None, task, told)
    assert world.kept() == []
    assert await world.log.tail(OPENED.task_id) == (None, [])


@pytest.mark.promise("a-snapshot-is-no-truth")
async def test_a_rebuild_reads_no_snapshot_and_leaves_none(world: World) -> None:
    await world.long_task()
    task, _ = await world.loaded()
    world.asked("UPDATE outlast.task_view SET wire = 'damaged'")
    rebuild = Rebuild(world.url, world.sealer)
    assert [difference.column async for difference in rebuild.run()] == ["task_view.wire"]
    assert world.kept() == []
    assert (await world.loaded())[0] == task
