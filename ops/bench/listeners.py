"""Many cheap listeners in a process of their own, driven by `delivery.py` over its pipes.

Each is one raw connection on which one task is listened to. Reads a JSON object with `port` and
`tasks` from stdin; writes how many listen once all have their first state; writes what arrived when
after the next line of stdin. Stamps are of the monotonic clock, which all processes of a machine
share.
"""

import asyncio
import json
import re
import resource
import sys
import time
from typing import Any

OPENING_AT_ONCE = 32
OPEN_S_MAX = 120.0
EVENT = re.compile(rb"data: (\{.*?\})\r\n\r\n")
VERSION = re.compile(rb'"dev.outlast/version":(\d+)')
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {
        "extensions": {"io.modelcontextprotocol/tasks": {}}
    },
}


class Listener(asyncio.Protocol):
    """One stream. An arrival is a whole frame."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self.arrivals: list[tuple[int, int]] = []  # version, nanoseconds
        self.has_state = asyncio.get_running_loop().create_future()
        self._buffer = b""

    def connection_made(self, transport: Any) -> None:
        """Ask."""
        transport.write(request(self.task_id))

    def data_received(self, data: bytes) -> None:
        """Note which versions have arrived."""
        now = time.monotonic_ns()
        self._buffer += data
        while event := EVENT.search(self._buffer):
            self._buffer = self._buffer[event.end() :]
            version = VERSION.search(event[1])
            if version is not None:
                self.arrivals.append((int(version[1]), now))
                if not self.has_state.done():
                    self.has_state.set_result(None)
        if not self._buffer.rstrip(b":\r\n1234567890abcdef"):
            self._buffer = b""  # keep-alive comments and chunk sizes

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing may end while it is measured."""
        if not self.has_state.done():
            self.has_state.set_exception(exc or ConnectionError(self._buffer.decode()))


def request(task_id: str) -> bytes:
    """The bytes of a `subscriptions/listen` for one task."""
    params = {"notifications": {"taskIds": [task_id]}, "_meta": ENVELOPE}
    message = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
    body = json.dumps(message).encode()
    return (
        b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n"
        b"Mcp-Method: subscriptions/listen\r\nContent-Length: %d\r\n\r\n" % len(body)
    ) + body


async def opened(port: int, task_ids: list[str]) -> list[Listener]:
    """A listener for each task, once each has been told its present state."""
    loop, gate = asyncio.get_running_loop(), asyncio.Semaphore(OPENING_AT_ONCE)

    async def one(task_id: str) -> Listener:
        async with gate:
            _, listener = await loop.create_connection(lambda: Listener(task_id), "127.0.0.1", port)
            await listener.has_state
            return listener

    async with asyncio.timeout(OPEN_S_MAX):
        return await asyncio.gather(*map(one, task_ids))


async def main() -> None:
    """Listen until told to stop."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    wanted = json.loads(sys.stdin.readline())
    listeners = await opened(wanted["port"], wanted["tasks"])
    print(len(listeners), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(json.dumps({listener.task_id: listener.arrivals for listener in listeners}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
