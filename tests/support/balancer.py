"""A small load balancer on loopback, which leads each connection to the first server that is there.

It keeps no session: a client that comes back may be led to another one. A test says who is first,
and cuts what is open.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress

from outlast.tests.support.listening import accepting

CHUNK_BYTES = 65_536


class Balancer:
    """Forwards bytes. `first` is the place of the server that a new connection is led to."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self.port = 0
        self.first = 0
        self.accepted = 0
        self._wires: set[asyncio.Task[None]] = set()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def open_count(self) -> int:
        """How many connections are open."""
        return len(self._wires)

    def cut(self) -> None:
        """End every connection that is open now."""
        for wire in self._wires:
            wire.cancel()

    async def close(self) -> None:
        """End every connection and wait until it is gone."""
        self.cut()
        await asyncio.gather(*self._wires, return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, until either side ends."""
        wire = asyncio.current_task()
        assert wire is not None
        self._wires.add(wire)
        self.accepted += 1
        try:
            await self._join(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # cut, or a server that died: its client is told by the abort
        finally:
            self._wires.discard(wire)
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await self._connect()
        if there is None:
            return
        far_reader, far_writer = there
        pumps = [
            asyncio.ensure_future(_forward(reader, far_writer)),
            asyncio.ensure_future(_forward(far_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            far_writer.transport.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for place in range(len(self._ports)):
            port = self._ports[(self.first + place) % len(self._ports)]
            with suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", port)
        return None


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()


@asynccontextmanager
async def balancing(ports: Sequence[int]) -> AsyncGenerator[Balancer]:
    """A balancer in front of the servers on these ports, which may change meanwhile."""
    balancer = Balancer(ports)
    try:
        async with accepting(balancer.serve) as balancer.port:
            yield balancer
    finally:
        await balancer.close()
