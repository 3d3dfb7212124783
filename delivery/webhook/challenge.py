"""Endpoint verification: one signed nonce, echoed, before anything is delivered (anti-flooding).

What it costs a stranger is bounded: one POST for a caller and a URL, so many a minute for a host.
"""

import asyncio
import hmac
import secrets
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import orjson

from ...domain import draft, errors
from ...domain.ports import Clock
from . import address, signing
from .exchange import VERIFICATION_BYTES_MAX, Outcome, WebhookClient
from .schedule import Category

REFUSED_S = 60.0  # an endpoint that refused is not asked again for so long
HOST_MAX = 30  # challenges to one host, of all callers,
HOST_S = 60.0  # in so many seconds
REMEMBERED_MAX = 10_000

# Nothing was posted, so there is nobody to protect: a caller may mend it and try again at once.
_UNSENT = frozenset({"connection_refused", "tls_error"})


@dataclass(frozen=True)
class _Answer:
    """What came of one challenge: why the endpoint is not verified, None when it is."""

    reason: str | None
    was_posted: bool


class Challenger:
    """Asks endpoints whether they want what is coming. One for a process."""

    def __init__(
        self, client: WebhookClient, clock: Clock, server: signing.ServerKey | None
    ) -> None:
        self._client, self._now, self._server = client, clock, server
        self._asking: dict[tuple[str, str], asyncio.Task[_Answer]] = {}
        self._refused: dict[tuple[str, str], tuple[float, str]] = {}
        self._asked: dict[str, deque[float]] = {}

    async def verify(self, owner: str, url: str, subscription_id: str, secret: bytes) -> None:
        """Return once the endpoint has echoed. Raises EndpointNotVerified.

        Calls for the same owner and URL at the same time share one challenge.
        """
        key = owner, url
        reason = self._known_refusal(key)
        if reason is None:
            asking = self._asking.get(key)
            if asking is None:
                self._count(_host(url))
                asking = asyncio.create_task(self._ask_once(key, subscription_id, secret))
                self._asking[key] = asking
                asking.add_done_callback(lambda _: self._asking.pop(key, None))
            reason = (await asyncio.shield(asking)).reason
        if reason is not None:
            raise errors.EndpointNotVerified(reason)

    async def ask(self, url: str, subscription_id: str, secret: bytes) -> str | None:
        """One challenge, whatever came of others: why it is not verified, None when it is."""
        return (await self._ask(url, subscription_id, secret)).reason

    async def _ask_once(
        self, key: tuple[str, str], subscription_id: str, secret: bytes
    ) -> "_Answer":
        """The refusal is noted here, and not by who waits for it: they may all have left."""
        answer = await self._ask(key[1], subscription_id, secret)
        if answer.reason is not None and answer.was_posted:
            self._remember(key, answer.reason)
        return answer

    async def _ask(self, url: str, subscription_id: str, secret: bytes) -> "_Answer":
        nonce = secrets.token_urlsafe(32)
        body = orjson.dumps({"type": draft.VERIFICATION, "challenge": nonce})
        webhook_id = f"msg_{draft.VERIFICATION}_{secrets.token_hex(12)}"
        headers = signed(
            [secret], self._server, webhook_id, int(self._now().timestamp()), body, subscription_id
        )
        outcome = await self._client.post(url, body, headers, head_bytes=VERIFICATION_BYTES_MAX)
        if not outcome.attempted:  # we had no place for it: the endpoint knows nothing of it
            return _Answer(Category.TIMEOUT, was_posted=False)
        reason = outcome.category or _echo_fault(outcome, nonce)
        return _Answer(reason, was_posted=reason not in _UNSENT)

    def _known_refusal(self, key: tuple[str, str]) -> str | None:
        until, reason = self._refused.get(key, (0.0, ""))
        return reason if time.monotonic() < until else None

    def _remember(self, key: tuple[str, str], reason: str) -> None:
        now = time.monotonic()
        if len(self._refused) >= REMEMBERED_MAX:
            self._refused = {k: v for k, v in self._refused.items() if v[0] > now}
        self._refused[key] = now + REFUSED_S, reason

    def _count(self, host: str) -> None:
        """Note one more challenge to this host. Raises when there were too many lately."""
        now = time.monotonic()
        if len(self._asked) >= REMEMBERED_MAX:
            self._asked = {k: v for k, v in self._asked.items() if v and v[-1] > now - HOST_S}
        lately = self._asked.setdefault(host, deque())
        while lately and lately[0] <= now - HOST_S:
            lately.popleft()
        if len(lately) >= HOST_MAX:
            raise errors.EndpointNotVerified(Category.TIMEOUT)
        lately.append(now)


def signed(  # noqa: PLR0913, PLR0917 - the parts of one message, none of them optional
    keys: Sequence[bytes],
    server: signing.ServerKey | None,
    webhook_id: str,
    timestamp: int,
    body: bytes,
    subscription_id: str,
) -> dict[str, str]:
    """The four headers of a delivery."""
    signature = signing.sign(keys, webhook_id, timestamp, body)
    if server is not None:
        signature += " " + server.sign(webhook_id, timestamp, body)
    return {
        signing.ID_HEADER: webhook_id,
        signing.TIMESTAMP_HEADER: str(timestamp),
        signing.SIGNATURE_HEADER: signature,
        signing.SUBSCRIPTION_HEADER: subscription_id,
    }


def _host(url: str) -> str:
    """Where a URL leads, the same for every spelling of it."""
    parts = urlsplit(url)
    usual = address.HTTPS_PORT if parts.scheme == "https" else address.HTTP_PORT
    return f"{parts.hostname}:{parts.port or usual}"


def _echo_fault(outcome: Outcome, nonce: str) -> str | None:
    try:
        answer: Any = orjson.loads(outcome.body_head)
    except orjson.JSONDecodeError:
        answer = None
    echo = cast(dict[str, Any], answer).get("challenge") if isinstance(answer, dict) else None
    is_echoed = isinstance(echo, str) and hmac.compare_digest(echo.encode(), nonce.encode())
    return None if is_echoed else Category.CHALLENGE_FAILED
