"""The real `outlast serve` as a process of its own: started, waited for, stopped cleanly."""

import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.abc
import httpx2
import pytest

from outlast.tests.acceptance.waiting import until
from outlast.tests.support.ports import free_port

OUTLAST = Path(sys.executable).with_name("outlast")
READY_S_MAX = 120.0
STOP_S_MAX = 30.0


@dataclass(frozen=True)
class Serving:
    """A running server. `database_url` is the store that it was given."""

    base_url: str
    process: anyio.abc.Process
    log: Path
    database_url: str

    @property
    def url(self) -> str:
        return f"{self.base_url}/mcp"


@asynccontextmanager
async def serving(
    folder: Path,
    config: str,
    database_url: str,
    flags: Sequence[str] = (),
    outlast: Sequence[str] = (str(OUTLAST),),
) -> AsyncGenerator[Serving]:
    """Serve `config` from `folder` on a free port of loopback; it has to stop cleanly."""
    port = free_port()
    file, log = folder / f"outlast-{port}.toml", folder / f"outlast-{port}.log"
    file.write_text(config)
    command = [*outlast, "serve", "--config", str(file), "--host", "127.0.0.1"]
    with log.open("wb") as output:
        process = await anyio.open_process(
            [*command, "--port", str(port), *flags],
            cwd=folder,
            env=os.environ | {"OUTLAST_DATABASE_URL": database_url},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    started = Serving(f"http://127.0.0.1:{port}", process, log, database_url)
    try:
        await _until_ready(started)
        yield started
        if process.returncode is None:
            process.terminate()
        with anyio.fail_after(STOP_S_MAX):
            assert await process.wait() == 0, log.read_text()
    finally:
        await _make_gone(process)


def command_of(upstream: Path, *arguments: str) -> str:
    """The TOML array that runs this MCP server with the tests' own Python."""
    return str([sys.executable, str(upstream), *arguments])


async def _until_ready(server: Serving) -> None:
    async with httpx2.AsyncClient(trust_env=False, verify=False) as client:

        async def ready() -> bool:
            assert server.process.returncode is None, server.log.read_text()
            try:
                reply = await client.get(f"{server.base_url}/readyz")
            except httpx2.TransportError:
                return False
            return reply.status_code == httpx2.codes.OK

        try:
            await until(ready, READY_S_MAX)
        except TimeoutError:
            pytest.fail(f"not ready within {READY_S_MAX:.0f} s:\n{server.log.read_text()}")


async def _make_gone(process: anyio.abc.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
