"""Who asks the queue, and when: the signal tells, the clock tells, and what waits is not polled."""

import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from outlast.adapters.signal import PostgresSignal
from outlast.domain import decisions, errors, events
from outlast.domain.ports import Dispatcher, Signal
from outlast.domain.task import Task, TaskStatus, evolve
from outlast.service import wiring, worker
from outlast.service.commands import Commands, Wish
from outlast.service.config import Upstream
from outlast.service.workbench import Workbench
from outlast.service.worker import Stores, Worker
from outlast.tests.acceptance.waiting import until
from outlast.tests.contracts.stores import until_live
from outlast.tests.domain.given import DEPLOY
from outlast.tests.service.worker_bench import (
    JOURNALING,
    PATIENCE_S,
    Bench,
    answer,
    cancel,
    ended,
    opened,
    opening,
    until_is,
)
from outlast.tests.support import proxy
from outlast.tests.support.proxy import Proxy

pytestmark = [pytest.mark.anyio, pytest.mark.promise("waiting-tasks-are-not-polled-for")]

NEVER_S = 1_000.0
OFTEN_S = 0.05
TWICE, FEW = 2, 6  # once may be a machine that stood still
WAITING = 40
LATE_S = 0.9 * worker.CLAIM_YIELD_S  # two clocks
LEFT_S = 3.0  # some eighty looks, if anybody looked that often


@pytest.fixture
async def bench(database_url: str, tmp_path: Path) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(database_url, tmp_path / "journal", stack)


@pytest.fixture
async def wire(database_url: str) -> AsyncIterator[Proxy]:
    """The way of the signal, to be cut."""
    async with proxy.between(database_url) as wire:
        yield wire


@pytest.fixture
def nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers look at nothing by themselves."""
    for pause in ("CLAIM_RECHECK_S", "CLAIM_QUIET_S"):
        monkeypatch.setattr(worker, pause, NEVER_S)


class Counting:
    """A dispatcher that counts what it is asked."""

    def __init__(self, real: Dispatcher) -> None:
        self._real = real
        self.renew, self.depth, self.claim_looks = real.renew, real.depth, real.claim_looks
        self.claimed: list[Sequence[str]] = []
        self.quiet: list[float] = []
        self.late_by: list[float] = []  # s, at each claim since what was last given back was due
        self._due = math.inf

    async def claim(self, worker: str, limit: int, lease_s: float) -> Sequence[str]:
        self.late_by.append(time.monotonic() - self._due)
        self.claimed.append(await self._real.claim(worker, limit, lease_s))
        return self.claimed[-1]

    async def release(self, worker: str, task_ids: Sequence[str], delay_s: float) -> None:
        self._due = time.monotonic() + delay_s
        await self._real.release(worker, task_ids, delay_s)

    async def quiet_s(self, worker: str) -> float:
        self.quiet.append(await self._real.quiet_s(worker))
        return self.quiet[-1]


@asynccontextmanager
async def working(
    built: wiring.Built, name: str = "watched", *, slots: int = 4, signal: Signal | None = None
) -> AsyncIterator[Counting]:
    """One worker more beside those of the bench, and what it asks."""
    counting = Counting(built.dispatcher)
    workbench = Workbench(built.commands, built.upstreams, signal or built.signal)
    watched = Worker(name, workbench, Stores(counting, built.retention), slots=slots)
    watched.start()
    try:
        yield counting
    finally:
        await watched.drain(0.0)


@asynccontextmanager
async def hearing(wire: Proxy, built: wiring.Built) -> AsyncIterator[PostgresSignal]:
    """A signal that hears over the wire."""
    signal = PostgresSignal(wire.url, built.store)
    await signal.open()
    try:
        await until_live(signal)
        yield signal
    finally:
        await signal.close()


async def deaf(signal: PostgresSignal, wire: Proxy) -> None:
    """Cut it off, for good."""
    wire.is_refusing = True
    wire.cut()

    async def is_deaf() -> bool:
        return not signal.is_live

    await until(is_deaf, PATIENCE_S)


Given = Callable[[Task], decisions.Events]


async def given(built: wiring.Built, opens: events.TaskOpened, *wishes: Given) -> str:
    """A task that all of this has happened to, in one commit."""
    history, task = decisions.open_task(opens), evolve(None, opens)
    for wish in (begun_elsewhere, *wishes):
        history += (more := wish(task))
        for event in more:
            task = evolve(task, event)
    return (await built.commands.open(history)).id


def begun_elsewhere(task: Task) -> decisions.Events:
    return decisions.start_work(task, "elsewhere", wiring.now())


def delegated(seconds: float) -> Given:
    """Its job elsewhere has so much time."""
    now = wiring.now()
    return lambda task: decisions.delegate(task, 1, now + timedelta(seconds=seconds), now)


def parked(task: Task) -> decisions.Events:
    return decisions.finish_leg(task, 1, (DEPLOY,), None, wiring.now())


async def until_looked(asked: Counting, before: int = 0) -> None:
    """Once it has asked the queue, more often than `before`."""

    async def has_looked() -> bool:
        return len(asked.claimed) > before

    await until(has_looked, PATIENCE_S)


async def test_a_worker_without_a_free_slot_asks_for_nothing(bench: Bench):
    built = await bench.worker(claims=False)
    async with working(built, slots=1) as asked:
        first = await opened(built, "new.hold", bench.arguments("first"))
        await bench.until_noted("start first")
        before = len(asked.claimed)
        for number in range(FEW):
            async with built.signal.watching_queue() as witness:
                await opened(built, "new.safe", bench.arguments(f"k{number}", seconds=0))
                assert await witness.wait(PATIENCE_S)
        await cancel(built, first)
        await bench.until_noted(f"end k{FEW - 1}")
        assert [len(claimed) for claimed in asked.claimed[before:][:FEW]] == [1] * FEW


async def test_waiting_tasks_are_looked_at_when_their_time_comes_and_not_before(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    built = await bench.worker(claims=False)
    for _ in range(WAITING):
        await given(built, opening("new.hold", {}), delegated(3_600))
        await given(built, opening("new.hold", {}), parked)
    due = await given(built, opening("new.hold", {}), delegated(LEFT_S))
    monkeypatch.setattr(worker, "CLAIM_RECHECK_S", OFTEN_S)
    monkeypatch.setattr(worker, "CLAIM_QUIET_S", NEVER_S)
    async with working(built) as asked:
        assert (await ended(built, due)).status is TaskStatus.FAILED
        assert [due] in asked.claimed
        assert asked.claimed.index([due]) <= FEW


async def test_the_signal_alone_brings_a_task_that_is_created_or_answered(
    bench: Bench, nobody_looks: None
):
    built = await bench.worker(claims=False)
    async with working(built) as asked:
        await until_looked(asked)
        task_id = await opened(built, "new.asks", bench.arguments("k", seconds=0))
        await until_is(built, task_id, TaskStatus.INPUT_REQUIRED)
        await answer(built, task_id, "go")
        assert (await ended(built, task_id)).status is TaskStatus.COMPLETED


async def test_the_signal_alone_tells_of_room_that_an_owner_gets(bench: Bench, nobody_looks: None):
    built = await bench.worker(claims=False, running_per_owner=1)
    first = await given(built, opening("new.hold", {}))
    async with working(built) as asked:
        await until_looked(asked)
        second = await opened(built, "new.safe", bench.arguments("second", seconds=0))
        await until_looked(asked, 1)
        assert (await built.commands.load(second)).version == 1
        await built.commands.change(first, lambda t: decisions.complete(t, 1, {}, wiring.now()))
        assert (await ended(built, second)).status is TaskStatus.COMPLETED


@pytest.mark.promise("killed-worker-is-recovered")
@pytest.mark.parametrize("is_there_before", [True, False])
async def test_a_lease_that_nobody_tells_of_is_found_when_it_runs_out(
    bench: Bench, is_there_before: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker, "CLAIM_QUIET_S", NEVER_S if is_there_before else 1.0)
    built = await bench.worker(claims=False)
    opens = opening("new.safe", bench.arguments("k", seconds=0), rerun_is_safe=True)
    async with AsyncExitStack() as stack:
        if not is_there_before:
            await until_looked(await stack.enter_async_context(working(built)), 1)
        task_id = await given(built, opens)
        if is_there_before:
            await stack.enter_async_context(working(built))
        task = await ended(built, task_id)
        assert (task.status, task.attempt) == (TaskStatus.COMPLETED, 2)


async def test_what_is_due_or_new_while_the_signal_is_cut_is_still_run(
    bench: Bench, wire: Proxy, nobody_looks: None
):
    built = await bench.worker(claims=False)
    async with hearing(wire, built) as signal, working(built, signal=signal) as asked:
        await until_looked(asked)
        await deaf(signal, wire)
        due = await given(built, opening("new.hold", {}), delegated(0.5))
        new = await opened(built, "new.safe", bench.arguments("new", seconds=0))
        assert (await ended(built, due)).status is TaskStatus.FAILED
        assert (await ended(built, new)).status is TaskStatus.COMPLETED
        assert not signal.is_live


@pytest.mark.promise("cancel-reaches-upstream")
async def test_a_cancel_reaches_a_call_whose_worker_hears_nothing(bench: Bench, wire: Proxy):
    built = await bench.worker(claims=False)
    async with hearing(wire, built) as signal, working(built, signal=signal):
        task_id = await opened(built, "new.hold", bench.arguments("k"))
        await bench.until_noted("start k")
        await deaf(signal, wire)
        await cancel(built, task_id)
        await bench.until_noted("stop k")
        assert (await ended(built, task_id)).status is TaskStatus.CANCELLED


class Meddling(Commands):
    """Whatever a worker begins is cancelled before it knows that it has begun."""

    async def change(self, task_id: str, wish: Wish, known: Task | None = None) -> Task:
        task = await super().change(task_id, wish, known)
        if task.is_running and not task.cancel_requested:
            await super().change(task_id, lambda t: decisions.request_cancel(t, self.now()))
        return task


@pytest.mark.promise("cancel-reaches-upstream")
async def test_a_cancel_right_after_the_start_is_heard_although_nobody_looks(bench: Bench):
    built = await bench.worker(claims=False)
    meddled = replace(built, commands=Meddling(built.log, wiring.now))
    async with working(meddled):
        task_id = await opened(built, "new.hold", bench.arguments("k"))
        assert (await ended(built, task_id)).status is TaskStatus.CANCELLED


class Failing(Commands):
    """The store is away at the first looks of a run."""

    failures = 0

    async def load(self, task_id: str) -> Task:
        task = await super().load(task_id)
        if task.cancel_requested and self.failures < FEW:
            self.failures += 1
            raise errors.StoreUnavailable
        return task


@pytest.mark.promise("cancel-reaches-upstream")
async def test_a_cancel_that_could_not_be_read_at_first_is_read_again(bench: Bench):
    built = await bench.worker(claims=False)
    async with working(replace(built, commands=Failing(built.log, wiring.now))):
        task_id = await opened(built, "new.hold", bench.arguments("k"))
        await bench.until_noted("start k")
        await cancel(built, task_id)
        assert (await ended(built, task_id)).status is TaskStatus.CANCELLED


async def test_who_could_not_begin_a_task_comes_after_others_when_it_is_due(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker, "CLAIM_RECHECK_S", OFTEN_S)
    built = await bench.worker(claims=False, other=Upstream(command=JOURNALING))
    async with working(built) as asked:
        task_id = await opened(built, "new.safe", bench.arguments("k", seconds=0))

        async def came_second() -> bool:
            both = zip(asked.claimed, asked.late_by, strict=False)
            seconds = [late for ids, late in both if list(ids) == [task_id]]
            return sum(late >= LATE_S for late in seconds) >= TWICE

        await until(came_second, PATIENCE_S)
