"""`/ws`: the frames of watches on a WebSocket, under the same identity and the same guard."""

import asyncio
from collections.abc import Awaitable, Callable

from mcp_types import METHOD_NOT_FOUND
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from ..delivery.port import Connection, ListenRequest
from ..domain import errors
from ..domain.extension import declares_tasks
from ..domain.owner import Owner
from ..domain.ports import Identity
from . import carriers, envelope, jsonrpc, problems
from .endpoint import Streams
from .exchange import Exchange
from .guard import Guard
from .jsonrpc import Message, Rejection, RequestId

IDLE_S_MAX = 60.0  # a connection on which nothing is watched is closed after this
LISTEN = "subscriptions/listen"
CANCELLED = "notifications/cancelled"

CLOSE_GOING_AWAY = 1001
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
        self, connect: Connect, identity: Identity, guard: Guard, streams: Streams | None = None
    ) -> None:
        self._connect, self._identity, self._guard = connect, identity, guard
        self._streams: Streams = streams or {}

    async def serve(self, socket: WebSocket) -> None:
        """One connection, from its handshake to its end. A refused one gets its HTTP status."""
        try:
            self._guard.check(socket.headers.get("host"), socket.headers.get("origin"))
            owner = await self._identity.authenticate(socket.headers.get("authorization"))
        except (Rejection, errors.Unauthenticated) as error:
            await _refuse_handshake(socket, error)
            return
        await socket.accept()

        async def send(frame: bytes) -> None:
            try:
                async with asyncio.timeout(carriers.TAKE_S_MAX):
                    await socket.send_text(frame.decode())
            except (TimeoutError, WebSocketDisconnect) as error:
                reading.cancel()
                raise errors.ConnectionLost from error

        connection = self._connect(send, refusal)
        reading = asyncio.create_task(self._read(socket, connection, owner, send))
        try:
            await asyncio.wait({reading})
        finally:
            reading.cancel()
            await connection.close()  # before a wait that may itself be cancelled
            (outcome,) = await asyncio.gather(reading, return_exceptions=True)
        if isinstance(outcome, Exception) and not isinstance(outcome, _GONE):
            raise outcome

    async def _read(
        self, socket: WebSocket, connection: Connection, owner: Owner, send: Send
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
            answer = await self._act_on(text, connection, owner)
            if answer is not None:
                await send(answer)

    async def _act_on(self, text: bytes, connection: Connection, owner: Owner) -> bytes | None:
        """Hand a request on; what cannot be served is answered here."""
        request_id: RequestId | None = None
        try:
            message = jsonrpc.parse(text)
            request_id = message.id
            if message.id is None:
                if message.method == CANCELLED:
                    await connection.cancelled(message.params.get("requestId"))
                return None
            envelope.check(message, None, require_task_name=False)
            await self._open(message, message.id, connection, owner)
        except errors.ConnectionLost:
            raise
        except Exception as error:  # noqa: BLE001 - the edge: every failure has an answer
            if isinstance(error, jsonrpc.InvalidMessage):
                request_id = error.request_id
            return refusal(request_id, error)
        return None

    async def _open(
        self, message: Message, request_id: RequestId, connection: Connection, owner: Owner
    ) -> None:
        capabilities = envelope.capabilities_of(message)
        if message.method == LISTEN:
            declared = declares_tasks(capabilities)
            request = ListenRequest(owner.key, request_id, message.params, declared)
            await connection.received(request)
            return
        opening = self._streams.get(message.method)
        if opening is None:
            served = " and ".join((LISTEN, *self._streams))
            raise Rejection(METHOD_NOT_FOUND, f"Only {served} is served here")
        exchange = Exchange(owner, request_id, message.method, message.params, capabilities, {})
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


async def _refuse_handshake(socket: WebSocket, error: Exception) -> None:
    status = error.status if isinstance(error, Rejection) else 401
    headers = {} if isinstance(error, Rejection) else {"WWW-Authenticate": "Bearer"}
    await socket.send_denial_response(Response(str(error), status_code=status, headers=headers))
