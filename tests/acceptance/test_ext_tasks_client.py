"""The npm package `@modelcontextprotocol/ext-tasks`, not written by us, drives Outlast's tools."""

import json
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from outlast.tests.acceptance.waiting import until_file_says
from outlast.tests.support import node

pytestmark = [pytest.mark.anyio, pytest.mark.promise("real-clients-drive-tasks")]

HERE = Path(__file__).resolve().parent
DRIVER = HERE / "ext_tasks_driver.mjs"
PATIENCE_S = 90.0

Seen = list[dict[str, Any]]


@pytest.fixture(scope="module")
def workspace() -> Path:
    try:
        installed = node.install(HERE)
        node.executable(installed)
    except node.NodeMissing as missing:
        pytest.skip(str(missing))
    return installed


class Driver:
    """One run of the script is one call of one tool; what the client saw comes back."""

    def __init__(self, workspace: Path, url: str) -> None:
        self.workspace, self.url = workspace, url

    async def __call__(self, tool: str, arguments: dict[str, Any], **wishes: Any) -> Seen:
        wish = {"url": self.url, "tool": tool, "arguments": arguments, **wishes}
        # Read from its input, the script finds its packages in the folder that it runs in.
        command = [node.executable(self.workspace), "--input-type=module", "-", json.dumps(wish)]
        with anyio.fail_after(PATIENCE_S):
            ran = await anyio.run_process(
                command,
                cwd=self.workspace,
                input=DRIVER.read_bytes(),
                stderr=subprocess.STDOUT,
                check=False,
            )
        assert ran.returncode == 0, ran.stdout.decode()
        return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.fixture
def drive(workspace: Path, outlast_server: str) -> Driver:
    return Driver(workspace, outlast_server)


def only(seen: Seen, event: str) -> dict[str, Any]:
    [one] = [facts for facts in seen if facts["event"] == event]
    return one


def statuses(seen: Seen) -> list[str]:
    """Each status as it was first seen, in order."""
    told = [facts["status"] for facts in seen if facts["event"] == "seen"]
    return list(dict.fromkeys(told))


async def test_the_client_takes_outlast_for_a_server_of_the_tasks_extension(drive: Driver):
    seen = await drive("slow_echo", {"text": "hi"})
    assert only(seen, "connected")["era"] == "modern"
    tasks = only(seen, "connected")["capabilities"]["extensions"]["io.modelcontextprotocol/tasks"]
    assert tasks == {}
    assert "slow_echo" in only(seen, "listed")["tools"]


async def test_a_call_becomes_a_task_that_works_and_then_completes(drive: Driver):
    seen = await drive("slow_echo", {"text": "hi"})
    assert only(seen, "called")["kind"] == "task"
    assert statuses(seen) == ["working", "completed"]
    result = only(seen, "settled")["result"]
    assert (result["content"], result["isError"]) == ([{"type": "text", "text": "hi"}], False)


async def test_a_question_is_asked_once_and_its_answer_reaches_the_tool(drive: Driver):
    seen = await drive("ask_name", {}, answer={"name": "Ada"})
    asked = only(seen, "asked")
    assert (asked["kind"], asked["message"]) == ("elicitation", "What is your name?")
    settled = only(seen, "settled")
    assert settled["status"] == "completed"
    assert settled["result"]["content"] == [{"type": "text", "text": "Hello, Ada"}]


async def test_a_cancelled_task_stops_the_tool(drive: Driver, tmp_path: Path):
    marker = tmp_path / "marker"
    seen = await drive("sleep_forever", {"marker": str(marker)}, cancelOnceThereIs=str(marker))
    assert only(seen, "settled")["status"] == "cancelled"
    # The client takes the acknowledgement for the end; what the server says in the end counts.
    assert only(seen, "ended")["status"] == "cancelled"
    await until_file_says(marker, "stopped")


async def test_a_protocol_error_of_the_tool_fails_the_task_with_that_very_error(drive: Driver):
    settled = only(await drive("fails", {}), "settled")
    error = {"code": -32050, "message": "Quota exceeded", "data": {"retryAfterMs": 1500}}
    assert (settled["status"], settled["error"]) == ("failed", error)


async def test_a_result_that_says_it_is_an_error_completes_the_task(drive: Driver):
    settled = only(await drive("is_error", {}), "settled")
    assert (settled["status"], settled["result"]["isError"]) == ("completed", True)
