"""`events/subscribe` and `events/unsubscribe`: who may have what sent where (draft, webhook mode).

The order of the checks lets a probe learn little and keeps POSTs off victims: caller, event, mode,
arguments, URL, secret, tasks, quota, and only then one challenge to the endpoint.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import rfc8785

from ...domain import draft, errors
from ...domain.ports import Clock, TaskView
from ...domain.push import (
    Filter,
    Health,
    Outbox,
    OwnerEvents,
    SubscriptionKey,
    SubscriptionWish,
    WebhookSubscription,
    WebhookSubscriptions,
)
from ..events import types
from ..events.begin import Begin, begin, has_lost
from ..events.cursors import Cursors
from ..feed import Feed
from ..port import AFTER_META_KEY, EventsRequest, places_of
from . import address, signing
from .challenge import Challenger
from .vault import Vault

TTL_S_MIN = 60.0
FORMER_S = 86_400.0  # how long deliveries are signed with the former secret beside the new one
SWEEPS_MAX = 25  # batches of history that a subscribe call queues itself; the rest comes later

_UNKNOWN = Health(revision=-1)  # older than all: to ask with it is to be told what is known


@dataclass(frozen=True)
class Rules:
    """What a deployment allows. Times in seconds."""

    allow_loopback: bool = False
    ports: Collection[int] = address.PORTS
    most_per_owner: int = 100
    most_in_all: int | None = None  # looked at before the endpoint is asked, and not again
    ttl_s_default: float = 86_400.0
    ttl_s_max: float = 30 * 86_400.0


@dataclass(frozen=True)
class SubscriptionStores:
    """What subscriptions are made of and from."""

    subscriptions: WebhookSubscriptions
    outbox: Outbox
    events: OwnerEvents
    feed: Feed


class SubscriptionMethods:
    """The two methods, and the webhook that comes with a call."""

    def __init__(  # noqa: PLR0913, PLR0917 - one part each, named by the wiring
        self,
        stores: SubscriptionStores,
        cursors: Cursors,
        vault: Vault,
        challenger: Challenger,
        rules: Rules,
        clock: Clock,
    ) -> None:
        self._stores, self._cursors, self._vault = stores, cursors, vault
        self._challenger, self._rules, self._now = challenger, rules, clock

    async def subscribe(self, request: EventsRequest) -> dict[str, Any]:
        """Make or refresh a subscription. Raises InvalidCall, TaskNotFound, EventsError."""
        _refuse_anybody(request)
        params = request.params
        types.known(params.get("name"))
        delivery = _delivery(params)
        _check_mode(delivery)
        wanted = types.wanted(params.get("name"), params.get("arguments"))
        key = self._key(request, wanted.name, delivery, request.params.get("arguments"))
        secret = signing.parse_secret(delivery.get("secret"))
        refresh_before = self._granted(params)
        subscription_id = derived_id(key)
        start = await self._begin(request, wanted)
        known = await self._stores.subscriptions.get(subscription_id)
        after = None
        if known is None:
            after = await self._check_tasks(request, wanted, start)
            await self._verify(key, subscription_id, secret)
            await self._owned(request, wanted)  # still: it took as long as the endpoint liked
        sealed = self._vault.seal(secret, subscription_id)
        is_new = await self._put(
            SubscriptionWish(
                subscription_id, key, wanted, sealed, refresh_before, start.position, after
            )
        )
        truncated = is_new and after is None and await self._misses(request, wanted, start)
        return await self._answer(subscription_id, known, start, truncated=truncated)

    async def unsubscribe(self, request: EventsRequest) -> dict[str, Any]:
        """End a subscription. Raises InvalidCall, EventNotFound, Forbidden."""
        _refuse_anybody(request)
        name = types.known(request.params.get("name")).name
        arguments = request.params.get("arguments")
        types.wanted(name, arguments)
        key = self._key(request, name, _delivery(request.params), arguments)
        if not await self._stores.subscriptions.remove(derived_id(key)):
            raise errors.EventNotFound(kind="subscription")
        return {}

    async def judge(self, request: EventsRequest, given: Any) -> "CallHook":
        """What a call's webhook asks for, its endpoint verified. Raises InvalidCall, EventsError.

        The secret is bound to the endpoint here; the task that it is for does not exist yet.
        """
        _refuse_anybody(request)
        if not isinstance(given, dict):
            raise errors.InvalidCall(f"{draft.WEBHOOK_META_KEY} must be an object")
        delivery = cast(Mapping[str, Any], given)
        # The call's own arguments are the tool's, and need no canonical form.
        key = self._key(request, draft.TASK_UPDATED, delivery, None)
        secret = signing.parse_secret(delivery.get("secret"))
        await self._verify(key, derived_id(key), secret)
        return CallHook(self, key, secret)

    async def suspended(self, owner: str) -> list[dict[str, Any]]:
        """The subscriptions of this owner that rest until they are refreshed."""
        found = await self._stores.subscriptions.find(owner=owner, trouble="suspended")
        return [
            {"id": each.id, "name": each.key.name, "url": each.key.url, **_status(each)}
            for each in found
        ]

    async def follow(self, key: SubscriptionKey, task_id: str, secret: bytes) -> None:
        """Subscribe the webhook of a call to all of the task that came of it."""
        arguments = types.canonical({"taskId": task_id})
        own = SubscriptionKey(key.owner, key.url, key.name, arguments)
        subscription_id = derived_id(own)
        sealed = self._vault.seal(secret, subscription_id)
        until = self._now() + timedelta(seconds=self._rules.ttl_s_max)
        wanted = Filter(key.name, task_ids=(task_id,))
        await self._put(SubscriptionWish(subscription_id, own, wanted, sealed, until, start=0))

    def _key(
        self, request: EventsRequest, name: str, delivery: Mapping[str, Any], arguments: Any
    ) -> SubscriptionKey:
        """The key of what is asked for, with a URL that a webhook may have."""
        url = delivery.get("url")
        if not isinstance(url, str):
            raise errors.InvalidCall("delivery.url must be a string")
        try:
            address.check_url(
                url,
                allow_loopback_http=self._rules.allow_loopback,
                ports=self._rules.ports,
            )
        except address.UrlRefused:
            raise errors.InvalidCall(
                "delivery.url must be an https URL of a public host, without credentials and"
                " fragment, on a port that is allowed here"
            ) from None
        return SubscriptionKey(request.owner, url, name, types.canonical(arguments))

    def _granted(self, params: Mapping[str, Any]) -> datetime:
        """Until when: never longer than was asked for, but for the least that is sensible."""
        rules = self._rules
        wish_ms = params.get("ttlMs", rules.ttl_s_default * 1000)
        if wish_ms is None:
            wish_s = rules.ttl_s_max
        elif isinstance(wish_ms, bool) or not isinstance(wish_ms, int | float) or not wish_ms >= 0:
            raise errors.InvalidCall("ttlMs must be a number of milliseconds, or null")
        else:
            wish_s = min(wish_ms, rules.ttl_s_max * 1000) / 1000
        return self._now() + timedelta(seconds=max(wish_s, TTL_S_MIN))

    async def _begin(self, request: EventsRequest, wanted: Filter) -> Begin:
        return await begin(
            self._stores.events,
            self._cursors,
            request.owner,
            wanted,
            request.params,
            self._now(),
        )

    async def _check_tasks(
        self, request: EventsRequest, wanted: Filter, start: Begin
    ) -> Mapping[str, int] | None:
        """The versions that the client says it knows, if it does. Raises TaskNotFound for tasks
        that are not this owner's, EventNotFound when nothing more can come of them."""
        task_ids = wanted.task_ids
        if task_ids is None:
            return None
        has_ended = all(view.is_terminal for view in await self._owned(request, wanted))
        if AFTER_META_KEY in (request.params.get("_meta") or {}) and start.is_fresh:
            places = places_of(request.params)
            return {task_id: places.get(task_id, 0) for task_id in task_ids}
        if has_ended and start.is_fresh:
            raise errors.EventNotFound(kind="subscription", reason="task_terminal")
        return None

    async def _owned(self, request: EventsRequest, wanted: Filter) -> Sequence[TaskView]:
        """The tasks that are named. Raises TaskNotFound for one that is not this owner's."""
        views: list[TaskView] = []
        for task_id in wanted.task_ids or ():
            view = await self._stores.feed.owned(request.owner, task_id)
            if view is None:
                raise errors.TaskNotFound
            views.append(view)
        return views

    async def _misses(self, request: EventsRequest, wanted: Filter, start: Begin) -> bool:
        """Whether a new subscription may lack something after its cursor.

        Asked once it is stored: what is removed from then on ends as a gap, and what was removed
        before, while its endpoint was asked, nobody else would tell.
        """
        events = self._stores.events
        return start.is_truncated or await has_lost(events, request.owner, wanted, start)

    async def _verify(self, key: SubscriptionKey, subscription_id: str, secret: bytes) -> None:
        """Quota first, so that nobody without a place left can have anything posted."""
        stores = self._stores.subscriptions
        if await stores.count(key.owner) >= self._rules.most_per_owner:
            raise errors.TooManySubscriptions(self._rules.most_per_owner)
        in_all = self._rules.most_in_all
        if in_all is not None and await stores.count() >= in_all:
            raise errors.TooManySubscriptions(in_all, "subscriptions_in_all")
        if not await stores.is_verified(key.owner, key.url):
            await self._challenger.verify(key.owner, key.url, subscription_id, secret)
            await self._note_life(key.url)

    async def _note_life(self, url: str) -> None:
        """The echo is a success like any: what the endpoint's breaker held against it is over."""
        outbox = self._stores.outbox
        known = await outbox.note_health(url, _UNKNOWN, Health())
        while known is not None and replace(known, revision=0) != Health():
            known = await outbox.note_health(url, known, Health())

    async def _put(self, wish: SubscriptionWish) -> bool:
        most = self._rules.most_per_owner
        is_new = await self._stores.subscriptions.put(wish, most, FORMER_S)
        for _ in range(SWEEPS_MAX):
            if not await self._stores.outbox.sweep():
                break
        return is_new

    async def _answer(
        self,
        subscription_id: str,
        before: WebhookSubscription | None,
        start: Begin,
        *,
        truncated: bool,
    ) -> dict[str, Any]:
        now = await self._stores.subscriptions.get(subscription_id)
        if now is None:  # ended meanwhile: all that it was about was told
            raise errors.EventNotFound(kind="subscription")
        position = now.watermark if before else min(start.position, now.watermark)
        answer: dict[str, Any] = {
            "id": subscription_id,
            "refreshBefore": _instant(now.refresh_before),
            "cursor": self._cursors.seal(now.key.owner, position),
            "truncated": truncated,
        }
        if before is not None:
            answer["deliveryStatus"] = _status(before)
        return answer


class CallHook:
    """`CallWebhook`: the webhook of one call, verified."""

    def __init__(self, methods: SubscriptionMethods, key: SubscriptionKey, secret: bytes) -> None:
        self._methods, self._key, self._secret = methods, key, secret

    async def follow(self, task_id: str) -> None:
        """See `CallWebhook.follow`."""
        await self._methods.follow(self._key, task_id, self._secret)


def derived_id(key: SubscriptionKey) -> str:
    """The same for the same key for ever; it may be logged, and grants nothing."""
    text = rfc8785.dumps([key.owner, key.url, key.name, key.arguments])
    return "sub_" + hashlib.sha256(text).hexdigest()[:32]


def _refuse_anybody(request: EventsRequest) -> None:
    if not request.is_authenticated:
        raise errors.Forbidden("Webhooks need a caller who is known", reason="unauthenticated")


def _delivery(params: Mapping[str, Any]) -> Mapping[str, Any]:
    delivery = params.get("delivery")
    if not isinstance(delivery, dict):
        raise errors.InvalidCall("delivery must be an object")
    return cast(Mapping[str, Any], delivery)


def _check_mode(delivery: Mapping[str, Any]) -> None:
    mode = delivery.get("mode")
    if not isinstance(mode, str):
        raise errors.InvalidCall("delivery.mode must be a string")
    if mode != draft.BY_WEBHOOK:
        raise errors.Unsupported("deliveryMode", mode)


def _status(before: WebhookSubscription) -> dict[str, Any]:
    """How deliveries went until this refresh, which has just made a suspended one active."""
    status: dict[str, Any] = {
        "active": before.is_active,
        "lastDeliveryAt": _instant(before.last_delivery_at),
        "lastError": before.last_error,
    }
    if before.failed_since is not None:
        status["failedSince"] = _instant(before.failed_since)
    return status


def _instant(at: datetime | None) -> str | None:
    if at is None:
        return None
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
