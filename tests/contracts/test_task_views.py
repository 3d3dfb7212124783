"""The promise of `TaskViews`: always the fold of the stream, and gone without a trace."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from outlast.adapters import codec
from outlast.domain import decisions, errors
from outlast.domain.change import detailed_task
from outlast.domain.ports import TaskView
from outlast.domain.task import Task, fold
from outlast.tests.contracts.stores import Ports, happens, open_task, progresses
from outlast.tests.domain.given import (
    DEPLOY,
    OPENED,
    REGION,
    TTL_MS,
    YES,
    Wish,
    answers,
    asks,
    at,
    cancels,
    completes,
    fails,
    holds,
    loses,
    starts,
    stops,
)

pytestmark = [pytest.mark.anyio, pytest.mark.promise("twins-keep-the-same-contract")]

ROUNDS = 25


def expires(task: Task) -> decisions.Events:
    return decisions.expire(task, at(TTL_MS / 1000))


def extends(task: Task) -> decisions.Events:
    return decisions.extend_ttl(task, task.attempt, at(TTL_MS / 1000 - 1))


HISTORIES: dict[str, Sequence[Wish]] = {
    "completed": [starts(), progresses(), completes()],
    "failed": [starts(), fails()],
    "cancelled-in-the-queue": [cancels()],
    "cancelled-while-running": [starts(), cancels(), stops()],
    "cancelled-while-parked": [starts(), asks(DEPLOY), cancels()],
    "expired": [expires],
    "extended": [starts(), extends],
    "answered": [starts(), asks(DEPLOY, REGION), answers({"in-2": YES}), answers({"in-1": YES})],
    "held": [starts(), holds(DEPLOY), answers({"in-1": YES}), completes()],
    "lost": [starts(), asks(DEPLOY), answers({"in-1": YES}), starts(), loses(), starts()],
}


def view_of(task: Task) -> TaskView:
    return TaskView(
        task.id,
        task.version,
        task.owner,
        task.status.is_terminal,
        task.expires_at,
        codec.encode(detailed_task(task)),
    )


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES.keys())
async def test_after_every_append_the_view_is_that_of_the_fold(
    ports: Ports, history: Sequence[Wish]
) -> None:
    task = await open_task(ports.log)
    for wish in [None, *history]:
        if wish is not None:
            task = await happens(ports.log, task, wish)
        stored = fold(await ports.log.read(task.id))
        assert stored is not None
        view = await ports.views.get(task.id)
        assert view == view_of(stored)
        assert view is not None
        assert codec.decode(view.wire) == detailed_task(task)


@pytest.mark.parametrize("task_id", ["unknown", "", "a\x00b", "a\ud800b", "x" * 10_000])
async def test_there_is_no_view_of_an_unknown_task(ports: Ports, task_id: str) -> None:
    await open_task(ports.log)
    assert await ports.views.get(task_id) is None


async def test_an_owner_that_is_named_sees_its_own_tasks_only(ports: Ports) -> None:
    task = await open_task(ports.log)
    assert await ports.views.get(task.id, OPENED.owner) == view_of(task)
    assert await ports.views.get(task.id, "another-owner") is None
    assert await ports.views.get("unknown", OPENED.owner) is None


async def test_a_task_is_found_by_its_owner_and_key_together(ports: Ports) -> None:
    task = await open_task(ports.log, idempotency_key="key")
    task = await happens(ports.log, task, starts(), completes())
    bare = replace(view_of(task), wire=b"")
    assert await ports.views.opened_with(OPENED.owner, "key") == bare
    assert await ports.views.opened_with(OPENED.owner, "KEY") is None
    assert await ports.views.opened_with(OPENED.owner, "") is None
    assert await ports.views.opened_with("another-owner", "key") is None


async def test_due_are_those_whose_time_has_ended_oldest_first(ports: Ports) -> None:
    await open_task(ports.log, "third", ttl_ms=3_000)
    await open_task(ports.log, "first", ttl_ms=1_000)
    second = await open_task(ports.log, "second", ttl_ms=2_000)
    await open_task(ports.log, "unlimited", ttl_ms=None)

    async def due(seconds: float, limit: int = 10) -> list[str]:
        return [view.task_id for view in await ports.views.due(at(seconds), limit)]

    assert await due(0.999) == []
    assert await due(1) == ["first"]
    assert await due(100) == ["first", "second", "third"]
    assert await due(100, limit=2) == ["first", "second"]
    assert await due(2 * 365 * 86_400) == ["first", "second", "third"]
    assert (await ports.views.due(at(2), 10))[1] == replace(view_of(second), wire=b"")


async def test_a_longer_time_to_live_moves_a_task_in_what_is_due(ports: Ports) -> None:
    task = await happens(ports.log, await open_task(ports.log), starts(), extends)
    assert task.expires_at is not None
    assert list(await ports.views.due(at(TTL_MS / 1000), 10)) == []
    assert list(await ports.views.due(task.expires_at - timedelta(milliseconds=1), 10)) == []
    due = await ports.views.due(task.expires_at, 10)
    assert list(due) == [replace(view_of(task), wire=b"")]


async def test_forgotten_tasks_are_gone_altogether_and_no_others(ports: Ports) -> None:
    for task_id in ("gone-1", "gone-2", "kept"):
        await open_task(ports.log, task_id, idempotency_key=task_id)
    await ports.views.forget(["gone-1", "unknown", "gone-2"])
    for task_id in ("gone-1", "gone-2"):
        assert await ports.views.get(task_id) is None
        assert list(await ports.log.read(task_id)) == []
        assert await ports.views.opened_with(OPENED.owner, task_id) is None
    assert await ports.dispatcher.claim("worker", 10, 30) == ["kept"]
    assert len(await ports.log.read("kept")) == 1
    assert [view.task_id for view in await ports.views.due(at(TTL_MS), 10)] == ["kept"]


async def test_to_forget_nothing_or_the_same_twice_is_no_mistake(ports: Ports) -> None:
    task = await open_task(ports.log)
    await ports.views.forget([])
    await ports.views.forget([task.id, task.id])
    await ports.views.forget([task.id])
    assert await ports.views.get(task.id) is None


async def test_a_task_that_is_forgotten_while_it_moves_leaves_nothing_behind(
    ports: Ports,
) -> None:
    async def move(task: Task) -> None:
        with suppress(errors.StaleVersion):
            for number in range(10):
                task = await happens(ports.log, task, progresses(number))

    for number in range(ROUNDS):
        task = await happens(ports.log, await open_task(ports.log, f"task-{number}"), starts())
        await asyncio.gather(move(task), ports.views.forget([task.id]))
        assert list(await ports.log.read(task.id)) == []
        assert await ports.views.get(task.id) is None
    assert await ports.dispatcher.depth() == 0


async def test_a_view_is_never_ahead_of_its_stream_nor_other_than_its_fold(ports: Ports) -> None:
    task = await happens(ports.log, await open_task(ports.log), starts())
    ended = asyncio.Event()

    async def write(task: Task) -> None:
        for number in range(30):
            task = await happens(ports.log, task, progresses(number))
        ended.set()

    async def read() -> None:
        while not ended.is_set():
            view = await ports.views.get(task.id)
            history = await ports.log.read(task.id)
            assert view is not None
            assert view.version <= len(history)  # read later, so it holds at least as much
            at_view = fold(history[: view.version])
            assert at_view is not None
            assert view == view_of(at_view)

    await asyncio.gather(write(task), read())
