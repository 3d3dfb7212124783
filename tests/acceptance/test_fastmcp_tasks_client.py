"""The client of `fastmcp-tasks`, not written by us, drives the tools of Outlast."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from fastmcp import Client
from fastmcp.exceptions import ToolError
from fastmcp_tasks import ToolTask, call_tool_task
from mcp_types import TextContent, TextResourceContents

from outlast.tests.acceptance.waiting import until_file_says

pytestmark = [pytest.mark.anyio, pytest.mark.promise("real-clients-drive-tasks")]

PATIENCE_S = 60.0


class Person:
    """Somebody at a keyboard who has one answer, and remembers what was asked."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def __call__(self, message: str, *_: object) -> dict[str, Any]:
        self.asked.append(message)
        return self.answer


@pytest.fixture
def person() -> Person:
    return Person({"name": "Ada"})


@pytest.fixture
async def client(outlast_server: str, person: Person) -> AsyncIterator[Client[Any]]:
    url, patience = outlast_server, PATIENCE_S
    async with Client(url, elicitation_handler=person, timeout=patience) as connected:
        yield connected


async def started(client: Client[Any], tool: str, **arguments: Any) -> ToolTask:
    return await call_tool_task(client, tool, arguments)


def text_of(result: Any) -> str:
    (block,) = result.content
    return block.text


async def result_of(task: ToolTask) -> Any:
    with anyio.fail_after(PATIENCE_S):
        return text_of(await task.result())


async def called(client: Client[Any], tool: str, **arguments: Any) -> Any:
    return text_of(await client.call_tool(tool, arguments, timeout=PATIENCE_S))


async def test_an_ordinary_call_is_driven_as_a_task_to_its_result(client: Client[Any]):
    assert await called(client, "slow_echo", text="hi") == "hi"


@pytest.mark.promise("real-clients-see-the-upstream")
async def test_what_is_not_a_tool_is_listed_and_read_too(client: Client[Any]):
    (resource,) = await client.list_resources()
    (template,) = await client.list_resource_templates()
    (prompt,) = await client.list_prompts()
    assert (template.uri_template, prompt.name) == ("notes://day/{day}", "explain")
    (contents,) = await client.read_resource(resource.uri)
    expected = TextResourceContents(
        uri="notes://today", mime_type="text/plain", text="Water the plants"
    )
    assert contents == expected
    (message,) = (await client.get_prompt(prompt.name, {"topic": "bridges"})).messages
    assert message.content == TextContent(text="Explain bridges")


async def test_a_call_becomes_a_task_that_works_and_then_completes(client: Client[Any]):
    task = await started(client, "slow_echo", text="hi")
    assert task.create_result.status == "working"
    assert (task.create_result.poll_interval_ms, task.create_result.ttl_ms) == (100, 600_000)
    assert await result_of(task) == "hi"
    assert (await task.status()).status == "completed"


async def test_a_question_is_asked_once_and_its_answer_reaches_the_tool(
    client: Client[Any], person: Person
):
    assert await called(client, "ask_name") == "Hello, Ada"
    assert person.asked == ["What is your name?"]


async def test_a_waiting_task_shows_its_question_and_keeps_it_until_answered(client: Client[Any]):
    task = await started(client, "ask_name")
    first = await task.wait(state="input_required", timeout=PATIENCE_S)
    assert (await task.status()).input_requests == first.input_requests
    assert await result_of(task) == "Hello, Ada"
    assert (await task.status()).input_requests is None


async def test_a_cancelled_task_stops_the_tool(client: Client[Any], tmp_path: Path):
    marker = tmp_path / "marker"
    task = await started(client, "sleep_forever", marker=str(marker))
    await until_file_says(marker, "started")
    await task.cancel()
    assert (await task.wait(timeout=PATIENCE_S)).status == "cancelled"
    await until_file_says(marker, "stopped")
    with pytest.raises(ToolError, match="was cancelled"):
        await result_of(task)


async def test_a_protocol_error_of_the_tool_fails_the_task_with_that_very_error(
    client: Client[Any],
):
    task = await started(client, "fails")
    ended = await task.wait(timeout=PATIENCE_S)
    error = {"code": -32050, "message": "Quota exceeded", "data": {"retryAfterMs": 1500}}
    assert (ended.status, ended.error) == ("failed", error)
    with pytest.raises(ToolError, match="Quota exceeded"):
        await result_of(task)


async def test_a_result_that_says_it_is_an_error_completes_the_task(client: Client[Any]):
    task = await started(client, "is_error")
    assert (await task.wait(timeout=PATIENCE_S)).status == "completed"
    with pytest.raises(ToolError, match="The build is red"):
        await result_of(task)


async def test_one_call_runs_the_tool_once(client: Client[Any], tmp_path: Path):
    lines = tmp_path / "lines"
    assert await called(client, "count", path=str(lines)) == "1"
    assert lines.read_text() == "called\n"
