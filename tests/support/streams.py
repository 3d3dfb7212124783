"""A listen stream read off a raw socket: its head, its chunks and its events, byte for byte."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import anyio

from outlast.tests.support.mcp import DECLARED, envelope, headers_of

LISTEN = "subscriptions/listen"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
VERSION = "dev.outlast/version"
AFTER = "dev.outlast/after"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
CHANGED = "notifications/tasks"

READ_S_MAX = 30.0


class Broken(Exception):
    """The connection ended in the middle of an answer."""


class RawStream:
    """One answer on one connection. Each read is bounded, and raises Broken at a premature end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self._pending = b""

    async def read_head(self) -> None:
        """The status and the headers."""
        head = (await self._until(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip("\r\n").split("\r\n")
        assert first.startswith("HTTP/1.1 "), first
        self.status = int(first.split()[1])
        pairs = [line.partition(":") for line in lines]
        self.headers = [(name.lower(), value.strip()) for name, _, value in pairs]

    def header(self, name: str) -> str | None:
        """The only header of this name."""
        values = [value for key, value in self.headers if key == name]
        assert len(values) <= 1, values
        return values[0] if values else None

    async def body(self) -> dict[str, Any]:
        """The JSON of an answer that is no stream."""
        length = int(self.header("content-length") or 0)
        return json.loads(await self._exactly(length))

    async def chunk(self) -> bytes:
        """The data of the next chunk; empty for the last one, after which the body is over."""
        size = int(await self._until(b"\r\n"), 16)
        data = await self._exactly(size)
        assert await self._exactly(2) == b"\r\n"
        return data

    async def event(self) -> bytes:
        """The next event with its closing blank line; empty once the body is over."""
        while b"\r\n\r\n" not in self._pending:
            data = await self.chunk()
            if not data:
                assert self._pending == b""
                return b""
            self._pending += data
        event, end, self._pending = self._pending.partition(b"\r\n\r\n")
        return event + end

    async def message(self) -> dict[str, Any]:
        """The next message; comments are passed over."""
        with anyio.fail_after(READ_S_MAX):
            while (event := await self.event()).startswith(b":"):
                pass
        assert event, "the body is over"
        [data] = [line for line in event.split(b"\r\n") if line.startswith(b"data: ")]
        return json.loads(data.removeprefix(b"data: "))

    async def messages(self, count: int) -> list[dict[str, Any]]:
        """So many messages."""
        return [await self.message() for _ in range(count)]

    async def to_the_end(self) -> list[dict[str, Any]]:
        """Every message until the body is over in order."""
        found: list[dict[str, Any]] = []
        while event := await self.event():
            found += [
                json.loads(line.removeprefix(b"data: "))
                for line in event.split(b"\r\n")
                if line.startswith(b"data: ")
            ]
        return found

    async def send(self, method: str, params: Mapping[str, Any], **headers: str) -> None:
        """One more request on this connection."""
        await send(self.writer, envelope(method, params), headers)

    def stall(self) -> None:
        """Take nothing more from the network."""
        self._transport.pause_reading()

    def recover(self) -> None:
        """Take again."""
        self._transport.resume_reading()

    @property
    def _transport(self) -> asyncio.Transport:
        transport = self.writer.transport
        assert isinstance(transport, asyncio.Transport)
        return transport

    async def _until(self, end: bytes) -> bytes:
        with anyio.fail_after(READ_S_MAX):
            try:
                return await self.reader.readuntil(end)
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                raise Broken from error

    async def _exactly(self, count: int) -> bytes:
        with anyio.fail_after(READ_S_MAX):
            try:
                return await self.reader.readexactly(count)
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                raise Broken from error


async def send(
    writer: asyncio.StreamWriter, body: Mapping[str, Any], headers: Mapping[str, str]
) -> None:
    """Write a request as bytes."""
    content = json.dumps(body).encode()
    whole = {
        "host": "127.0.0.1",
        **headers_of(body),
        "content-length": str(len(content)),
        **headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in whole.items())
    writer.write(f"POST /mcp HTTP/1.1\r\n{lines}\r\n".encode() + content)
    await writer.drain()


@asynccontextmanager
async def asking(
    url: str,
    params: Mapping[str, Any],
    *,
    request_id: Any = 1,
    token: str | None = None,
    capabilities: Mapping[str, Any] = DECLARED,
    meta: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    method: str = LISTEN,
) -> AsyncGenerator[RawStream]:
    """Ask for a stream with these parameters, and read the head of what comes back."""
    there = urlsplit(url)
    reader, writer = await asyncio.open_connection(there.hostname, there.port, limit=2**26)
    try:
        own = {} if token is None else {"authorization": f"Bearer {token}"}
        body = {**envelope(method, params, capabilities, meta), "id": request_id}
        await send(writer, body, {**own, **(headers or {})})
        stream = RawStream(reader, writer)
        await stream.read_head()
        yield stream
    finally:
        writer.transport.abort()


@asynccontextmanager
async def listening(url: str, *task_ids: str, **how: Any) -> AsyncGenerator[RawStream]:
    """A stream of these tasks."""
    async with asking(url, {"notifications": {"taskIds": list(task_ids)}}, **how) as stream:
        # A store that cannot be reached is told with status 200 too.
        assert stream.header("content-type") == "text/event-stream", await stream.body()
        yield stream


def states(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tasks that these messages tell, without the envelope's `_meta`."""
    told = [m["params"] for m in messages if m.get("method") == CHANGED]
    return [{key: value for key, value in task.items() if key != "_meta"} for task in told]


def versions(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """The versions that these messages carry."""
    return [m["params"]["_meta"][VERSION] for m in messages if m.get("method") == CHANGED]
