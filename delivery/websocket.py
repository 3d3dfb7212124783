"""WebSocket: the frames of `subscriptions/listen`, several watches on one connection. Both ends.

Each text message is one JSON-RPC message. A client opens a watch with a `subscriptions/listen`
request and ends it with `notifications/cancelled` that names the request; the server's frames carry
the request's id. Where a watch is, the client knows: it comes back with its versions.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

import orjson
import websockets
from websockets.asyncio.client import ClientConnection, connect

from ..domain import errors
from .frames import LISTEN, RequestId, TaskState
from .listen import listen_params, told_state
from .port import KEEP_ALIVE, Listener, ListenRequest, OpenWatch
from .remote import (
    CONNECT_S_MAX,
    FRAME_BYTES_MAX,
    TOO_MANY_REQUESTS,
    Remote,
    asked_s,
    message_in,
)
from .source import Backoff, Place

CLOSE_S_MAX = 1.0  # what a closing handshake may take: the watch has ended anyway
WATCHES_MAX = 256  # on one connection; a client that wants more opens another one

Send = Callable[[bytes], Awaitable[None]]
Refuse = Callable[[RequestId, Exception], bytes]


class Switchboard:
    """`Connection` over a WebSocket, or over anything that carries frames both ways.

    `send` waits for the client, so that a slow one slows only itself; it raises ConnectionLost once
    the client has gone.
    """

    def __init__(
        self, listener: Listener, send: Send, refuse: Refuse, most: int = WATCHES_MAX
    ) -> None:
        self._listener, self._send_now, self._refuse = listener, send, refuse
        self._most = most
        self._pumps: dict[RequestId, tuple[asyncio.Task[None], OpenWatch]] = {}
        self._sending = asyncio.Lock()
        self._closed_times = 0

    @property
    def is_idle(self) -> bool:
        """See `Connection.is_idle`."""
        return not self._pumps

    async def received(self, request: ListenRequest) -> None:
        """See `Connection.received`."""
        await self.carry(request.request_id, lambda: self._listener.open(request))

    async def carry(
        self, request_id: RequestId, opening: Callable[[], Awaitable[OpenWatch]]
    ) -> None:
        """See `Connection.carry`."""
        closed_times = self._closed_times
        try:
            if request_id in self._pumps or len(self._pumps) >= self._most:
                raise errors.InvalidCall(
                    f"the id is in use, or {self._most} requests are open on this connection"
                )
            watch = await opening()
        except Exception as error:  # noqa: BLE001 - the edge: `refuse` makes an answer of any
            await self._send(self._refuse(request_id, error))
            return
        if self._closed_times > closed_times:  # while it opened: nobody is left to end it
            await watch.close()
            return
        self._pumps[request_id] = asyncio.create_task(self._pump(request_id, watch)), watch

    async def cancelled(self, request_id: Any) -> None:
        """See `Connection.cancelled`."""
        known = self._pumps.get(request_id) if isinstance(request_id, str | int) else None
        if known is not None:
            pump, watch = known
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
            # A pump that is cancelled before its first step never runs, its `finally` included.
            self._pumps.pop(request_id, None)
            await watch.close()

    async def close(self) -> None:
        """See `Connection.close`. What is being opened is let go of once it is open."""
        self._closed_times += 1
        pumps = list(self._pumps.values())
        self._pumps.clear()
        for pump, watch in pumps:
            pump.cancel()
            await watch.close()
        await asyncio.gather(*(pump for pump, _ in pumps), return_exceptions=True)

    async def _pump(self, request_id: RequestId, watch: OpenWatch) -> None:
        try:
            async with aclosing(watch.frames()) as frames:
                async for frame in frames:
                    if frame != KEEP_ALIVE:  # the protocol's own pings show that it lives
                        await self._send(frame)
        except errors.ConnectionLost:
            pass  # nobody is left to be told
        except Exception as error:  # noqa: BLE001 - the edge: a watch never falls silent
            with suppress(errors.ConnectionLost):
                await self._send(self._refuse(request_id, error))
        finally:
            self._pumps.pop(request_id, None)
            await watch.close()

    async def _send(self, frame: bytes) -> None:
        async with self._sending:
            await self._send_now(frame)


class WebSocketSource:
    """`StatusSource` over a WebSocket of its own; `url` is the server's `ws://…/ws`."""

    def __init__(self, remote: Remote, url: str) -> None:
        self._remote, self._url = remote, url

    async def watch(self, task_id: str, after: int = 0) -> AsyncGenerator[TaskState]:
        """See `StatusSource.watch`."""
        place, backoff = Place(after), Backoff()
        while True:
            try:
                async with self._connected() as connection:
                    async for state in self._states(connection, task_id, place.version):
                        if place.is_new(state):
                            backoff.succeeded()
                            yield state
                        if state.is_terminal:  # an old one too: the watch began after the end
                            return
                await backoff.pause(errors.ConnectionLost("the connection ended"))
            except errors.OutlastError as error:
                await backoff.pause(error)
            except (OSError, TimeoutError, websockets.WebSocketException) as error:
                await backoff.pause(_ours(error))

    def _connected(self) -> connect:
        return connect(
            self._url,
            additional_headers=dict(self._remote.headers),
            max_size=FRAME_BYTES_MAX,
            open_timeout=CONNECT_S_MAX,
            close_timeout=CLOSE_S_MAX,
            proxy=None,
        )

    async def _states(
        self, connection: ClientConnection, task_id: str, after: int
    ) -> AsyncGenerator[TaskState]:
        """What one connection tells, until the server ends the watch: it may be going."""
        request = self._remote.message(LISTEN, listen_params({task_id: after}))
        await connection.send(orjson.dumps(request).decode())
        async for text in connection:
            message = message_in(text)
            state = told_state(message, task_id)
            if state is not None:
                yield state
            elif "result" in message:
                return


def _ours(error: Exception) -> errors.OutlastError:
    if isinstance(error, websockets.InvalidStatus):
        if error.response.status_code == TOO_MANY_REQUESTS:
            return errors.SlowDown(asked_s(error.response.headers.get("Retry-After")))
        return errors.RequestRefused(error.response.status_code, str(error))
    return errors.ConnectionLost(str(error) or type(error).__name__)
