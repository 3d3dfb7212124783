"""Following a job by whatever bridge: when it is looked at, what counts of it, what it is told."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from outlast.domain import decisions, jobs
from outlast.domain.jobs import Sight
from outlast.domain.task import Task, TaskStatus
from outlast.service.bridging.following import Following
from outlast.service.bridging.port import (
    Asks,
    Away,
    Bridge,
    Completed,
    Failed,
    Job,
    Pace,
    Seen,
    Unknown,
    Working,
)
from outlast.service.retention import Retention
from outlast.service.workbench import Workbench
from outlast.service.worker import Stores, Worker
from outlast.tests.acceptance.waiting import until
from outlast.tests.contracts import stores
from outlast.tests.domain.given import DEPLOY, ERROR, RESULT, YES
from outlast.tests.service.callback_bench import Bench, bench_on

pytestmark = pytest.mark.anyio

PATIENCE_S = 30.0
HOUR_MS = 3_600_000
NOTHING_NEW = Working(Sight("at work"))


@dataclass
class Fake(Bridge):
    """A bridge whose jobs are as a test says; a look waits until it may go on."""

    kind: str = "fake"
    seen: Seen = NOTHING_NEW
    own_pace: Pace = field(default_factory=Pace)
    reached: bool | None = True
    looks: int = 0
    cancels: int = 0
    answers: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    at_once: int = 0
    most_at_once: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    def job_in(self, task: Task, result: Mapping[str, Any]) -> Job | None:
        return None

    def pace(self, task: Task) -> Pace:
        return self.own_pace

    async def look(self, task: Task) -> Seen:
        self.looks += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.gate.wait()
        self.at_once -= 1
        return self.seen

    async def answer(self, task: Task, answers: Mapping[str, Mapping[str, Any]]) -> bool:
        self.answers.append(answers)
        return bool(self.reached)

    async def cancel(self, task: Task) -> bool | None:
        self.cancels += 1
        return self.reached


@pytest.fixture
async def bench(database_url: str) -> AsyncIterator[Bench]:
    async with stores.on_postgres(database_url) as ports, bench_on(ports) as bench:
        yield bench


async def followed(bench: Bench, lasts_s: float | None = None, kind: str = "fake") -> Task:
    """A task whose job is to be looked at now."""
    now = bench.clock()
    end = None if lasts_s is None else now + timedelta(seconds=lasts_s)
    job = {"kind": kind, "id": "job-1"}
    return await bench.opened(lambda task: jobs.follow(task, 1, job, end, now, now))


@asynccontextmanager
async def worker(bench: Bench, bridge: Bridge, name: str = "worker-b") -> AsyncGenerator[Worker]:
    """A worker with one slot that follows jobs of this kind."""
    own = Workbench(bench.commands, bench.upstream, bench.ports.signal, bridges=[bridge])
    retention = Retention(bench.commands, bench.ports.views, bench.ports.past, timedelta(days=30))
    working = Worker(name, own, Stores(bench.ports.dispatcher, retention), slots=1)
    working.start()
    try:
        yield working
    finally:
        await working.drain(0.0)


async def until_so(holds: Callable[[], bool]) -> None:
    async def is_so() -> bool:
        return holds()

    await until(is_so, PATIENCE_S)


async def until_it(bench: Bench, task: Task, holds: Callable[[Task], bool]) -> Task:
    async def is_so() -> bool:
        return holds(await bench.load(task))

    await until(is_so, PATIENCE_S)
    return await bench.load(task)


def has_ended(task: Task) -> bool:
    return task.status.is_terminal


async def cancel(bench: Bench, task: Task) -> Task:
    return await bench.commands.change(
        task.id, lambda newest: decisions.request_cancel(newest, bench.clock())
    )


@pytest.mark.parametrize(
    ("age_s", "pause_s"), [(0, 2), (19, 2), (50, 5), (300, 30), (7_200, 60), (86_000, 60)]
)
async def test_a_job_is_looked_at_after_a_tenth_of_its_age_whoever_looks(
    bench: Bench, age_s: float, pause_s: float
):
    following = Following(bench.commands, [Fake(own_pace=Pace(2_000, 60_000))])
    task = await followed(bench)
    bench.clock.ahead = timedelta(seconds=age_s)
    found = await following.look(task)
    assert found == pytest.approx(pause_s, rel=0.5)


async def test_the_end_of_its_time_is_not_slept_through(bench: Bench):
    task = await followed(bench, lasts_s=30)
    following = Following(bench.commands, [Fake(own_pace=Pace(HOUR_MS, HOUR_MS))])
    assert 15 < (await following.look(task) or 0) <= 30


async def test_a_job_is_looked_at_once_more_when_its_time_is_up(bench: Bench):
    done, late = await followed(bench, lasts_s=30), await followed(bench, lasts_s=30)
    bench.clock.ahead = timedelta(seconds=31)
    bridge = Fake(seen=Completed(RESULT))
    assert await Following(bench.commands, [bridge]).look(done) is None
    assert ((await bench.load(done)).result, bridge.cancels) == (RESULT, 0)
    bridge = Fake(seen=Away("gone"))
    assert await Following(bench.commands, [bridge]).look(late) is None
    late = await bench.load(late)
    assert (late.error or {})["data"] == {"reason": "timeout"}
    assert bridge.cancels == 1


async def test_a_cancelled_job_does_not_outlast_its_time(bench: Bench):
    task = await followed(bench, lasts_s=30)
    task = await cancel(bench, task)
    bench.clock.ahead = timedelta(seconds=31)
    bridge = Fake(own_pace=Pace(cancel_ms=HOUR_MS))
    assert await Following(bench.commands, [bridge]).look(task) is None
    assert (await bench.load(task)).status is TaskStatus.CANCELLED


@pytest.mark.parametrize("seen", [NOTHING_NEW, Away("gone"), Unknown("what job?")])
async def test_a_look_that_was_overtaken_records_nothing(bench: Bench, seen: Seen):
    task = await followed(bench)
    bridge = Fake(seen=seen)
    bridge.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(Following(bench.commands, [bridge]).look(task))
        await until_so(lambda: bridge.looks == 1)
        newer = await bench.commands.change(
            task.id, lambda t: jobs.see_job(t, 1, Sight("newer", 5), t.job or {}, bench.clock())
        )
        bridge.gate.set()
        assert await looking is not None
    assert await bench.load(task) == newer


@pytest.mark.parametrize("seen", [Completed(RESULT), Failed(ERROR)])
async def test_an_end_counts_whatever_happened_meanwhile(bench: Bench, seen: Seen):
    task = await followed(bench)
    bridge = Fake(seen=seen)
    bridge.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(Following(bench.commands, [bridge]).look(task))
        await until_so(lambda: bridge.looks == 1)
        await cancel(bench, task)
        bridge.gate.set()
        assert await looking is None
    assert (await bench.load(task)).status.is_terminal
    assert bridge.cancels == 0


async def test_a_cancel_during_a_look_is_told_to_the_job_right_after_it(bench: Bench):
    """The row came back to the very worker that looks: it must not sleep until the next look."""
    bridge = Fake(own_pace=Pace(HOUR_MS, HOUR_MS, cancel_ms=HOUR_MS))
    bridge.gate.clear()
    async with worker(bench, bridge):
        task = await followed(bench)
        await until_so(lambda: bridge.looks == 1)
        await cancel(bench, task)

        async def is_taken_again() -> bool:
            return not await bench.ports.dispatcher.claim_looks("worker-c", 0, 1.0) and (
                await bench.ports.dispatcher.depth() == 0
            )

        await until(is_taken_again, PATIENCE_S)
        bridge.gate.set()
        await until_so(lambda: bridge.cancels == 1)
        await until_so(lambda: bridge.looks >= 2)
        assert (await bench.load(task)).is_followed


async def test_two_workers_never_look_at_once(bench: Bench):
    bridge = Fake(own_pace=Pace(10, 10))
    async with worker(bench, bridge, "worker-b"), worker(bench, bridge, "worker-c"):
        await followed(bench)
        await until_so(lambda: bridge.looks >= 20)
    assert bridge.most_at_once == 1


async def test_what_a_job_asks_is_asked_once_and_answered_once(bench: Bench):
    bridge = Fake(seen=Asks([DEPLOY]), own_pace=Pace(50, 50))
    async with worker(bench, bridge):
        task = await followed(bench)
        asked = await until_it(bench, task, lambda t: t.status is TaskStatus.INPUT_REQUIRED)
        looks = bridge.looks
        await until_so(lambda: bridge.looks > looks + 1)
        assert await bench.load(task) == asked
        bridge.reached = False
        answers = {asked.outstanding[0].key: YES}
        await bench.commands.change(
            task.id, lambda t: decisions.receive_input(t, answers, bench.clock())
        )
        await until_so(lambda: len(bridge.answers) >= 2)
        bridge.reached = True
        told = await until_it(bench, task, lambda t: not jobs.to_tell(t))
        times = len(bridge.answers)
        bridge.seen = Completed(RESULT)
        await until_it(bench, task, has_ended)
    assert (told.status, len(bridge.answers)) == (TaskStatus.WORKING, times)
    assert bridge.answers == [{DEPLOY.name: YES}] * times


class GoesOn(Fake):
    """Its job ends once it has its answer."""

    async def answer(self, task: Task, answers: Mapping[str, Mapping[str, Any]]) -> bool:
        self.seen = Completed(RESULT)
        return await super().answer(task, answers)


async def test_an_answer_is_passed_on_at_once_although_the_next_look_is_far(bench: Bench):
    bridge = GoesOn(seen=Asks([DEPLOY]), own_pace=Pace(HOUR_MS, HOUR_MS))
    async with worker(bench, bridge):
        task = await followed(bench)
        asked = await until_it(bench, task, lambda t: t.status is TaskStatus.INPUT_REQUIRED)
        answers = {asked.outstanding[0].key: YES}
        await bench.commands.change(
            task.id, lambda t: decisions.receive_input(t, answers, bench.clock())
        )
        task = await until_it(bench, task, has_ended)
    assert bridge.answers == [{DEPLOY.name: YES}]


@pytest.mark.parametrize("lasts_s", [None, 30], ids=["its patience", "its time"])
async def test_a_job_is_told_to_stop_before_it_is_given_up_whatever_a_look_took(
    bench: Bench, lasts_s: float | None
):
    task = await followed(bench, lasts_s)
    bridge = Fake(own_pace=Pace(cancel_ms=500))
    bridge.gate.clear()
    following = Following(bench.commands, [bridge])
    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(following.look(task))
        await until_so(lambda: bridge.looks == 1)
        await cancel(bench, task)
        bench.clock.ahead = timedelta(seconds=31)
        bridge.gate.set()
        await looking
    if not (await bench.load(task)).status.is_terminal:
        assert await following.look(await bench.load(task)) is None
    assert (await bench.load(task)).status is TaskStatus.CANCELLED
    assert bridge.cancels == 1


async def test_a_cancel_that_reaches_nobody_is_told_again_until_its_time_is_up(bench: Bench):
    bridge = Fake(own_pace=Pace(50, 50, cancel_ms=HOUR_MS), reached=False)
    async with worker(bench, bridge):
        task = await followed(bench)
        await until_so(lambda: bridge.looks >= 1)
        await cancel(bench, task)
        await until_so(lambda: bridge.cancels >= 3)
        assert not (await bench.load(task)).status.is_terminal
        bench.clock.ahead = timedelta(hours=2)
        task = await until_it(bench, task, has_ended)
    assert task.status is TaskStatus.CANCELLED


async def test_a_job_that_nothing_here_can_follow_says_so_and_waits(bench: Bench):
    task = await followed(bench, kind="of another release")
    assert await Following(bench.commands, [Fake()]).look(task) == pytest.approx(1, rel=0.5)
    task = await bench.load(task)
    assert (task.status_message, task.is_followed) == ("This job cannot be looked at now", True)


async def test_the_time_to_live_of_a_job_without_an_end_is_extended_by_looks(bench: Bench):
    task = await followed(bench)
    given = task.ttl_ms
    assert given is not None
    bench.clock.ahead = timedelta(milliseconds=given * 0.9)
    await Following(bench.commands, [Fake()]).look(task)
    assert ((await bench.load(task)).ttl_ms or 0) > given


async def test_progress_is_recorded_at_most_once_a_second(bench: Bench):
    bridge = Fake(own_pace=Pace(10, 10))
    told: Sequence[Any] = ()
    async with worker(bench, bridge):
        task = await followed(bench)
        for number in range(30):
            bridge.seen = Working(Sight("at work", number))
            looks = bridge.looks
            await until_so(lambda looks=looks: bridge.looks > looks)
        told = [e for e in await bench.ports.log.read(task.id) if hasattr(e, "progress")]
    spent_s = (bench.clock() - bench.clock().fromisoformat(task.created_at)).total_seconds()
    assert 1 <= len(told) <= spent_s + 2


async def test_a_job_is_lost_once_it_was_unknown_for_a_time_without_a_break(bench: Bench):
    task, bridge = await followed(bench), Fake(own_pace=Pace(lost_after_ms=120_000))
    following = Following(bench.commands, [bridge])
    for ahead_s, seen in ((0, Unknown("no")), (100, NOTHING_NEW), (200, Unknown("no"))):
        bridge.seen, bench.clock.ahead = seen, timedelta(seconds=ahead_s)
        assert await following.look(await bench.load(task)) is not None
    bridge.seen, bench.clock.ahead = Away("gone"), timedelta(seconds=400)
    assert await following.look(await bench.load(task)) is not None
    bridge.seen = Unknown("what job?")
    assert await following.look(await bench.load(task)) is None
    assert (await bench.load(task)).error == decisions.failure(
        "job_lost", "The job cannot be found any more: what job?"
    )
