"""The npm package `@modelcontextprotocol/client` gets through Outlast what the upstream has."""

import json
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from outlast.tests.support import node

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise("real-clients-see-the-upstream"),
    pytest.mark.parametrize("era", ["modern", "legacy"]),
]

HERE = Path(__file__).resolve().parent
DRIVER = HERE / "npm_client_driver.mjs"
PATIENCE_S = 60.0

Seen = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def workspace() -> Path:
    try:
        installed = node.install(HERE)
        node.executable(installed)
    except node.NodeMissing as missing:
        pytest.skip(str(missing))
    return installed


@pytest.fixture(scope="module")
async def runs(workspace: Path, outlast_server: str) -> dict[str, Seen]:
    """What the client was given in each era, by event. Each happens once."""
    return {era: await driven(workspace, outlast_server, era) for era in ("modern", "legacy")}


@pytest.fixture
def seen(runs: dict[str, Seen], era: str) -> Seen:
    return runs[era]


async def driven(workspace: Path, url: str, era: str) -> Seen:
    wish = json.dumps({"url": url, "era": era, "answer": {"name": "Ada"}})
    # Read from its input, the script finds its packages in the folder that it runs in.
    command = [node.executable(workspace), "--input-type=module", "-", wish]
    with anyio.fail_after(PATIENCE_S):
        ran = await anyio.run_process(
            command,
            cwd=workspace,
            input=DRIVER.read_bytes(),
            stderr=subprocess.STDOUT,
            check=False,
        )
    assert ran.returncode == 0, ran.stdout.decode()
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len({facts["event"] for facts in told}) == len(told)
    return {facts.pop("event"): facts for facts in told}


def text(result: dict[str, Any]) -> str:
    (block,) = result["content"]
    return block["text"]


async def test_it_connects_in_the_era_that_it_asks_for(seen: Seen, era: str):
    assert seen["connected"]["era"] == era
    assert seen["connected"]["server"]["name"] == "outlast"


async def test_it_lists_what_the_upstream_has(seen: Seen, era: str):
    listed = seen["listed"]
    assert {tool["name"] for tool in listed["tools"]} >= {"slow_echo", "ask_name", "fails"}
    assert [resource["uri"] for resource in listed["resources"]] == ["notes://today"]
    (template,) = listed["resourceTemplates"]
    assert template["uriTemplate"] == "notes://day/{day}"
    assert [prompt["name"] for prompt in listed["prompts"]] == ["explain"]


async def test_it_reads_prompts_and_completes(seen: Seen, era: str):
    (contents,) = seen["read"]["contents"]
    expected = {"uri": "notes://today", "mimeType": "text/plain", "text": "Water the plants"}
    assert contents == expected
    (message,) = seen["prompted"]["messages"]
    assert message["content"] == {"type": "text", "text": "Explain bridges"}
    assert seen["completed"]["completion"]["values"] == ["boats", "bridges"]


async def test_it_waits_for_a_task_as_for_any_call_and_hears_of_progress(seen: Seen, era: str):
    assert text(seen["waited"]) == "hi"
    told = seen["waited"]["progress"]
    # A burst may be told as its last step; what is told is in order, and each step once.
    assert told
    assert told == sorted(set(told))


async def test_its_user_is_asked_once_and_the_answer_reaches_the_tool(seen: Seen, era: str):
    assert seen["asked"] == {"message": "What is your name?"}
    assert text(seen["answered"]) == "Hello, Ada"


async def test_errors_of_both_kinds_are_the_upstreams_own(seen: Seen, era: str):
    assert seen["failed"]["isError"] is True
    assert seen["refused"] == {"code": -32050, "data": {"retryAfterMs": 1500}}
