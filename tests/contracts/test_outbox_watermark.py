"""The cursor that a delivery carries, over random histories and random ends of each delivery.

What it should be says `watermark.py`, in a dozen pure lines; the outbox has it from its rows.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from outlast.domain.push import DueDelivery
from outlast.tests.contracts.outbox_world import ALICE, BOB, Rig, rig
from outlast.tests.contracts.watermark import Watermark

pytestmark = [pytest.mark.anyio, pytest.mark.promise("webhook-watermark-is-safe")]

# Two tasks that are wanted, one that is filtered out, and one of another owner.
TASKS = ((ALICE, "build"), (ALICE, "build"), (ALICE, "deploy"), (BOB, "build"))
EXAMPLES, STEPS = 25, 30

Step = tuple[str, int]
STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(0, len(TASKS) - 1)),
    st.tuples(st.just("claim"), st.integers(1, 3)),
    st.tuples(
        st.sampled_from(["ack", "ack", "retry", "abandon", "crash", "put back"]), st.integers(0, 5)
    ),
    st.tuples(st.sampled_from(["suspend", "refresh"]), st.just(0)),
)


@pytest.fixture(params=[False, True], ids=["plain", "sealed"])
async def world(module_database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with rig(module_database_url, seals=request.param) as made:
        yield made


@dataclass
class History:
    """One subscription, its model, and a client that stores each cursor with its event."""

    world: Rig
    tasks: list[str]
    mark: Watermark
    wanted: list[int] = field(default_factory=list[int])
    held: list[DueDelivery] = field(default_factory=list[DueDelivery])
    stored: int = 0
    is_active: bool = True

    async def does(self, what: str, which: int) -> None:
        match what:
            case "append":
                await self.appends(which)
            case "claim":
                await self.claims(which)
            case "suspend":
                await self.suspends()
            case "refresh":
                await self.refreshes()
            case _ if self.held:
                await self.ends(self.held.pop(which % len(self.held)), what)
            case _:
                pass

    async def appends(self, which: int) -> None:
        owner, tool = TASKS[which]
        task_id = self.tasks[which]
        await self.world.progresses(task_id)
        position = (await self.world.places(task_id))[-1]
        if owner == ALICE and tool == "build":
            self.mark = self.mark.queued(position)
            self.wanted.append(position)
        elif owner == ALICE:
            self.mark = self.mark.passed(position)

    async def claims(self, limit: int) -> None:
        for due in await self.world.claims(limit=limit):
            others = self.mark.unsettled - {due.position}
            assert all(due.watermark < position for position in others), "ahead of an event"
            assert due.watermark >= self.stored, "behind what the client was told to store"
            assert due.watermark == self.mark.carried_by(due.position)
            self.held.append(due)

    async def ends(self, due: DueDelivery, how: str) -> None:
        match how:
            case "crash":  # its lease runs out
                await self.world.sql(
                    "UPDATE outlast.webhook_deliveries SET due = clock_timestamp() WHERE id = %s",
                    due.id,
                )
            case "put back":
                await self.world.outbox.put_back(due, 0)
            case "retry":
                await self.world.refuses(due, 0)
            case "abandon":
                assert await self.world.refuses(due, None)
                self.mark = self.mark.settled(due.position)
            case _:
                assert await self.world.acks(due)
                self.stored = due.watermark
                self.mark = self.mark.settled(due.position)

    async def suspends(self) -> None:
        if not self.is_active:
            return
        await self.world.outbox.suspend("sub")
        self.is_active = False
        self.held.clear()
        # All that lies behind the watermark is read again, also what had arrived.
        again = frozenset(each for each in self.wanted if each > self.mark.safe)
        self.mark = Watermark(self.mark.read_to, again)
        self.stored = min(self.stored, self.mark.safe)

    async def refreshes(self) -> None:
        await self.world.subscribes(tools=["build"])
        await self.world.sweeps()
        self.is_active = True

    async def checks(self) -> None:
        """What a refresh would be answered."""
        told = await self.world.watermark()
        if self.is_active:
            assert told == self.mark.safe
        else:
            assert told <= self.mark.safe


async def begun(world: Rig) -> History:
    await world.empties()
    tasks = [await world.started(owner, tool) for owner, tool in TASKS]
    await world.subscribes(tools=["build"])
    await world.sweeps()
    return History(world, tasks, Watermark(await world.one.events.head(ALICE)))


@settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(STEP, min_size=5, max_size=STEPS))
async def test_the_watermark_is_where_the_model_says_in_whatever_order_deliveries_end(
    world: Rig, steps: list[Step]
):
    history = await begun(world)
    for what, which in steps:
        await history.does(what, which)
        await history.checks()
    await history.refreshes()
    for due in history.held:
        await history.ends(due, "ack")
    for _ in range(len(steps) + 1):
        history.held.clear()
        await history.claims(100)
        for due in list(history.held):
            await history.ends(due, "ack")
    assert not history.mark.unsettled
    assert await world.outbox.waiting() == 0
    assert await world.watermark() == await world.one.events.head(ALICE) == history.mark.safe


async def test_only_a_resend_takes_the_watermark_back_and_no_further_than_its_event(world: Rig):
    history = await begun(world)
    for _ in range(3):
        await history.appends(0)
        await history.claims(1)
        await history.ends(history.held.pop(), "ack")
    head = await world.watermark()
    assert await world.outbox.resend("sub", event=(history.tasks[0], 4)) == 1
    assert await world.watermark() == history.wanted[1] - 1
    due = await world.claims_one()
    assert due.watermark == head
    await world.acks(due)
    assert await world.watermark() == head
