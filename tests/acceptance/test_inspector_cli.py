"""The MCP Inspector's command line, from npm, lists, calls, reads and waits through Outlast."""

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from outlast.tests.support import node

pytestmark = [pytest.mark.anyio, pytest.mark.promise("real-clients-see-the-upstream")]

PACKAGES = Path(__file__).resolve().parent / "inspector"
PROGRAM = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def workspace() -> Path:
    try:
        installed = node.install(PACKAGES)
        node.executable(installed)
    except node.NodeMissing as missing:
        pytest.skip(str(missing))
    return installed


class Inspector:
    """One run of the command is one request; its result comes back."""

    def __init__(self, workspace: Path, url: str, home: Path) -> None:
        self.workspace, self.url, self.home = workspace, url, home

    async def __call__(self, method: str, *options: str) -> dict[str, Any]:
        command = [node.executable(self.workspace), PROGRAM, "--cli", self.url]
        command += ["--protocol-era", "modern", "--transport", "http", "--format", "json"]
        with anyio.fail_after(PATIENCE_S):
            ran = await anyio.run_process(
                [*command, "--quiet", "--method", method, *options],
                cwd=self.workspace,
                # It keeps a catalogue of servers in the home folder.
                env=os.environ | {"HOME": str(self.home)},
                check=False,
            )
        assert ran.returncode == 0, (ran.stdout + ran.stderr).decode()
        return json.loads(ran.stdout)["result"]


@pytest.fixture
def inspect(workspace: Path, outlast_server: str, tmp_path: Path) -> Inspector:
    return Inspector(workspace, outlast_server, tmp_path)


async def test_it_lists_tools_resources_templates_and_prompts(inspect: Inspector):
    tools = (await inspect("tools/list"))["tools"]
    assert {tool["name"] for tool in tools} >= {"slow_echo", "ask_name", "fails"}
    (resource,) = (await inspect("resources/list"))["resources"]
    assert resource["uri"] == "notes://today"
    (template,) = (await inspect("resources/templates/list"))["resourceTemplates"]
    assert template["uriTemplate"] == "notes://day/{day}"
    (prompt,) = (await inspect("prompts/list"))["prompts"]
    assert prompt["name"] == "explain"


async def test_it_waits_for_a_call_that_outlast_makes_a_task_of(inspect: Inspector):
    arguments = json.dumps({"text": "hi"})
    result = await inspect("tools/call", "--tool-name", "slow_echo", "--tool-args-json", arguments)
    assert result["structuredContent"] == {"result": "hi"}
    assert result["isError"] is False


async def test_it_reads_a_resource_and_one_of_a_template(inspect: Inspector):
    for uri, text in (
        ("notes://today", "Water the plants"),
        ("notes://day/monday", "Nothing on monday"),
    ):
        (contents,) = (await inspect("resources/read", "--uri", uri))["contents"]
        assert contents == {"uri": uri, "mimeType": "text/plain", "text": text}


async def test_it_gets_a_prompt(inspect: Inspector):
    wish = ("--prompt-name", "explain", "--prompt-args", "topic=bridges")
    (message,) = (await inspect("prompts/get", *wish))["messages"]
    assert message["content"] == {"type": "text", "text": "Explain bridges"}
