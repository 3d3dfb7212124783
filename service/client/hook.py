"""The client's own webhook endpoint, served in its event loop."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from ...domain import errors

DISCONNECT_S = 2


@asynccontextmanager
async def served(app: Any, host: str, port: int) -> AsyncGenerator[str]:
    """Serve an ASGI application; its URL. Raises ConfigurationError."""
    import uvicorn  # not when this client is told in another way

    class Server(uvicorn.Server):
        """Signals are the program's own."""

        @contextmanager
        def capture_signals(self) -> Generator[None]:
            yield

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise errors.ConfigurationError(
            f"cannot listen on {host}:{port}: {error.strerror}"
        ) from error
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, ws="none", lifespan="on"
    )
    config.timeout_graceful_shutdown = DISCONNECT_S
    server = Server(config)
    with listener:
        serving = asyncio.create_task(server.serve([listener]))
        name = f"[{host}]" if ":" in host else host
        try:
            yield f"http://{name}:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            await asyncio.wait({serving})
