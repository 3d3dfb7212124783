"""`POST /mcp`: one JSON-RPC request in, one answer out, as JSON or, when it takes long, as a stream.

The order of the checks is the specification's: transport, identity, framing, envelope and headers,
method, capability, parameters. Each step that refuses has created nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, cast

from mcp.shared.inbound import (
    InboundLadderRejection,
    classify_inbound_request,
    decode_header_value,
    find_duplicated_routing_header,
)
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    HEADER_MISMATCH,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    SERVER_INFO_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from ..domain import errors
from ..domain.ports import Identity, Progress
from . import jsonrpc, problems
from .exchange import Exchange
from .guard import Guard
from .jsonrpc import Message, Rejection, RequestId

BODY_BYTES_MAX = 4 * 1024 * 1024
STREAM_AFTER_S = 5.0  # an answer that takes longer comes as a stream, if the client reads streams
KEEP_ALIVE_S = 15.0  # well under the 30 to 60 s after which proxies drop a quiet connection

JSON = "application/json"
STREAM = "text/event-stream"
SLOW_METHODS = frozenset({"tools/call"})
TASK_METHODS = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})

Result = bytes | dict[str, Any]
Method = Callable[[Exchange], Coroutine[Any, Any, Result]]


class Endpoint:
    """The MCP endpoint over a table of methods. A method returns its result's JSON text."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        identity: Identity,
        guard: Guard,
        server_info: Mapping[str, str],
        *,
        require_task_name: bool,
    ) -> None:
        self._methods, self._identity, self._guard = methods, identity, guard
        self._require_task_name = require_task_name
        self._server_info = {SERVER_INFO_META_KEY: dict(server_info)}
        self._head = b'{"resultType":"complete","_meta":' + jsonrpc.dumps(self._server_info)

    async def post(self, request: Request) -> Response:
        """Answer one POST. Never raises but for a client that has gone."""
        request_id: RequestId | None = None
        try:
            self._guard.check(request.headers.get("host"), request.headers.get("origin"))
            owner = await self._identity.authenticate(request.headers.get("authorization"))
            message = jsonrpc.parse(await _body(request))
            request_id = message.id
            headers = self._check_envelope(request, message)
            if message.id is None:
                return Response(status_code=202)
            method = self._methods.get(message.method)
            if method is None:
                raise Rejection(METHOD_NOT_FOUND, f"Method not found: {message.method}", status=404)
            capabilities = _capabilities(message)
            exchange = Exchange(
                owner, message.id, message.method, message.params, capabilities, headers
            )
            return await self._serve(request, exchange, method)
        except errors.Unauthenticated as error:
            return _unauthenticated(error)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:  # the edge: every failure has an answer
            return _refusal(request_id, error)

    def _check_envelope(self, request: Request, message: Message) -> Mapping[str, str]:
        headers = dict(request.headers)
        if message.method == "initialize":
            raise _speaks_modern_only(message)
        if message.id is None:
            return headers
        doubled = find_duplicated_routing_header(request.headers.items())
        if doubled is not None:
            raise Rejection(HEADER_MISMATCH, f"The header {doubled} came more than once")
        verdict = classify_inbound_request(message.body, headers=headers)
        if isinstance(verdict, InboundLadderRejection):
            raise Rejection(verdict.code, verdict.message, data=verdict.data)
        if message.method in TASK_METHODS:
            self._check_task_name(headers, message)
        return headers

    def _check_task_name(self, headers: Mapping[str, str], message: Message) -> None:
        given = headers.get("mcp-name")
        if given is None and not self._require_task_name:
            return
        if decode_header_value(given) != message.params.get("taskId"):
            raise Rejection(
                HEADER_MISMATCH, "The Mcp-Name header does not match the request's taskId"
            )

    async def _serve(self, request: Request, exchange: Exchange, method: Method) -> Response:
        """Wait a while for the answer; then, or at the first progress, go on as a stream."""
        if exchange.method not in SLOW_METHODS:
            return _json(self._respond(exchange.request_id, await method(exchange)))
        work = asyncio.ensure_future(method(exchange))
        gone = asyncio.ensure_future(_disconnected(request))
        told = asyncio.ensure_future(exchange.progress_told.wait())
        streams = STREAM in request.headers.get("accept", "")
        try:
            await asyncio.wait(
                {work, gone, told} if streams else {work, gone},
                timeout=STREAM_AFTER_S if streams else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
        except BaseException:
            await _stop(work)
            raise
        finally:
            await _stop(gone, told)
        if work.done():
            return _json(self._respond(exchange.request_id, work.result()))
        if not gone.cancelled() or not streams:
            await _stop(work)
            raise ClientDisconnect
        return StreamingResponse(
            self._stream(exchange, work),
            media_type=STREAM,
            headers={"X-Accel-Buffering": "no", "Cache-Control": "no-cache"},
        )

    async def _stream(
        self, exchange: Exchange, work: "asyncio.Future[Result]"
    ) -> AsyncIterator[bytes]:
        """Progress and keep-alive comments until the answer; closing the stream stops the work."""
        try:
            while not work.done():
                news = asyncio.ensure_future(exchange.progress.get())
                await asyncio.wait(
                    {work, news}, timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED
                )
                if news.done():
                    yield _frame(_progress(exchange, news.result()))
                else:
                    await _stop(news)
                    if not work.done():
                        yield b":\r\n\r\n"
            while not exchange.progress.empty():
                yield _frame(_progress(exchange, exchange.progress.get_nowait()))
            yield _frame(self._outcome(exchange, work))
        finally:
            await _stop(work)

    def _outcome(self, exchange: Exchange, work: "asyncio.Future[Result]") -> bytes:
        try:
            return self._respond(exchange.request_id, work.result())
        except Exception as error:  # the edge again: the headers are gone, the answer is not
            refused = problems.rejection(error)
            return jsonrpc.error_bytes(
                exchange.request_id, refused.code, refused.message, refused.data
            )

    def _respond(self, request_id: RequestId, result: Result) -> bytes:
        return jsonrpc.result_bytes(request_id, self._complete(result))

    def _complete(self, result: Result) -> bytes:
        """Add `resultType` and our `serverInfo`. Bytes are spliced, never parsed: they bring neither."""
        if isinstance(result, bytes):
            return self._head + (result[1:] if result == b"{}" else b"," + result[1:])
        meta = {**self._server_info, **(result.get("_meta") or {})}
        return jsonrpc.dumps({"resultType": "complete", **result, "_meta": meta})


async def _body(request: Request) -> bytes:
    """The body, read no further than its limit."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise Rejection(INVALID_REQUEST, f"The Content-Type must be {JSON}", status=415)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise Rejection(
                INVALID_REQUEST, f"The body is larger than {BODY_BYTES_MAX} bytes", status=413
            )
    return bytes(body)


def _capabilities(message: Message) -> Mapping[str, Any]:
    declared = message.params["_meta"][CLIENT_CAPABILITIES_META_KEY]
    if not isinstance(declared, dict):
        raise errors.InvalidCall(f"{CLIENT_CAPABILITIES_META_KEY} must be an object")
    return cast(Mapping[str, Any], declared)


def _speaks_modern_only(message: Message) -> Rejection:
    supported = list(MODERN_PROTOCOL_VERSIONS)
    requested = message.params.get("protocolVersion")
    return Rejection(
        UNSUPPORTED_PROTOCOL_VERSION,
        f"There is no handshake here: send each request under version {', '.join(supported)}",
        data={"supported": supported, "requested": str(requested)},
    )


def _refusal(request_id: RequestId | None, error: Exception) -> Response:
    refused = problems.rejection(error)
    body = jsonrpc.error_bytes(request_id, refused.code, refused.message, refused.data)
    return Response(body, status_code=refused.status, media_type=JSON)


def _unauthenticated(error: errors.Unauthenticated) -> Response:
    body = jsonrpc.error_bytes(None, INVALID_REQUEST, str(error))
    challenge = {"WWW-Authenticate": 'Bearer error="invalid_token"'}
    return Response(body, status_code=401, media_type=JSON, headers=challenge)


def _json(body: bytes) -> Response:
    return Response(body, media_type=JSON)


def _frame(message: bytes) -> bytes:
    return b"event: message\r\ndata: " + message + b"\r\n\r\n"


def _progress(exchange: Exchange, news: Progress) -> bytes:
    params: dict[str, Any] = {"progressToken": exchange.progress_token, "progress": news.progress}
    if news.total is not None:
        params["total"] = news.total
    if news.message is not None:
        params["message"] = news.message
    return jsonrpc.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})


async def _disconnected(request: Request) -> None:
    """Return when the client has gone. The body has been read, so nothing else can come."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stop(*works: "asyncio.Future[Any]") -> None:
    for work in works:
        work.cancel()
    await asyncio.gather(*works, return_exceptions=True)
