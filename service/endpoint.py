"""`POST /mcp`: one JSON-RPC request in, one answer out: JSON, or a stream when it takes long.

The order of the checks is the specification's: transport, identity, framing, envelope and headers,
method, capability, parameters. Each step that refuses has created nothing.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, Protocol, cast

from mcp_types import INVALID_REQUEST, METHOD_NOT_FOUND, SERVER_INFO_META_KEY
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ..delivery.port import KEEP_ALIVE, Listener, ListenRequest, OpenWatch, Receipt
from ..domain import errors
from ..domain.owner import Caller
from . import bodies, envelope, jsonrpc, problems
from .access import Access
from .carriers import STREAM, STREAM_HEADERS, FrameResponse, disconnected, event
from .exchange import Exchange
from .heads import Asked
from .jsonrpc import Message, Rejection, RequestId
from .throttle import Throttle

BODY_BYTES_MAX = 4 * 1024 * 1024
ID_S_MAX = 1.0  # how long the body of a request that is not served may take to tell its id
BODY_S_MAX = 30.0  # a body that takes longer to arrive is given up: 408
# So long nobody watches whether the client is still there: most answers come before. Longer than
# an answer takes under load, when the watching would cost most.
QUICK_S = 0.25
STREAM_AFTER_S = 5.0  # an answer that takes longer comes as a stream, if the client reads streams
KEEP_ALIVE_S = 15.0  # well under the 30 to 60 s after which proxies drop a quiet connection

JSON = "application/json"
SLOW_METHODS = frozenset({"tools/call", "resources/read", "prompts/get", "completion/complete"})
LISTEN, INITIALIZE = "subscriptions/listen", "initialize"

Result = bytes | dict[str, Any]
Method = Callable[[Exchange], Coroutine[Any, Any, Result]]
Streams = Mapping[str, Callable[[Exchange], Coroutine[Any, Any, OpenWatch]]]


class Sessions(Protocol):
    """Where clients of the `initialize` era go."""

    def opens(self, request: Request) -> bool:
        """Whether this `initialize` is theirs, and no mistake of another client's."""
        ...

    def open(self, caller: Caller, request_id: RequestId, body: bytes) -> Response:
        """Answer it."""
        ...


class Endpoint:
    """The MCP endpoint over two tables of methods.

    A method returns its result's JSON text; one of `streams` opens a watch, whose frames are sent.
    """

    def __init__(  # noqa: PLR0913 - one part each, named by the wiring
        self,
        methods: Mapping[str, Method],
        listener: Listener,
        access: Access,
        server_info: Mapping[str, str],
        *,
        require_task_name: bool,
        streams: Streams | None = None,
        throttle: Throttle | None = None,
        sessions: Sessions | None = None,
    ) -> None:
        self._methods, self._listener = methods, listener
        self._sessions = sessions
        self._streams: Streams = {LISTEN: self._listen, **(streams or {})}
        self._access, self._require_task_name = access, require_task_name
        self._throttle = throttle or Throttle()
        self._server_info = {SERVER_INFO_META_KEY: dict(server_info)}
        self._head = b'{"resultType":"complete","_meta":' + jsonrpc.dumps(self._server_info)

    async def post(self, request: Asked) -> Response:
        """Answer one POST. Never raises but for a client that has gone."""
        request_id: RequestId | None = None
        try:
            caller = await self._access.admit(request.headers)
            self._throttle.called(caller.owner.key)
            message = jsonrpc.parse(body := await _body(request))
            request_id = message.id
            if message.id is None:
                return self._notified(message)
            if message.method == INITIALIZE and self._begins_session(request):
                return cast(Sessions, self._sessions).open(caller, message.id, body)
            headers = request.headers
            envelope.check(message, headers, require_task_name=self._require_task_name)
            exchange = Exchange(
                caller,
                message.id,
                message.method,
                message.params,
                envelope.capabilities_of(message),
                headers,
            )
            self._access.demand_method(caller, exchange.method, exchange.meta)
            return await self._answer(request, exchange)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:  # noqa: BLE001 - the edge: every failure has an answer
            self._throttle.refused(error)
            if isinstance(error, jsonrpc.InvalidMessage):
                request_id = error.request_id
            elif isinstance(error, errors.TooManyRequests) and request_id is None:
                request_id = await _cheap_id(request)
            return problems.response(request_id, error)

    async def open(self, exchange: Exchange) -> OpenWatch:
        """Serve a judged request on a connection that carries many: its answer is the last frame.

        Raises Rejection, and what opening a watch raises.
        """
        opening = self._streams.get(exchange.method)
        if opening is not None:
            return await opening(exchange)
        work = asyncio.ensure_future(self._method(exchange)(exchange))
        return _Answering(self._frames(exchange, work), work)

    def _begins_session(self, request: Request) -> bool:
        return self._sessions is not None and self._sessions.opens(request)

    def _notified(self, message: Message) -> Response:
        """This revision has no notification that means anything over HTTP: heard, and no more."""
        if message.method == INITIALIZE:
            envelope.check(message, None, require_task_name=False)
        return Response(status_code=202)

    async def _answer(self, request: Request, exchange: Exchange) -> Response:
        opening = self._streams.get(exchange.method)
        if opening is not None:
            return FrameResponse(await opening(exchange), exchange.caller.until)
        method = self._method(exchange)
        if exchange.method not in SLOW_METHODS:
            return _json(self._respond(exchange.request_id, await method(exchange)))
        return await self._serve(request, exchange, method)

    def _method(self, exchange: Exchange) -> Method:
        method = self._methods.get(exchange.method)
        if method is None:
            raise Rejection(METHOD_NOT_FOUND, f"Method not found: {exchange.method}", status=404)
        return method

    async def _listen(self, exchange: Exchange) -> OpenWatch:
        owner, request_id = exchange.owner.key, exchange.request_id
        declared = exchange.declares_tasks
        return await self._listener.open(
            ListenRequest(owner, request_id, exchange.params, declared)
        )

    async def _serve(self, request: Request, exchange: Exchange, method: Method) -> Response:
        """Wait a while for the answer; then, or at the first news, go on as a stream."""
        work = asyncio.create_task(method(exchange))
        streams = STREAM in request.headers.get("accept", "")
        try:
            if not exchange.wants_news:  # else the first news is waited for as well
                await _settled(work, QUICK_S)
            is_gone = not work.done() and await _waited_for(work, request, exchange, streams)
        except BaseException:
            await _stop(work)
            raise
        if work.done() and not (streams and exchange.wants_news and exchange.told.is_set()):
            return _json(self._respond(exchange.request_id, work.result()))
        if is_gone:
            await _stop(work)
            raise ClientDisconnect
        return _Stream(self._frames(exchange, work), work)

    async def _frames(
        self, exchange: Exchange, work: "asyncio.Future[Result]"
    ) -> AsyncGenerator[bytes]:
        """The news, and empty frames that keep the connection alive, until the answer."""
        async with aclosing(exchange.news_until(work, KEEP_ALIVE_S)) as told:
            async for news in told:
                yield KEEP_ALIVE if news is None else exchange.notification(news)
        yield self._outcome(exchange, work)

    def _outcome(self, exchange: Exchange, work: "asyncio.Future[Result]") -> bytes:
        try:
            return self._respond(exchange.request_id, work.result())
        except Exception as error:  # noqa: BLE001 - the edge again: only the headers are gone
            self._throttle.refused(error)
            return problems.message(exchange.request_id, error)

    def _respond(self, request_id: RequestId, result: Result) -> bytes:
        return jsonrpc.result_bytes(request_id, self._complete(result))

    def _complete(self, result: Result) -> bytes:
        """Add `resultType` and our `serverInfo`. Bytes bring neither: spliced, never parsed."""
        if isinstance(result, bytes):
            return self._head + (result[1:] if result == b"{}" else b"," + result[1:])
        # Ours over an upstream's own: it is Outlast that the client is talking to.
        given = result.get("_meta")
        theirs = cast(dict[str, Any], given) if isinstance(given, dict) else {}
        meta = {**theirs, **self._server_info}
        return jsonrpc.dumps({"resultType": "complete", **result, "_meta": meta})


class _Answering:
    """`OpenWatch` over the news of one request and its answer."""

    receipt = Receipt(())

    def __init__(self, frames: AsyncGenerator[bytes], work: "asyncio.Future[Result]") -> None:
        self._frames, self._work = frames, work

    def frames(self) -> AsyncGenerator[bytes]:
        """See `OpenWatch.frames`."""
        return self._frames

    async def close(self) -> None:
        """See `OpenWatch.close`."""
        await _stop(self._work)


class _Stream(StreamingResponse):
    """A stream that takes its work with it, even when its reader goes before the first frame."""

    def __init__(self, frames: AsyncIterator[bytes], work: "asyncio.Future[Result]") -> None:
        events = (event(frame) async for frame in frames)
        super().__init__(events, media_type=STREAM, headers=STREAM_HEADERS)
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the frames, and stop the work."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Here, and not in the frames: those the framework cancels again at every await, which
            # would cut the work off while it tidies up.
            await _stop(self._work)


async def _body(request: Request) -> bytes:
    if not bodies.is_json(request):
        raise Rejection(INVALID_REQUEST, f"The Content-Type must be {JSON}", status=415)
    return await bodies.read_message(request, BODY_BYTES_MAX, BODY_S_MAX)


async def _cheap_id(request: Request) -> RequestId | None:
    """The id of a request that came too soon, if its body is short and comes at once."""
    try:
        return jsonrpc.id_of(await bodies.read(request, jsonrpc.ID_BODY_BYTES_MAX, ID_S_MAX))
    except (bodies.BodyRefused, ClientDisconnect):
        return None


def _json(body: bytes) -> Response:
    return Response(body, media_type=JSON)


async def _settled(work: "asyncio.Future[Result]", seconds: float) -> None:
    """Return when it is over, or after so long. `asyncio.wait` does more, at thrice the cost."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[None] = loop.create_future()

    def wake(_work: "asyncio.Future[Result] | None" = None) -> None:
        if not waiting.done():
            waiting.set_result(None)

    timer = loop.call_later(seconds, wake)
    work.add_done_callback(wake)
    try:
        await waiting
    finally:
        timer.cancel()
        work.remove_done_callback(wake)


async def _waited_for(
    work: "asyncio.Future[Result]", request: Request, exchange: Exchange, streams: bool
) -> bool:
    """Wait for the work; with a stream to go on with no longer than that may be put off.

    True when there is nobody left to answer.
    """
    gone = asyncio.ensure_future(disconnected(request.receive))
    told = asyncio.ensure_future(exchange.told.wait())
    try:
        await asyncio.wait(
            {work, gone, told} if streams else {work, gone},
            timeout=STREAM_AFTER_S if streams else None,
            return_when=asyncio.FIRST_COMPLETED,
        )
        return gone.done() and not work.done()
    finally:
        await _stop(gone, told)


async def _stop(*works: "asyncio.Future[Any]") -> None:
    for work in works:
        work.cancel()
    await asyncio.gather(*works, return_exceptions=True)
