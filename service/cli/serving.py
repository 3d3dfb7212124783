"""One process that serves: its HTTP server, from the first connection to the last."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uvicorn

from ...domain import errors
from .. import wiring
from ..app import Lookout, assemble, assemble_worker
from ..config import Config
from ..hosting import NOT_STARTED, HttpServer, spare_the_collector
from ..joined import OnePiece
from ..settings import Settings
from ..siblings import Siblings

BACKLOG = 2048
PING_S = 20.0  # a WebSocket whose peer does not answer within this is closed
FRAME_BYTES_MAX = 4 * 1024 * 1024
TAKE_MS_MAX = 30_000
DISCONNECT_S = 1  # seconds that open responses get once the drain is over


@dataclass(frozen=True)
class Plan:
    """What a process serves: with `work` it runs tasks too; `address` is where it is reached."""

    settings: Settings
    config: Config
    url: str
    work: bool
    address: str


async def serve_on(
    plan: Plan,
    listener: socket.socket,
    stop: asyncio.Event,
    announce: Callable[[], None],
    siblings: Siblings | None = None,
) -> None:
    """Serve until told to stop, and drain. Raises ConfigurationError, StoreUnavailable."""
    chosen, config = plan.settings, plan.config
    built = await wiring.build(chosen, config, plan.url, claims=plan.work, address=plan.address)
    parts = wiring.parts(chosen, config, built, siblings)
    server = http_server(chosen, assemble(parts))
    await _serve(server, parts.lookout, listener, stop, announce)


async def work_on(
    chosen: Settings,
    lookout: Lookout,
    listener: socket.socket,
    stop: asyncio.Event,
    announce: Callable[[], None],
) -> None:
    """Work until told to stop, tell meanwhile how that goes, and drain.

    Raises ConfigurationError.
    """
    await _serve(http_server(chosen, assemble_worker(lookout)), lookout, listener, stop, announce)


async def _serve(
    server: HttpServer,
    lookout: Lookout,
    listener: socket.socket,
    stop: asyncio.Event,
    announce: Callable[[], None],
) -> None:
    running = asyncio.create_task(server.serve([prepared(listener)]))
    await _first_of(running, stop, _announced(server, running, announce))
    lookout.wind_down()
    server.should_exit = True
    await running


def http_server(chosen: Settings, app: Any) -> HttpServer:
    """The server of an application."""
    return HttpServer(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            http=OnePiece,
            proxy_headers=False,  # who called, and how, is asked of no header here
            ws="websockets-sansio",
            ws_max_size=FRAME_BYTES_MAX,
            ws_ping_interval=PING_S,
            ws_ping_timeout=PING_S,
            timeout_graceful_shutdown=round(chosen.drain_s) + DISCONNECT_S,
            lifespan="on",
        )
    )


def prepared(listener: socket.socket) -> socket.socket:
    """The same, with what the connections that it accepts inherit."""
    # asyncio sees that this socket names no protocol and leaves it out, and an answer in two
    # packets then waits 40 ms for the acknowledgement of the first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A peer that takes nothing for so long is cut off by the kernel.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TAKE_MS_MAX)
    return listener


async def started(server: uvicorn.Server, running: "asyncio.Task[None]") -> None:
    """Return once it serves, however long that takes. Raises ConfigurationError if it cannot."""
    while not server.started:  # uvicorn offers a flag and no event
        if running.done():
            raise errors.ConfigurationError(NOT_STARTED)
        await asyncio.sleep(0.01)


async def _first_of(running: "asyncio.Task[None]", stop: asyncio.Event, announced: Any) -> None:
    """Return on a signal, or when the server ends by itself (it says why)."""
    telling = asyncio.create_task(announced)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in (telling, stopping):
        task.cancel()
    await asyncio.gather(telling, stopping, return_exceptions=True)
    if running.done() and not stop.is_set():
        await running
        raise errors.ConfigurationError(NOT_STARTED)


async def _announced(
    server: uvicorn.Server, running: "asyncio.Task[None]", announce: Callable[[], None]
) -> None:
    await started(server, running)
    spare_the_collector()
    announce()
