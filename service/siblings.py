"""What the processes of one service tell each other, by way of their parent.

Each has a socket pair with the parent. The first thing on it is what to serve; then both write
lines of JSON. Its end is the parent's end.

    child:   {"ready": 1}  {"failed": WHY, "away": is it the store}  {"ask": N}  {"told": N, …}
    parent:  {"tell": N}   {"answer": N, "figures": {NUMBER: FIGURES}}
    both:    {"took": {KIND: {KEY: TIMES}}}, which the parent hands on to all others
"""

import asyncio
import json
import logging
import socket
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any

LINE_BYTES_MAX = 4 * 1024 * 1024
BEHIND_BYTES_MAX = 1024 * 1024  # who is so far behind is not told more: nothing here must arrive
TELL_S = 0.05  # what was taken is told this often, while anything is
FIGURES_S_MAX = 2.0  # who does not tell its figures within this is left out of the page
ANSWER_S_MAX = 2 * FIGURES_S_MAX

_LENGTH = 8  # bytes that say how long the first thing is

Figures = Mapping[str, Any]

_log = logging.getLogger("outlast.processes")


class Line:
    """One end of a socket pair, once what to serve has gone over it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, end: socket.socket) -> "Line":
        """Takes this end over."""
        return cls(*await asyncio.open_unix_connection(sock=end, limit=LINE_BYTES_MAX))

    def send(self, message: Mapping[str, Any]) -> None:
        """Put one message on the line; drop it if nobody takes them."""
        transport = self._writer.transport
        if not transport.is_closing() and transport.get_write_buffer_size() < BEHIND_BYTES_MAX:
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """What comes from the other end, until that is gone."""
        try:
            while True:
                yield json.loads(await self._line())
        except (ConnectionError, asyncio.IncompleteReadError, json.JSONDecodeError):
            return  # gone, or cut off in the middle: gone as well

    async def _line(self) -> bytes:
        """The next line that is not too long: who has told too much is not heard, and no more."""
        is_too_long = False
        while True:
            try:
                line = await self._reader.readuntil(b"\n")
            except asyncio.LimitOverrunError as over:
                # What there is of it, but for its end.
                await self._reader.readexactly(over.consumed)
                is_too_long = True
                continue
            if not is_too_long:
                return line
            _log.warning("a message of more than %d bytes was skipped", LINE_BYTES_MAX)
            is_too_long = False

    def brief(self, what: bytes) -> None:
        """Send what to serve, before all messages."""
        self._writer.write(len(what).to_bytes(_LENGTH, "big") + what)

    async def flushed(self) -> None:
        """Return once all that was put on the line is taken, or nobody is there to take it."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


def briefed(end: socket.socket) -> bytes:
    """What to serve; blocks. Raises ConnectionError when the parent is gone."""
    return _exactly(end, int.from_bytes(_exactly(end, _LENGTH), "big"))


def _exactly(end: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        if not (more := end.recv(size - len(found))):
            raise ConnectionError("the parent is gone")
        found += more
    return found


class Siblings:
    """The others, as one process of several sees them."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._own: Callable[[], Figures] = dict
        self._heard: Callable[[str, bytes, int], None] = lambda _kind, _key, _times: None
        self._taken: Counter[tuple[str, bytes]] = Counter()
        self._asked: dict[int, asyncio.Future[Mapping[str, Figures]]] = {}
        self._count = 0

    def meet(self, own: Callable[[], Figures], heard: Callable[[str, bytes, int], None]) -> None:
        """`own` are the figures of this process; `heard` is told what was taken elsewhere."""
        self._own, self._heard = own, heard

    def ready(self) -> None:
        """Tell the parent that this process serves."""
        self._line.send({"ready": 1})

    def failed(self, why: str, *, away: bool) -> None:
        """Tell the parent why it does not; `away`: the store did not answer."""
        self._line.send({"failed": why, "away": away})

    async def figures(self) -> Mapping[str, Figures]:
        """Those of every process, by its number. Raises TimeoutError."""
        self._count += 1
        number, answer = self._count, asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._line.send({"ask": number})
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await answer
        finally:
            del self._asked[number]

    def took(self, kind: str, key: bytes) -> None:
        """Tell the others soon that one more of this was taken."""
        if not self._taken:
            asyncio.get_running_loop().call_later(TELL_S, self._tell)
        self._taken[kind, key] += 1

    def _tell(self) -> None:
        told: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for (kind, key), times in self._taken.items():
            told[kind][key.hex()] = times
        self._taken.clear()
        self._line.send({"took": told})

    async def listen(self) -> None:
        """Serve the parent until it is gone."""
        async for message in self._line.messages():
            match message:
                case {"tell": number}:
                    self._line.send({"told": number, "figures": self._own()})
                case {"answer": number, "figures": figures}:
                    if (asked := self._asked.get(number)) is not None and not asked.done():
                        asked.set_result(figures)
                case {"took": told}:
                    for kind, taken in told.items():
                        for key, times in taken.items():
                            self._heard(kind, bytes.fromhex(key), times)
                case _:
                    pass  # of a release to come
