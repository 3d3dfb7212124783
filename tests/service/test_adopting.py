"""A call that runs is the work of a stored task, or is stopped, whatever becomes of its request."""

import asyncio
from typing import Any

import pytest

from outlast.domain import decisions, errors, events
from outlast.domain.decisions import Events
from outlast.domain.ports import Returned
from outlast.domain.task import TaskStatus, evolve
from outlast.service.methods import adopting
from outlast.service.methods.adopting import Adoptions
from outlast.service.news import NewsReader
from outlast.service.worker import Worker
from outlast.tests.acceptance.waiting import until
from outlast.tests.domain.given import RESULT
from outlast.tests.service.played import (
    PATIENCE_S,
    Eventful,
    Played,
    Stage,
    World,
    nothing,
    now,
    opening,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def world() -> World:
    return World()


def begun(worker: Worker) -> Events:
    """The history of a call that runs at this worker already."""
    opened = opening()
    return (opened, *decisions.start_work(evolve(None, opened), worker.name, now()))


class Held:
    """An append that is under way until it is let go, and may be refused then."""

    def __init__(self, error: errors.OutlastError | None = None) -> None:
        self.is_under_way, self.may_go_on = asyncio.Event(), asyncio.Event()
        self._error = error

    async def __call__(self, _task_id: str) -> None:
        self.is_under_way.set()
        await self.may_go_on.wait()
        if self._error is not None:
            raise self._error


async def goes_on(world: World, task_id: str, call: Played) -> None:
    """The task is stored, and comes to its end by this very call."""

    async def is_stored() -> bool:
        return task_id in world.store.owners

    await until(is_stored, PATIENCE_S)
    call.ends(Returned(RESULT))
    task = await world.until_is(task_id, TaskStatus.COMPLETED)
    assert (task.attempt, call.was_stopped) == (1, False)


async def left(worker: Worker, append: Held, call: Played) -> str:
    """The id of a task whose request goes away while it is being opened."""
    adoptions = Adoptions(worker.bench.commands, worker)
    history = begun(worker)
    request = asyncio.create_task(adoptions.adopt(history, NewsReader(call)))
    await asyncio.wait_for(append.is_under_way.wait(), PATIENCE_S)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    append.may_go_on.set()
    return history[0].task_id


async def test_a_task_that_is_stored_after_its_request_is_gone_keeps_its_call(world: World):
    append, call = Held(), Played()
    log = Eventful(world.store, events.WorkStarted, before=append)
    async with world.working(Stage(), log) as worker:
        await goes_on(world, await left(worker, append, call), call)


@pytest.mark.parametrize("error", [errors.QuotaExceeded("tasks", 1), errors.DuplicateOpening()])
async def test_a_call_without_a_task_is_stopped_also_when_its_request_is_gone(
    world: World, error: errors.OutlastError
):
    append, call = Held(error), Played()
    log = Eventful(world.store, events.WorkStarted, before=append)
    async with world.working(Stage(), log) as worker:
        await left(worker, append, call)
        await until(call.is_stopped, PATIENCE_S)


async def test_a_task_that_was_stored_although_nobody_was_told_keeps_its_call(world: World):
    call = Played()
    log = Eventful(world.store, events.WorkStarted, after=nothing)
    async with world.working(Stage(), log) as worker:
        history = begun(worker)
        with pytest.raises(errors.StoreUnavailable):
            await Adoptions(worker.bench.commands, worker).adopt(history, NewsReader(call))
        await goes_on(world, history[0].task_id, call)


async def test_a_call_whose_task_could_not_be_stored_is_stopped(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(adopting, "FIND_S_MAX", 0.5)
    append, call = Held(errors.StoreUnavailable()), Played()
    append.may_go_on.set()
    log = Eventful(world.store, events.WorkStarted, before=append)
    async with world.working(Stage(), log) as worker:
        with pytest.raises(errors.StoreUnavailable):
            await Adoptions(worker.bench.commands, worker).adopt(begun(worker), NewsReader(call))
        await until(call.is_stopped, PATIENCE_S)


async def test_a_task_that_is_stored_only_after_it_was_given_up_keeps_its_call(world: World):
    """A lock has held up its append for longer than anybody waits."""
    append, call = Held(errors.StoreUnavailable()), Played()
    append.may_go_on.set()
    log = Eventful(world.store, events.WorkStarted, before=append)
    has_looked, tail = asyncio.Event(), log.tail

    async def looks(task_id: str, version: int | None = None) -> Any:
        found = await tail(task_id, version)
        has_looked.set()
        return found

    log.tail = looks
    async with world.working(Stage(), log) as worker:
        history = begun(worker)
        with pytest.raises(errors.StoreUnavailable):
            await Adoptions(worker.bench.commands, worker).adopt(history, NewsReader(call))
        await asyncio.wait_for(has_looked.wait(), PATIENCE_S)
        await world.store.append(None, history)
        await goes_on(world, history[0].task_id, call)


async def test_a_call_whose_task_is_in_hand_otherwise_is_stopped(world: World):
    first, call = Played(), Played()

    async def is_taken_up(task_id: str) -> None:
        assert worker.adopt(await world.commands.load(task_id), NewsReader(first))

    log = Eventful(world.store, events.WorkStarted, after=is_taken_up)
    async with world.working(Stage(), log) as worker:
        history = begun(worker)
        with pytest.raises(errors.StoreUnavailable):
            await Adoptions(worker.bench.commands, worker).adopt(history, NewsReader(call))
        await until(call.is_stopped, PATIENCE_S)
        await goes_on(world, history[0].task_id, first)
