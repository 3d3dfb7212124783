"""Servers of this process that stop without losing a connection which they have just taken.

asyncio drops what it accepts in the same turn as `close`, and leaves the socket to the collector:
then some later test has the warning. So all of them listen and stop by what stands here.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn

from outlast.tests.support.turns import turns

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


async def stop_listening(listener: asyncio.Server) -> None:
    """Accept no more, let what was accepted become a connection, then close."""
    for listening in listener.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    try:
        await turns()
    finally:
        listener.close()


async def stop(server: uvicorn.Server) -> None:
    """Accept no more, and tell it to end: whoever runs it sees that."""
    try:
        for listener in getattr(server, "servers", ()):  # none before the start
            await stop_listening(listener)
    finally:
        server.should_exit = True
