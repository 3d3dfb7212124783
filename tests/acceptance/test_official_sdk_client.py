"""The official client, which knows no tasks, gets from Outlast what the plain upstream gives."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, PromptReference

pytestmark = [pytest.mark.anyio, pytest.mark.promise("real-clients-drive-tasks")]

UPSTREAM = Path(__file__).with_name("slow_server.py")
PATIENCE_S = 60.0


class Person:
    """Somebody at a keyboard who has one answer, and remembers what was asked."""

    def __init__(self, answer: ElicitResult) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def __call__(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult:
        self.asked.append(params.message)
        return self.answer


@pytest.fixture
def person() -> Person:
    return Person(ElicitResult(action="accept", content={"name": "Ada"}))


@pytest.fixture
async def client(outlast_server: str, person: Person) -> AsyncIterator[Client]:
    async with Client(
        outlast_server, elicitation_callback=person, read_timeout_seconds=PATIENCE_S
    ) as connected:
        yield connected


@pytest.fixture
async def plain(person: Person) -> AsyncIterator[Client]:
    """The same client at the upstream itself, with nothing in between."""
    upstream = StdioServerParameters(command=sys.executable, args=[str(UPSTREAM)])
    async with Client(
        stdio_client(upstream), elicitation_callback=person, read_timeout_seconds=PATIENCE_S
    ) as connected:
        yield connected


def payload(result: CallToolResult) -> dict[str, Any]:
    """All but `_meta`, in which each server names itself."""
    return result.model_dump(mode="json", by_alias=True, exclude={"meta"})


async def test_the_connection_is_modern_and_needs_no_session(client: Client):
    assert client.protocol_version == "2026-07-28"
    declared = {f"io.modelcontextprotocol/{name}": {} for name in ("tasks", "events")}
    assert client.server_capabilities.extensions == declared


async def test_the_tools_are_listed_as_the_upstream_describes_them(client: Client, plain: Client):
    listed, described = await client.list_tools(), await plain.list_tools()
    assert listed.tools == described.tools


@pytest.mark.promise("real-clients-see-the-upstream")
async def test_resources_templates_and_prompts_are_listed_as_the_upstream_describes_them(
    client: Client, plain: Client
):
    assert (await client.list_resources()).resources == (await plain.list_resources()).resources
    listed, described = (
        await client.list_resource_templates(),
        await plain.list_resource_templates(),
    )
    assert listed.resource_templates == described.resource_templates
    assert (await client.list_prompts()).prompts == (await plain.list_prompts()).prompts


@pytest.mark.promise("real-clients-see-the-upstream")
@pytest.mark.parametrize("uri", ["notes://today", "notes://day/monday"])
async def test_a_resource_is_read_as_the_upstream_reads_it(client: Client, plain: Client, uri: str):
    read, expected = await client.read_resource(uri), await plain.read_resource(uri)
    assert read.contents == expected.contents


@pytest.mark.promise("real-clients-see-the-upstream")
async def test_a_prompt_and_its_completion_are_the_upstreams_own(client: Client, plain: Client):
    asked: dict[str, Any] = {"name": "explain", "arguments": {"topic": "bridges"}}
    got, expected = await client.get_prompt(**asked), await plain.get_prompt(**asked)
    assert got.messages == expected.messages
    ref, typed = PromptReference(name="explain"), {"name": "topic", "value": "b"}
    completed = await client.complete(ref, typed)
    assert completed.completion == (await plain.complete(ref, typed)).completion


async def test_a_tool_whose_calls_are_tasks_gives_its_plain_result(client: Client):
    result = await client.call_tool("slow_echo", {"text": "hi"})
    assert (result.structured_content, result.is_error) == ({"result": "hi"}, False)


async def test_progress_is_told_while_the_call_waits(client: Client):
    told: list[tuple[float, float | None]] = []

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total))

    await client.call_tool("slow_echo", {"text": "hi"}, progress_callback=tell)
    # A burst may be told as its last step; what is told is in order, and each step once.
    assert told
    assert told == sorted(set(told))
    assert {total for _, total in told} == {5.0}


async def test_a_question_is_answered_in_a_second_round_of_the_call(client: Client, person: Person):
    result = await client.call_tool("ask_name")
    assert result.structured_content == {"result": "Hello, Ada"}
    assert person.asked == ["What is your name?"]


async def test_a_declined_question_ends_as_it_does_at_the_upstream(
    client: Client, plain: Client, person: Person
):
    person.answer = ElicitResult(action="decline")
    assert payload(await client.call_tool("ask_name")) == payload(await plain.call_tool("ask_name"))


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("slow_echo", {}), ("slow_echo", {"text": "hi", "seconds": "soon"}), ("is_error", {})],
    ids=["missing argument", "argument of the wrong type", "error result"],
)
async def test_an_error_result_is_the_very_one_of_the_upstream(
    client: Client, plain: Client, tool: str, arguments: dict[str, Any]
):
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert payload(result) == payload(await plain.call_tool(tool, arguments))


async def test_a_protocol_error_is_the_very_one_of_the_upstream(client: Client, plain: Client):
    with pytest.raises(MCPError) as met:
        await client.call_tool("fails")
    with pytest.raises(MCPError) as expected:
        await plain.call_tool("fails")
    assert met.value.error == expected.value.error
