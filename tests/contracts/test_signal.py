"""The promise of `Signal`: it names who moved, wakes those who watch, and nobody else."""

import asyncio

import pytest

from outlast.tests.contracts.stores import (
    Ports,
    forget_old_moves,
    happens,
    moves_arrived,
    open_task,
    progresses,
)
from outlast.tests.domain.given import DEPLOY, YES, answers, asks, completes, loses, starts

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("unlooked"),
    pytest.mark.promise("twins-keep-the-same-contract"),
]

BOUND_S = 30.0
SHORT_S = 0.05


async def test_a_move_wakes_who_watches_the_task(ports: Ports) -> None:
    task = await open_task(ports.log)
    async with ports.signal.watching(task.id) as one, ports.signal.watching(task.id) as two:
        waiting = [asyncio.create_task(each.wait(BOUND_S)) for each in (one, two)]
        await happens(ports.log, task, starts())
        assert await asyncio.gather(*waiting) == [True, True]


async def test_every_kind_of_move_wakes(ports: Ports) -> None:
    task_id = "watched"
    async with ports.signal.watching(task_id) as watcher:
        task = await open_task(ports.log, task_id, rerun_is_safe=True)
        assert await watcher.wait(BOUND_S)
        for wish in (starts(), loses(), starts(), asks(DEPLOY), answers({"in-1": YES}), starts()):
            task = await happens(ports.log, task, wish)
            assert await watcher.wait(BOUND_S)
        await happens(ports.log, task, completes())
        assert await watcher.wait(BOUND_S)


async def test_a_move_of_another_task_does_not_wake(ports: Ports) -> None:
    other, last = await open_task(ports.log, "other"), await open_task(ports.log, "last")
    async with (
        ports.signal.watching("other:1") as similar,
        ports.signal.watching("oth") as shorter,
        ports.signal.watching("quiet") as quiet,
        ports.signal.watching(last.id) as watcher,
    ):
        await forget_old_moves(ports, quiet, watcher, similar, shorter)
        await happens(ports.log, other, starts(), progresses())
        await happens(ports.log, last, starts())
        assert await watcher.wait(BOUND_S)  # moves arrive in order: the others have arrived too
        for unmoved in (quiet, similar, shorter):
            assert not await unmoved.wait(0)


async def test_a_wait_ends_with_false_when_the_time_is_up(ports: Ports) -> None:
    async with ports.signal.watching("quiet") as quiet, ports.signal.watching_queue() as queue:
        assert not await quiet.wait(SHORT_S)
        assert not await queue.wait(SHORT_S)
        assert not await quiet.wait(0)


async def test_a_move_between_two_waits_is_not_missed(ports: Ports) -> None:
    task, other = await open_task(ports.log), await open_task(ports.log, "other")
    async with (
        ports.signal.watching(task.id) as watcher,
        ports.signal.watching(other.id) as witness,
    ):
        await forget_old_moves(ports, watcher, witness)
        assert not await watcher.wait(0)
        task = await happens(ports.log, task, starts())
        await happens(ports.log, other, starts())
        assert await witness.wait(BOUND_S)  # so the move of the first has arrived, unwaited for
        assert await watcher.wait(0)
        assert not await watcher.wait(0)


async def test_a_watch_begins_before_the_task_does(ports: Ports) -> None:
    async with ports.signal.watching("unborn") as watcher:
        assert not await watcher.wait(0)
        await open_task(ports.log, "unborn")
        assert await watcher.wait(BOUND_S)


async def test_what_becomes_runnable_wakes_who_watches_the_queue(ports: Ports) -> None:
    async with ports.signal.watching_queue() as one, ports.signal.watching_queue() as two:
        task = await open_task(ports.log)
        assert await one.wait(BOUND_S)
        assert await two.wait(BOUND_S)
        task = await happens(ports.log, task, starts(), asks(DEPLOY))
        await happens(ports.log, task, answers({"in-1": YES}))
        assert await one.wait(BOUND_S)


async def test_what_only_moves_does_not_wake_the_queue(ports: Ports) -> None:
    task = await open_task(ports.log)
    async with ports.signal.watching(task.id) as witness, ports.signal.watching_queue() as queue:
        await forget_old_moves(ports, queue)
        task = await happens(ports.log, task, starts(), progresses(), asks(DEPLOY))
        await moves_arrived(ports)
        assert await witness.wait(0)
        assert not await queue.wait(0)


async def test_after_the_exit_nobody_is_woken(ports: Ports) -> None:
    task = await open_task(ports.log)
    async with ports.signal.watching(task.id) as left:
        await forget_old_moves(ports, left)
    async with ports.signal.watching(task.id) as witness:
        await happens(ports.log, task, starts())
        assert await witness.wait(BOUND_S)
        assert not await left.wait(0)


async def test_one_of_two_watchers_may_leave(ports: Ports) -> None:
    task = await open_task(ports.log)
    async with ports.signal.watching(task.id) as stays:
        async with ports.signal.watching(task.id):
            pass
        await forget_old_moves(ports, stays)
        await happens(ports.log, task, starts())
        assert await stays.wait(BOUND_S)
