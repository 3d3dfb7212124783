"""An answer leaves in one piece: uvicorn writes its head and its body apart, a system call each."""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

JOINED_BYTES_MAX = 65_536  # more than this goes at once, so that a slow reader is noticed in time


class JoinedWrites:
    """A transport whose writes of one turn of the event loop leave together, in their order."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._waiting: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        """Send it at the end of this turn."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)
        self._size += len(data)
        if self._size > JOINED_BYTES_MAX:
            self._flush()

    def close(self) -> None:
        """Close it once all is sent."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._waiting:
            self._transport.write(b"".join(self._waiting))
            self._waiting.clear()
            self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class OnePiece(HttpToolsProtocol):
    """uvicorn's protocol of HTTP on such a transport; so is what it is upgraded to."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        joined = JoinedWrites(cast(asyncio.Transport, transport), self.loop)
        super().connection_made(cast(asyncio.Transport, joined))
