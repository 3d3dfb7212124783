"""Servers of this process that stop without losing a connection which they have just taken.

Of one that is lost some later test has the warning. So all of them listen by what stands here, or,
where they speak HTTP, are the product's own `HttpServer`.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from outlast.service.hosting import stop_listening

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def accepting(serve: Serve) -> AsyncGenerator[int]:
    """A port of loopback on which each connection is served so.

    A connection is closed when its `serve` returns or fails, and not by the end of this.
    """
    served = _closing(serve)
    listener = await asyncio.start_server(served, "127.0.0.1", 0)  # noqa: TID251 - stopped below
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        await stop_listening(listener)


@asynccontextmanager
async def accepting_at(path: Path, serve: Serve) -> AsyncGenerator[None]:
    """The same on a Unix socket."""
    listener = await asyncio.start_unix_server(_closing(serve), path)  # noqa: TID251 - see below
    try:
        yield
    finally:
        await stop_listening(listener)


def _closing(serve: Serve) -> Serve:
    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    return served
