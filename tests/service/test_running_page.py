"""docs/running.md, run as it is written."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import anyio
import httpx2

from outlast.service import wiring
from outlast.tests.acceptance.waiting import until
from outlast.tests.support.mcp import http_client
from outlast.tests.support.ports import free_port
from outlast.tests.support.services import READY_S_MAX, SERVED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
PROCESSES = 4


async def until_all_are_shown(port: int) -> None:
    """Return once the figures are those of all processes: one that is slow to tell is left out."""
    everybody = {str(number) for number in range(1, PROCESSES + 1)}

    async def are_shown() -> bool:
        try:
            async with http_client() as http:
                page = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
        except httpx2.TransportError:
            return False
        return set(re.findall(r'process="(\d+)"', page)) == everybody

    await until(are_shown, READY_S_MAX)


def test_the_command_of_the_page_serves_with_its_processes(tmp_path: Path, database_url: str):
    (command,) = re.findall(r"```sh\n(.+)\n```", PAGE)
    port, (_outlast, *arguments) = free_port(), shlex.split(command)
    upstream = f"{sys.executable} {ROOT / 'examples' / 'ci_server.py'}"
    arguments[arguments.index("--upstream") + 1] = upstream
    arguments += ["--port", str(port), "--database-url", database_url]
    outlast = Path(sys.executable).with_name("outlast")
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen([outlast, *arguments], cwd=tmp_path, stdout=subprocess.PIPE, stderr=log)
        as serving,
    ):  # fmt: skip
        try:
            assert serving.stdout is not None
            assert serving.stdout.readline().decode().startswith(SERVED)
            anyio.run(until_all_are_shown, port)
        finally:
            serving.terminate()
    assert serving.returncode == 0


def test_the_page_tells_how_many_connections_a_process_opens():
    assert f"up to {wiring.CONNECTIONS_MAX} connections" in PAGE
