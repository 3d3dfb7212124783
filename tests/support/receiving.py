"""The real `outlast receive` as a process of its own: its lines, its log, its end."""

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from outlast.tests.support.serving import OUTLAST

PATIENCE_S = 60.0
LINE_BYTES_MAX = 1024 * 1024


@dataclass
class Receiving:
    """A process that receives, its lines and its log."""

    process: anyio.abc.Process
    log: Path
    lines: BufferedByteReceiveStream | None

    async def line(self) -> dict[str, Any]:
        """The next line that it prints."""
        assert self.lines is not None
        with anyio.fail_after(PATIENCE_S):
            return json.loads(await self.lines.receive_until(b"\n", LINE_BYTES_MAX))

    async def stopped(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code, once it was told to stop."""
        self.process.send_signal(number)
        return await self.ended()

    async def ended(self) -> int:
        with anyio.fail_after(PATIENCE_S):
            return await self.process.wait()


@asynccontextmanager
async def receiving(
    server_url: str,
    folder: Path,
    port: int,
    *flags: str,
    token: str | None = None,
    stdout: int = subprocess.PIPE,
) -> AsyncGenerator[Receiving]:
    """`outlast receive` in the folder. It is killed at the end, if it has not ended."""
    log = folder / "receive.log"
    base = ["--server", server_url, "--port", str(port), "--inbox", str(folder / "in" / "box.db")]
    with log.open("ab") as stderr:
        process = await anyio.open_process(
            [str(OUTLAST), "receive", *base, *flags],
            cwd=folder,
            env=os.environ | ({"OUTLAST_TOKEN": token} if token else {}),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
    lines = BufferedByteReceiveStream(process.stdout) if process.stdout else None
    try:
        yield Receiving(process, log, lines)
    finally:
        if process.returncode is None:
            process.kill()
        await process.aclose()


def full_pipe() -> tuple[int, int]:
    """A pipe that takes nothing more until somebody reads from it."""
    read, write = os.pipe()
    flags = fcntl.fcntl(write, fcntl.F_GETFL)
    fcntl.fcntl(write, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    try:
        while True:
            os.write(write, b"\0" * 4096)
    except BlockingIOError:
        fcntl.fcntl(write, fcntl.F_SETFL, flags)
    return read, write
