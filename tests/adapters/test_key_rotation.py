"""Data keys are wrapped anew while others work, and no event notices."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from outlast.adapters.data_keys import DataKeys, Rotated
from outlast.adapters.sealing import LocalWrapping, new_key_line
from outlast.domain import errors
from outlast.domain.task import Task
from outlast.tests.adapters.sealing_world import Replica, World
from outlast.tests.contracts.stores import happens, progresses
from outlast.tests.support.sealed import NEW, OLD

pytestmark = pytest.mark.anyio

MANY = 40


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield World(database_url, stack)


@pytest.fixture
async def one(world: World) -> Replica:
    return await world.replica(OLD)


@dataclass
class Breaking:
    """A wrapping whose store goes away after some keys."""

    inner: LocalWrapping
    left: int

    @property
    def name(self) -> str:
        return self.inner.name

    async def wrap(self, task_id: str, key: bytes) -> bytes:
        if not self.left:
            raise errors.StoreUnavailable
        self.left -= 1
        return await self.inner.wrap(task_id, key)

    async def unwrap(self, task_id: str, wrapped: bytes, wrapped_by: str) -> bytes:
        return await self.inner.unwrap(task_id, wrapped, wrapped_by)


@pytest.mark.promise("rotation-rewrites-no-event")
async def test_a_rotation_that_was_cut_short_does_the_rest_and_changes_no_event(
    world: World, one: Replica
):
    for number in range(MANY):
        await one.started(f"t-{number}")
    events, keys = world.states(), DataKeys(one.database)
    both = LocalWrapping([NEW, OLD])
    with pytest.raises(errors.StoreUnavailable):
        await keys.rotate(Breaking(both, MANY // 2), batch=7)
    done = MANY // 2 // 7 * 7
    assert await keys.counts() == {"new": done, "old": MANY - done}
    assert await keys.rotate(both, batch=7) == Rotated(MANY - done, 0)
    assert await keys.rotate(both) == Rotated(0, 0)
    assert await keys.counts() == {"new": MANY}
    assert world.states() == events
    other = await world.replica(NEW)
    for number in range(MANY):
        assert len(await other.log.read(f"t-{number}")) == 2
    # Whoever met a task before the rotation goes on with it.
    assert len(await one.log.read("t-1")) == 2


async def test_while_keys_rotate_tasks_are_opened_moved_read_and_erased(world: World, one: Replica):
    other = await world.replica(OLD, NEW)
    tasks = [await one.started(f"t-{number}") for number in range(MANY)]
    gone = [task.id for task in tasks[::4]]

    async def works(replica: Replica, task: Task) -> None:
        await happens(replica.log, task, progresses(), progresses())
        assert len(await replica.log.read(task.id)) == 4

    async def erases() -> None:
        for task_id in gone:
            await one.database.rows("DELETE FROM outlast.data_keys WHERE task_id = %s", task_id)

    async def opens() -> None:
        for number in range(MANY):
            await other.started(f"u-{number}")

    kept = [task for number, task in enumerate(tasks) if number % 4]
    rotation = DataKeys(one.database).rotate(LocalWrapping([NEW, OLD]), batch=3)
    await asyncio.gather(
        rotation, erases(), opens(), *(works([one, other][n % 2], t) for n, t in enumerate(kept))
    )
    await DataKeys(one.database).rotate(LocalWrapping([NEW, OLD]))
    assert await DataKeys(one.database).counts() == {"new": len(kept) + MANY}
    last = await world.replica(NEW)
    for task in kept:
        assert len(await last.log.read(task.id)) == 4
    for task_id in gone:
        await last.cannot_read(task_id, errors.PayloadErased)


async def test_a_rotation_leaves_what_it_cannot_unwrap_and_counts_it(world: World, one: Replica):
    await one.started("t")
    await (await world.replica(NEW)).started("u")
    third = new_key_line("third")
    keys = DataKeys(one.database)
    assert await keys.rotate(LocalWrapping([third, NEW])) == Rotated(1, 1)
    assert await keys.counts() == {"old": 1, "third": 1}


async def test_a_rotation_takes_nothing_back_from_another_one(world: World, one: Replica):
    await one.started("t")
    newest = LocalWrapping([new_key_line("newest"), OLD])

    class Late(Breaking):
        async def wrap(self, task_id: str, key: bytes) -> bytes:
            await DataKeys(one.database).rotate(newest)
            return await super().wrap(task_id, key)

    assert await DataKeys(one.database).rotate(Late(LocalWrapping([NEW, OLD]), 1)) == Rotated(0, 0)
    assert await DataKeys(one.database).counts() == {"newest": 1}
