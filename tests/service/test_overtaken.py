"""What a worker does when others are first: the owner, another worker, or the end of the store.

Each of these came at one certain moment; they are made to come then.
"""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from outlast.domain import decisions, errors, events, jobs
from outlast.domain.ports import Progress, Returned
from outlast.domain.task import Task, TaskStatus
from outlast.tests.acceptance.waiting import until
from outlast.tests.domain.given import RESULT, YES, Wish
from outlast.tests.service.played import (
    JOB,
    PATIENCE_S,
    Asking,
    Closing,
    Eventful,
    Played,
    Stage,
    World,
    nothing,
    now,
)

pytestmark = pytest.mark.anyio

HALF = Progress(1, 2, "half")


def begins(worker: str) -> Wish:
    return lambda task: decisions.start_work(task, worker, now())


def withdraws(task: Task) -> decisions.Events:
    return decisions.withdraw_work(task, task.attempt, "it was not sent", now())


def follows(task: Task) -> decisions.Events:
    return jobs.follow(task, task.attempt, JOB, None, now(), now())


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.promise("cancel-reaches-upstream")
async def test_a_cancel_before_a_progress_is_recorded_is_heeded(world: World):
    call, task_id = Played(HALF), await world.opened()
    log = Eventful(world.store, events.ProgressReported, before=world.cancel)
    async with world.working(Stage(call), log, log.bus):
        await world.until_is(task_id, TaskStatus.CANCELLED)
    assert call.was_stopped


async def test_an_answer_before_a_progress_is_recorded_is_given(world: World):
    task_id = await world.opened()
    log = Eventful(world.store, events.ProgressReported, before=world.answer)
    async with world.working(Stage(Asking(HALF)), log, log.bus):
        task = await world.until_is(task_id, TaskStatus.COMPLETED)
    assert (task.result or {})["structuredContent"] == YES


@pytest.mark.promise("cancel-reaches-upstream")
async def test_a_cancel_before_it_is_known_that_the_work_has_begun_is_heeded(world: World):
    stage, task_id = Stage(), await world.opened()
    log = Eventful(world.store, events.WorkStarted, after=world.cancel)
    async with world.working(stage, log):
        await world.until_is(task_id, TaskStatus.CANCELLED)
    assert stage.begun == []


async def test_an_attempt_that_another_has_begun_and_withdrawn_is_not_counted_as_ours(world: World):
    """While the upstream got ready, our lease ran out: what comes next is the attempt after."""
    stage, task_id = Stage(Played()), await world.opened()
    stage.is_ready.clear()
    async with world.working(stage):
        await until(world.is_claimed, PATIENCE_S)
        await world.change(task_id, begins("other"), withdraws)
        stage.is_ready.set()
        await until(stage.is_calling, PATIENCE_S)
        task = await world.commands.load(task_id)
    assert (task.worker, task.attempt) == ("here", 2)


async def test_a_call_that_begins_while_its_task_is_removed_is_told_to_stop(world: World):
    call, task_id = Played(), await world.opened()
    stage = Stage(call)
    stage.takes_calls.clear()
    log = Eventful(world.store, events.TaskCompleted)
    tail = log.tail

    async def gone(task_id: str, version: int | None = None) -> Any:
        if not stage.begun:
            return await tail(task_id, version)
        stage.takes_calls.set()
        await until(stage.has_given, PATIENCE_S)
        raise errors.TaskNotFound

    log.tail = gone
    async with world.working(stage, log, log.bus):
        await until(stage.is_calling, PATIENCE_S)
        log.bus.moved(task_id, 0)
        await until(call.is_stopped, PATIENCE_S)


@pytest.mark.promise("killed-worker-is-recovered")
async def test_one_append_that_hangs_costs_no_other_task_its_lease(world: World):
    at = decisions.instant(now() - timedelta(seconds=50))
    tasks = [await world.opened(at=at, ttl_ms=60_000), await world.opened()]
    hanging = asyncio.Event()

    async def hangs(_task_id: str) -> None:
        hanging.set()
        await asyncio.Event().wait()

    async def is_renewed_again() -> bool:
        return hanging.is_set() and world.store.renewed >= 2

    log = Eventful(world.store, events.TtlChanged, before=hangs)
    async with world.working(Stage(*(Played() for _ in tasks)), log):
        await asyncio.wait_for(hanging.wait(), PATIENCE_S)
        world.store.renewed = 0
        await until(is_renewed_again, PATIENCE_S)


async def test_a_job_whose_task_follows_it_is_not_told_to_stop(world: World):
    """That it follows it was stored, and nobody was told so."""
    call, task_id = Played(), await world.opened()
    call.ends(Returned({**RESULT, "isJob": True}))
    log = Eventful(world.store, events.WorkFollowed, after=nothing)
    async with world.working(Stage(call), log) as worker:

        async def is_left_to_the_looks() -> bool:
            task = await world.commands.load(task_id)
            return task.is_followed and not worker.running_count

        await until(is_left_to_the_looks, PATIENCE_S)
    assert world.bridge.stops == 0


async def test_a_cancel_that_comes_while_a_look_reads_the_task_is_told_to_the_job(world: World):
    task_id = await world.opened()
    await world.change(task_id, begins("other"), follows)
    log = Eventful(world.store, events.TaskCompleted)
    tail = log.tail

    async def slow(task_id: str, version: int | None = None) -> Any:
        read = await tail(task_id, version)
        if not world.bridge.looks and not (await world.commands.load(task_id)).cancel_requested:
            await world.cancel(task_id)
            await until(world.is_claimed, PATIENCE_S)  # by the same worker, who reads it
        return read

    log.tail = slow
    async with world.working(Stage(), log):
        await until(world.is_stopped, PATIENCE_S)


async def test_what_was_claimed_while_its_last_job_closed_is_worked_on_by_that_claim(world: World):
    slow, quick = Closing(), Played()
    quick.ends(Returned(RESULT))
    task_id = await world.opened(rerun_is_safe=True)
    stage = Stage(slow, quick)
    async with world.working(stage):
        await until(stage.has_given, PATIENCE_S)
        await world.change(task_id, withdraws)
        await until(world.is_claimed, PATIENCE_S)
        slow.may_close.set()
        await world.until_is(task_id, TaskStatus.COMPLETED)
    assert world.store.claimed == 2


async def test_what_was_claimed_while_in_hand_is_left_once_it_was_given_back(world: World):
    """The lease of that claim went when the attempt was withdrawn: another may have the task."""
    call, task_id = Closing(), await world.opened()
    stage = Stage(call)
    async with world.working(stage) as worker:
        await until(stage.has_given, PATIENCE_S)
        world.store.last = [task_id]
        world.bus.queue_moved()
        await until(world.has_claimed_its_last, PATIENCE_S)
        await world.change(task_id, withdraws)
        call.may_close.set()

        async def is_let_go() -> bool:
            return worker.running_count == 0

        await until(is_let_go, PATIENCE_S)
        world.store.asked = 0
        await until(world.has_asked_again, PATIENCE_S)
        assert (await world.commands.load(task_id)).attempt == 1
