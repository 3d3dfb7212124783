"""Standard input and output as lines of bytes, for a program whose output is a protocol.

Threads read and write: a descriptor may be a pipe, a file or a terminal that others share, whose
mode is not ours to change. They are daemons, as a read may never return.
"""

import asyncio
import os
import queue
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

from ..domain import errors

AHEAD_MAX = 4  # lines that are read before they are asked for
CHUNK_BYTES = 64 * 1024
TOO_LONG = b""  # in the place of a line that was too long; empty lines are skipped

_INPUT, _OUTPUT, _ERROR = 0, 1, 2


class Streams:
    """The lines that come, and those that go; one of each a process."""

    def __init__(self, given: int, taken: int, line_bytes_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._given, self._taken, self._most = given, taken, line_bytes_max
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room = threading.Semaphore(AHEAD_MAX)
        self._todo: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]]] = queue.SimpleQueue()
        self.broken = asyncio.Event()
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True).start()

    @classmethod
    def standard(cls, line_bytes_max: int) -> "Streams":
        """Those of this process, which it has for nothing else from here on.

        What any code prints goes to standard error, and what it reads is empty.
        """
        given, taken = os.dup(_INPUT), os.dup(_OUTPUT)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, _INPUT)
        os.close(nothing)
        os.dup2(_ERROR, _OUTPUT)
        return cls(given, taken, line_bytes_max)

    async def lines(self) -> AsyncGenerator[bytes]:
        """Every line, without its end; TOO_LONG for one of more than `line_bytes_max`."""
        while True:
            line = await self._lines.get()
            self._room.release()
            if line is None:
                return
            yield line

    async def send(self, line: bytes) -> None:
        """Write a line whole, once the reader has room. Raises ConnectionLost when it has gone."""
        if self.broken.is_set():
            raise errors.ConnectionLost
        written = self._loop.create_future()
        self._todo.put((line + b"\n", written))
        await written

    def _read(self) -> None:
        kept, is_long = bytearray(), False
        while True:
            try:
                chunk = os.read(self._given, CHUNK_BYTES)
            except OSError:
                chunk = b""
            if not chunk:
                break
            *ended, rest = chunk.split(b"\n")
            for part in ended:
                kept += part
                self._deliver(bytes(kept), is_long=is_long)
                kept, is_long = bytearray(), False
            is_long |= len(kept) + len(rest) > self._most
            kept = bytearray() if is_long else kept + rest
        self._deliver(bytes(kept), is_long=is_long)
        self._tell(self._lines.put_nowait, None)

    def _deliver(self, line: bytes, *, is_long: bool) -> None:
        if is_long or len(line) > self._most:
            line = TOO_LONG
        elif not line.strip():
            return
        self._room.acquire()
        self._tell(self._lines.put_nowait, line)

    def _write(self) -> None:
        is_broken = False
        while True:
            line, written = self._todo.get()
            # To the end of the process: others may have put in lines before they hear of it.
            if not is_broken and not self._put(line):
                is_broken = True
                self._tell(self.broken.set)
            self._tell(_settle, written, errors.ConnectionLost() if is_broken else None)

    def _put(self, line: bytes) -> bool:
        left = memoryview(line)
        try:
            while left:
                left = left[os.write(self._taken, left) :]
        except OSError:
            return False
        return True

    def _tell(self, what: Callable[..., None], *given: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process is ending
            self._loop.call_soon_threadsafe(what, *given)


def _settle(written: "asyncio.Future[None]", error: Exception | None) -> None:
    if written.done():  # whoever waited was told to stop; the line has gone out whole
        return
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)
