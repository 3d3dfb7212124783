"""A door to each process of a service whose processes share one port, and who they are.

The kernel chooses who takes a connection. A door connects again until it is the one that it leads
to, and then forwards bytes.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from outlast.tests.acceptance.waiting import until
from outlast.tests.support.listening import accepting

CHILD = b"one_of_several"
TRIES_MAX = 200  # with four processes, more would come less often than once in 10 ** 24
TAKEN_S_MAX = 20.0
CHUNK_BYTES = 65_536


def processes_of(parent: int) -> dict[int, int]:
    """The pids of the processes that this parent has, by their numbers."""
    found: dict[int, int] = {}
    for place in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if place.name.isdigit() and _parent(place) == parent:
                words = (place / "cmdline").read_bytes().split(b"\0")
                if any(word.endswith(CHILD) for word in words):
                    found[int(words[-4])] = int(place.name)
    return found


def zombies_of(parent: int) -> list[int]:
    """The pids of those that have ended and that this parent has not asked for."""
    found: list[int] = []
    for place in Path("/proc").iterdir():
        with suppress(OSError):
            is_its = place.name.isdigit() and _parent(place) == parent
            if is_its and (place / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                found.append(int(place.name))
    return found


def _parent(place: Path) -> int:
    return int((place / "stat").read_text().rpartition(")")[2].split()[1])


def taker(server: int, client: int, pids: Sequence[int]) -> int | None:
    """Which of these processes holds the connection between these ports; None before any does."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        local, remote = (int(word.partition(":")[2], 16) for word in words[1:3])
        if (local, remote) == (server, client) and words[9] != "0":
            return next((pid for pid in pids if _has(pid, f"socket:[{words[9]}]")), None)
    return None


def _has(pid: int, link: str) -> bool:
    with suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.readlink(file) == link:
                    return True
    return False


async def taken_by(port: int, writer: asyncio.StreamWriter, pids: Sequence[int]) -> int:
    """The process that took this connection, once one has."""
    client, found = writer.get_extra_info("sockname")[1], list[int]()

    async def is_taken() -> bool:
        found[:] = [pid for pid in (taker(port, client, pids),) if pid is not None]
        return bool(found)

    await until(is_taken, TAKEN_S_MAX)
    return found[0]


@asynccontextmanager
async def door(port: int, pid: int, pids: Sequence[int]) -> AsyncGenerator[int]:
    """A port of loopback that leads to this one of the processes alone."""
    wires: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = asyncio.current_task()
        assert wire is not None
        wires.add(wire)
        with suppress(OSError, asyncio.CancelledError):
            far_reader, far_writer = await _led(port, pid, pids)
            try:
                await _joined((reader, far_writer), (far_reader, writer))
            finally:
                far_writer.transport.abort()
        wires.discard(wire)
        writer.transport.abort()

    try:
        async with accepting(serve) as opened:
            yield opened
    finally:
        for wire in wires:
            wire.cancel()
        await asyncio.gather(*wires, return_exceptions=True)


async def _led(
    port: int, pid: int, pids: Sequence[int]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    for _ in range(TRIES_MAX):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if await taken_by(port, writer, pids) == pid:
            return reader, writer
        writer.transport.abort()
    raise AssertionError(f"process {pid} takes no connection")


async def _joined(*ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    pumps = [asyncio.ensure_future(_forward(*way)) for way in ways]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
