"""One subscription of ours: asked for, kept, let go. Its deliveries are the receiver's matter.

A subscription outlives the process that made it. What has to be known to go on with it is a
`Record`: its id, to find its last cursor in the inbox; its secret, so that what is delivered before
the first answer of a new process can be proven and need not come again hours later; and the
cursor of the last answer, for a subscription that has delivered nothing yet.
"""

import asyncio
import json
import logging
import random
from collections.abc import AsyncGenerator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, cast

import anyio

from ...domain import draft, errors
from ...domain.ports import Clock
from ..port import AFTER_META_KEY
from ..remote import Remote
from . import signing
from .keyring import EXPECTED_MAX, MemoryKeyring

RETRY_S_FIRST = 0.2
RETRY_S_MAX = 5.0
REFRESH_AT = 0.8  # of the life that is left
REFRESH_S_MIN = 1.0  # a clock ahead of the server's must not make us ask without a pause
REFRESH_S_MAX = 24 * 3600.0  # also of what never runs out: the server may have given it up

INTERNAL_ERROR = -32603

# Refusals that pass. The second kind may keep a new subscription from being made for long, so they
# are waited out only while there is a grant.
_PASSING = frozenset({INTERNAL_ERROR})
_PASSING_WHILE_GRANTED = frozenset({draft.RESOURCE_EXHAUSTED, draft.CALLBACK_ENDPOINT})

_log = logging.getLogger("outlast.webhook")


@dataclass(frozen=True)
class Wish:
    """What to be told of, and where. The first four name the subscription; the server is theirs.

    `ttl_ms` None asks for a subscription without end. `after` is where a new one begins.
    """

    url: str
    name: str
    arguments: Mapping[str, Any]
    ttl_ms: int | None
    after: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True)
class Grant:
    """A server's answer. `is_failing`: it told that it had trouble with reaching us."""

    subscription_id: str
    refresh_before: datetime | None
    cursor: str | None
    truncated: bool
    is_failing: bool


@dataclass(frozen=True)
class Record:
    """What another process needs to go on. `beside` is the inbox's cursor when we asked."""

    subscription_id: str
    secret: str = field(repr=False)
    cursor: str | None
    beside: str | None

    def to_json(self) -> bytes:
        """The text that `parse` reads."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def parse(cls, text: bytes) -> "Record | None":
        """The record in a text, or None for what is none: the subscription is then made anew."""
        try:
            record = cls(**json.loads(text))
            signing.parse_secret(record.secret)
        except (ValueError, TypeError, errors.InvalidCall):
            return None
        return record if isinstance(cast(object, record.subscription_id), str) else None


class Cursors(Protocol):
    """The part of an inbox that is read here."""

    async def cursor_of(self, subscription_id: str) -> str | None:
        """The cursor that this subscription stored last, or None. Raises StoreUnavailable."""
        ...


@dataclass(frozen=True)
class Subscribing:
    """What the subscriptions of one process share. `keyring` is the one of its receiver."""

    remote: Remote
    keyring: MemoryKeyring
    cursors: Cursors
    clock: Clock
    # As many calls at a time as the keyring can expect challenges for.
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(EXPECTED_MAX))


class LetGo(errors.OutlastError):
    """The subscription has been let go of; nobody asks for it any more."""


class Subscriber:
    """One subscription. With the record of an earlier process it goes on where that one was."""

    def __init__(self, shared: Subscribing, wish: Wish, record: Record | None = None) -> None:
        self._shared, self._wish, self.record = shared, wish, record
        self._secret = record.secret if record else signing.new_secret()
        self._key = signing.parse_secret(self._secret)
        self._may_exist = record is not None
        self._is_let_go = False
        self._granted_until: datetime | None = None
        self._is_over = anyio.Event()
        self._turn = asyncio.Lock()  # else letting go could overtake a refresh that is under way
        if record is not None:
            shared.keyring.bind(record.subscription_id, self._key)

    async def kept(self) -> AsyncGenerator[Grant]:
        """Every grant, until it is let go: subscribes, and again in time, from the last cursor.

        What can pass is tried again every few seconds. Raises RequestRefused for what will not.
        """
        failures = 0
        while True:
            try:
                grant = await self.subscribe()
            except LetGo:
                return
            except (errors.RemoteError, errors.StoreUnavailable) as error:
                if not self._is_passing(error):
                    raise
                _log.warning("a subscription is not granted yet: %s", error)
                ceiling_s = min(RETRY_S_MAX, RETRY_S_FIRST * 2.0**failures)
                failures = min(failures + 1, 16)
                asked_s = error.after_s if isinstance(error, errors.SlowDown) else 0.0
                await _pause(asked_s + _jittered(ceiling_s))
                continue
            failures = 0
            yield grant
            with anyio.move_on_after(refresh_s(grant, self._shared.clock())):
                await self._is_over.wait()
                self._is_over = anyio.Event()
                await _pause(_jittered(RETRY_S_MAX))

    async def subscribe(self) -> Grant:
        """One call, to make it or to refresh it. Raises RemoteError, StoreUnavailable, LetGo."""
        beside = await self._beside()
        async with self._shared.turns, self._turn:
            if self._is_let_go:  # perhaps just now: what is made behind that would be left behind
                raise LetGo
            with self._shared.keyring.expecting(self._key):
                grant = await self._ask(self._params(beside))
                # No delivery that follows the answer may meet a keyring that does not know it.
                self._shared.keyring.bind(grant.subscription_id, self._key)
        known = self.record
        if known is not None and known.subscription_id != grant.subscription_id:
            self._shared.keyring.forget(known.subscription_id)
            beside = None
        self.record = Record(grant.subscription_id, self._secret, grant.cursor, beside)
        self._granted_until = grant.refresh_before or datetime.max.replace(tzinfo=UTC)
        return grant

    def ended(self) -> None:
        """The server has said that the subscription is over: in a while, ask for it again."""
        self._is_over.set()

    async def unsubscribe(self) -> None:
        """Let go of it, for good. Idempotent; what the server no longer knows is over too.

        Raises RemoteError.
        """
        self._is_let_go = True
        wish = self._wish
        params = {"name": wish.name, "arguments": wish.arguments, "delivery": {"url": wish.url}}
        try:
            async with self._turn:
                if self._may_exist:
                    await self._shared.remote.request(draft.UNSUBSCRIBE, params)
        except errors.RequestRefused as error:
            if error.code != draft.NOT_FOUND:
                raise
        finally:
            if self.record is not None:
                self._shared.keyring.forget(self.record.subscription_id)
        self._may_exist, self.record = False, None

    async def _ask(self, params: Mapping[str, Any]) -> Grant:
        did_exist, self._may_exist = self._may_exist, True
        try:
            return grant_of(await self._shared.remote.request(draft.SUBSCRIBE, params))
        except errors.RequestRefused:
            self._may_exist = did_exist
            raise

    def _params(self, beside: str | None) -> Mapping[str, Any]:
        wish, record = self._wish, self.record
        params: dict[str, Any] = {
            "name": wish.name,
            "arguments": wish.arguments,
            "delivery": {"mode": draft.BY_WEBHOOK, "url": wish.url, "secret": self._secret},
            "cursor": None,
            "ttlMs": wish.ttl_ms,
        }
        if record is not None:
            # Whichever came later: an answer, or a delivery since.
            params["cursor"] = record.cursor if beside in {None, record.beside} else beside
        if params["cursor"] is None and wish.after:
            params["_meta"] = {AFTER_META_KEY: wish.after}
        return params

    async def _beside(self) -> str | None:
        if self.record is None:
            return None
        return await self._shared.cursors.cursor_of(self.record.subscription_id)

    def _is_passing(self, error: errors.OutlastError) -> bool:
        if not isinstance(error, errors.RequestRefused):
            return True
        until = self._granted_until
        is_granted = until is not None and self._shared.clock() < until
        return error.code in _PASSING or (is_granted and error.code in _PASSING_WHILE_GRANTED)


def grant_of(answer: Mapping[str, Any]) -> Grant:
    """The grant in an answer. Raises ConnectionLost for what is none."""
    subscription_id, cursor = answer.get("id"), answer.get("cursor")
    before = answer.get("refreshBefore")
    try:
        until = None if before is None else datetime.fromisoformat(before)
    except (ValueError, TypeError):
        subscription_id, until = None, None
    if not (
        isinstance(subscription_id, str) and subscription_id and isinstance(cursor, str | None)
    ):
        raise errors.ConnectionLost("the answer is no grant of a subscription")
    if until is not None and until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    given = answer.get("deliveryStatus")
    status = cast(Mapping[str, Any], given if isinstance(given, dict) else {})
    is_failing = status.get("active") is False or status.get("lastError") is not None
    return Grant(subscription_id, until, cursor, answer.get("truncated") is True, is_failing)


def refresh_s(grant: Grant, now: datetime) -> float:
    """How long to wait before the next refresh."""
    if grant.refresh_before is None:
        return _jittered(REFRESH_S_MAX)
    left_s = (grant.refresh_before - now).total_seconds()
    return _jittered(min(max(left_s * REFRESH_AT, REFRESH_S_MIN), REFRESH_S_MAX))


def _jittered(ceiling_s: float) -> float:
    return random.uniform(0.9, 1.0) * ceiling_s  # noqa: S311 - not a secret


async def _pause(seconds: float) -> None:
    with anyio.move_on_after(seconds):
        await anyio.sleep_forever()
