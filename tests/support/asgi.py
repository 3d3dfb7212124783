"""An application under uvicorn on loopback, in this process."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette

from outlast.service.hosting import HttpServer

STOP_S_MAX = 60.0


@asynccontextmanager
async def listening(app: Starlette) -> AsyncIterator[int]:
    """The port where it is served; nothing of it afterwards."""
    server = HttpServer(uvicorn.Config(app, log_config=None, lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = asyncio.ensure_future(server.serve([listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await asyncio.wait_for(running, STOP_S_MAX)
