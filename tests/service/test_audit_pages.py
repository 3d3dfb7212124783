"""docs/audit.md and docs/identity.md, run as they are written: commands in their order."""

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from outlast.service import config
from outlast.tests.support.serving import Serving, command_of, serving

pytestmark = [pytest.mark.anyio, pytest.mark.promise("audit-commands-run")]

ROOT = Path(__file__).parents[2]
AUDIT = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
IDENTITY = (ROOT / "docs" / "identity.md").read_text(encoding="utf-8")
PATIENCE_S = 60.0


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


COMMANDS = [line for block in blocks(AUDIT, "sh") for line in block.splitlines()]


@pytest.fixture
async def server(database_url: str, tmp_path: Path) -> AsyncIterator[Serving]:
    upstream = command_of(ROOT / "examples" / "ci_server.py")
    text = (
        f"[upstreams.ci]\ncommand = {upstream}\n[defaults]\nrun = 'task'\n"
        "[server]\naudit_checkpoint_s = 0.2\n"
    )
    async with serving(tmp_path, text, database_url) as started:
        yield started


async def run(line: str, server: Serving, **environment: str) -> str:
    """What a line of the page prints; it has to end well."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    told = {"PATH": path, "OUTLAST_DATABASE_URL": server.database_url, **environment}
    with anyio.fail_after(PATIENCE_S):
        done = await anyio.run_process(
            ["sh", "-c", line],
            cwd=server.log.parent,
            env={**os.environ, **told},
            check=False,
            stderr=subprocess.STDOUT,
        )
    # Nobody of that name has ever been here.
    expected = 1 if line.startswith("outlast purge") else 0
    assert done.returncode == expected, f"{line}\n{done.stdout.decode()}"
    return done.stdout.decode()


async def test_the_commands_of_the_audit_page_run_in_their_order(server: Serving) -> None:
    key = (await run("outlast keys new", server)).split()[-1]
    called = await run(f"outlast call wait seconds=0 --server {server.url} --json", server)
    (task,) = set(re.findall(r"[A-Za-z0-9_-]{43}", called))
    with anyio.fail_after(4 * PATIENCE_S):  # each look is a command that has to start
        while task not in await run("outlast audit export --since 0", server):
            await anyio.lowlevel.checkpoint()
        while "every event is covered" not in (await run("outlast audit verify", server)):
            await anyio.lowlevel.checkpoint()
    verifier = (await run("outlast audit key", server)).split()[-1]
    printed = {
        line: await run(line, server, OUTLAST_DATA_KEYS=key, TASK=task, KEY=verifier)
        for line in COMMANDS
    }
    assert task in printed['outlast audit show "$TASK"']
    assert f'"{task}"' in printed['outlast audit replay "$TASK" --at 2']


def test_the_tables_of_the_identity_page_are_a_valid_file_and_say_the_defaults() -> None:
    parsed = config.parse("\n".join(blocks(IDENTITY, "toml")), "identity.md")
    assert parsed.identity.issuers[0].issuer == "https://login.example"
    assert parsed.limits == config.Limits()
