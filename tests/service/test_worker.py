"""The worker on a real PostgreSQL and real upstream processes: slots, cancels, limits, leases."""

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from outlast.adapters import run_queue, upstream_server
from outlast.domain import events
from outlast.domain.queueing import LEASE_S
from outlast.domain.task import TaskStatus
from outlast.service.config import Upstream
from outlast.tests.acceptance.waiting import until
from outlast.tests.chaos import nodes
from outlast.tests.service.worker_bench import (
    JOURNALING,
    PATIENCE_S,
    Bench,
    answer,
    cancel,
    ended,
    history,
    opened,
    until_is,
)
from outlast.tests.support.ports import free_port

pytestmark = pytest.mark.anyio

EVERYDAY = Path(__file__).parents[1] / "upstreams" / "everyday.py"
CANCEL_S_MAX, SOON_MIN = 1.0, 2
QUEUE = 1000
QUEUE_S_MAX = 90.0
FEW_EVENTS = {events.TaskOpened, events.WorkStarted, events.TaskCompleted}


@pytest.fixture
async def bench(database_url: str, tmp_path: Path) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(database_url, tmp_path / "journal", stack)


@pytest.mark.promise("parked-task-holds-no-slot")
@pytest.mark.parametrize("tool", ["new.asks", "old.asks_legacy"])
async def test_a_task_that_waits_for_an_answer_holds_no_slot(bench: Bench, tool: str):
    built = await bench.worker(slots=1)
    parked = [await opened(built, tool, bench.arguments(f"p{n}", seconds=0)) for n in range(3)]
    for task_id in parked:
        await until_is(built, task_id, TaskStatus.INPUT_REQUIRED)
    fourth = await opened(built, "new.safe", bench.arguments("fourth", seconds=0))
    assert (await ended(built, fourth)).status is TaskStatus.COMPLETED
    for task_id in parked:
        assert (await built.commands.load(task_id)).status is TaskStatus.INPUT_REQUIRED
        await answer(built, task_id, "go")
    for task_id in parked:
        assert (await ended(built, task_id)).status is TaskStatus.COMPLETED


@pytest.mark.promise("cancel-reaches-upstream")
async def test_a_cancel_from_another_process_reaches_the_call_within_a_second(bench: Bench):
    await bench.worker()
    other = await bench.worker(claims=False)
    took: list[float] = []
    for key in "abcdef":
        task_id = await opened(other, "new.hold", bench.arguments(key))
        await bench.until_noted(f"start {key}")
        cancelled_at = nodes.now()
        await cancel(other, task_id)
        await bench.until_noted(f"stop {key}")
        took.append(nodes.now() - cancelled_at)
        assert (await ended(other, task_id)).status is TaskStatus.CANCELLED
        if len([s for s in took if s < CANCEL_S_MAX]) == SOON_MIN:
            break
    print(f"the call was told to stop after {[round(s, 3) for s in took]} s")
    # More tries where the machine stands still: who looks by itself takes half a minute.
    assert len([s for s in took if s < CANCEL_S_MAX]) == SOON_MIN, took


@pytest.mark.promise("cancel-reaches-upstream")
async def test_a_second_cancel_changes_nothing_while_the_first_is_under_way(bench: Bench):
    built = await bench.worker()
    task_id = await opened(built, "new.hold", bench.arguments("k"))
    await bench.until_noted("start k")
    async with anyio.create_task_group() as owners:
        for _ in range(5):
            owners.start_soon(cancel, built, task_id)
    task = await ended(built, task_id)
    assert task.status is TaskStatus.CANCELLED
    assert (await cancel(built, task_id)).version == task.version
    wanted = [e for e in await history(built, task_id) if isinstance(e, events.CancelRequested)]
    assert len(wanted) == 1
    await bench.until_noted("stop k")  # one that is slow to say so is not waited for
    assert bench.lines() == ["start k", "stop k"]


async def test_a_queued_task_is_cancelled_at_once_while_no_worker_runs(bench: Bench):
    built = await bench.worker(claims=False)
    task_id = await opened(built, "new.safe", bench.arguments("k", seconds=0))
    assert (await cancel(built, task_id)).status is TaskStatus.CANCELLED
    later = await bench.worker()
    other = await opened(later, "new.safe", bench.arguments("other", seconds=0))
    assert (await ended(later, other)).status is TaskStatus.COMPLETED
    assert "start k" not in bench.lines()


async def test_a_cancel_ends_a_task_whose_call_holds_a_question(bench: Bench):
    built = await bench.worker()
    task_id = await opened(built, "old.asks_legacy", bench.arguments("k", seconds=0))
    await until_is(built, task_id, TaskStatus.INPUT_REQUIRED)
    await cancel(built, task_id)
    task = await ended(built, task_id)
    assert task.status is TaskStatus.CANCELLED
    assert not task.outstanding


async def test_a_tool_that_takes_too_long_is_stopped_and_fails(bench: Bench):
    built = await bench.worker()

    async def has_begun() -> bool:
        """Whether the body was there to be stopped: a busy machine takes its half second."""
        task_id = await opened(built, "new.hold", bench.arguments("k"), timeout_ms=500)
        task = await ended(built, task_id)
        assert task.status is TaskStatus.FAILED
        assert task.error is not None
        assert task.error["data"] == {"reason": "timeout"}
        return "start k" in bench.lines()

    await until(has_begun, PATIENCE_S)
    await bench.until_noted("stop k")


async def test_the_time_that_the_client_takes_to_answer_is_not_the_tools(bench: Bench):
    built = await bench.worker()
    # The time that the upstream needs to start counts as the tool's: let it be there already.
    warm = await opened(built, "old.safe", bench.arguments("warm", seconds=0))
    assert (await ended(built, warm)).status is TaskStatus.COMPLETED
    arguments = bench.arguments("k", seconds=0)
    task_id = await opened(built, "old.asks_legacy", arguments, timeout_ms=5_000)
    await until_is(built, task_id, TaskStatus.INPUT_REQUIRED)
    with anyio.move_on_after(5.5):
        await anyio.sleep_forever()
    await answer(built, task_id, "late")
    assert (await ended(built, task_id)).status is TaskStatus.COMPLETED


async def test_progress_is_recorded_once_a_second_and_the_newest_counts(bench: Bench):
    built = await bench.worker()
    arguments = bench.arguments("k", count=35, pause=0.1)
    task_id = await opened(built, "new.steps", arguments)
    assert (await ended(built, task_id)).status is TaskStatus.COMPLETED
    told = [e for e in await history(built, task_id) if isinstance(e, events.ProgressReported)]
    assert len(told) >= 2, told
    assert all(event.message == f"step {event.progress:g}" for event in told)
    seconds = [datetime.fromisoformat(event.at).timestamp() for event in told]
    assert all(later - sooner >= 0.95 for sooner, later in pairwise(seconds)), told
    # Ten steps a second, fewer where the machine is slow, none for a while where it stands still:
    # what is told is as new as the second allows, and not the first of a backlog.
    assert told[-1].progress - told[0].progress >= 2 * (len(told) - 1), told


async def test_a_job_longer_than_the_lease_is_run_once(bench: Bench):
    # One that is full claims nothing, so only its beat can keep the lease from the other.
    built = await bench.worker(slots=1)
    await bench.worker(slots=1)
    task_id = await opened(built, "new.unsafe", bench.arguments("k", seconds=LEASE_S + 4))
    assert (await ended(built, task_id)).status is TaskStatus.COMPLETED
    assert {type(event) for event in await history(built, task_id)} == FEW_EVENTS
    assert bench.lines() == ["start k", "end k"]


@pytest.mark.promise("outage-never-lies")
async def test_leases_that_ran_out_are_left_to_their_holders_after_an_outage(bench: Bench):
    built = await bench.worker(claims=False)
    # More than a silence, or one that is none yet could be patience enough at the end.
    patience_s = run_queue.SILENCE_S_MAX + 0.5
    other = run_queue.PostgresDispatcher(built.store, patience_s=patience_s)
    task_id = await opened(built, "new.safe", bench.arguments("k", seconds=0))
    assert await built.dispatcher.claim("first", 1, 0.01) == [task_id]
    began_at = nodes.now()
    assert await other.claim("second", 1, 60) == []  # who has just come knows nothing of outages

    async def is_taken() -> bool:
        return await other.claim("second", 1, 0.01) == [task_id]

    async def is_taken_soon() -> bool:
        asked_at = nodes.now()
        await until(is_taken, PATIENCE_S)
        return nodes.now() - asked_at < patience_s / 2

    await until(is_taken, PATIENCE_S)
    assert nodes.now() - began_at >= patience_s
    await until(is_taken_soon, PATIENCE_S)  # it is in touch now, and need not be patient again
    with anyio.move_on_after(run_queue.SILENCE_S_MAX + 0.2):
        await anyio.sleep_forever()  # in this time the holder could not have been heard either
    assert await other.claim("second", 1, 60) == []
    fresh = await opened(built, "new.safe", bench.arguments("fresh", seconds=0))
    assert await other.claim("second", 2, 60) == [fresh]


async def test_a_thousand_queued_tasks_are_all_run(bench: Bench):
    built = await bench.worker(claims=False)
    ids: list[str] = []

    async def open_some(first: int) -> None:
        for number in range(first, QUEUE, 10):
            key = f"k{number}"
            ids.append(await opened(built, "new.safe", bench.arguments(key, seconds=0)))

    async with anyio.create_task_group() as owners:
        for first in range(10):
            owners.start_soon(open_some, first)
    began_at = nodes.now()
    await bench.worker(slots=16)

    async def is_empty() -> bool:
        return len(bench.lines()) == 2 * QUEUE

    await until(is_empty, QUEUE_S_MAX)
    print(f"{QUEUE} tasks were run in {nodes.now() - began_at:.1f} s")
    for task_id in ids:
        assert (await ended(built, task_id)).status is TaskStatus.COMPLETED
    starts = [line for line in bench.lines() if line.startswith("start")]
    assert len(set(starts)) == len(starts) == QUEUE


async def test_a_task_waits_for_an_upstream_that_is_down_without_using_up_attempts(bench: Bench):
    port = free_port()
    built = await bench.worker(far=Upstream(url=f"http://127.0.0.1:{port}/mcp"))
    task_id = await opened(built, "far.add", {"a": 1, "b": 2})

    async def was_tried() -> bool:
        return await built.dispatcher.depth() == 0

    await until(was_tried, PATIENCE_S)
    assert (await built.commands.load(task_id)).version == 1
    async with http_upstream(port):
        task = await ended(built, task_id)
    assert (task.status, task.attempt) == (TaskStatus.COMPLETED, 1)


async def test_a_task_waits_for_a_connection_without_using_up_attempts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """What asks of older servers holds a connection alone, for as long as nobody answers."""
    monkeypatch.setattr(upstream_server, "HELD_LINKS_MAX", 1)
    built = await bench.worker()
    first = await opened(built, "old.asks_legacy", bench.arguments("first", seconds=0))
    await until_is(built, first, TaskStatus.INPUT_REQUIRED)
    second = await opened(built, "old.asks_legacy", bench.arguments("second", seconds=0))

    async def was_tried() -> bool:
        return "1 calls hold connections" in caplog.text

    await until(was_tried, PATIENCE_S)
    await answer(built, first, "go")
    await until_is(built, second, TaskStatus.INPUT_REQUIRED)
    seen = [type(event) for event in await history(built, second)]
    assert seen == [events.TaskOpened, events.WorkStarted, events.InputRequested]


async def test_a_task_of_an_unknown_upstream_waits_for_a_worker_that_knows_it(bench: Bench):
    built = await bench.worker(other=Upstream(command=JOURNALING))
    task_id = await opened(built, "new.safe", bench.arguments("k", seconds=0))

    async def was_tried() -> bool:
        return await built.dispatcher.depth() == 0

    await until(was_tried, PATIENCE_S)
    assert (await built.commands.load(task_id)).version == 1
    await bench.worker()
    task = await ended(built, task_id)
    assert (task.status, task.attempt) == (TaskStatus.COMPLETED, 1)


@asynccontextmanager
async def http_upstream(port: int) -> AsyncIterator[None]:
    """The everyday fixture server over HTTP."""
    command = [sys.executable, str(EVERYDAY), "--http", str(port)]
    quiet = subprocess.DEVNULL
    process = await anyio.open_process(command, stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        yield
    finally:
        process.kill()
        await process.wait()
