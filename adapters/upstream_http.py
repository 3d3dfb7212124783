"""The HTTP half of an upstream connection: what became of each exchange, seen below the SDK. Not
here: any MCP.

The SDK's HTTP transport lets one failed POST end its whole session, and reports a cut stream, a
gateway's 502 and a refused connection in the same words as an answer of the server. `Fate` keeps
them apart, one for each call.
"""

import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any

import httpx2

CONNECT_S_MAX = 10.0
WRITE_S_MAX = 60.0
EVENT_BYTES_MAX = 64 * 1024 * 1024  # a larger SSE event fails its call; a result comes in one event
KEPT_CONNECTIONS_MAX = 20

# A tool may be silent for hours, so no read has a time limit; TCP finds a peer that is gone.
_KEEP_ALIVE = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
]


class Fate:
    """What became of the HTTP exchange of one call. `lost` is the reason why no answer can come
    any more.

    `on_hearing` is told whether the server's messages of its own can come, where a stream is kept
    open for them; `on_log` is told the log messages that come in this exchange.
    """

    def __init__(
        self,
        on_sent: Callable[[], None] = lambda: None,
        on_hearing: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self.on_hearing = on_hearing
        self.on_log: Callable[[Mapping[str, Any]], None] | None = None
        self.sent = False
        self.lost: str | None = None
        self.session_gone = False
        self.stands = False  # it is of a connection, whose standing stream has been asked for
        self._on_sent = on_sent

    @property
    def was_not_served(self) -> bool:
        """True when the server has certainly not begun the call."""
        return self.session_gone or (self.lost is not None and not self.sent)

    async def trace(self, event: str, _info: Mapping[str, Any]) -> None:
        """Told by httpcore of each step; from the first header on, the server may have seen the
        call."""
        if event.endswith("send_request_headers.started"):
            self.sent = True
            self._on_sent()


FATE: ContextVar[Fate | None] = ContextVar("outlast_http_fate", default=None)
"""The call for which HTTP is spoken; the SDK's streams carry the context of who sends."""


def http_client(headers: Mapping[str, str] | None) -> httpx2.AsyncClient:
    """A client for one upstream. Enter it before use; it closes all of its sockets on exit."""
    inner = httpx2.AsyncHTTPTransport(
        limits=httpx2.Limits(
            max_connections=None,
            max_keepalive_connections=KEPT_CONNECTIONS_MAX,
            keepalive_expiry=30,
        ),
        socket_options=_KEEP_ALIVE,
    )
    timeout = httpx2.Timeout(
        connect=CONNECT_S_MAX, read=None, write=WRITE_S_MAX, pool=CONNECT_S_MAX
    )
    return httpx2.AsyncClient(
        transport=_Watched(inner), headers=dict(headers or {}), timeout=timeout
    )


class _Watched(httpx2.AsyncBaseTransport):
    """Writes down the fate of each call's exchange, and turns a failure of one into the end of
    that one only."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        fate = FATE.get()
        if fate is not None and request.method == "GET":
            # The standing stream names an event as well, when it is resumed: but not at first.
            fate.stands |= "last-event-id" not in request.headers
            return await (self._standing if fate.stands else self._resumed)(request, fate)
        if fate is None or not _is_call(request):
            return await self._inner.handle_async_request(request)
        request.extensions = {**request.extensions, "trace": fate.trace}
        fate.lost = None  # after a redirect, or an earlier question of the handshake
        try:
            response = await self._inner.handle_async_request(request)
            return await _note(response, request, fate)
        except httpx2.RequestError as error:  # also of a body that cannot be unpacked
            fate.lost = f"{type(error).__name__} {error}".strip()
            return httpx2.Response(502)

    async def _standing(self, request: httpx2.Request, fate: Fate) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        fate.on_hearing(response.is_success)
        if response.is_success and isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _StandingStream(response.stream, fate)
        return response

    async def _resumed(self, request: httpx2.Request, fate: Fate) -> httpx2.Response:
        """The rest of an answer whose stream has ended: it may come now, or be lost again."""
        response = await self._inner.handle_async_request(request)
        is_stream = response.is_success and _kind(response) == "text/event-stream"
        if is_stream and isinstance(response.stream, httpx2.AsyncByteStream):
            fate.lost = None
            response.stream = _WatchedStream(response.stream, fate)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _note(response: httpx2.Response, request: httpx2.Request, fate: Fate) -> httpx2.Response:
    kind = _kind(response)
    if kind == "application/json":
        await response.aread()  # here, where a cut body fails this call and not the session
    elif isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _WatchedStream(response.stream, fate)
    if response.status_code == HTTPStatus.NOT_FOUND and "mcp-session-id" in request.headers:
        fate.session_gone = True
    elif not response.is_success and not (kind == "application/json" and _is_answer(response)):
        fate.lost = f"HTTP {response.status_code}"
    return response


class _WatchedStream(httpx2.AsyncByteStream):
    """An event stream that is read to its end was left without an answer: readers stop at the
    answer."""

    def __init__(self, inner: httpx2.AsyncByteStream, fate: Fate) -> None:
        self._inner, self._fate = inner, fate

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._inner:
                yield chunk
        except httpx2.TransportError as error:
            self._fate.lost = f"{type(error).__name__} {error}".strip()
            raise
        self._fate.lost = "the response ended without an answer"

    async def aclose(self) -> None:
        await self._inner.aclose()


class _StandingStream(httpx2.AsyncByteStream):
    """The stream of the server's own messages: nothing is heard once it has ended."""

    def __init__(self, inner: httpx2.AsyncByteStream, fate: Fate) -> None:
        self._inner, self._fate = inner, fate

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._inner:
                yield chunk
        finally:
            self._fate.on_hearing(False)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _kind(response: httpx2.Response) -> str:
    """The media type alone."""
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_answer(response: httpx2.Response) -> bool:
    """True for a JSON-RPC error in the body; a gateway's own JSON is none."""
    try:
        body: Any = response.json()
    except ValueError:
        return False
    return isinstance(body, dict) and "jsonrpc" in body


def _is_call(request: httpx2.Request) -> bool:
    """True for the POST of a request; an answer, a notification or a GET belongs to the session."""
    if request.method != "POST":
        return False
    message: Any = json.loads(request.content)
    return "method" in message and "id" in message
