"""The real `outlast serve` before the tools of `upstream.py`, and the real `outlast` against it."""

import os
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.abc
import pytest

from outlast.tests.client_cli.commands import Commands, Done, commands
from outlast.tests.client_cli.terminal import Terminal, at_terminal
from outlast.tests.support.serving import OUTLAST, Serving, command_of, serving

HERE = Path(__file__).parent
CONFIG = f"""
[server]
drain_s = 1
[defaults]
run = "task"
poll_interval = "100ms"
ttl = "10m"
[upstreams.cli]
command = {command_of(HERE / "upstream.py")}
[tools.sum_up]
run = "direct"
[tools.red]
run = "direct"
[tools.order_plain]
run = "direct"
[events]
development = true
"""


@dataclass(frozen=True)
class Cli:
    """`outlast` in a folder of its own, with its own journal."""

    url: str
    folder: Path
    commands: Commands

    @property
    def environment(self) -> dict[str, str]:
        unwanted = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "OUTLAST_TOKEN"}
        kept = {name: value for name, value in os.environ.items() if name not in unwanted}
        return {**kept, "OUTLAST_SERVER": self.url}

    async def run(self, *words: str, **environment: str) -> Done:
        """Run to the end, with no terminal anywhere."""
        return await self.commands.run(words, self.folder, {**self.environment, **environment})

    @asynccontextmanager
    async def started(self, *words: str) -> AsyncGenerator[anyio.abc.Process]:
        """A whole process, to be killed or interrupted; gone in any case at the end."""
        process = await anyio.open_process(
            [str(OUTLAST), *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.aclose()

    async def begun(self, *words: str) -> str:
        """The id of a task that was called and left."""
        done = await self.run("call", *words, "--detach")
        assert done.code == 0, done.err
        return done.out.strip()

    def at_terminal(self, *words: str) -> AbstractAsyncContextManager[Terminal]:
        return at_terminal(self.folder, *words, environment=self.environment)


@pytest.fixture(scope="module")
async def server(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    folder = tmp_path_factory.mktemp("served")
    async with serving(folder, CONFIG, module_database_url) as started:
        yield started


@pytest.fixture(scope="module")
async def forking(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Commands]:
    async with commands(tmp_path_factory.mktemp("commands")) as started:
        yield started


@pytest.fixture
def cli(server: Serving, forking: Commands, tmp_path: Path) -> Cli:
    return Cli(server.url, tmp_path, forking)
