"""A sender that is told to stop while it claims: what that claim brings is given back at once."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import anyio
import pytest

from outlast.adapters.outbox import PostgresOutbox
from outlast.delivery.webhook import sender as sending
from outlast.delivery.webhook.sender import Sender
from outlast.domain import errors
from outlast.domain.push import DueDelivery
from outlast.tests.acceptance.waiting import until
from outlast.tests.delivery.webhook_world import ALICE, PATIENCE_S, Made, World, hook

pytestmark = pytest.mark.anyio

TASKS = 2  # of each its first event is due; the next one waits for that
MANY, LEASE_S = 10, 60.0


class SlowOutbox(PostgresOutbox):
    """Has claimed, and takes its time to say so; the statement goes on if its caller does not."""

    def __init__(self, world: World) -> None:
        super().__init__(world.database)
        self.has_claimed, self.may_answer = asyncio.Event(), asyncio.Event()
        self.is_away, self.keeps_one = False, False
        self._statements: set[asyncio.Task[Sequence[DueDelivery]]] = set()

    async def claim(
        self, limit: int, per_endpoint: int, lease_s: float, busy: Sequence[str] = ()
    ) -> Sequence[DueDelivery]:
        found = super().claim(limit, per_endpoint, lease_s, busy)
        statement = asyncio.create_task(self._answered(found))
        self._statements.add(statement)
        return await asyncio.shield(statement)

    async def _answered(
        self, claiming: Coroutine[Any, Any, Sequence[DueDelivery]]
    ) -> Sequence[DueDelivery]:
        found = await claiming
        self.has_claimed.set()
        await self.may_answer.wait()
        if self.is_away:
            raise errors.StoreUnavailable
        return found

    async def put_back(self, due: DueDelivery, delay_s: float) -> None:
        keeps, self.keeps_one = self.keeps_one, False
        if keeps:
            raise errors.StoreUnavailable
        await super().put_back(due, delay_s)

    async def are_answered(self) -> bool:
        return all(statement.done() for statement in self._statements)


Claiming = tuple[World, Sender, SlowOutbox]


@pytest.fixture
async def claiming(made: Made, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Claiming]:
    """A sender whose claim has brought deliveries of which it does not know yet."""
    monkeypatch.setattr(sending, "CLAIM_STOP_S_MAX", PATIENCE_S)  # a slow store is not cut off
    here, publisher = made
    async with hook() as endpoint:
        await here.subscribe(endpoint.url)
        for _ in range(TASKS):
            await publisher.opened(owner=ALICE)
        here.outbox = outbox = SlowOutbox(here)
        sender = here.sender()
        sender.start()
        with anyio.fail_after(PATIENCE_S):
            await outbox.has_claimed.wait()
        yield here, sender, outbox
        await sender.drain()
        outbox.may_answer.set()
        await until(outbox.are_answered, PATIENCE_S)
        assert endpoint.events == []


async def drained(sender: Sender, outbox: SlowOutbox) -> None:
    """It is told to stop before its claim has its answer."""
    with anyio.fail_after(PATIENCE_S):
        draining = asyncio.create_task(sender.drain())
        await anyio.lowlevel.checkpoint()
        outbox.may_answer.set()
        await draining


async def due_now(here: World) -> list[int]:
    """How often each delivery was attempted that can be claimed at this moment."""
    return [due.attempts for due in await PostgresOutbox(here.database).claim(MANY, MANY, LEASE_S)]


async def test_what_a_claim_under_way_brings_to_a_drain_is_put_back_at_once(claiming: Claiming):
    here, sender, outbox = claiming
    assert await due_now(here) == []
    await drained(sender, outbox)
    assert await due_now(here) == [0] * TASKS


async def test_one_that_cannot_be_put_back_is_no_reason_to_keep_another(claiming: Claiming):
    here, sender, outbox = claiming
    outbox.keeps_one = True
    await drained(sender, outbox)
    assert await due_now(here) == [0] * (TASKS - 1)


async def test_a_claim_that_fails_in_a_drain_is_no_failure_of_the_drain(claiming: Claiming):
    here, sender, outbox = claiming
    outbox.is_away = True
    await drained(sender, outbox)
    assert await due_now(here) == []


async def test_a_claim_that_has_no_answer_holds_a_drain_up_no_longer_than_allowed(
    claiming: Claiming, monkeypatch: pytest.MonkeyPatch
):
    here, sender, _ = claiming
    monkeypatch.setattr(sending, "CLAIM_STOP_S_MAX", 0.01)
    with anyio.fail_after(PATIENCE_S):
        await sender.drain()
    assert await due_now(here) == []


async def test_a_sender_that_was_never_started_is_drained_too(made: Made):
    with anyio.fail_after(PATIENCE_S):
        await made[0].sender().drain()
