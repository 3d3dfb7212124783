"""A sender that is told to stop while it claims: what that claim brings is given back at once."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from outlast.delivery.webhook import sender as sending
from outlast.delivery.webhook.sender import Sender, SenderStores
from outlast.domain import errors
from outlast.tests.acceptance.waiting import until

pytestmark = pytest.mark.anyio

PATIENCE_S = 20.0


class SlowOutbox:
    """Its claims go on when their caller is cancelled, as PostgreSQL's do; each takes its time."""

    def __init__(self, is_away: bool = False) -> None:
        self.is_away = is_away
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.leased: list[Any] = []
        self.given_back: list[tuple[Any, float]] = []
        self._statements: set[asyncio.Task[Sequence[Any]]] = set()

    async def claim(self, *_: object) -> Sequence[Any]:
        statement = asyncio.create_task(self._lease())
        self._statements.add(statement)
        return await asyncio.shield(statement)

    async def _lease(self) -> Sequence[Any]:
        self.is_asked.set()
        await self.may_answer.wait()
        if self.is_away:
            raise errors.StoreUnavailable
        self.leased = [SimpleNamespace(id=number, url="https://here.example/") for number in (1, 2)]
        return self.leased

    async def put_back(self, due: Any, delay_s: float) -> None:
        self.given_back.append((due, delay_s))
        if due is self.leased[0]:
            raise errors.StoreUnavailable  # of this one alone, which is no reason to keep another

    async def sweep(self) -> bool:
        return False

    async def is_empty(self) -> bool:
        return False


class Quiet:
    """A signal that tells of nothing."""

    @asynccontextmanager
    async def watching_outbox(self) -> AsyncGenerator[None]:
        yield


class NoClient:
    """Nothing may be sent by it."""

    async def aclose(self) -> None:
        pass


def sender_of(outbox: SlowOutbox) -> Sender:
    nothing: Any = None
    parts: Any = SenderStores(outbox, nothing, nothing, Quiet())  # pyright: ignore[reportArgumentType]  # as much of each port as a claim needs
    client: Any = NoClient()
    return Sender(parts, client, nothing, nothing, lambda _: True)


async def drained_while_it_claims(outbox: SlowOutbox) -> None:
    """A sender that is told to stop before its first claim has its answer."""
    sender = sender_of(outbox)
    sender.start()
    with anyio.fail_after(PATIENCE_S):
        await outbox.is_asked.wait()
        draining = asyncio.create_task(sender.drain())
        await anyio.lowlevel.checkpoint()
        outbox.may_answer.set()
        await draining


async def test_what_a_claim_under_way_brings_to_a_drain_is_put_back_at_once() -> None:
    outbox = SlowOutbox()
    await drained_while_it_claims(outbox)
    assert outbox.given_back == [(due, 0.0) for due in outbox.leased]
    assert len(outbox.leased) == 2


async def test_a_claim_that_fails_in_a_drain_is_no_failure_of_the_drain() -> None:
    outbox = SlowOutbox(is_away=True)
    await drained_while_it_claims(outbox)
    assert outbox.leased == outbox.given_back == []


async def test_a_claim_that_has_no_answer_holds_a_drain_up_no_longer_than_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "CLAIM_STOP_S_MAX", 0.01)
    outbox = SlowOutbox()
    sender = sender_of(outbox)
    sender.start()
    with anyio.fail_after(PATIENCE_S):
        await outbox.is_asked.wait()
        await sender.drain()
    outbox.may_answer.set()

    async def has_answered() -> bool:
        return bool(outbox.leased)

    await until(has_answered, PATIENCE_S)
    assert outbox.given_back == []


async def test_a_sender_that_was_never_started_is_drained_too() -> None:
    with anyio.fail_after(PATIENCE_S):
        await sender_of(SlowOutbox()).drain()
