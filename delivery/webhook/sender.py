"""The sender: claims what is due, posts it, and settles what came of it.

It holds no truth: a delivery is over when its row is gone, and a sender that dies or stalls loses
its lease and nothing else. What it sent and could not settle is sent again, under the same id.
"""

import asyncio
import contextlib
import hashlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import anyio

from ...domain import draft, errors
from ...domain.ports import Clock, Signal
from ...domain.push import Attempt, DueDelivery, Health, Outbox, WebhookSubscriptions
from ..events.cursors import Cursors
from ..events.occurrences import UNOPENED, Occurrences, event_id
from ..frames import dumps
from . import schedule, signing
from .breaker import Breaker
from .challenge import signed
from .exchange import PER_HOST_MAX, Outcome, WebhookClient
from .vault import Vault

SLOTS = 128
LEASE_S = 30.0  # longer than an exchange may take, its wait for a place and the settling with it
RECHECK_S = 1.0  # for what becomes due by itself
QUIET_S = 15.0  # and where nothing waits at all: the signal tells of what comes
CLAIM_PAUSE_S = 0.01  # claims one by one would cost more than they bring
BUSY_PAUSE_S = 1.0  # before a delivery is tried again whose host had no place free
GONE_PAUSE_S = 60.0  # what met "gone" waits on like the rest; it is suspended long before
SWEEP_S = 5.0
STORE_PAUSE_S = 0.5
DRAIN_S_MAX = 5.0
CLAIM_STOP_S_MAX = 3.0  # a claim that is under way when the drain begins
HASH_LENGTH = 24

REVOKED = "revoked"  # why a subscription ends whose owner may receive nothing any more
GONE, ABANDONED, DELIVERED, RETRY, LOST = "gone", "abandoned", "delivered", "retry", "lost"

_log = logging.getLogger("outlast.webhooks")

# What watches one attempt, and is told its outcome.
Around = Callable[[DueDelivery], AbstractAsyncContextManager[Callable[[Outcome], None]]]


@dataclass(frozen=True)
class Sealing:
    """What turns positions and stored secrets into what is sent."""

    cursors: Cursors
    vault: Vault
    server: signing.ServerKey | None = None


@dataclass(frozen=True)
class SenderStores:
    """Where deliveries come from."""

    outbox: Outbox
    subscriptions: WebhookSubscriptions
    occurrences: Occurrences
    signal: Signal


@dataclass(frozen=True)
class Message:
    """One delivery as it is sent: its id stays the same from attempt to attempt."""

    webhook_id: str
    body: bytes


class Sender:
    """One process's sender. `may_receive` says whether an owner is still to be told anything."""

    def __init__(  # noqa: PLR0913, PLR0917 - one part each, named by the wiring
        self,
        stores: SenderStores,
        client: WebhookClient,
        sealing: Sealing,
        clock: Clock,
        may_receive: Callable[[str], bool],
        slots: int = SLOTS,
        around: Around | None = None,
    ) -> None:
        self._stores, self._client, self._sealing = stores, client, sealing
        self._now, self._may_receive, self._slots = clock, may_receive, slots
        self._around = around
        self._busy: Counter[str] = Counter()
        self._failing: set[str] = set()
        self._sending: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._claiming: asyncio.Task[bool] | None = None
        self._is_draining = False
        self.counts: Counter[str] = Counter()
        self.categories: Counter[tuple[str, ...]] = Counter()  # of what was attempted

    def start(self) -> None:
        """Begin to send."""
        self._loops = [
            asyncio.create_task(self._for_ever(self._claim), name="outlast-webhooks"),
            asyncio.create_task(self._for_ever(self._sweep), name="outlast-webhooks-sweep"),
        ]

    async def drain(self) -> None:
        """Claim no more, and let what is on its way arrive, within bounds."""
        self._is_draining = True
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        if self._claiming is not None:
            # What a claim under way still brings is given back; cut off, it would stay leased.
            await asyncio.wait({self._claiming}, timeout=CLAIM_STOP_S_MAX)
            self._claiming.cancel()
            await asyncio.gather(self._claiming, return_exceptions=True)
        if self._sending:
            await asyncio.wait(self._sending, timeout=DRAIN_S_MAX)
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        await self._client.aclose()

    async def _for_ever(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await work()
            except errors.StoreUnavailable:
                pass
            except Exception:  # noqa: BLE001 - the edge: one failure must not end all sending
                _log.exception("webhooks stumbled; they go on")
            await asyncio.sleep(STORE_PAUSE_S)

    async def _claim(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._stores.signal.watching_outbox() as wakeup:
            while True:
                # Before the claim, not after: what becomes free meanwhile it has not seen.
                self._freed.clear()
                begun = loop.time()
                self._claiming = asyncio.create_task(self._claim_once())
                claimed = await asyncio.shield(self._claiming)
                # Where a claim takes long, it takes no more than half of the time.
                await asyncio.sleep(max(CLAIM_PAUSE_S, loop.time() - begun))
                if claimed:
                    continue
                pause_s = QUIET_S if await self._stores.outbox.is_empty() else RECHECK_S
                heard = asyncio.ensure_future(wakeup.wait(pause_s))
                freed = asyncio.ensure_future(self._freed.wait())
                try:
                    await asyncio.wait({heard, freed}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for waiting in (heard, freed):
                        waiting.cancel()
                    await asyncio.gather(heard, freed, return_exceptions=True)
                wakeup.take()

    async def _claim_once(self) -> bool:
        free = self._slots - len(self._sending)
        if free <= 0:
            return False
        full = [url for url, count in self._busy.items() if count >= self._places_of(url)]
        found = await self._stores.outbox.claim(free, PER_HOST_MAX, LEASE_S, full)
        if self._is_draining:
            back = (self._stores.outbox.put_back(due, 0.0) for due in found)
            await asyncio.gather(*back, return_exceptions=True)  # what fails has its lease
            return False
        for due in found:
            self._busy[due.url] += 1
            task = asyncio.create_task(self._carry(due))
            self._sending.add(task)
            task.add_done_callback(lambda done, url=due.url: self._free(done, url))
        return bool(found)

    def _places_of(self, url: str) -> int:
        return 1 if url in self._failing else PER_HOST_MAX

    def _free(self, task: "asyncio.Task[None]", url: str) -> None:
        self._sending.discard(task)
        self._busy[url] -= 1
        if not self._busy[url]:
            del self._busy[url]
        self._freed.set()

    async def _sweep(self) -> None:
        while True:
            if not await self._stores.outbox.sweep():
                await asyncio.sleep(SWEEP_S)

    async def _carry(self, due: DueDelivery) -> None:
        """One claim, from here to its settling. Never raises: it falls back on the lease."""
        try:
            await self._deliver(due)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True), contextlib.suppress(errors.StoreUnavailable):
                await self._stores.outbox.put_back(due, 0.0)
            raise
        except errors.StoreUnavailable:
            self.counts[LOST] += 1
        except Exception:  # noqa: BLE001 - the edge: the lease runs out, and it is tried again
            self.counts[LOST] += 1
            _log.exception("a delivery stumbled", extra=_facts(due))

    async def _deliver(self, due: DueDelivery) -> None:
        if due.why != REVOKED and not self._may_receive(due.owner):
            await self._stores.subscriptions.end(due.subscription_id, REVOKED)
            return
        try:
            message = await self._message(due)
        except UNOPENED as error:  # another process may have the key, or this one some day
            _log.warning("a delivery's task cannot be opened: %s", error, extra=_facts(due))
            await self._settle_unsent(due, schedule.unsent(due.attempts + 1, _chance()))
            return
        if message is None:  # the task is stored no more: the removal queued a gap
            await self._settle_unsent(due, schedule.Abandon())
            return
        sealing = self._sealing
        try:
            secrets = sealing.vault.open_all(due.secrets, due.subscription_id)
        except errors.ConfigurationError as error:
            await self._suspend(due, str(error))  # its client's next refresh brings a secret again
            return
        headers = signed(
            secrets,
            sealing.server,
            message.webhook_id,
            int(self._now().timestamp()),
            message.body,
            due.subscription_id,
        )
        outcome = await self._post(due, message.body, headers)
        if not outcome.attempted:
            await self._stores.outbox.put_back(due, BUSY_PAUSE_S)
            return
        await self._settle(due, message.webhook_id, outcome)

    async def _post(self, due: DueDelivery, body: bytes, headers: Mapping[str, str]) -> Outcome:
        if self._around is None:
            outcome = await self._client.post(due.url, body, headers)
        else:
            async with self._around(due) as note:
                outcome = await self._client.post(due.url, body, headers)
                note(outcome)
        if outcome.attempted:
            self.categories[(outcome.category or DELIVERED,)] += 1
        return outcome

    async def _message(self, due: DueDelivery) -> Message | None:
        cursor = self._sealing.cursors.seal(due.owner, due.watermark)
        if due.envelope is not None:
            return Message(_envelope_id(due), dumps(_envelope(due, cursor)))
        occurrence = await self._stores.occurrences.one(
            due.name, due.task_id, due.version, due.present, due.tool
        )
        if occurrence is None:
            return None
        return Message(occurrence["eventId"], dumps({**occurrence, "cursor": cursor}))

    async def _settle(self, due: DueDelivery, webhook_id: str, outcome: Outcome) -> None:
        """Write down what came of it."""
        answer = _answer(outcome)
        step = schedule.next_step(due.attempts + 1, answer, _chance())
        # The breaker first: once this is settled, the next one might else be claimed in between.
        is_hopeless = await self._note(due, answer)
        if not await self._write_down(due, webhook_id, step, outcome):
            return
        if isinstance(step, schedule.Deactivate):
            await self._suspend(due, "its endpoint says that it is gone")
        elif is_hopeless:
            await self._suspend(due, "its endpoint has failed for too long")

    async def _settle_unsent(self, due: DueDelivery, step: schedule.Step) -> None:
        """Write down that there was nothing to send. It says nothing of the endpoint."""
        webhook_id = event_id(due.name, due.task_id, due.version)
        await self._write_down(due, webhook_id, step, Outcome(None, None))

    async def _write_down(
        self, due: DueDelivery, webhook_id: str, step: schedule.Step, outcome: Outcome
    ) -> bool:
        attempt = Attempt(
            self._now(),
            due.subscription_id,
            webhook_id,
            due.attempts + 1,
            outcome.category,
            None if outcome.status is None else outcome.status // 100,
            outcome.latency_ms,
            _word(step),
        )
        retry_in_s = step.seconds if isinstance(step, schedule.RetryIn) else None
        if isinstance(step, schedule.Deactivate) and due.envelope != draft.ENDED:
            retry_in_s = GONE_PAUSE_S
        is_settled = await self._stores.outbox.settle(due, attempt, retry_in_s)
        self.counts[attempt.step if is_settled else LOST] += 1
        return is_settled

    async def _note(self, due: DueDelivery, answer: schedule.Outcome) -> bool:
        """Tell the endpoint's breaker, on top of what others have told it meanwhile.

        True when only its client can revive it.
        """
        is_hopeless = False
        known: Health | None = due.health
        while known is not None:
            before = _breaker(known)
            after = before.after(answer, self._now())
            if after == before:
                break
            known = await self._stores.outbox.note_health(due.url, known, _health(after))
            is_hopeless = after.is_to_be_suspended(self._now())
        if schedule.category(answer) is None:
            self._failing.discard(due.url)
        else:
            self._failing.add(due.url)
        return is_hopeless

    async def _suspend(self, due: DueDelivery, why: str) -> None:
        await self._stores.outbox.suspend(due.subscription_id)
        self.counts["suspended"] += 1
        _log.warning("a webhook subscription is suspended: %s", why, extra=_facts(due))


def _chance() -> float:
    return random.random()  # noqa: S311 - it spreads retries, and hides nothing


def _answer(outcome: Outcome) -> schedule.Outcome:
    if outcome.status is None or (
        outcome.category is not None and schedule.is_success(outcome.status)
    ):
        return schedule.Unanswered(schedule.Category(outcome.category or "timeout"))
    return schedule.Answered(outcome.status, outcome.retry_after_s)


def _word(step: schedule.Step) -> str:
    match step:
        case schedule.Delivered():
            return DELIVERED
        case schedule.RetryIn():
            return RETRY
        case schedule.Abandon():
            return ABANDONED
        case schedule.Deactivate():
            return GONE


def _envelope(due: DueDelivery, cursor: str) -> dict[str, Any]:
    if due.envelope == draft.GAP:
        return {"type": draft.GAP, "cursor": cursor}
    if due.why == REVOKED:
        error: dict[str, Any] = {
            "code": draft.FORBIDDEN,
            "message": "Forbidden",
            "data": {"reason": "Access revoked"},
        }
    else:
        data = {"kind": "subscription", "reason": due.why}
        error = {"code": draft.NOT_FOUND, "message": "NotFound", "data": data}
    return {"type": draft.ENDED, "error": error}


def _envelope_id(due: DueDelivery) -> str:
    text = f"{due.subscription_id}\0{due.id}".encode()
    return f"msg_{due.envelope}_{hashlib.sha256(text).hexdigest()[:HASH_LENGTH]}"


def _breaker(health: Health) -> Breaker:
    return Breaker(
        health.failures,
        health.failing_since,
        health.opened,
        health.open_until,
        health.probing_until,
    )


def _health(breaker: Breaker) -> Health:
    return Health(
        breaker.failures,
        breaker.failing_since,
        breaker.opened,
        breaker.open_until,
        breaker.probing_until,
    )


def _facts(due: DueDelivery) -> dict[str, object]:
    return {"subscription": due.subscription_id, "position": due.position}
