"""The webhooks of one replica: the real methods and the real sender, which die with it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from outlast.adapters.outbox import PostgresOutbox
from outlast.adapters.owner_events import PostgresOwnerEvents
from outlast.adapters.postgres import Database
from outlast.adapters.webhooks import PostgresWebhookSubscriptions
from outlast.delivery.events.cursors import Cursors
from outlast.delivery.events.occurrences import Occurrences
from outlast.delivery.feed import Feed
from outlast.delivery.port import EventsRequest
from outlast.delivery.webhook import (
    breaker,
    challenge,
    exchange,
    schedule,
    sender,
    subscriber,
)
from outlast.delivery.webhook.challenge import Challenger
from outlast.delivery.webhook.exchange import Limits, Outcome, WebhookClient
from outlast.delivery.webhook.sender import Sealing, Sender, SenderStores
from outlast.delivery.webhook.subscriptions import Rules, SubscriptionMethods, SubscriptionStores
from outlast.delivery.webhook.vault import Vault
from outlast.domain import draft, errors
from outlast.domain.ports import Signal
from outlast.domain.push import Attempt, DueDelivery, Health
from outlast.service.endpoint import Method
from outlast.service.exchange import Exchange
from outlast.service.waits import turns

KEY = "a key for tests that is long enough"
CURSORS = Cursors(KEY, 1)
EXCHANGE_S_MAX = 2.0
LEASE_S = 2.0  # a loaded machine keeps it; where one has to run out, the store is told
RETRY_S = 0.03

Step = Callable[[], Awaitable[None]]


def now() -> datetime:
    """Subscriptions and signatures go by the real time, as the server's own clock does."""
    return datetime.now(UTC)


@dataclass
class MortalOutbox:
    """The sender's outbox, with a step at each seam; a dead process reaches it no more."""

    outbox: PostgresOutbox
    step: Step
    is_dead: bool = False

    async def claim(
        self, limit: int, per_endpoint: int, lease_s: float, busy: Sequence[str] = ()
    ) -> Sequence[DueDelivery]:
        found = await self._living.claim(limit, per_endpoint, lease_s, busy)
        if found:
            await self.step()
        return found

    async def settle(self, due: DueDelivery, attempt: Attempt, retry_in_s: float | None) -> bool:
        await self.step()
        is_settled = await self._living.settle(due, attempt, retry_in_s)
        await self.step()
        return is_settled

    async def put_back(self, due: DueDelivery, delay_s: float) -> None:
        await self._living.put_back(due, delay_s)

    async def note_health(self, url: str, known: Health, now: Health) -> Health | None:
        return await self._living.note_health(url, known, now)

    async def suspend(self, subscription_id: str) -> None:
        await self._living.suspend(subscription_id)

    async def sweep(self) -> bool:
        return await self._living.sweep()

    async def is_empty(self) -> bool:
        return await self._living.is_empty()

    @property
    def _living(self) -> PostgresOutbox:
        if self.is_dead:
            raise errors.StoreUnavailable
        return self.outbox


@dataclass
class SteppingClient:
    """The sender's HTTP client, with a step before each post."""

    client: WebhookClient
    step: Step

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Outcome:
        await self.step()
        return await self.client.post(url, body, headers)

    async def aclose(self) -> None:
        await self.client.aclose()


class Pushing:
    """The methods and the sender, over one database."""

    def __init__(self, database: Database, signal: Signal, feed: Feed, step: Step) -> None:
        outbox, vault = PostgresOutbox(database), Vault(KEY)
        subscriptions = PostgresWebhookSubscriptions(database)
        limits = Limits(total_s=EXCHANGE_S_MAX)
        self._database = database
        self._outbox: Any = MortalOutbox(outbox, self._or_leases_end(step))
        self._clients = [WebhookClient(allow_loopback_http=True, limits=limits) for _ in range(2)]
        self._challenger = Challenger(self._clients[1], now, None)
        posting: Any = SteppingClient(self._clients[0], self._or_leases_end(step))
        self._sender = Sender(
            SenderStores(self._outbox, subscriptions, Occurrences(feed), signal),
            posting,
            Sealing(CURSORS, vault),
            now,
            lambda _owner: True,
        )
        methods = SubscriptionMethods(
            SubscriptionStores(subscriptions, outbox, PostgresOwnerEvents(database), feed),
            CURSORS,
            vault,
            self._challenger,
            Rules(allow_loopback=True),
            now,
        )
        self.methods: Mapping[str, Method] = {
            draft.SUBSCRIBE: _answering(methods.subscribe),
            draft.UNSUBSCRIBE: _answering(methods.unsubscribe),
        }

    def start(self) -> None:
        """Begin to send."""
        self._sender.start()

    async def end(self) -> None:
        """All at once: what its tasks would still tidy up meets a dead outbox."""
        self._outbox.is_dead = True
        sender, challenger = self._sender, self._challenger
        while running := [
            task
            for task in (*sender._loops, *sender._sending, *challenger._asking.values())
            if not task.done()
        ]:
            for task in running:
                task.cancel()
            await asyncio.gather(turns(), *running, return_exceptions=True)
        for client in self._clients:
            await client.aclose()
        await self._leases_end()

    async def leave(self) -> None:
        """Send no more; what is on its way may arrive."""
        await self._sender.drain()

    def _or_leases_end(self, step: Step) -> Step:
        async def stepped() -> None:
            try:
                await step()
            except errors.StoreUnavailable:
                await self._leases_end()
                raise

        return stepped

    async def _leases_end(self) -> None:
        """So much time has passed that every claim has run out, those of the living too."""
        await self._database.rows(
            "UPDATE outlast.webhook_deliveries SET due = clock_timestamp() WHERE is_leased"
        )
        await self._database.rows("UPDATE outlast.webhook_endpoints SET probing_until = NULL")


@contextmanager
def impatient() -> Iterator[None]:
    """Every pause between two tries is short, a lease too, and nothing is ever given up.

    One set of authorities is read for all: it takes longer than a whole exchange.
    """
    tries = 1_000
    authorities = exchange._tls(None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "DELAYS_S", (0.0, *[RETRY_S] * (tries - 1)))
        patch.setattr(schedule, "ATTEMPTS_MAX", tries)
        patch.setattr(schedule, "OVERLOAD_DELAY_S_MIN", RETRY_S)
        patch.setattr(breaker, "OPEN_S_FIRST", RETRY_S)
        patch.setattr(breaker, "OPEN_S_MAX", 2 * RETRY_S)
        patch.setattr(sender, "LEASE_S", LEASE_S)
        patch.setattr(sender, "RECHECK_S", RETRY_S)
        patch.setattr(sender, "QUIET_S", RETRY_S)
        patch.setattr(sender, "BUSY_PAUSE_S", RETRY_S)
        patch.setattr(sender, "STORE_PAUSE_S", RETRY_S)
        patch.setattr(sender, "DRAIN_S_MAX", 0.1)
        patch.setattr(challenge, "REFUSED_S", 0.0)
        patch.setattr(challenge, "HOST_MAX", tries)
        patch.setattr(subscriber, "RETRY_S_FIRST", RETRY_S / 4)
        patch.setattr(subscriber, "RETRY_S_MAX", RETRY_S)
        patch.setattr(exchange, "_tls", lambda _: authorities)
        yield


def _answering(method: Callable[[EventsRequest], Any]) -> Method:
    async def answer(exchange: Exchange) -> dict[str, Any]:
        return await method(
            EventsRequest(exchange.owner.key, True, exchange.request_id, exchange.params)
        )

    return answer
