"""A server of `fastmcp-tasks` behind Outlast, and what it noted."""

import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from outlast.tests.acceptance.waiting import until
from outlast.tests.support.ports import free_port
from outlast.tests.support.upstreams import until_it_listens

TASKING = Path(__file__).parents[1] / "upstreams" / "tasking_server.py"
PATIENCE_S = 60.0

TOOLS = """
[defaults]
poll_interval = "50ms"
timeout = "10m"
grace = "20s"
[tools.hold]
run = "task"
[tools.plainly]
run = "direct"
[events]
development = true
"""


@dataclass
class Tasking:
    """The server, which keeps its tasks in its memory, and its folder."""

    folder: Path
    port: int = field(default_factory=free_port)

    @property
    def config(self) -> str:
        return f'[upstreams.tasking]\nurl = "http://127.0.0.1:{self.port}/mcp"\n'

    def go(self, name: str) -> None:
        """Let the call of this name end."""
        (self.folder / f"{name}.go").touch()

    @property
    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def count(self, beginning: str) -> int:
        return sum(call.startswith(beginning) for call in self.calls)

    async def until_noted(self, beginning: str, times: int = 1) -> None:
        async def is_so() -> bool:
            return self.count(beginning) >= times

        try:
            await until(is_so, PATIENCE_S)
        except TimeoutError:
            raise AssertionError(f"no {beginning!r} x {times} in {self.calls}") from None

    def start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, str(TASKING), str(self.port), str(self.folder)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """The server's process; it is killed at the end."""
        process = self.start()
        try:
            await until_it_listens(self.port)
            yield
        finally:
            process.kill()
            process.wait()
