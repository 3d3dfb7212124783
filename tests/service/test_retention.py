"""The end of a task's time: the same whoever comes first, a client or the sweep."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from outlast.adapters import codec
from outlast.adapters.bus import Bus
from outlast.adapters.memory import MemoryStore
from outlast.adapters.memory_past import MemoryPastTasks
from outlast.delivery.feed import Feed
from outlast.delivery.polling import PollingMethod
from outlast.domain import decisions, errors
from outlast.domain.events import InputRequested, TaskEvent
from outlast.domain.owner import LOCAL_CALLER, LOCAL_OWNER, Owner
from outlast.domain.task import Task, TaskStatus
from outlast.service import wiring, worker
from outlast.service.commands import Commands
from outlast.service.exchange import Exchange
from outlast.service.methods.tasks import TaskMethods
from outlast.service.retention import SWEEP_BATCH_MAX, SWEEP_S, SWEEP_S_MIN, Retention
from outlast.tests.acceptance.waiting import until
from outlast.tests.domain.given import DEPLOY, OPENED, RESULT, YES, Wish
from outlast.tests.service.callback_bench import Clock
from outlast.tests.service.worker_bench import PATIENCE_S, Bench, ended, history, opened
from outlast.tests.support.mcp import DECLARED

pytestmark = pytest.mark.anyio

TTL = timedelta(milliseconds=OPENED.ttl_ms or 0)
AUDIT_PERIOD = timedelta(days=30)
METHODS = ["get", "update", "cancel"]


class Store(MemoryStore):
    """One that cannot read some tasks, as if a newer release had stored them."""

    def __init__(self) -> None:
        super().__init__(Bus())
        self.unreadable: set[str] = set()

    async def read(self, task_id: str) -> Sequence[TaskEvent]:
        if task_id in self.unreadable:
            raise LookupError("no event is known by that name")
        return await super().read(task_id)


@dataclass
class House:
    """One process's half of the service, on a store in memory and a clock of the test's."""

    audit_period: timedelta = AUDIT_PERIOD
    clock: Clock = field(default_factory=Clock)
    store: Store = field(default_factory=Store)

    def __post_init__(self) -> None:
        self.commands = Commands(self.store, self.clock)
        self.past = MemoryPastTasks(self.store)
        self.retention = Retention(self.commands, self.store, self.past, self.audit_period)
        self.feed = Feed(self.store, self.store, codec.wire_of, self.clock, self.retention.end)
        self.methods = TaskMethods(self.commands, PollingMethod(self.feed), self.retention)

    async def opened(self, task_id: str = "task", *wishes: Wish, **changes: Any) -> Task:
        facts: dict[str, Any] = {"owner": LOCAL_OWNER.key, "at": decisions.instant(self.clock())}
        opening = replace(OPENED, task_id=task_id, **facts | changes)
        await self.commands.open(decisions.open_task(opening))
        for wish in wishes:
            await self.commands.change(task_id, wish)
        return await self.commands.load(task_id)

    async def parked(self, task_id: str = "task") -> Task:
        return await self.opened(task_id, self.starts, self.asks)

    async def ended(self, task_id: str = "task") -> Task:
        return await self.opened(task_id, self.starts, self.completes)

    def starts(self, task: Task) -> decisions.Events:
        return decisions.start_work(task, "worker", self.clock())

    def asks(self, task: Task) -> decisions.Events:
        return decisions.finish_leg(task, task.attempt, [DEPLOY], "state", self.clock())

    def completes(self, task: Task) -> decisions.Events:
        return decisions.complete(task, task.attempt, RESULT, self.clock())

    async def says(self, method: str, owner: Owner = LOCAL_OWNER) -> Any:
        params = {"taskId": "task", "inputResponses": {"in-1": YES}}
        asked = Exchange(
            replace(LOCAL_CALLER, owner=owner), 1, f"tasks/{method}", params, DECLARED, {}
        )
        return await getattr(self.methods, method)(asked)


def reason_of(task: Task) -> str | None:
    return None if task.error is None else task.error["data"]["reason"]


# --- on access


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("state", ["queued", "parked"])
async def test_whoever_asks_after_the_end_of_its_time_finds_it_failed(state: str, method: str):
    house = House()
    task = await (house.parked() if state == "parked" else house.opened())
    house.clock.ahead = TTL
    answer = await house.says(method)
    ended = await house.commands.load("task")
    assert (ended.status, reason_of(ended)) == (TaskStatus.FAILED, "expired")
    assert ended.version == task.version + 1
    if method == "get":
        assert answer == codec.wire_of(ended)
    # An answer that came too late, and a cancel, are acknowledged and change nothing.
    for late in METHODS:
        await house.says(late)
    assert await house.commands.load("task") == ended


@pytest.mark.parametrize("method", METHODS)
async def test_a_moment_before_the_end_of_its_time_it_still_has_it(method: str):
    house = House()
    await house.parked()
    house.clock.ahead = TTL - timedelta(seconds=30)
    await house.says(method)
    assert reason_of(await house.commands.load("task")) is None


async def test_who_begins_to_watch_after_the_end_is_told_of_it():
    house = House()
    await house.parked()
    house.clock.ahead = TTL
    view = await house.feed.owned(LOCAL_OWNER.key, "task")
    assert view is not None
    assert view.is_terminal
    changes = await house.feed.after("task", 0)
    assert changes is not None
    assert [change.is_terminal for change in changes] == [True]


async def test_work_under_way_is_not_ended_by_a_look_at_it():
    house = House()
    task = await house.opened("task", house.starts)
    house.clock.ahead = TTL * 2
    assert await house.says("get") == codec.wire_of(task)
    await house.retention.sweep()
    assert await house.commands.load("task") == task


@pytest.mark.promise("owners-are-isolated")
@pytest.mark.parametrize("method", METHODS)
async def test_a_stranger_ends_nothing_and_is_told_nothing(method: str):
    house = House()
    task = await house.parked()
    house.clock.ahead = TTL
    with pytest.raises(errors.TaskNotFound):
        await house.says(method, replace(LOCAL_OWNER, subject="eve"))
    assert await house.commands.load("task") == task


async def test_an_ended_task_whose_time_is_over_is_not_found_and_costs_no_write():
    house = House()
    task = await house.ended()
    house.clock.ahead = TTL
    for method in METHODS:
        with pytest.raises(errors.TaskNotFound):
            await house.says(method)
    assert await house.commands.load("task") == task
    assert not house.store.past


async def test_a_key_finds_its_task_until_its_time_is_over_and_kept_no_longer():
    house = House()
    facts = {"idempotency_key": "key"}

    async def kept() -> bool:
        view = await house.store.opened_with(LOCAL_OWNER.key, "key")
        return view is not None and await house.retention.keeps(view)

    await house.opened("task", **facts)
    assert await kept()
    house.clock.ahead = TTL
    assert await kept()  # ended by this, and so told of for a while
    assert reason_of(await house.commands.load("task")) == "expired"
    house.clock.ahead = TTL * 10
    assert not await kept()
    await house.opened("next", **facts)


# --- the sweep


async def test_a_sweep_leaves_nothing_whose_time_is_over_however_much_it_is():
    house = House()
    for number in range(2 * SWEEP_BATCH_MAX):
        await house.ended(f"ended-{number}")
        await house.parked(f"parked-{number}")
    house.clock.ahead = TTL
    await house.retention.sweep()
    assert await house.store.due(house.clock(), 10) == []
    assert len(house.store.past) == 2 * SWEEP_BATCH_MAX
    house.clock.ahead = TTL * 10
    await house.retention.sweep()
    assert dict(house.store.owners) == {}
    assert await house.store.depth() == 0


async def test_a_task_that_cannot_be_read_stands_in_nobodys_way(caplog: pytest.LogCaptureFixture):
    house = House()
    await house.parked("unreadable")
    await house.parked()
    house.store.unreadable = {"unreadable"}
    house.clock.ahead = TTL
    assert await house.retention.sweep() == SWEEP_S
    assert reason_of(await house.commands.load("task")) == "expired"
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_the_sweep_comes_again_when_the_next_time_ends():
    house = House()
    house.clock.stop()  # else what is due in a moment is due now, on a machine that stands still
    assert await house.retention.sweep() == SWEEP_S
    await house.opened("late", ttl_ms=3_600_000)
    assert await house.retention.sweep() == SWEEP_S
    await house.opened("soon", ttl_ms=2_000)
    assert 1.9 < await house.retention.sweep() <= 2.0
    await house.opened("now", ttl_ms=100)
    assert await house.retention.sweep() == SWEEP_S_MIN


async def test_work_under_way_beyond_its_time_makes_no_busy_sweep():
    house = House()
    for number in range(SWEEP_BATCH_MAX):
        await house.opened(f"running-{number}", house.starts)
    house.clock.ahead = TTL
    assert await house.retention.sweep() == SWEEP_S


# --- the audit period


@pytest.mark.parametrize("period", [AUDIT_PERIOD, timedelta()], ids=["a month", "none"])
async def test_what_is_forgotten_is_erased_when_the_audit_period_is_over(period: timedelta):
    house = House(audit_period=period)
    for number in range(120):
        await house.ended(f"task-{number}")
    house.clock.ahead = TTL
    await house.retention.sweep()
    assert {past.is_erased for past in house.store.past.values()} == {not period}
    house.clock.ahead = period - timedelta(minutes=1)
    await house.retention.sweep()
    assert {past.is_erased for past in house.store.past.values()} == {not period}
    house.clock.ahead = period + timedelta(minutes=1)
    await house.retention.sweep()
    assert {past.is_erased for past in house.store.past.values()} == {True}
    assert {len(past.events) for past in house.store.past.values()} == {1}


# --- what runs


@pytest.fixture
async def bench(database_url: str, tmp_path: Path) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(database_url, tmp_path / "journal", stack)


async def until_idle(built: wiring.Built) -> None:
    async def is_idle() -> bool:
        return built.worker.running_count == 0

    await until(is_idle, PATIENCE_S)


def loud(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


async def test_a_held_question_that_nobody_answers_in_time_stops_its_call(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    built = await bench.worker(slots=1)
    warm = await opened(built, "old.safe", bench.arguments("warm", seconds=0))
    await ended(built, warm)
    assert await asked_in_time(bench, built)
    await until_idle(built)
    # Its slot and its worker are there for the next.
    following = await opened(built, "old.safe", bench.arguments("next", seconds=0))
    assert (await ended(built, following)).status is TaskStatus.COMPLETED
    assert not [line for line in bench.lines() if line.startswith(("answer k", "end k"))]
    assert loud(caplog) == []


async def asked_in_time(bench: Bench, built: wiring.Built) -> bool:
    """Whether a task has asked and then expired. On a slow machine it needs more time to ask."""
    for ttl_ms in (3_000, 10_000, 25_000):
        arguments = bench.arguments("k", seconds=0)
        task_id = await opened(built, "old.asks_legacy", arguments, ttl_ms=ttl_ms)
        # A beat that comes before the question gives it a minute more.
        task = await ended(built, task_id, seconds=4 * PATIENCE_S)
        assert reason_of(task) == "expired"
        if any(isinstance(event, InputRequested) for event in await history(built, task_id)):
            return True
    return False


@pytest.mark.parametrize("is_told", [True, False], ids=["ended first", "gone at once"])
async def test_a_result_that_comes_after_the_end_is_dropped_without_a_noise(
    bench: Bench,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_told: bool,
):
    monkeypatch.setattr(worker, "BEAT_S", 60.0)  # or its next beat would tell the worker first
    built = await bench.worker()
    other = await bench.worker(claims=False)
    task_id = await opened(built, "new.gated", bench.arguments("k"))
    await bench.until_noted("start k")
    if is_told:
        now = other.commands.now()
        removed = await other.commands.change(task_id, lambda task: decisions.remove(task, now))
        assert reason_of(removed) == "removed"
    await other.views.forget([task_id])
    Path(f"{bench.journal}.k.go").touch()
    await until_idle(built)
    assert await history(built, task_id) == []
    assert await other.views.get(task_id) is None
    assert loud(caplog) == []


async def test_a_task_whose_time_is_over_before_it_could_begin_never_runs(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    built = await bench.worker()
    task_ids = [
        await opened(built, "new.safe", bench.arguments(f"k{n}", seconds=0), ttl_ms=1 + n % 5)
        for n in range(20)
    ]
    for number, task_id in enumerate(task_ids):
        task = await ended(built, task_id)
        ran = f"start k{number}" in bench.lines()
        assert ran == (task.status is TaskStatus.COMPLETED), task
        assert ran or reason_of(task) == "expired"
    await until_idle(built)
    assert loud(caplog) == []
