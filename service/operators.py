"""What operators do with webhook subscriptions: look, send again, resume, try. Over ports alone.

Answers are JSON values. No secret is in any of them, sealed or not.
"""

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ..domain import errors
from ..domain.decisions import instant
from ..domain.ports import Clock
from ..domain.push import (
    Attempt,
    Health,
    Outbox,
    Outlook,
    Trouble,
    WebhookSubscription,
    WebhookSubscriptions,
)
from .policy import milliseconds

PAGE_MAX = 1_000
GIVEN_UP = frozenset({"abandoned", "gone"})  # the last steps of a delivery that did not arrive

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")

Json = dict[str, Any]
# One challenge to a subscription's endpoint with its own secret: why it failed, None if it did not
Ask = Callable[[WebhookSubscription], Awaitable[str | None]]


class UnknownSubscription(errors.OutlastError):
    """There is no such webhook subscription: it never was, has lapsed, or was let go of."""


class UnknownEvent(errors.OutlastError):
    """The event is stored no more, or it is none that this subscription asks for."""


class NotNow(errors.OutlastError):
    """This cannot be done as things are."""


@dataclass(frozen=True)
class Listing:
    """Which subscriptions, and how many from which id on. `owner` is an owner's key."""

    owner: str | None = None
    trouble: Trouble | None = None
    after: str = ""
    limit: int = 100


class Operators:
    """The use cases. Without `ask` no webhooks leave this deployment, and none can be tried."""

    def __init__(
        self, subscriptions: WebhookSubscriptions, outbox: Outbox, ask: Ask | None, clock: Clock
    ) -> None:
        self._subscriptions, self._outbox = subscriptions, outbox
        self._ask, self._now = ask, clock

    async def list(self, wanted: Listing) -> Json:
        """A page of subscriptions, and the id after which the next one begins; None for no more."""
        _check_name("after", wanted.after or "-")
        found = await self._subscriptions.find(
            owner=wanted.owner,
            trouble=wanted.trouble,
            after=wanted.after,
            limit=wanted.limit + 1,
        )
        page = found[: wanted.limit]
        more = page[-1].id if len(found) > len(page) else None
        return {"webhooks": [_told(each) for each in page], "next": more}

    async def show(self, subscription_id: str) -> Json:
        """One subscription, how its endpoint does, and what is ahead."""
        known = await self._known(subscription_id)
        outlook = await self._subscriptions.outlook(subscription_id)
        if outlook is None:
            raise UnknownSubscription
        return {**_told(known), **self._ahead(known, outlook)}

    async def attempts(
        self, subscription_id: str, webhook_id: str | None = None, limit: int = 100
    ) -> Json:
        """The latest attempts, newest first; also of a subscription that has just ended."""
        if webhook_id is not None:
            _check_name("event", webhook_id)
        if not _NAME.fullmatch(subscription_id):
            raise UnknownSubscription
        found = await self._outbox.attempts(subscription_id, webhook_id, limit)
        if not found:
            await self._known(subscription_id)
        return {"attempts": [_attempt(each) for each in found]}

    async def resend_sent(self, subscription_id: str, webhook_id: str) -> int:
        """Queue the event of this id, which an attempt is stored of, once more; how many: 1."""
        await self._known(subscription_id)
        _check_name("event", webhook_id)
        # The id names a task by a hash alone. What was ever tried is found by its attempts.
        attempts = await self._outbox.attempts(subscription_id, webhook_id, 1)
        if not attempts:
            raise UnknownEvent(
                "No attempt to deliver this event is stored; name it by task and version instead"
            )
        event = attempts[0].event
        if event is None:
            raise NotNow("This was no event but a notice of ours, which is not sent again")
        return await self.resend_version(subscription_id, *event)

    async def resend_version(self, subscription_id: str, task_id: str, version: int) -> int:
        """Queue this event of this task once more; how many: 1."""
        await self._sending(subscription_id)
        queued = await self._outbox.resend(subscription_id, event=(task_id, version))
        if not queued:
            raise UnknownEvent
        return queued

    async def resend_since(self, subscription_id: str, since: str) -> int:
        """Queue all events since an instant, or of the last so long; how many."""
        await self._sending(subscription_id)
        return await self._outbox.resend(subscription_id, since=self._instant_of(since))

    async def resend_failed(self, subscription_id: str, since: str) -> int:
        """Queue the events that were given up since then, and not delivered after; how many.

        As far as attempts are known: the newest PAGE_MAX are looked at.
        """
        await self._sending(subscription_id)
        start = self._instant_of(since)
        last: dict[tuple[str, int], Attempt] = {}
        for each in await self._outbox.attempts(subscription_id, None, PAGE_MAX):
            if each.event is not None and each.at >= start:
                last.setdefault(each.event, each)
        failed = [event for event, each in last.items() if each.step in GIVEN_UP]
        queued = [
            await self._outbox.resend(subscription_id, event=event) for event in reversed(failed)
        ]
        return sum(queued)

    async def resume(self, subscription_id: str) -> Json:
        """Deliver again without waiting for the client; the subscription after it."""
        await self._known(subscription_id)
        if not await self._subscriptions.resume(subscription_id):
            raise UnknownSubscription
        return await self.show(subscription_id)

    async def test(self, subscription_id: str) -> Json:
        """Challenge the endpoint once. Nothing is stored, and no other judgement changes."""
        known = await self._known(subscription_id)
        if self._ask is None:
            raise NotNow("Webhooks are switched off here: see [events] in the configuration")
        try:
            reason = await self._ask(known)
        except errors.ConfigurationError as error:
            raise NotNow(str(error)) from error
        return {"id": known.id, "url": known.key.url, "ok": reason is None, "reason": reason}

    async def _known(self, subscription_id: str) -> WebhookSubscription:
        if not _NAME.fullmatch(subscription_id):
            raise UnknownSubscription
        known = await self._subscriptions.get(subscription_id)
        if known is None:
            raise UnknownSubscription
        return known

    async def _sending(self, subscription_id: str) -> None:
        if not (await self._known(subscription_id)).is_active:
            raise NotNow("The subscription is suspended: resume it first, then send again")

    def _instant_of(self, since: str) -> datetime:
        try:
            return self._now() - timedelta(milliseconds=milliseconds(since))
        except ValueError:
            pass
        try:
            # To UTC here: what lies before the first year or after the last one is told now.
            at = datetime.fromisoformat(since)
            if at.tzinfo is not None:
                return at.astimezone(UTC)
        except (ValueError, OverflowError):
            pass
        raise errors.InvalidCall(
            'since must be a duration like "2h", or an instant with its zone like'
            ' "2026-01-31T09:00:00Z"'
        )

    def _ahead(self, known: WebhookSubscription, outlook: Outlook) -> Json:
        health, next_at = outlook.health, outlook.next_due
        if next_at is not None and health.open_until is not None:
            next_at = max(next_at, health.open_until)
        return {
            "behindSince": _instant(outlook.behind_since),
            "nextAttemptAt": _instant(next_at) if known.is_active else None,
            "breaker": {
                "state": _breaker_state(health, self._now()),
                "failures": health.failures,
                "failingSince": _instant(health.failing_since),
                "openUntil": _instant(health.open_until),
            },
        }


def _check_name(what: str, text: str) -> None:
    if not _NAME.fullmatch(text):
        raise errors.InvalidCall(f"{what} is no id of ours")


def _breaker_state(health: Health, now: datetime) -> str:
    if health.open_until is None:
        return "closed"
    return "open" if now < health.open_until else "half_open"


def _told(known: WebhookSubscription) -> Json:
    return {
        "id": known.id,
        "url": known.key.url,
        "name": known.key.name,
        "arguments": json.loads(known.key.arguments),
        "owner": json.loads(known.key.owner),
        "active": known.is_active,
        "waiting": known.waiting,
        "createdAt": _instant(known.created_at),
        "refreshBefore": _instant(known.refresh_before),
        "lastDeliveryAt": _instant(known.last_delivery_at),
        "lastError": known.last_error,
        "failingSince": _instant(known.failed_since),
    }


def _attempt(attempt: Attempt) -> Json:
    task_id, version = attempt.event or (None, None)
    status = attempt.status_class
    return {
        "at": _instant(attempt.at),
        "event": attempt.webhook_id,
        "task": task_id,
        "version": version,
        "number": attempt.number,
        "outcome": attempt.step,
        "reason": attempt.category,
        "status": None if status is None else f"{status}xx",
        "latencyMs": attempt.latency_ms,
    }


def _instant(at: datetime | None) -> str | None:
    return None if at is None else instant(at)
