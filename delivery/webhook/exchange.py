"""One POST to somebody's endpoint, and what came of it. Endpoints are hostile until they behave.

`WebhookClient` is shared by the whole process. It speaks to the connection pool of the HTTP
library directly: in that layer there are no redirects, cookies, proxies, decoders or credentials
from URLs that would have to be switched off. The pool keeps connections by scheme, name and port,
never by address, so that two names on one address each show their own certificate; a connection
goes on leading to the address that was judged when it was made.
"""

import re
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import anyio
import httpcore2

from . import address, reply
from .network import CONNECT_S_MAX, GuardedNetwork, Resolve, SystemResolver, TlsFailed
from .reply import Category

TOTAL_S_MAX = 15.0
PLACE_S_MAX = 5.0  # so that a call, place and exchange, ends within 20 s
DRAIN_S_MAX = 1.0  # reading a body that nobody wants pays only if the connection is used again
KEEPALIVE_S = 4.0  # most servers hang up after 5 s of silence; be the first
PER_HOST_MAX = 8
IN_ALL_MAX = 200
REPLY_BYTES_MAX = 16 * 1024
VERIFICATION_BYTES_MAX = 4 * 1024

_HEADER_NAME = re.compile(r"[A-Za-z0-9-]+")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
# Ours, whatever the caller says. `identity` invites nobody to send a bomb; none would be unpacked.
_FIXED_HEADERS = (
    ("Content-Type", "application/json"),
    ("Accept-Encoding", "identity"),
    ("User-Agent", "Outlast-Webhooks/1"),
)
_RESERVED = {"host", "content-length", "transfer-encoding", "connection", "cookie"} | {
    name.lower() for name, _ in _FIXED_HEADERS
}


@dataclass(frozen=True)
class Outcome:
    """What came of one POST. Holds nothing of the endpoint's words but a number and a category.

    `category` is None exactly when the endpoint acknowledged. `attempted` is False when the host
    had no place free in time: nothing was sent, and it counts for nothing. `body_head` is there
    for the challenge alone; it is never logged or stored.
    """

    status: int | None
    category: Category | None
    retry_after_s: int | None = None
    latency_ms: int = 0
    body_head: bytes = field(default=b"", repr=False)
    attempted: bool = True


@dataclass(frozen=True)
class Limits:
    """How long, and how many at once."""

    connect_s: float = CONNECT_S_MAX
    total_s: float = TOTAL_S_MAX
    place_s: float = PLACE_S_MAX
    drain_s: float = DRAIN_S_MAX
    per_host: int = PER_HOST_MAX
    in_all: int = IN_ALL_MAX


@dataclass
class _Reply:
    """As much of a reply as has come."""

    status: int | None = None
    retry_after: str = ""
    head: bytes = b""
    failure: Category | None = None


class WebhookClient:
    """POSTs to endpoints. Never raises for what an endpoint, its name or its network does."""

    def __init__(  # noqa: PLR0913 - keyword only; what a deployment or a test may replace
        self,
        *,
        allow_loopback_http: bool = False,
        ports: Collection[int] = address.PORTS,
        limits: Limits | None = None,
        extra_ca: Path | None = None,
        resolve: Resolve | None = None,
        dial: httpcore2.AsyncNetworkBackend | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._allow_loopback, self._ports = allow_loopback_http, ports
        self._limits = limits or Limits()
        self._now = now
        self._resolver = SystemResolver()
        network = GuardedNetwork(
            resolve or self._resolver,
            dial or cast(httpcore2.AsyncNetworkBackend, httpcore2.AnyIOBackend()),
            allow_loopback=allow_loopback_http,
        )
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=_tls(extra_ca),
            max_connections=self._limits.in_all,
            keepalive_expiry=KEEPALIVE_S,
            network_backend=network,
        )
        self._places = _Places(self._limits)

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], *, head_bytes: int = 0
    ) -> Outcome:
        """Send the body. Without `head_bytes` the reply's status is all that counts; with it, so
        much of the reply's body is part of the answer. Raises ValueError for a header of ours
        that cannot be sent.
        """
        sent = _headers(headers)
        try:
            endpoint = address.check_url(
                url, allow_loopback_http=self._allow_loopback, ports=self._ports
            )
        except address.UrlRefused:
            return Outcome(None, "connection_refused")
        request = self._request(endpoint, body, sent)
        try:
            async with self._places.place(endpoint.host, endpoint.port):
                return await self._exchange(request, min(head_bytes, REPLY_BYTES_MAX))
        except _NoPlaceError:
            return Outcome(None, None, attempted=False)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._pool.aclose()
        self._resolver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _request(
        self, endpoint: address.Endpoint, body: bytes, headers: list[tuple[str, str]]
    ) -> httpcore2.Request:
        url = httpcore2.URL(
            scheme=endpoint.scheme, host=endpoint.host, port=endpoint.port, target=endpoint.target
        )
        framing = [("Host", endpoint.host_header), ("Content-Length", str(len(body)))]
        timeouts = {"connect": self._limits.connect_s}
        return httpcore2.Request(
            "POST",
            url,
            headers=framing + headers,
            content=body,
            extensions={"timeout": timeouts},
        )

    async def _exchange(self, request: httpcore2.Request, head_bytes: int) -> Outcome:
        begun = time.monotonic()
        heard = _Reply()
        # Around everything: each read on its own may be quick, and a reply still never end.
        with anyio.move_on_after(self._limits.total_s) as whole:
            heard.failure = await self._talk(request, heard, head_bytes)
        if whole.cancelled_caught:
            heard.failure = "timeout"
        return self._outcome(heard, head_bytes, int((time.monotonic() - begun) * 1_000))

    async def _talk(
        self, request: httpcore2.Request, heard: _Reply, head_bytes: int
    ) -> Category | None:
        try:
            response = await self._pool.handle_async_request(request)
            try:
                heard.status = response.status
                heard.retry_after = _header(response, b"retry-after")
                if head_bytes:
                    await _read(response, heard, head_bytes)
                else:
                    with anyio.move_on_after(self._limits.drain_s):
                        await _read(response, heard, REPLY_BYTES_MAX)
            finally:
                await response.aclose()
        except (TlsFailed, ssl.SSLError):
            return "tls_error"
        except httpcore2.TimeoutException:
            return "timeout"
        except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError):
            return "connection_refused"
        return None

    def _outcome(self, heard: _Reply, head_bytes: int, latency_ms: int) -> Outcome:
        if heard.status is None:
            return Outcome(None, heard.failure, latency_ms=latency_ms)
        category = reply.category_of(heard.status)
        if category is None and head_bytes:
            category = heard.failure
        wait_s = reply.retry_after_s(heard.retry_after, self._now()) if heard.retry_after else None
        return Outcome(
            heard.status,
            category,
            retry_after_s=None if category is None else wait_s,
            latency_ms=latency_ms,
            body_head=heard.head[:head_bytes],
        )


class _NoPlaceError(Exception):
    """The host, or the process, is busy."""


@dataclass
class _Host:
    places: anyio.Semaphore
    users: int = 0


class _Places:
    """So many exchanges at once with one host, and so many in all."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._in_all = anyio.Semaphore(limits.in_all)
        self._hosts: dict[tuple[str, int], _Host] = {}

    @asynccontextmanager
    async def place(self, host: str, port: int) -> AsyncGenerator[None]:
        """Hold a place. Raises _NoPlaceError when none becomes free in time."""
        key = host, port
        here = self._hosts.get(key)
        if here is None:
            here = self._hosts[key] = _Host(anyio.Semaphore(self._limits.per_host))
        here.users += 1
        try:
            async with AsyncExitStack() as held:
                try:
                    with anyio.fail_after(self._limits.place_s):
                        # The host's first: who waits for a slow host holds up nobody else.
                        await held.enter_async_context(here.places)
                        await held.enter_async_context(self._in_all)
                except TimeoutError:
                    raise _NoPlaceError from None
                yield
        finally:
            here.users -= 1
            if not here.users:
                del self._hosts[key]


async def _read(response: httpcore2.Response, heard: _Reply, most: int) -> None:
    """Up to `most` bytes of the body. What is left unread costs the connection."""
    async with aclosing(response.aiter_stream()) as chunks:
        async for chunk in chunks:
            heard.head += chunk
            if len(heard.head) >= most:
                return


def _header(response: httpcore2.Response, name: bytes) -> str:
    found = (value for key, value in response.headers if key.lower() == name)
    return next(found, b"").decode("ascii", "replace")


def _headers(given: Mapping[str, str]) -> list[tuple[str, str]]:
    """The caller's headers and ours. Raises ValueError: such a header is our fault, not theirs."""
    for name, value in given.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"the header {name!r} cannot be sent")
    kept = [(name, value) for name, value in given.items() if name.lower() not in _RESERVED]
    return [*_FIXED_HEADERS, *kept]


def _tls(extra_ca: Path | None) -> ssl.SSLContext:
    """The system's authorities and one bundle more; certificate and name are always checked."""
    context = httpcore2.default_ssl_context()
    if extra_ca is not None:
        context.load_verify_locations(cafile=extra_ca)
    return context
