"""`/ws`: the frames of watches on a WebSocket, under the same identity and the same guard."""

import asyncio
from collections.abc import Awaitable, Callable

from mcp_types import METHOD_NOT_FOUND
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from ..delivery.port import Connection, ListenRequest
from ..domain import errors
from ..domain.extension import declares_tasks
from ..domain.owner import Caller
from . import carriers, envelope, jsonrpc, problems
from .access import Access
from .endpoint import Streams
from .exchange import Exchange
from .jsonrpc import Message, Rejection, RequestId
from .throttle import Throttle

IDLE_S_MAX = 60.0  # a connection on which nothing is watched is closed after this
LISTEN = "subscriptions/listen"
CANCELLED = "notifications/cancelled"

CLOSE_GOING_AWAY = 1001
CLOSE_EXPIRED = 1008  # a policy is broken: the client comes back with a new token
CLOSE_IDLE = 4408

_GONE = (WebSocketDisconnect, errors.ConnectionLost)

Send = Callable[[bytes], Awaitable[None]]
Refuse = Callable[[RequestId, Exception], bytes]
Connect = Callable[[Send, Refuse], Connection]


class Socket:
    """Accepts connections and reads their messages; `connect` makes what the watches live on.

    `streams` are further methods that open one; no other methods are served here.
    """

    def __init__(
        self,
        connect: Connect,
        access: Access,
        streams: Streams | None = None,
        throttle: Throttle | None = None,
    ) -> None:
        self._connect, self._access = connect, access
        self._streams: Streams = streams or {}
        self._throttle = throttle or Throttle()

    async def serve(self, socket: WebSocket) -> None:
        """One connection, from its handshake to its end. A refused one gets its HTTP status."""
        try:
            caller = await self._access.admit(socket.headers)
            self._throttle.called(caller.owner.key)
        except (Rejection, errors.TooManyRequests) as error:
            self._throttle.refused(error)
            refused = problems.rejection(error)
            said = Response(refused.message, refused.status, refused.headers)
            await socket.send_denial_response(said)
            return
        await socket.accept()

        async def send(frame: bytes) -> None:
            try:
                async with asyncio.timeout(carriers.TAKE_S_MAX):
                    await socket.send_text(frame.decode())
            except (TimeoutError, WebSocketDisconnect) as error:
                reading.cancel()
                raise errors.ConnectionLost from error

        connection = self._connect(send, self._refuse)
        reading = asyncio.create_task(self._read(socket, connection, caller, send))
        try:
            _, waiting = await asyncio.wait({reading}, timeout=carriers.seconds_until(caller.until))
        finally:
            reading.cancel()
            await connection.close()  # before a wait that may itself be cancelled
            (outcome,) = await asyncio.gather(reading, return_exceptions=True)
        if isinstance(outcome, Exception) and not isinstance(outcome, _GONE):
            raise outcome
        if waiting:
            await socket.close(CLOSE_EXPIRED, "the token has expired")

    async def _read(
        self, socket: WebSocket, connection: Connection, caller: Caller, send: Send
    ) -> None:
        while True:
            try:
                async with asyncio.timeout(IDLE_S_MAX):
                    text = await _received(socket)
            except TimeoutError:
                if connection.is_idle:
                    await socket.close(CLOSE_IDLE, "nothing is watched")
                    return
                continue
            answer = await self._act_on(text, connection, caller)
            if answer is not None:
                await send(answer)

    async def _act_on(self, text: bytes, connection: Connection, caller: Caller) -> bytes | None:
        """Hand a request on; what cannot be served is answered here."""
        request_id: RequestId | None = None
        try:
            message = jsonrpc.parse(text)
            request_id = message.id
            if message.id is None:
                if message.method == CANCELLED:
                    await connection.cancelled(message.params.get("requestId"))
                return None
            self._throttle.called(caller.owner.key)
            envelope.check(message, None, require_task_name=False)
            await self._open(message, message.id, connection, caller)
        except errors.ConnectionLost:
            raise
        except Exception as error:  # noqa: BLE001 - the edge: every failure has an answer
            if isinstance(error, jsonrpc.InvalidMessage):
                request_id = error.request_id
            return self._refuse(request_id, error)
        return None

    def _refuse(self, request_id: RequestId | None, error: Exception) -> bytes:
        self._throttle.refused(error)
        return refusal(request_id, error)

    async def _open(
        self, message: Message, request_id: RequestId, connection: Connection, caller: Caller
    ) -> None:
        self._access.demand_method(caller, message.method, {})
        capabilities = envelope.capabilities_of(message)
        if message.method == LISTEN:
            declared = declares_tasks(capabilities)
            request = ListenRequest(caller.owner.key, request_id, message.params, declared)
            await connection.received(request)
            return
        opening = self._streams.get(message.method)
        if opening is None:
            served = " and ".join((LISTEN, *self._streams))
            raise Rejection(METHOD_NOT_FOUND, f"Only {served} is served here")
        exchange = Exchange(caller, request_id, message.method, message.params, capabilities, {})
        await connection.carry(request_id, lambda: opening(exchange))


async def _received(socket: WebSocket) -> bytes:
    """The next message, which may come as text or as binary. Raises WebSocketDisconnect."""
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"], message.get("reason"))
    binary = message.get("bytes")
    return message["text"].encode() if binary is None else binary


def refusal(request_id: RequestId | None, error: Exception) -> bytes:
    """The JSON-RPC error for a failure."""
    refused = problems.rejection(error)
    return jsonrpc.error_bytes(request_id, refused.code, refused.message, refused.data)
