"""`/ws`: the frames of watches on a WebSocket, under the same identity and the same guard."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from mcp_types import METHOD_NOT_FOUND
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from ..delivery.port import Connection, ListenRequest
from ..domain import errors
from ..domain.owner import Caller
from . import carriers, problems
from .access import Access
from .endpoint import Streams
from .exchange import Exchange
from .jsonrpc import Rejection
from .session import Connect, Gate, Send, Session
from .throttle import Throttle

IDLE_S_MAX = 60.0  # a connection on which nothing is watched is closed after this
LISTEN = "subscriptions/listen"

CLOSE_GOING_AWAY = 1001
CLOSE_EXPIRED = 1008  # a policy is broken: the client comes back with a new token
CLOSE_IDLE = 4408

Visiting = Callable[[WebSocket], Caller | None]

_GONE = (WebSocketDisconnect, errors.ConnectionLost)
# What sending says once the client has left: the second is for all but the first to hear of it.
_UNSENT = (WebSocketDisconnect, RuntimeError)


class Socket:
    """Accepts connections and reads their messages; `connect` makes what the watches live on.

    `streams` are further methods that open one; no other methods are served here. `visiting` knows
    who comes from a page of ours, if there are such pages.
    """

    def __init__(
        self,
        connect: Connect,
        access: Access,
        streams: Streams | None = None,
        throttle: Throttle | None = None,
        visiting: Visiting | None = None,
    ) -> None:
        self._visiting = visiting or _nobody
        self._connect, self._gate = connect, Gate(access, throttle)
        self._streams: Streams = streams or {}

    async def serve(self, socket: WebSocket) -> None:
        """One connection, from its handshake to its end. A refused one gets its HTTP status."""
        try:
            caller = self._visiting(socket) or await self._gate.access.admit(socket.headers)
            self._gate.throttle.called(caller.owner.key)
        except (Rejection, errors.TooManyRequests) as error:
            self._gate.throttle.refused(error)
            refused = problems.rejection(error)
            said = Response(refused.message, refused.status, refused.headers)
            await socket.send_denial_response(said)
            return
        await socket.accept()

        async def send(frame: bytes) -> None:
            try:
                async with asyncio.timeout(carriers.TAKE_S_MAX):
                    await socket.send_text(frame.decode())
            except (TimeoutError, *_UNSENT) as error:
                reading.cancel()
                raise errors.ConnectionLost from error

        session = Session(caller, self._connect, send, self._open, self._gate)
        reading = asyncio.create_task(_read(socket, session, send))
        try:
            _, waiting = await asyncio.wait({reading}, timeout=carriers.seconds_until(caller.until))
        finally:
            reading.cancel()
            await session.connection.close()  # before a wait that may itself be cancelled
            (outcome,) = await asyncio.gather(reading, return_exceptions=True)
        if isinstance(outcome, Exception) and not isinstance(outcome, _GONE):
            raise outcome
        if waiting:
            with suppress(*_UNSENT):
                await socket.close(CLOSE_EXPIRED, "the token has expired")

    async def _open(self, connection: Connection, exchange: Exchange) -> None:
        if exchange.method == LISTEN:
            declared = exchange.declares_tasks
            request = ListenRequest(
                exchange.owner.key, exchange.request_id, exchange.params, declared
            )
            await connection.received(request)
            return
        opening = self._streams.get(exchange.method)
        if opening is None:
            served = " and ".join((LISTEN, *self._streams))
            raise Rejection(METHOD_NOT_FOUND, f"Only {served} is served here")
        await connection.carry(exchange.request_id, lambda: opening(exchange))


def _nobody(_socket: WebSocket) -> None:
    return None


async def _read(socket: WebSocket, session: Session, send: Send) -> None:
    while True:
        try:
            async with asyncio.timeout(IDLE_S_MAX):
                text = await _received(socket)
        except TimeoutError:
            if session.connection.is_idle:
                with suppress(*_UNSENT):
                    await socket.close(CLOSE_IDLE, "nothing is watched")
                return
            continue
        answer = await session.take(text)
        if answer is not None:
            await send(answer)


async def _received(socket: WebSocket) -> bytes:
    """The next message, which may come as text or as binary. Raises WebSocketDisconnect."""
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"], message.get("reason"))
    binary = message.get("bytes")
    return message["text"].encode() if binary is None else binary
