"""An ASGI application under uvicorn, in this process, that can die between any two of its steps."""

import asyncio
import socket
from typing import Any

import uvicorn

from outlast.service.hosting import stop_listening
from outlast.service.waits import turns
from outlast.tests.contracts.delivery_wire import NARROW_BYTES


class Served:
    """On a port of its own, which is 0 before it is started."""

    def __init__(self, app: Any, *, is_narrow: bool = False) -> None:
        self._server = uvicorn.Server(
            uvicorn.Config(
                app, log_config=None, access_log=False, lifespan="off", ws="websockets-sansio"
            )
        )
        self._is_narrow = is_narrow
        self.port = 0

    async def start(self) -> None:
        """Listen. uvicorn's own loop, which looks at a flag every 100 ms, is left out."""
        listener = socket.create_server(("127.0.0.1", 0))
        if self._is_narrow:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NARROW_BYTES)
        self.port = listener.getsockname()[1]
        self._server.config.load()
        self._server.lifespan = self._server.config.lifespan_class(self._server.config)
        await self._server.startup([listener])

    async def end(self) -> None:
        """All at once: no connection is closed in order, nothing is waited for."""
        await self.stop_listening()
        state = self._server.server_state
        while state.connections or state.tasks:
            for connection in list(state.connections):
                connection.transport.abort()
            tasks = list(state.tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(turns(), *tasks, return_exceptions=True)

    async def stop_listening(self) -> None:
        """No new connection; those that are open stay."""
        for listener in getattr(self._server, "servers", ()):  # none before the start
            await stop_listening(listener)

    def close_in_order(self) -> None:
        """Each connection after its present answer."""
        for connection in list(self._server.server_state.connections):
            connection.shutdown()

    @property
    def open_now(self) -> tuple[int, int]:
        """Requests under way, and connections."""
        state = self._server.server_state
        return len(state.tasks), len(state.connections)
