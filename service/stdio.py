"""MCP over standard input and output: one message a line, for the one user who started us.

A client's first lines come while the store may still be starting. What needs no store is answered
at once; the rest waits for `ready`. Its era is told by its first message: `initialize` begins a
legacy session, which `legacy` serves, and anything else is stateless.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from mcp_types import INVALID_REQUEST

from ..delivery.port import Connection, OpenWatch, Receipt
from ..domain import errors
from ..domain.owner import LOCAL_CALLER
from . import jsonrpc
from .endpoint import BODY_BYTES_MAX, Endpoint
from .exchange import Exchange
from .jsonrpc import Rejection
from .session import Connect, Gate, Send, Session
from .streams import TOO_LONG

EARLY = frozenset({"server/discover", "tools/list"})
WAITING_LOOK_S = 0.05

Legacy = Callable[[AsyncIterator[bytes], Send], Awaitable[None]]


@dataclass(frozen=True)
class Whole:
    """What serves once there is a store. `legacy` takes a session's lines, the first included."""

    endpoint: Endpoint
    legacy: Legacy | None = None


class Wire(Protocol):
    """Lines to and from the client."""

    def lines(self) -> AsyncGenerator[bytes]:
        """What the client sends, until it sends no more."""
        ...

    async def send(self, line: bytes) -> None:
        """One line to the client. Raises ConnectionLost once it has gone."""
        ...


class Stdio:
    """Serves one client. `early` needs no store; `ready` is the whole, once it has one."""

    def __init__(
        self,
        wire: Wire,
        connect: Connect,
        gate: Gate,
        early: Endpoint,
        ready: "asyncio.Future[Whole]",
    ) -> None:
        self._wire, self._early, self._ready = wire, early, ready
        self._session = Session(LOCAL_CALLER, connect, wire.send, self._open, gate)

    @property
    def is_idle(self) -> bool:
        """True while no request waits for its answer and no watch is open."""
        return self._session.connection.is_idle

    async def serve(self) -> None:
        """Take messages until no more come. Raises ConnectionLost when no answer can go out."""
        async with aclosing(self._wire.lines()) as lines:
            first = await anext(lines, None)
            if first is None:
                return
            if _begins_legacy(first):
                legacy = await self._legacy()
                if legacy is not None:
                    await legacy(_with(first, lines), self._wire.send)
                    return
            async for line in _with(first, lines):
                answer = self._too_long() if line == TOO_LONG else await self._session.take(line)
                if answer is not None:
                    await self._wire.send(answer)

    async def answered(self) -> None:
        """Return once every request that was taken has its answer, and every watch its end."""
        while not self.is_idle:  # noqa: ASYNC110 - a port with a flag, no event
            await asyncio.sleep(WAITING_LOOK_S)

    async def close(self) -> None:
        """Stop what is not answered."""
        await self._session.connection.close()

    async def _legacy(self) -> Legacy | None:
        try:
            return (await asyncio.shield(self._ready)).legacy
        except errors.StoreUnavailable:
            return None

    async def _open(self, connection: Connection, exchange: Exchange) -> None:
        await connection.carry(exchange.request_id, lambda: _later(self._opened, exchange))

    async def _opened(self, exchange: Exchange) -> OpenWatch:
        if not self._ready.done() and exchange.method in EARLY:
            return await self._early.open(exchange)
        whole = await asyncio.shield(self._ready)
        return await whole.endpoint.open(exchange)

    def _too_long(self) -> bytes:
        refused = Rejection(INVALID_REQUEST, f"A line has at most {BODY_BYTES_MAX} bytes")
        return self._session.refuse(None, refused)


class _Later:
    """A watch that opens when its frames are asked for, so that no message waits for another's."""

    receipt = Receipt(())

    def __init__(self, opening: Callable[[], Awaitable[OpenWatch]]) -> None:
        self._opening = opening
        self._watch: OpenWatch | None = None

    async def frames(self) -> AsyncGenerator[bytes]:
        """See `OpenWatch.frames`."""
        self._watch = watch = await self._opening()
        async with aclosing(watch.frames()) as frames:
            async for frame in frames:
                yield frame

    async def close(self) -> None:
        """See `OpenWatch.close`."""
        if self._watch is not None:
            await self._watch.close()


async def _later(
    opening: Callable[[Exchange], Awaitable[OpenWatch]], exchange: Exchange
) -> OpenWatch:
    return _Later(lambda: opening(exchange))


def _begins_legacy(line: bytes) -> bool:
    try:
        return jsonrpc.parse(line).method == "initialize"
    except Rejection:
        return False


async def _with(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for line in rest:
        yield line
