"""The receiving half: an ASGI app that a client mounts, or runs by itself, and reads from.

The promise: 2xx is said once the delivery and its cursor are stored in one commit; what is stored
is handed on, in the order in which it came, until the reader has asked for the next; a delivery
that comes again is acknowledged and not handed on again. Subscribing is not here.
"""

import json
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NoReturn, Protocol, cast

import anyio
import orjson

from ...domain import draft, errors
from ...domain.ports import Clock
from . import signing
from .keyring import Keyring

BODY_BYTES_MAX = 1024 * 1024  # 413 beyond; senders are told to keep to a quarter of it
CHALLENGE_BYTES_MAX = 4096  # as much is read of what comes for a subscription that is not known
CHALLENGE_CHARS_MAX = 1024  # 400 beyond
BODY_S_MAX = 15.0  # 408 beyond
READING_MAX = 64  # bodies at a time, so many megabytes; 503 beyond
BATCH = 100
RECHECK_S = 5.0  # another process may have stored something
HOLD_S = 2.0  # 503 beyond, for what comes before the answer to the subscribe call that it follows

_SUBSCRIPTION = signing.SUBSCRIPTION_HEADER.lower()
_HEADERS = (signing.ID_HEADER, signing.TIMESTAMP_HEADER, signing.SIGNATURE_HEADER, _SUBSCRIPTION)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True)
class Received:
    """One delivery. `envelope` is None for an event, else the control envelope's type.

    `cursor` is where to resume after it, None where there is nothing to resume from.
    """

    subscription_id: str
    webhook_id: str
    envelope: str | None
    cursor: str | None
    content: Mapping[str, Any]


class Inbox(Protocol):
    """Where deliveries are safe. All methods raise StoreUnavailable."""

    async def store(
        self, subscription_id: str, webhook_id: str, cursor: str | None, body: bytes
    ) -> bool:
        """Keep the delivery and move its subscription's cursor, unless that is None, in one commit.

        Durable, also against a loss of power, once this returns. False, and nothing changed, for an
        id that this subscription brought before; ids are kept for seven days at least.
        """
        ...

    async def waiting(self, limit: int) -> Sequence[tuple[int, str, str, bytes]]:
        """What was stored and is not done, oldest first: number, subscription, webhook id, body."""
        ...

    async def done(self, number: int) -> None:
        """It was handed on. Idempotent."""
        ...

    async def cursor_of(self, subscription_id: str) -> str | None:
        """The cursor that this subscription stored last, or None."""
        ...


class _Refused(errors.OutlastError):
    """The delivery is not taken."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class _HungUp(errors.OutlastError):
    """The sender left before the end of its body."""


class Receiver:
    """The ASGI app. With `server_keys`, a delivery must also carry a `v1a` signature of one."""

    def __init__(
        self,
        inbox: Inbox,
        keyring: Keyring,
        clock: Clock,
        server_keys: Sequence[signing.PublicKey] = (),
    ) -> None:
        self._inbox, self._keyring, self._now = inbox, keyring, clock
        self._server_keys = server_keys
        self._stored = anyio.Event()
        self._reading = 0

    async def received(
        self, is_last: Callable[[Received], bool] = lambda _: False
    ) -> AsyncGenerator[Received]:
        """What was stored, oldest first, for ever; each is done when the next is asked for.

        Or until one that `is_last`, which is done with the end. A reader that stops in the middle
        of one gets it again. One reader at a time. Raises StoreUnavailable.
        """
        while True:
            stored = self._stored  # before the look: what is stored after it ends the wait
            rows = await self._inbox.waiting(BATCH)
            for number, subscription_id, webhook_id, body in rows:
                received = _read(subscription_id, webhook_id, _parsed(body))
                yield received
                await self._inbox.done(number)
                if is_last(received):
                    return
            if not rows:
                with anyio.move_on_after(RECHECK_S):
                    await stored.wait()

    async def tell_gap(self, subscription_id: str, cursor: str) -> None:
        """Store and hand on a gap that the server told in an answer, as one that was delivered.

        Raises StoreUnavailable.
        """
        body = orjson.dumps({"type": draft.GAP, "cursor": cursor})
        webhook_id = f"answer_{draft.GAP}_{secrets.token_hex(16)}"
        await self._keep(_read(subscription_id, webhook_id, _parsed(body)), body)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _serve(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            echo = await self._take(scope, receive)
        except _HungUp:
            return
        except _Refused as refused:
            await _answer(send, refused.status, {"error": refused.reason})
        except errors.StoreUnavailable:
            await _answer(send, HTTPStatus.SERVICE_UNAVAILABLE, {"error": "not stored"})
        else:
            await _answer(send, HTTPStatus.OK if echo else HTTPStatus.NO_CONTENT, echo)

    async def _take(self, scope: Message, receive: Receive) -> Mapping[str, str] | None:
        """Store the delivery; a challenge is not stored: its echo comes back."""
        if scope["method"] != "POST":
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, "deliveries are posted")
        headers = _headers(scope)
        subscription_id = headers[_SUBSCRIPTION]
        own = await self._keyring.secrets_of(subscription_id)
        expected = await self._keyring.expected()
        if not own and not expected:
            raise _unknown()
        body = await self._body(receive, BODY_BYTES_MAX if own else CHALLENGE_BYTES_MAX)
        if body is None:
            # 413 gives an event up for good: not for a subscription that may be ours in a second.
            raise _too_large() if own else _unknown()
        is_ours = self._prove(own, expected, headers, body)
        content = _parsed(body)
        # Always echoed, also when it comes again: a challenge proves intent and changes nothing.
        if content.get("type") == draft.VERIFICATION:
            return {"challenge": _challenge(content)}
        if not (is_ours or await self._becomes_ours(subscription_id, headers, body)):
            raise _unknown()
        found = _read(subscription_id, headers[signing.ID_HEADER], content)
        await self._keep(found, body)
        return None

    async def _keep(self, received: Received, body: bytes) -> None:
        subscription_id, webhook_id = received.subscription_id, received.webhook_id
        if await self._inbox.store(subscription_id, webhook_id, received.cursor, body):
            self._stored.set()
            self._stored = anyio.Event()

    async def _becomes_ours(
        self, subscription_id: str, headers: Mapping[str, str], body: bytes
    ) -> bool:
        """Whether the subscribe call that brings this subscription its secret ends soon.

        A server delivers as soon as it has answered. What overtakes the answer waits for it here,
        for a refusal would put it off until the sender's next try.
        """
        with anyio.move_on_after(HOLD_S):
            while True:
                own = await self._keyring.secrets_of(subscription_id)
                try:
                    signing.verify(own, headers, body, self._now())
                except signing.SignatureRefused:
                    await self._keyring.changed()
                else:
                    return True
        return False

    async def _body(self, receive: Receive, most: int) -> bytes | None:
        """The raw body; None for one that is too large. Raises _Refused, _HungUp."""
        if self._reading >= READING_MAX:
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "busy")
        self._reading += 1
        try:
            with anyio.fail_after(BODY_S_MAX):
                return await _read_body(receive, most)
        except TimeoutError:
            raise _Refused(HTTPStatus.REQUEST_TIMEOUT, "the body came too slowly") from None
        finally:
            self._reading -= 1

    def _prove(
        self,
        own: Sequence[bytes],
        expected: Sequence[bytes],
        headers: Mapping[str, str],
        body: bytes,
    ) -> bool:
        """Whether one of the subscription's own secrets signed it, not an expected one.

        Raises _Refused when none did.
        """
        try:
            is_ours = self._is_ours(own, expected, headers, body)
            if self._server_keys:
                signing.verify_server(self._server_keys, headers, body, self._now())
        except signing.SignatureRefused as refused:
            if refused.reason is signing.Refusal.MALFORMED:
                raise _Refused(HTTPStatus.BAD_REQUEST, "malformed headers") from None
            if not own:
                raise _unknown() from None
            raise _Refused(HTTPStatus.UNAUTHORIZED, f"signature {refused.reason}") from None
        return is_ours

    def _is_ours(
        self,
        own: Sequence[bytes],
        expected: Sequence[bytes],
        headers: Mapping[str, str],
        body: bytes,
    ) -> bool:
        try:
            signing.verify(own, headers, body, self._now())
        except signing.SignatureRefused as refused:
            is_forged = refused.reason is signing.Refusal.FORGED
            if not is_forged or len(body) > CHALLENGE_BYTES_MAX:
                raise
            signing.verify(expected, headers, body, self._now())
            return False
        return True


def _headers(scope: Message) -> dict[str, str]:
    """The four that every delivery has, each once; signatures may be spread over several."""
    given = cast(Sequence[tuple[bytes, bytes]], scope["headers"])
    found: dict[str, str] = {}
    for raw_name, raw_value in given:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1").strip()
        if name not in _HEADERS:
            continue
        if name in found and name != signing.SIGNATURE_HEADER:
            raise _Refused(HTTPStatus.BAD_REQUEST, f"{name} twice")
        found[name] = f"{found[name]} {value}" if name in found else value
    missing = [name for name in _HEADERS if not found.get(name)]
    if missing:
        raise _Refused(HTTPStatus.BAD_REQUEST, f"without {', '.join(missing)}")
    return found


async def _read_body(receive: Receive, most: int) -> bytes | None:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _HungUp
        body += message.get("body", b"")
        if len(body) > most:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _parsed(body: bytes) -> Mapping[str, Any]:
    # Not by the faster reader, which makes floats of large integers and fails on lone surrogates:
    # what it fails on would be refused at every try.
    try:
        content = json.loads(body.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise _Refused(HTTPStatus.BAD_REQUEST, "the body is no JSON object")
    return cast(Mapping[str, Any], content)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _read(subscription_id: str, webhook_id: str, content: Mapping[str, Any]) -> Received:
    """The delivery in a body: an event, or an envelope, of a type that may be new to us."""
    envelope, cursor = content.get("type"), content.get("cursor")
    if "type" in content:
        is_sound = isinstance(envelope, str) and (envelope != draft.GAP or isinstance(cursor, str))
    else:
        is_sound = isinstance(content.get("eventId"), str) and isinstance(content.get("name"), str)
    if not (is_sound and (cursor is None or _is_text(cursor))):
        raise _Refused(HTTPStatus.BAD_REQUEST, "neither an event nor a control envelope")
    return Received(subscription_id, webhook_id, envelope, cursor, content)


def _is_text(value: object) -> bool:
    """Whether it is a string that can be stored: lone surrogates are in none."""
    return isinstance(value, str) and value == value.encode(errors="replace").decode()


def _challenge(content: Mapping[str, Any]) -> str:
    challenge = content.get("challenge")
    if not isinstance(challenge, str) or not 0 < len(challenge) <= CHALLENGE_CHARS_MAX:
        raise _Refused(HTTPStatus.BAD_REQUEST, "no challenge")
    return challenge


def _unknown() -> _Refused:
    return _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "not known here, perhaps not yet")


def _too_large() -> _Refused:
    return _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {BODY_BYTES_MAX} bytes")


async def _answer(send: Send, status: HTTPStatus, content: Mapping[str, str] | None) -> None:
    body = b"" if content is None else orjson.dumps(content)
    headers = [(b"content-type", b"application/json")] if body else []
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        headers.append((b"allow", b"POST"))
    if status is not HTTPStatus.NO_CONTENT:
        headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _live(receive: Receive, send: Send) -> None:
    """Nothing to open or to close: the inbox belongs to whoever made it."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
