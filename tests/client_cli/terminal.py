"""The real `outlast` at a pseudo-terminal: what a person types, and what then stands there."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc

from outlast.tests.support.serving import OUTLAST

PATIENCE_S = 60.0
ROWS, COLUMNS = 50, 160
TOLD_CHARS = 3000  # of a spinner that turns for a minute
CTRL_C, CTRL_D = "\x03", "\x04"

# A terminal belongs to a session once its leader says so; only then is Ctrl-C a signal.
TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""

# What our own screen may send: colours, cursor moves, clearing, hiding the cursor.
OURS = re.compile(r"\x1b\[\??[0-9;]*[A-Za-z]")


class Terminal:
    """A command at its terminal. `shown` is all that came so far, without our own sequences."""

    def __init__(self, process: anyio.abc.Process, master: int) -> None:
        self._process, self._master = process, master
        self._raw = b""
        self._seen = 0

    @property
    def raw(self) -> str:
        return self._raw.decode(errors="replace")

    @property
    def shown(self) -> str:
        return OURS.sub("", self.raw).replace("\r", "")

    async def see(self, words: str) -> str:
        """Wait until these words come, after the last that were waited for; what came with them."""
        at = self.shown.find(words, self._seen)
        with anyio.move_on_after(PATIENCE_S):
            while at < 0 and await self._read():
                at = self.shown.find(words, self._seen)
        assert at >= 0, f"{words!r} never came after {self.shown[self._seen :][-TOLD_CHARS:]}"
        came = self.shown[self._seen : at + len(words)]
        self._seen = at + len(words)
        return came

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def enter(self, words: str = "") -> None:
        self.type(f"{words}\n")

    async def ended(self) -> int:
        """The exit code, once all that was written is read."""
        with anyio.fail_after(PATIENCE_S):
            while await self._read():
                pass
            return await self._process.wait()

    async def _read(self) -> bool:
        await anyio.wait_readable(self._master)
        try:
            more = os.read(self._master, 65536)
        except OSError:  # EIO: the other end is closed
            return False
        self._raw += more
        return bool(more)


@asynccontextmanager
async def at_terminal(
    folder: Path, *words: str, environment: Mapping[str, str]
) -> AsyncGenerator[Terminal]:
    """`outlast WORDS` at a terminal of its own, in which Ctrl-C is a signal."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = await anyio.open_process(
        [sys.executable, "-c", TAKE_TERMINAL, str(OUTLAST), *words],
        cwd=folder,
        env={**environment, "TERM": "xterm-256color"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(master)
