"""docs/client.md, run as it is written: its commands in order, and each of its programs."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from outlast.service.cli.client import calling, codes
from outlast.service.cli.demo import make_demo_repository
from outlast.tests.client_cli.conftest import Cli
from outlast.tests.client_cli.terminal import PATIENCE_S
from outlast.tests.support.serving import OUTLAST, Serving, command_of, serving

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
AT_ONCE = 3  # programs that mostly wait
ADDRESS_IN_TEXT = "http://127.0.0.1:8000/mcp"


def blocks(language: str, text: str = PAGE) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines()]
PROGRAMS = blocks("python")

# What each command of the text does, in its order.
CODES = [0, 0, 0, codes.WAITING, 0, 0, 0]


@pytest.fixture(scope="module")
async def server(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    """The service of the README's file, in a git repository with the pipeline of the text."""
    [config] = [block for block in blocks("toml", README) if "[upstreams.ci]" in block]
    command = command_of(ROOT / "examples" / "ci_server.py")
    config = re.sub(r"^command = .*$", lambda _: f"command = {command}", config, flags=re.MULTILINE)
    repository = make_demo_repository(tmp_path_factory.mktemp("served"))
    [pipeline] = blocks("toml")
    (repository / "ci.toml").write_text(pipeline)
    who = ["-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "commit.gpgsign=false"]
    await anyio.run_process(["git", *who, "commit", "-qam", "x"], cwd=repository)
    async with serving(repository, config, module_database_url) as started:
        yield started


async def run(words: list[str], folder: Path, server: Serving) -> tuple[int, str]:
    path = os.pathsep.join([str(OUTLAST.parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "OUTLAST_SERVER": server.url}
    with anyio.fail_after(PATIENCE_S):
        done = await anyio.run_process(
            words, check=False, cwd=folder, env=environment, stderr=subprocess.STDOUT
        )
    return done.returncode, done.stdout.decode()


@pytest.mark.promise("client-page-runs")
async def test_the_commands_of_the_text_do_what_it_says(cli: Cli):
    task_id = ""
    for command, code in zip(COMMANDS, CODES, strict=True):
        outlast, *words = shlex.split(command.replace("TASK_ID", task_id))
        done = await cli.run(*words)
        assert (outlast, done.code) == ("outlast", code), f"{words}: {done}"
        if "--detach" in command:
            task_id = done.out.strip()
        if "answer" in command:
            assert "answered in-1" in done.err
        if "--via listen" in command:
            assert "deploy: passed" in done.out


@pytest.mark.promise("client-page-runs")
async def test_every_program_of_the_text_runs(tmp_path: Path, server: Serving):
    at_once = anyio.CapacityLimiter(AT_ONCE)

    async def runs(number: int, text: str) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        program = text.replace(ADDRESS_IN_TEXT, server.url)
        assert server.url in program
        async with at_once:
            code, output = await run([sys.executable, "-W", "error", "-c", program], folder, server)
        assert code == 0, f"{program}\n{output}"
        assert ("passed" if "run_ci_pipeline" in program else "Waited 2 s") in output

    async with anyio.create_task_group() as tasks:
        for number, text in enumerate(PROGRAMS):
            tasks.start_soon(runs, number, text)


def test_every_way_has_a_program_and_every_exit_code_a_row():
    vias = set(re.findall(r'via="(\w+)"', PAGE))
    assert vias == {"polling", "listen", "websocket", "webhook", "auto"}
    rows = [int(code) for code in re.findall(r"^\| (\d) \|", PAGE, re.MULTILINE)]
    known = [value for name, value in vars(codes).items() if isinstance(value, int)]
    assert rows == sorted(known)
    assert calling.EXAMPLES.endswith(codes.EPILOG)
