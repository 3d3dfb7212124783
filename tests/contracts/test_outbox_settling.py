"""Outcomes that come at the same time are written together, and none waits for another's row."""

import asyncio
from collections.abc import AsyncIterator

import anyio
import pytest

from outlast.tests.contracts.outbox_world import PATIENCE_S, THERE, Rig, attempt, rig

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["plain", "sealed"])
async def world(module_database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with rig(module_database_url, seals=request.param) as made:
        yield made


async def test_outcomes_that_come_together_are_each_told_their_own(world: Rig):
    await world.subscribes()
    for _ in range(8):
        await world.opened()
    (lost, *_) = await world.claims(limit=1, lease_s=0)
    held = await world.claims()
    twice = held[0]
    answers = await asyncio.gather(
        world.outbox.settle(lost, attempt(lost), None),  # its claim is void
        *(world.acks(due) for due in held[:4]),
        world.acks(twice),
        *(world.refuses(due) for due in held[4:]),
    )
    assert not answers[0]
    assert sorted((answers[1], answers[5])) == [False, True]
    assert all(answers[2:5])
    assert all(answers[6:])
    assert await world.outbox.waiting() == 4
    assert len(await world.outbox.attempts("sub")) == 8


async def test_who_holds_a_delivery_holds_up_no_other_outcome(world: Rig):
    await world.subscribes()
    await world.subscribes("other", url=THERE)
    for _ in range(4):
        await world.opened()
    first, *others = await world.claims()
    async with world.transaction() as holder:
        await holder.does(
            "SELECT 1 FROM outlast.webhook_deliveries WHERE id = %s FOR UPDATE", first.id
        )
        waiting = asyncio.create_task(world.acks(first))
        with anyio.fail_after(PATIENCE_S):
            assert all(await asyncio.gather(*(world.acks(due) for due in others)))
        assert not waiting.done()
        await holder.commits()
    with anyio.fail_after(PATIENCE_S):
        assert await waiting
    assert await world.outbox.waiting() == 0
