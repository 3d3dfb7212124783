"""Push: the events of an owner, in one order, and the webhooks that they leave by.

The values and the seams of it; `ports.py` has all the others. A position is a place in the order of
all commits: it only grows, has gaps where other owners stand, and leaves the process only inside a
sealed cursor. An adapter builds each port from these sentences; all methods may raise
`StoreUnavailable`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol


@dataclass(frozen=True)
class Filter:
    """Which events of an owner are meant: an event type, narrowed. None narrows nothing."""

    name: str
    task_ids: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    statuses: tuple[str, ...] | None = None


@dataclass(frozen=True)
class LoggedEvent:
    """One event of one task, where it stands, and what the task was after it."""

    position: int
    task_id: str
    version: int
    topic: str
    tool: str
    status: str


@dataclass(frozen=True)
class Page:
    """Matching events in order. All up to `read_to` was looked at; `has_more` of them wait."""

    events: Sequence[LoggedEvent]
    read_to: int
    has_more: bool


class OwnerEvents(Protocol):
    """The events of one owner's tasks, in the order of their commits."""

    async def epoch(self) -> int:
        """Names this log; another one, made anew, has another. Never changes while it lives."""
        ...

    async def head(self, owner: str) -> int:
        """The position of the owner's newest event; 0 for none."""
        ...

    async def after(self, owner: str, wanted: Filter, position: int, limit: int) -> Page:
        """At most `limit` matching events after the position, and how far was looked.

        An event that is committed later has a higher position than all that this has seen.
        """
        ...

    async def floor(
        self, owner: str, wanted: Filter, position: int, since: datetime | None, newest: int
    ) -> int:
        """Where a reader at this position goes on: at the events younger than `since`, and with
        `newest` of them before it at most. Of named tasks only theirs count, else all of the owner.
        """
        ...

    async def removed_to(self, owner: str) -> int:
        """Events of the owner at or before this position may have been removed; 0 for none."""
        ...

    async def place_of(self, task_id: str, version: int) -> int:
        """The position of this event; 0 when it is not stored."""
        ...


@dataclass(frozen=True)
class SubscriptionKey:
    """What makes a webhook subscription the same one. `arguments` is canonical JSON (RFC 8785)."""

    owner: str
    url: str
    name: str
    arguments: str


@dataclass(frozen=True)
class WebhookSubscription:
    """A webhook subscription as it is stored.

    `secret` and `former_secret` are sealed; the former one is None once its time is over.
    `watermark` is the position that is safe to store for the client.
    """

    id: str
    key: SubscriptionKey
    wanted: Filter
    secret: bytes
    former_secret: bytes | None
    created_at: datetime
    refresh_before: datetime | None
    is_active: bool
    last_delivery_at: datetime | None
    last_error: str | None
    failed_since: datetime | None
    waiting: int
    watermark: int


@dataclass(frozen=True)
class SubscriptionWish:
    """What a verified subscribe call wants stored.

    For one that is new, `start` is the position after which it begins. `known` goes before it:
    from these versions of named tasks on, where 0 means their present state alone.
    """

    id: str
    key: SubscriptionKey
    wanted: Filter
    secret: bytes
    refresh_before: datetime | None
    start: int
    known: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Health:
    """How one endpoint does, as its breaker sees it; `revision` counts the changes."""

    failures: int = 0
    failing_since: datetime | None = None
    opened: int = 0
    open_until: datetime | None = None
    probing_until: datetime | None = None
    revision: int = 0


# Either nothing is delivered any more, or the last attempt failed.
Trouble = Literal["suspended", "failing"]


@dataclass(frozen=True)
class Outlook:
    """How a subscription's endpoint does, and what is ahead.

    `behind_since`: when the first event after the watermark was recorded. `next_due`: when the
    first delivery that waits is due; an open breaker may hold it up longer.
    """

    health: Health
    behind_since: datetime | None
    next_due: datetime | None


class WebhookSubscriptions(Protocol):
    """Who gets what by webhook. One whose `refresh_before` has passed is there no more."""

    async def put(self, wish: SubscriptionWish, most: int, former_s: float) -> bool:
        """Store it or refresh it, in one commit; True for a new one.

        From this commit on, each append queues its matching events in its own commit; what lies
        between `start` and now is queued too, soon after. A refresh replaces the secret (a
        different one stays valid beside it for `former_s`) and the time, and is a sign of life: a
        suspended one becomes active and goes on where it stood, the endpoint is tried at once, and
        of what waits for another try the oldest thousand are due. Raises TooManySubscriptions when
        the owner has `most` others.
        """
        ...

    async def get(self, subscription_id: str) -> WebhookSubscription | None:
        """The subscription, or None."""
        ...

    async def find(
        self,
        *,
        owner: str | None = None,
        trouble: Trouble | None = None,
        after: str = "",
        limit: int = 100,
    ) -> Sequence[WebhookSubscription]:
        """Subscriptions in the order of their ids: of one owner or of all, in trouble or any."""
        ...

    async def outlook(self, subscription_id: str) -> Outlook | None:
        """What is ahead of it; None for an unknown one."""
        ...

    async def resume(self, subscription_id: str) -> bool:
        """What a refresh does beside secret and time, without its client.

        Idempotent. False for an unknown one.
        """
        ...

    async def count(self, owner: str | None = None) -> int:
        """How many the owner has; without one, how many there are."""
        ...

    async def is_verified(self, owner: str, url: str) -> bool:
        """Whether the owner has a subscription there: its endpoint has shown its intent."""
        ...

    async def remove(self, subscription_id: str) -> bool:
        """Forget it, with all that waits for it. False for an unknown one."""
        ...

    async def end(self, subscription_id: str, why: str) -> bool:
        """Drop what waits, tell the endpoint `terminated` for this reason, then forget it."""
        ...


@dataclass(frozen=True)
class DueDelivery:
    """One delivery that was claimed, with all that is needed to send it.

    `envelope` is None for an event, else the type of the control envelope, whose `why` may be set.
    `watermark` is what is safe once this has arrived. `tool` and `present` (version and wire) are
    of the task's view row; `present` is None when that is of another version or does not open, and
    the event has to be folded from the stream.
    `fence` is this claim's: a later claim makes it void.
    """

    id: int
    fence: int
    attempts: int
    subscription_id: str
    owner: str
    url: str
    name: str
    secrets: Sequence[bytes]
    envelope: str | None
    why: str | None
    position: int
    task_id: str
    version: int
    watermark: int
    tool: str | None
    present: tuple[int, bytes] | None
    health: Health


@dataclass(frozen=True)
class Attempt:
    """What is kept of one attempt: never a word of the endpoint's. `category` is None for a 2xx.

    `event` is the task id and version that the delivery told of, which the store knows by itself;
    None for an envelope.
    """

    at: datetime
    subscription_id: str
    webhook_id: str
    number: int
    category: str | None
    status_class: int | None
    latency_ms: int
    step: str
    event: tuple[str, int] | None = None


class Outbox(Protocol):
    """What is to be delivered. Filled by the appends themselves, in their own commits."""

    async def claim(
        self, limit: int, per_endpoint: int, lease_s: float, busy: Sequence[str] = ()
    ) -> Sequence[DueDelivery]:
        """Lease what is due: at most `limit`, and of one endpoint `per_endpoint`; none of `busy`.

        No delivery is leased to two at once; one whose lease has run out is due again, and an
        attempt the more. Of one task in one subscription the first attempts go one by one, in
        order; `terminated` goes when nothing else waits. An endpoint whose breaker is open is left
        out, a half-open or failing one gets a single probe. Never blocks.
        """
        ...

    async def settle(self, due: DueDelivery, attempt: Attempt, retry_in_s: float | None) -> bool:
        """Record the attempt; the delivery is over, or due again after so many seconds.

        False, and nothing changed, when the claim is void. A told `terminated` ends the
        subscription.
        """
        ...

    async def put_back(self, due: DueDelivery, delay_s: float) -> None:
        """Nothing was sent: due again after so many seconds, and no attempt the more."""
        ...

    async def note_health(self, url: str, known: Health, now: Health) -> Health | None:
        """Replace what is known of the endpoint; None, or the newer one when `known` is old."""
        ...

    async def suspend(self, subscription_id: str) -> None:
        """Deliver nothing more until its client refreshes it; what waits is read again then."""
        ...

    async def attempts(
        self, subscription_id: str, webhook_id: str | None = None, limit: int = 100
    ) -> Sequence[Attempt]:
        """The latest attempts, newest first."""
        ...

    async def resend(
        self,
        subscription_id: str,
        *,
        since: datetime | None = None,
        event: tuple[str, int] | None = None,
    ) -> int:
        """Queue matching events that are still stored once more, due now; how many.

        All since an instant, or one (task id and version). One that waits already is not doubled.
        """
        ...

    async def sweep(self) -> bool:
        """Forget the lapsed, queue a batch of what new subscriptions missed; True for more."""
        ...

    async def waiting(self) -> int:
        """How many deliveries wait, due or not."""
        ...

    async def is_empty(self) -> bool:
        """Whether none waits, due or not. Costs next to nothing."""
        ...
