"""A TCP wire between one client and the replica it is led to, with faults as data."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager

from outlast.service.waits import turns
from outlast.tests.contracts.delivery_histories import Fault
from outlast.tests.support.listening import accepting

CHUNK_BYTES = 65_536
NARROW_BYTES = 8_192
RESET = struct.pack("ii", 1, 0)  # close at once and say so: what was under way is gone


class Wire:
    """Each connection takes the next fault; once they are used up, connections are sound."""

    def __init__(
        self,
        port_of: Callable[[], int],
        faults: Iterable[Fault] = (),
        *,
        is_narrow: bool = False,
        leads_to_client: bool = False,
    ) -> None:
        self._port_of, self._faults, self._is_narrow = port_of, iter(faults), is_narrow
        self._leads_to_client = leads_to_client
        self.heard = bytearray()  # all that the client was sent
        self.flowing = asyncio.Event()  # while it is clear, a stalled connection stays stalled
        self._joined: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def socket_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws"

    @property
    def hook_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def cut(self) -> None:
        """End every connection that is open now."""
        for joined in self._joined:
            joined.cancel()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["Wire"]:
        try:
            async with accepting(self._serve) as self.port:
                yield self
        finally:
            while self._joined:
                self.cut()
                await asyncio.gather(turns(), *self._joined, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        joined = asyncio.current_task()
        assert joined is not None
        self._joined.add(joined)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._join(reader, writer, next(self._faults, None))
        finally:
            self._joined.discard(joined)
            writer.transport.abort()

    async def _join(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: Fault | None
    ) -> None:
        server_reader, server_writer = await self._connect()
        upward = fault if fault is not None and fault.upward else None
        downward = fault if fault is not None and not fault.upward else None
        up, down = (self.heard, None) if self._leads_to_client else (None, self.heard)
        pumps = [
            asyncio.ensure_future(self._forward(reader, server_writer, upward, up)),
            asyncio.ensure_future(self._forward(server_reader, writer, downward, down)),
        ]
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            if fault is not None and fault.kind == "finish":
                writer.close()
                await writer.wait_closed()
            elif any(pump.exception() is None and pump.result() for pump in done):
                given: socket.socket = writer.get_extra_info("socket")
                given.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        finally:
            server_writer.transport.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        outward = socket.socket()
        try:
            outward.setblocking(False)
            if self._is_narrow:
                outward.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW_BYTES)
            await asyncio.get_running_loop().sock_connect(outward, ("127.0.0.1", self._port_of()))
            return await asyncio.open_connection(sock=outward, limit=NARROW_BYTES)
        except BaseException:
            outward.close()
            raise

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        fault: Fault | None,
        record: bytearray | None,
    ) -> bool:
        """Pass bytes on until either side ends; True once the fault has ended it."""
        passed = 0
        while chunk := await reader.read(CHUNK_BYTES):
            if fault is not None and passed + len(chunk) > fault.after_bytes:
                here = fault.after_bytes - passed
                head, chunk = chunk[:here], chunk[here:]
                await _pass_on(head, writer, record)
                if fault.kind != "stall":
                    return True
                await self.flowing.wait()
                fault = None
            passed += len(chunk)
            await _pass_on(chunk, writer, record)
        return False


async def _pass_on(chunk: bytes, writer: asyncio.StreamWriter, record: bytearray | None) -> None:
    if record is not None:
        record += chunk
    writer.write(chunk)
    await writer.drain()
