"""Wires to PostgreSQL that lose appends by chance, hold answers back, or write down what is asked.

What is an append is told by the names of events in it, and when it is done by the server's being
ready for the next one: neither depends on which statement is sent.
"""

import asyncio
import random
from collections.abc import Generator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from outlast.tests.acceptance.waiting import until
from outlast.tests.support.proxy import CHUNK_BYTES, READY_FOR_QUERY, Proxy

EVENTS = (b"task.opened", b"task.work_started", b"task.progress_reported")
SIGNAL = b"task_moved"
HELD_S_MAX = 15.0


@dataclass
class _Fate:
    """Of one wire: whether what is asked just now gets no answer."""

    is_doomed: bool = False


# Both directions of a wire run in the context that its connection began in.
_fate: ContextVar[_Fate] = ContextVar("fate")


class Shaky(Proxy):
    """`loses`: how likely an append never arrives, or else is done and never answered."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(url, folder)
        self.chance = random.Random(7)
        self.loses = 0.0
        self.lost_requests = self.lost_replies = 0

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _fate.set(_Fate())
        await super()._join(reader, writer)

    async def _forward_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        fate = _fate.get()
        while chunk := await reader.read(CHUNK_BYTES):
            if any(event in chunk for event in EVENTS) and self.chance.random() < self.loses:
                if self.chance.random() < 0.5:
                    self.lost_requests += 1
                    return
                fate.is_doomed = True
            writer.write(chunk)
            await writer.drain()

    async def _forward_replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        fate = _fate.get()
        while chunk := await reader.read(CHUNK_BYTES):
            if fate.is_doomed and chunk.endswith(READY_FOR_QUERY):
                self.lost_replies += 1
                return
            writer.write(chunk)
            await writer.drain()


class Holding(Proxy):
    """Keeps answers back that name one of `marks`, and everything that follows on their wires."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(url, folder)
        self.held = 0
        self._marks: tuple[bytes, ...] = ()
        self._signals = False
        self._may_go = asyncio.Event()

    def hold(self, *marks: str, signals: bool = False) -> None:
        """From now on, until `release`. With `signals` nobody hears what moves either."""
        self.held = 0
        self._may_go = asyncio.Event()
        self._marks = tuple(mark.encode() for mark in marks)
        self._signals = signals

    def release(self) -> None:
        """Let all go that is kept back, and keep nothing more."""
        self._marks, self._signals = (), False
        self._may_go.set()

    async def until_held(self, count: int) -> None:
        """Return once so many answers are kept back: the server gave them before."""

        async def reached() -> bool:
            return self.held >= count

        await until(reached, HELD_S_MAX)

    async def _forward_replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            is_signal = SIGNAL in chunk
            if is_signal and self._signals:
                await self._may_go.wait()
            elif not is_signal and any(mark in chunk for mark in self._marks):
                self.held += 1
                await self._may_go.wait()
            writer.write(chunk)
            await writer.drain()


class Noting(Proxy):
    """Writes down each request: the kinds of its messages, and the statement that is meant."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(url, folder)
        self.asked: list[tuple[bytes, ...]] = []

    async def _forward_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            self.asked.append(tuple(_messages(chunk)))
            writer.write(chunk)
            await writer.drain()


def _messages(chunk: bytes) -> Generator[bytes]:
    """The kind of each message, with the names in a Bind, and all of a Parse."""
    while len(chunk) >= 5:
        kind, length = chunk[:1], int.from_bytes(chunk[1:5])
        body, chunk = chunk[5 : 1 + length], chunk[1 + length :]
        if kind == b"P":
            yield kind + body
        elif kind == b"B":
            portal, statement, _ = body.split(b"\0", 2)
            yield kind + portal + b"," + statement
        else:
            yield kind
