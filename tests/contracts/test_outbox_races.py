"""The outbox under many hands: what is stored at the same time, and who waits for whom."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import pytest

from outlast.domain import draft
from outlast.domain.push import DueDelivery, Health
from outlast.tests.contracts.outbox_world import (
    ALICE,
    BOB,
    HERE,
    LONG_S,
    PATIENCE_S,
    SHORT_S,
    THERE,
    Place,
    Process,
    Rig,
    attempt,
    now,
    place,
    rig,
    until_true,
)

pytestmark = pytest.mark.anyio

APPENDERS, EACH = 6, 30
SUBSCRIBERS = 8
ROUNDS = 15
STRESS_S = 6.0
LOCK = "SELECT pg_advisory_xact_lock(7710428, 1)"  # of the appends


@pytest.fixture(params=[False, True], ids=["plain", "sealed"])
async def world(module_database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with rig(module_database_url, seals=request.param) as made:
        yield made


async def appends(world: Rig, owner: str = ALICE) -> None:
    task_id = await world.started(owner)
    for _ in range(EACH):
        await world.progresses(task_id)
    await world.ends(task_id)


async def all_events(world: Rig, owner: str, after: int) -> list[Place]:
    rows = await world.sql(
        "SELECT originator_id, originator_version FROM outlast.task_events"
        " WHERE owner = outlast.owner_hash(%s) AND notification_id > %s ORDER BY notification_id",
        owner,
        after,
    )
    return [(task_id, version) for task_id, version in rows]


@pytest.mark.promise("subscribing-misses-nothing")
async def test_whoever_subscribes_from_a_cursor_among_appends_gets_each_event_once(world: Rig):
    await world.started()
    starts: dict[str, int] = {}

    begun = await world.one.events.head(ALICE)

    async def subscribe(number: int) -> None:
        # A while into the appends, each at another place.
        async def is_so_far() -> bool:
            return await world.one.events.head(ALICE) >= begun + number

        await until_true(is_so_far)
        starts[f"sub-{number}"] = start = await world.one.events.head(ALICE)
        await world.subscribes(f"sub-{number}", start=start)
        await world.other.outbox.sweep()

    async with anyio.create_task_group() as group:
        for _ in range(APPENDERS):
            group.start_soon(appends, world)
            group.start_soon(appends, world, BOB)
        for number in range(SUBSCRIBERS):
            group.start_soon(subscribe, number * 5)
    await world.sweeps()
    for name, start in starts.items():
        wanted = await all_events(world, ALICE, start)
        assert await world.queued(name) == wanted
        assert await world.watermark(name) == (start if not wanted else await first(world, name))
    assert len(set(starts.values())) > 1


async def first(world: Rig, name: str) -> int:
    rows = await world.sql(
        "SELECT min(position) - 1 FROM outlast.webhook_deliveries WHERE subscription_id = %s", name
    )
    return rows[0][0]


async def test_unsubscribing_fails_no_append(world: Rig):
    async def come_and_go(number: int) -> None:
        for _ in range(ROUNDS):
            await world.subscribes(f"sub-{number}", start=0)
            await world.outbox.sweep()
            await world.one.subscriptions.remove(f"sub-{number}")
            await world.sql("UPDATE outlast.webhook_endpoints SET failures = 0")
            await world.other.outbox.sweep()

    async with anyio.create_task_group() as group:
        for _ in range(APPENDERS):
            group.start_soon(appends, world)
        for number in range(3):
            group.start_soon(come_and_go, number)
    assert len(await all_events(world, ALICE, 0)) == APPENDERS * (EACH + 3)


async def test_one_of_two_claims_at_once_probes_a_half_open_endpoint(world: Rig):
    await world.subscribes()
    await world.opened()
    await world.opened()
    ago = now()
    await world.outbox.note_health(HERE, Health(), Health(5, ago, 1, ago))
    async with world.transaction() as elsewhere:
        await elsewhere.does("SELECT * FROM outlast.claim_deliveries(10, 10, 60, '{}')")
        # Something else is the first in line now.
        await world.sql(
            "INSERT INTO outlast.webhook_deliveries (subscription_id, url, position, task_id, due)"
            " VALUES ('sub', %s, 1, 'task', clock_timestamp() - interval '1 hour')",
            HERE,
        )
        with anyio.fail_after(PATIENCE_S):
            assert await world.claims() == []
        await elsewhere.commits()
    assert await world.claims() == []


async def test_who_settles_holds_nothing_that_the_holder_of_its_subscription_waits_for(world: Rig):
    await world.subscribes()
    await world.opened()
    due = await world.claims_one()
    async with world.transaction() as elsewhere:
        # As a sweep, a suspension and an end do.
        await elsewhere.does("SELECT 1 FROM outlast.webhook_subscriptions FOR UPDATE")
        settling = asyncio.create_task(world.acks(due))
        await world.goes_as_far_as_it_can(settling)
        await elsewhere.does("DELETE FROM outlast.webhook_deliveries")
        await elsewhere.commits()
    assert not await settling


async def test_a_sweep_waits_for_nobody(world: Rig):
    await world.subscribes()
    await world.subscribes("other", url=THERE)
    await world.started()
    await world.passes()
    await world.sql("INSERT INTO outlast.webhook_endpoints (url) VALUES ('https://left.example/')")
    async with world.transaction() as elsewhere:
        await elsewhere.does(LOCK)
        await elsewhere.does(
            "SELECT 1 FROM outlast.webhook_deliveries ORDER BY id LIMIT 2 FOR UPDATE"
        )
        await elsewhere.does(
            "SELECT 1 FROM outlast.webhook_subscriptions WHERE id = 'other' FOR UPDATE"
        )
        with anyio.fail_after(PATIENCE_S):
            await world.sweeps()
        await elsewhere.commits()
    await world.sweeps()
    assert await world.sql("SELECT url FROM outlast.webhook_endpoints") == [(THERE,)]
    assert await world.queued() == []


async def test_an_append_that_has_not_seen_an_end_queues_nothing_behind_it(world: Rig):
    await world.subscribes()
    async with world.transaction() as elsewhere:
        # As an append does that has just read the subscription.
        await elsewhere.does(LOCK)
        await elsewhere.does(
            "INSERT INTO outlast.webhook_deliveries (subscription_id, url, position, task_id,"
            " version) VALUES ('sub', %s, 1, 'task', 1)",
            HERE,
        )
        ending = asyncio.create_task(world.one.subscriptions.end("sub", "revoked"))
        await world.goes_as_far_as_it_can(ending)
        await elsewhere.commits()
        assert await ending
    assert (await world.claims_one()).envelope == draft.ENDED


async def test_a_task_that_ends_while_the_last_of_its_history_is_queued_is_terminated(world: Rig):
    task_id = await world.started()
    await world.subscribes(start=0, task_ids=[task_id])
    async with world.transaction() as elsewhere:
        await elsewhere.does("SELECT outlast.queue_backlog(500)")
        ending = asyncio.create_task(world.ends(task_id))
        await world.goes_as_far_as_it_can(ending)
        await elsewhere.commits()
        await ending
    assert await world.told() == [*((task_id, version) for version in (1, 2, 3)), ("", 0)]


async def test_a_suspension_keeps_what_a_batch_of_history_has_just_queued(world: Rig):
    task_id = await world.started()
    await world.subscribes(start=0)
    async with world.transaction() as elsewhere:
        await elsewhere.does("SELECT outlast.queue_backlog(500)")
        suspending = asyncio.create_task(world.outbox.suspend("sub"))
        await world.goes_as_far_as_it_can(suspending)
        await elsewhere.commits()
        await suspending
    await world.subscribes()
    assert await world.told() == [(task_id, 1), (task_id, 2)]


class Stress:
    """Everybody at once: appends, claims with every kind of end, and all who change the rest."""

    def __init__(self, world: Rig) -> None:
        self.world, self.chance = world, random.Random(7)
        self.held: dict[int, float] = {}
        self.settled: Counter[tuple[str, Place]] = Counter()
        self.forgotten: set[str] = set()
        self.ends_at = 0.0

    @property
    def is_on(self) -> bool:
        return anyio.current_time() < self.ends_at

    async def runs(self, *works: Callable[[], Awaitable[None]]) -> None:
        self.ends_at = anyio.current_time() + STRESS_S

        async def repeated(work: Callable[[], Awaitable[None]]) -> None:
            while self.is_on:
                await work()

        async with anyio.create_task_group() as group:
            for work in works:
                group.start_soon(repeated, work)

    async def appends(self) -> None:
        task_id = await self.world.started(self.chance.choice([ALICE, BOB]))
        for _ in range(self.chance.randrange(4)):
            await self.world.progresses(task_id)
        await self.world.ends(task_id)
        if self.world.tasks[task_id].owner == BOB and self.chance.random() < 0.5:
            self.forgotten.add(task_id)
            await self.world.one.views.forget([task_id])

    async def claims(self, process: Process) -> None:
        lease_s = self.chance.choice([SHORT_S, LONG_S])
        claimed = await process.outbox.claim(8, 4, lease_s)
        for due in claimed:
            assert self.held.get(due.id, 0.0) <= anyio.current_time(), "leased to two at once"
            self.held[due.id] = anyio.current_time() + (0 if lease_s == SHORT_S else lease_s)
        for due in claimed:
            await self.carries(process, due, may_crash=lease_s == SHORT_S)

    async def carries(self, process: Process, due: DueDelivery, *, may_crash: bool) -> None:
        """As a sender would, who dies now and then. What it holds is free before that is told."""
        how = self.chance.random()
        if may_crash and how < 0.1:
            return
        self.held.pop(due.id, None)
        if how < 0.2:
            await process.outbox.put_back(due, 0)
        elif how < 0.4:
            await process.outbox.settle(due, attempt(due, "timeout"), 0.0)
        elif await process.outbox.settle(due, attempt(due), None):
            self.settled[due.subscription_id, place(due)] += 1

    async def comes_and_goes(self) -> None:
        name = f"guest-{self.chance.randrange(3)}"
        owner = self.chance.choice([ALICE, BOB])
        await self.world.subscribes(f"{name}-{owner}", owner=owner, url=f"https://{name}.example/")
        if self.chance.random() < 0.5:
            await self.world.one.subscriptions.remove(f"{name}-{owner}")
        else:
            await self.world.other.subscriptions.end(f"{name}-{owner}", "revoked")

    async def suspends(self) -> None:
        await self.world.other.outbox.suspend("often-suspended")
        await self.world.sweeps()
        await self.world.subscribes("often-suspended", url=THERE)

    async def sweeps(self) -> None:
        await self.world.other.outbox.sweep()
        await self.world.outbox.resend("resent", since=now())


@pytest.mark.promise("subscribing-misses-nothing")
async def test_everybody_at_once_loses_nothing_and_never_stumbles(world: Rig):
    await world.subscribes("all")
    await world.subscribes("resent", url="https://resent.example/")
    await world.subscribes("theirs", owner=BOB)
    await world.subscribes("often-suspended", url=THERE)
    stress = Stress(world)
    await stress.runs(
        *[stress.appends] * 4,
        *[lambda: stress.claims(world.one), lambda: stress.claims(world.other)] * 2,
        *[stress.comes_and_goes] * 2,
        stress.suspends,
        *[stress.sweeps] * 2,
    )
    await world.subscribes("often-suspended", url=THERE)
    await world.sql("UPDATE outlast.webhook_deliveries SET due = clock_timestamp()")
    with anyio.fail_after(PATIENCE_S):
        while await world.outbox.waiting():
            await world.sweeps()
            for due in await world.claims():
                if await world.acks(due):
                    stress.settled[due.subscription_id, place(due)] += 1
    told = stress.settled
    events = await all_events(world, ALICE, 0)
    assert len(events) > 10  # it was no idle run; how many there are, the machine decides
    assert all(told["all", event] == 1 for event in events)
    assert all(told["often-suspended", event] >= 1 for event in events)
    assert all(told["resent", event] >= 1 for event in events)
    assert all(told["theirs", event] == 1 for event in await all_events(world, BOB, 0))
    assert bool(stress.forgotten) <= (told["theirs", ("", 0)] > 0)
