"""The promise of `Outbox` about what was claimed and not sent: it is due again at once."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import pytest

from outlast.adapters.outbox import PostgresOutbox
from outlast.adapters.sealing import LocalWrapping, Sealer
from outlast.domain import errors
from outlast.domain.push import Health
from outlast.tests.contracts.outbox_world import HERE, LONG_S, MANY, THERE, Rig, now, rig
from outlast.tests.support.sealed import OLD

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(module_database_url: str) -> AsyncIterator[Rig]:
    async with rig(module_database_url, seals=True) as made:
        yield made


class FailingOnce(Sealer):
    """The store goes away between a claim and the keys of what it brought, and is back then."""

    fails = "meet"

    async def meet(self, task_ids: Sequence[str]) -> None:
        self._fail("meet")

    async def key_of(self, task_id: str) -> bytes | None:
        self._fail("key_of")
        return await super().key_of(task_id)

    def _fail(self, where: str) -> None:
        if self.fails == where:
            self.fails = ""
            raise errors.StoreUnavailable


@pytest.mark.parametrize("where", ["meet", "key_of"])
async def test_a_claim_whose_keys_cannot_be_had_leases_nothing(world: Rig, where: str):
    await world.subscribes()
    await world.subscribes("other", url=THERE)
    await world.opened()
    keys = FailingOnce(world.other.database, LocalWrapping([OLD]))
    keys.fails = where
    outbox = PostgresOutbox(world.other.database, keys)
    with pytest.raises(errors.StoreUnavailable):
        await outbox.claim(MANY, MANY, LONG_S)
    claimed = await outbox.claim(MANY, MANY, LONG_S)
    assert sorted((due.subscription_id, due.attempts) for due in claimed) == [
        ("other", 0),
        ("sub", 0),
    ]


async def half_open(world: Rig) -> None:
    """Two deliveries wait, at an endpoint of which one may be tried."""
    await world.subscribes()
    await world.opened()
    await world.opened()
    ago = now() - timedelta(seconds=1)
    assert await world.outbox.note_health(HERE, Health(), Health(5, ago, 1, ago)) is None


async def test_a_probe_that_is_put_back_makes_room_for_another_at_once(world: Rig):
    await half_open(world)
    probe = await world.claims_one()
    assert await world.claims() == []
    await world.outbox.put_back(probe, LONG_S)
    another = await world.claims_one()
    assert another.id != probe.id
    assert await world.claims() == []


async def test_a_void_claim_that_is_put_back_leaves_the_probe_of_another_alone(world: Rig):
    await half_open(world)
    (void,) = await world.claims(lease_s=0)
    held = await world.claims_one()
    await world.outbox.put_back(void, 0)
    assert await world.claims() == []
    assert await world.outbox.note_health(HERE, held.health, Health()) is None


async def test_a_probe_that_is_put_back_late_leaves_the_next_one_alone(world: Rig):
    await half_open(world)
    await world.opened()
    probe = await world.claims_one()
    assert await world.one.subscriptions.resume("sub")  # its client is back: it may be tried now
    held = await world.claims_one()
    await world.outbox.put_back(probe, 0)
    assert await world.claims() == []
    assert await world.outbox.note_health(HERE, held.health, Health()) is None
