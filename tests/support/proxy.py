"""A wire between a client and PostgreSQL that a test can cut, block or close.

It listens on a socket file of its own, so that a URL is all that a test has to exchange.
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outlast.tests.support.listening import accepting_at

PORT = 5432
CHUNK_BYTES = 65_536
READY_FOR_QUERY = b"Z\x00\x00\x00\x05I"  # the server has committed, and waits for the next query


P = TypeVar("P", bound="Proxy")


class Proxy:
    """Forwards until it is told otherwise. Faults are counted in `faults`."""

    def __init__(self, url: str, folder: Path) -> None:
        self._server_url = url
        self.url = make_conninfo(**{**conninfo_to_dict(url), "host": str(folder), "port": PORT})
        self.is_refusing = False
        self.faults = 0
        self.accepted = 0
        self._lost_replies = self._lost_requests = 0
        self._reply_marker = self._request_marker = b""
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._wires: set[asyncio.Task[None]] = set()

    def lose_replies(self, marker: bytes, times: int = 1) -> None:
        """Cut the wire in place of the next replies that hold `marker`: their commit is done."""
        self._reply_marker, self._lost_replies = marker, times

    def lose_requests(self, marker: bytes, times: int = 1) -> None:
        """Cut the wire in place of the next requests that hold `marker`."""
        self._request_marker, self._lost_requests = marker, times

    def block(self) -> None:
        """Let nothing through and close nothing, as a network does that loses every packet."""
        self._flowing.clear()

    def unblock(self) -> None:
        """Let through what waits, and all that follows."""
        self._flowing.set()

    def cut(self) -> None:
        """End every connection that is open now."""
        for wire in self._wires:
            wire.cancel()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, until either side or a fault ends it."""
        self.accepted += 1
        wire = asyncio.current_task()
        assert wire is not None
        self._wires.add(wire)
        try:
            if not self.is_refusing:
                await self._join(reader, writer)
        finally:
            self._wires.discard(wire)
            writer.transport.abort()

    async def close(self) -> None:
        """End every connection and wait until it is gone."""
        self.cut()
        await asyncio.gather(*self._wires, return_exceptions=True)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flowing.wait()
        server_reader, server_writer = await self._connect()
        pumps = [
            asyncio.ensure_future(self._forward_requests(reader, server_writer)),
            asyncio.ensure_future(self._forward_replies(server_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            server_writer.transport.abort()  # before any wait: that may be cancelled once more
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        given = conninfo_to_dict(self._server_url)
        host, port = str(given.get("host") or "127.0.0.1"), int(given.get("port") or PORT)
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _forward_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            await self._flowing.wait()
            if self._lost_requests and self._request_marker in chunk:
                self._lost_requests -= 1
                self.faults += 1
                return
            writer.write(chunk)
            await writer.drain()

    async def _forward_replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            await self._flowing.wait()
            if self._lost_replies and self._reply_marker in chunk:
                while not chunk.endswith(READY_FOR_QUERY):
                    chunk += await reader.read(CHUNK_BYTES)
                self._lost_replies -= 1
                self.faults += 1
                return
            writer.write(chunk)
            await writer.drain()


@asynccontextmanager
async def between(url: str, kind: type[P] = Proxy) -> AsyncGenerator[P, None]:
    """A proxy to the server of `url`; connect by its `url` instead."""
    with tempfile.TemporaryDirectory(prefix="ol-", ignore_cleanup_errors=True) as name:
        proxy = kind(url, Path(name))

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, asyncio.CancelledError):
                await proxy.serve(reader, writer)

        try:
            async with accepting_at(Path(name) / f".s.PGSQL.{PORT}", serve):
                yield proxy
        finally:
            await proxy.close()
