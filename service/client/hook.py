"""The client's own webhook endpoint, served in its event loop."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

DISCONNECT_S = 2


@asynccontextmanager
async def served(app: Any, host: str, port: int) -> AsyncGenerator[str]:
    """Serve an ASGI application; its URL. Raises ConfigurationError."""
    import uvicorn  # not when this client is told in another way

    from .. import hosting

    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, ws="none", lifespan="on"
    )
    config.timeout_graceful_shutdown = DISCONNECT_S
    server = hosting.HttpServer(config)
    with hosting.listener_on(host, port, backlog=128) as listener:
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield hosting.url_of(host, listener.getsockname()[1]) + "/"
        finally:
            server.should_exit = True
            await asyncio.wait({serving})
            serving.result()
