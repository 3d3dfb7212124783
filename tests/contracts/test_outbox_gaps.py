"""Removals that follow each other: what is removed while a gap is on its way has one of its own."""

from collections.abc import AsyncIterator

import pytest

from outlast.domain import draft
from outlast.tests.contracts.outbox_world import ALICE, HERE, LONG_S, Rig, rig

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(module_database_url: str) -> AsyncIterator[Rig]:
    async with rig(module_database_url) as made:
        yield made


async def test_a_removal_while_a_gap_is_on_its_way_is_told_by_another(world: Rig):
    await world.subscribes()
    await world.one.views.forget([await world.started()])
    gap = await world.claims_one()
    await world.one.views.forget([await world.started()])
    assert not await world.acks(gap)
    again = await world.claims_one()
    assert (again.id, again.envelope, again.attempts) == (gap.id, draft.GAP, 0)
    assert again.watermark >= await world.one.events.removed_to(ALICE) > gap.watermark
    assert await world.acks(again)
    assert await world.outbox.waiting() == 0


async def test_a_gap_that_waits_for_another_try_keeps_its_pause(world: Rig):
    await world.subscribes()
    await world.one.views.forget([await world.started()])
    gap = await world.claims_one()
    assert await world.refuses(gap, LONG_S)
    await world.one.views.forget([await world.started()])
    assert await world.claims() == []
    await world.sql("UPDATE outlast.webhook_deliveries SET due = clock_timestamp()")
    again = await world.claims_one()
    assert (again.attempts, again.watermark > gap.watermark) == (1, True)
    assert await world.acks(again)


async def test_one_removal_of_many_tasks_is_one_gap_for_each_subscription(world: Rig):
    names = [f"sub-{number}" for number in range(3)]
    for name in names:
        await world.subscribes(name, url=f"{HERE}/{name}")
    await world.one.views.forget([await world.started() for _ in range(3)])
    first = await world.claims()
    await world.one.views.forget([await world.started() for _ in range(3)])
    second = await world.claims()
    for claimed in (first, second):
        assert sorted(due.subscription_id for due in claimed) == names
        assert {due.envelope for due in claimed} == {draft.GAP}
    assert [await world.acks(due) for due in (*first, *second)] == [False] * 3 + [True] * 3
