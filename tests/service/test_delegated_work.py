"""A tool that returns `pending`: its task goes on without a worker, and comes to an end."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import httpx2
import pytest

from outlast.domain import decisions
from outlast.domain.events import WorkDelegated
from outlast.domain.ports import Dispatcher, HeldAsk, Returned
from outlast.domain.task import Task, TaskStatus
from outlast.service.news import NewsReader
from outlast.service.worker import Worker
from outlast.tests.acceptance.waiting import until
from outlast.tests.contracts import stores
from outlast.tests.domain.given import DEPLOY, RESULT
from outlast.tests.service.callback_bench import (
    PENDING,
    Bench,
    Job,
    Scripted,
    bench_on,
    delegates,
    starts,
    working,
)
from outlast.tests.support.upstreams import outcome, reached, text

pytestmark = pytest.mark.anyio

PATIENCE_S = 30.0
SHORT_MS = 5_000  # enough to be handed on, also on a busy machine


@pytest.fixture
async def bench(database_url: str) -> AsyncIterator[Bench]:
    async with stores.on_postgres(database_url) as ports, bench_on(ports) as bench:
        yield bench


async def until_it(bench: Bench, task: Task, holds: Callable[[Task], bool]) -> Task:
    """The task, once this holds of it."""

    async def is_so() -> bool:
        return holds(await bench.load(task))

    await until(is_so, PATIENCE_S)
    return await bench.load(task)


def is_delegated(task: Task) -> bool:
    return task.is_delegated


def has_ended(task: Task) -> bool:
    return task.status.is_terminal


async def until_idle(worker: Worker) -> None:
    async def is_idle() -> bool:
        return worker.running_count == 0

    await until(is_idle, PATIENCE_S)


async def answer_once_settled(job: Job) -> httpx2.Response:
    """What a job is told in the end that tries again after 425, as it is asked to."""
    answers: list[httpx2.Response] = []

    async def is_settled() -> bool:
        answers.append(await job.completes())
        return answers[-1].status_code != 425

    await until(is_settled, PATIENCE_S)
    return answers[-1]


async def test_tasks_whose_jobs_run_elsewhere_hold_no_slot(bench: Bench):
    async with working(bench, "worker-a", slots=1) as worker:
        tasks = [await bench.queued() for _ in range(3)]
        for number, task in enumerate(tasks):
            tasks[number] = await until_it(bench, task, is_delegated)
        await until_idle(worker)
        assert [task.status for task in tasks] == [TaskStatus.WORKING] * 3
        for task, call in zip(tasks, bench.upstream.calls, strict=True):
            assert call.callback is not None
            job = Job(call.callback["url"], call.callback["secret"], bench.http)
            assert (await job.completes()).status_code == 204
            assert (await bench.load(task)).result == {"resultType": "complete", **RESULT}


async def test_a_job_that_does_not_call_back_in_time_fails_its_task(bench: Bench):
    async with working(bench, "worker-a"):
        task = await bench.queued(timeout_ms=SHORT_MS)
        task = await until_it(bench, task, has_ended)
    assert task.error is not None
    assert (task.status, task.error["data"]) == (TaskStatus.FAILED, {"reason": "timeout"})
    history = await bench.ports.log.read(task.id)
    assert [type(event) for event in history].count(WorkDelegated) == 1
    assert (await bench.job(task).completes()).status_code == 410
    assert await bench.ports.dispatcher.claim("worker-b", 1, 1.0) == []


class _Noting:
    """A dispatcher that keeps what was given back."""

    def __init__(self, real: Dispatcher) -> None:
        self._real = real
        self.released: list[tuple[str, float]] = []
        self.claim, self.renew, self.depth = real.claim, real.renew, real.depth
        self.quiet_s = real.quiet_s

    async def release(self, worker: str, task_ids: Sequence[str], delay_s: float) -> None:
        await self._real.release(worker, task_ids, delay_s)
        self.released += [(task_id, delay_s) for task_id in task_ids]


async def test_a_worker_whose_clock_is_behind_gives_the_task_back_until_its_time(bench: Bench):
    """The store's clock says when it is due, the worker's when it is over."""
    task = await bench.opened(delegates(bench.clock, bench.clock()))
    bench.clock.ahead = -timedelta(hours=1)
    noting = _Noting(bench.ports.dispatcher)
    late = replace(bench, ports=replace(bench.ports, dispatcher=noting))

    async def is_given_back() -> bool:
        return bool(noting.released)

    async with working(late, "worker-late"):
        await until(is_given_back, PATIENCE_S)
        assert [task_id for task_id, _ in noting.released] == [task.id]
        assert noting.released[0][1] > 3_000
        assert (await bench.load(task)).is_delegated


async def test_everything_may_restart_between_the_tools_return_and_its_jobs_callback(
    database_url: str,
):
    async with stores.on_postgres(database_url) as ports, bench_on(ports) as bench:
        async with working(bench, "worker-a"):
            tasks = [await bench.queued(timeout_ms=ms) for ms in (600_000, SHORT_MS)]
            told, silent = [await until_it(bench, task, is_delegated) for task in tasks]
        path = httpx2.URL(bench.job(told).url).path
        secret = bench.job(told).secret
    async with stores.on_postgres(database_url) as ports, bench_on(ports) as bench:
        base = httpx2.URL(bench.job(told).url)
        job = Job(str(base.copy_with(path=path)), secret, bench.http)
        assert (await job.completes()).status_code == 204
        async with working(bench, "worker-b"):
            silent = await until_it(bench, silent, has_ended)
        assert silent.status is TaskStatus.FAILED
        assert (await bench.load(told)).status is TaskStatus.COMPLETED


async def test_an_unsafe_tool_whose_worker_died_before_it_told_of_the_job_is_lost(bench: Bench):
    task = await bench.opened(rerun_is_safe=False)
    job = bench.job(task)
    assert (await job.completes()).status_code == 425
    async with working(bench, "worker-b"):
        answer = await answer_once_settled(job)
    task = await bench.load(task)
    assert (answer.status_code, task.status) == (410, TaskStatus.FAILED)
    assert task.error is not None
    assert task.error["data"] == {"reason": "worker_lost"}
    assert bench.upstream.calls == []


async def test_a_safe_tool_whose_worker_died_before_it_told_of_the_job_starts_another(
    bench: Bench,
):
    task = await bench.opened(rerun_is_safe=True)
    old = bench.job(task)
    async with working(bench, "worker-b"):
        task = await until_it(bench, task, is_delegated)
        assert task.attempt == 2
        assert (await old.completes()).status_code == 409
        assert (await bench.job(task).completes()).status_code == 204
    assert (await bench.load(task)).status is TaskStatus.COMPLETED


async def test_a_pending_result_is_an_ordinary_one_where_no_callback_was_offered(bench: Bench):
    async with working(bench, "worker-a", offers=False):
        task = await until_it(bench, await bench.queued(), has_ended)
    assert bench.upstream.calls[0].callback is None
    assert task.result == {"resultType": "complete", **PENDING}


async def test_a_call_that_became_a_task_on_its_way_has_no_callback_either(bench: Bench):
    task = await bench.opened()
    async with working(bench, "worker-a", slots=0) as worker:
        worker.adopt(task, NewsReader(Scripted(Returned(PENDING))))
        task = await until_it(bench, task, has_ended)
    assert task.result == {"resultType": "complete", **PENDING}


@pytest.mark.parametrize(
    "result",
    [
        {**PENDING, "isError": True},
        {"content": [], "_meta": {"dev.outlast/pending": "true"}},
        {"content": [], "_meta": None},
        {"content": []},
    ],
    ids=["an error", "text", "no meta", "nothing"],
)
async def test_what_does_not_say_pending_ends_the_task(bench: Bench, result: dict[str, object]):
    bench.upstream.result = result
    async with working(bench, "worker-a"):
        task = await until_it(bench, await bench.queued(), has_ended)
    assert task.result == {"resultType": "complete", **result}


async def test_a_tool_that_returns_pending_after_a_cancel_request_ends_its_task(bench: Bench):
    task = await bench.queued()
    task = await bench.commands.change(task.id, starts(bench.clock), task)

    def cancels(newest: Task) -> decisions.Events:
        return decisions.request_cancel(newest, bench.clock())

    task = await bench.commands.change(task.id, cancels, task)
    given = decisions.delegate(task, task.attempt, None, bench.clock())
    task = await bench.ports.log.append(task, given)
    assert task.status is TaskStatus.CANCELLED
    assert (await bench.job(task).completes()).status_code == 410


async def test_a_tool_that_asks_and_does_not_wait_leaves_its_job_the_tools_time(bench: Bench):
    asks = HeldAsk(DEPLOY, lambda _result: None, lambda _code, _message: None)
    bench.upstream.told_first = (asks,)
    async with working(bench, "worker-a"):
        task = await until_it(bench, await bench.queued(timeout_ms=600_000), is_delegated)
    assert task.delegated_until is not None
    assert (len(task.questions), task.outstanding) == (1, ())


@pytest.mark.parametrize("way", ["stdio-modern", "stdio-legacy"])
async def test_an_upstream_of_either_era_is_handed_the_callback(way: str):
    callback = {"url": "https://a.example/callbacks/x", "secret": "whsec_x"}
    async with reached(way, "everyday", {}) as upstreams:
        seen = json.loads(text(await outcome(upstreams, "who_asks", callback=callback)))
        without = json.loads(text(await outcome(upstreams, "who_asks")))
    assert seen["meta"]["dev.outlast/callback"] == callback
    assert "dev.outlast/callback" not in without["meta"]
