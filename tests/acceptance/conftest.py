"""The real command as a process, in front of an upstream that has never heard of tasks."""

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.abc
import httpx2
import pytest

from outlast.tests.acceptance.waiting import until

UPSTREAM = Path(__file__).with_name("slow_server.py")
TOOLS = ("slow_echo", "ask_name", "sleep_forever", "fails", "is_error", "count")

READY_S_MAX = 60.0
STOP_S_MAX = 15.0


@pytest.fixture(scope="module")
async def outlast_server(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    """The URL of a running `outlast serve` whose every tool is a task; it has to stop cleanly."""
    folder = tmp_path_factory.mktemp("outlast")
    config, log = folder / "outlast.toml", folder / "outlast.log"
    config.write_text(_config())
    port = _free_port()
    outlast = Path(sys.executable).with_name("outlast")
    command = [str(outlast), "serve", "--config", str(config)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        process = await anyio.open_process(
            command,
            cwd=folder,
            env=os.environ | {"OUTLAST_DATABASE_URL": module_database_url},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        await _until_ready(f"http://127.0.0.1:{port}/readyz", process, log)
        yield f"http://127.0.0.1:{port}/mcp"
        process.terminate()
        with anyio.fail_after(STOP_S_MAX):
            assert await process.wait() == 0, log.read_text()
    finally:
        await _make_gone(process)


async def _until_ready(url: str, process: anyio.abc.Process, log: Path) -> None:
    async with httpx2.AsyncClient(trust_env=False) as client:

        async def ready() -> bool:
            assert process.returncode is None, log.read_text()
            try:
                return (await client.get(url)).status_code == httpx2.codes.OK
            except httpx2.TransportError:
                return False

        try:
            await until(ready, READY_S_MAX)
        except TimeoutError:
            pytest.fail(f"not ready within {READY_S_MAX:.0f} s:\n{log.read_text()}")


async def _make_gone(process: anyio.abc.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


def _config() -> str:
    lines = ["[upstreams.slow]", f"command = ['{sys.executable}', '{UPSTREAM}']"]
    for tool in TOOLS:
        lines += [f"[tools.{tool}]", 'run = "task"', 'poll_interval = "100ms"', 'ttl = "10m"']
    return "\n".join(lines) + "\n"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
