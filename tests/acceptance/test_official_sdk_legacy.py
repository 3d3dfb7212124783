"""The official client in its `initialize` era: Outlast is a server of that era for it."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    LoggingMessageNotificationParams,
)

from outlast.tests.acceptance.waiting import until
from outlast.tests.support.serving import Serving, command_of, serving
from outlast.tests.support.upstreams import SERVERS

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise("older-clients-are-served"),
    # The client says that what only the older era has is on its way out.
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

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
        outlast_server,
        mode="legacy",
        elicitation_callback=person,
        read_timeout_seconds=PATIENCE_S,
    ) as connected:
        yield connected


@pytest.fixture
async def plain(person: Person) -> AsyncIterator[Client]:
    """The same client at the upstream itself, with nothing in between."""
    upstream = StdioServerParameters(command=sys.executable, args=[str(UPSTREAM)])
    async with Client(
        stdio_client(upstream),
        mode="legacy",
        elicitation_callback=person,
        read_timeout_seconds=PATIENCE_S,
    ) as connected:
        yield connected


@pytest.fixture(scope="module")
async def offering(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    """Outlast in front of a server of resources, prompts and completions."""
    folder = tmp_path_factory.mktemp("offering")
    config = f"[upstreams.offering]\ncommand = {command_of(SERVERS / 'offering.py')}\n"
    async with serving(folder, config, module_database_url) as server:
        yield server


@pytest.fixture
async def reader(offering: Serving, person: Person) -> AsyncIterator[Client]:
    async with Client(
        offering.url, mode="legacy", elicitation_callback=person, read_timeout_seconds=PATIENCE_S
    ) as connected:
        yield connected


def payload(result: CallToolResult) -> dict[str, Any]:
    return result.model_dump(mode="json", by_alias=True)


async def test_the_connection_is_of_the_older_era(client: Client):
    assert client.protocol_version == "2025-11-25"
    assert client.server_info is not None
    assert client.server_info.name == "outlast"
    declared = client.server_capabilities
    assert declared.tasks is not None
    assert declared.extensions is None


async def test_the_tools_are_listed_as_the_upstream_describes_them(client: Client, plain: Client):
    listed, described = await client.list_tools(), await plain.list_tools()
    assert [tool.model_copy(update={"execution": None}) for tool in listed.tools] == described.tools
    assert {tool.execution and tool.execution.task_support for tool in listed.tools} == {"optional"}


async def test_a_call_of_a_task_tool_waits_for_its_result(client: Client, plain: Client):
    given = await client.call_tool("slow_echo", {"text": "hi"})
    assert payload(given) == payload(await plain.call_tool("slow_echo", {"text": "hi"}))


async def test_progress_is_told_with_the_upstreams_own_numbers(client: Client):
    told: list[tuple[float, float | None, str | None]] = []

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    # For so long that the wait for the result begins before the tool has ended.
    await client.call_tool("slow_echo", {"text": "hi", "seconds": 3}, progress_callback=tell)
    assert told
    assert told == sorted(set(told))
    assert set(told) <= {(step, 5.0, f"step {step} of 5") for step in range(5)}


async def test_what_a_task_asks_the_client_is_asked_while_it_waits(client: Client, person: Person):
    result = await client.call_tool("ask_name")
    assert result.structured_content == {"result": "Hello, Ada"}
    assert person.asked == ["What is your name?"]


async def test_a_declined_question_ends_as_it_does_at_the_upstream(
    client: Client, plain: Client, person: Person
):
    person.answer = ElicitResult(action="decline")
    assert payload(await client.call_tool("ask_name")) == payload(await plain.call_tool("ask_name"))


async def test_a_client_that_cannot_be_asked_hears_what_the_upstream_says_of_that(
    outlast_server: str,
):
    async with Client(outlast_server, mode="legacy", read_timeout_seconds=PATIENCE_S) as mute:
        with pytest.raises(MCPError, match="did not declare the form elicitation capability"):
            await mute.call_tool("ask_name")


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


async def test_a_call_that_the_client_gives_up_is_cancelled_at_the_upstream(
    client: Client, tmp_path: Path
):
    marker = tmp_path / "marker"

    async def says(word: str) -> bool:
        return marker.exists() and marker.read_text() == word

    async with anyio.create_task_group() as group:
        group.start_soon(client.call_tool, "sleep_forever", {"marker": str(marker)})
        await until(lambda: says("started"), PATIENCE_S)
        group.cancel_scope.cancel()
    await until(lambda: says("stopped"), PATIENCE_S)


async def test_resources_prompts_and_completions_pass_through(reader: Client):
    listed = await reader.list_resources()
    assert "note://a" in {str(one.uri) for one in listed.resources}
    read = await reader.read_resource("act://echo")
    assert "note" not in str(read.contents[0].uri)
    prompt = await reader.get_prompt("greet", {"who": "Ada"})
    assert "Ada" in json.dumps(prompt.model_dump(mode="json"))


async def test_what_a_prompt_asks_the_client_is_asked(reader: Client, person: Person):
    prompt = await reader.get_prompt("consult", {"topic": "tea"})
    assert person.asked
    assert "accept" in json.dumps(prompt.model_dump(mode="json"))


async def test_log_messages_come_from_the_level_that_the_session_set(
    offering: Serving,
):
    heard: list[str] = []

    async def hear(params: LoggingMessageNotificationParams) -> None:
        heard.append(params.level)

    async with Client(
        offering.url, mode="legacy", logging_callback=hear, read_timeout_seconds=PATIENCE_S
    ) as client:
        await client.read_resource("act://work")
        assert heard == ["info", "warning"]
        heard.clear()
        await client.session.set_logging_level("warning")  # pyright: ignore[reportDeprecated] - of that era
        await client.read_resource("act://work")
        assert heard == ["warning"]


@pytest.fixture(scope="module")
async def announcing(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    """Outlast in front of a server that changes, and says so."""
    folder = tmp_path_factory.mktemp("announcing")
    config = f"[upstreams.announcing]\ncommand = {command_of(SERVERS / 'announcing.py')}\n"
    async with serving(folder, config, module_database_url) as server:
        yield server


async def test_changes_of_lists_and_resources_reach_the_sessions_stream(announcing: Serving):
    heard: list[str] = []

    async def hear(message: Any) -> None:
        params = getattr(message, "params", None)
        heard.append(str(getattr(params, "uri", None) or type(message).__name__))

    async def until_heard(what: str) -> None:
        async def is_heard() -> bool:
            return what in heard

        await until(is_heard, PATIENCE_S)

    async with Client(
        announcing.url, mode="legacy", message_handler=hear, read_timeout_seconds=PATIENCE_S
    ) as client:
        await client.call_tool("add_tool", {})
        await until_heard("ToolListChangedNotification")
        assert "added" in {tool.name for tool in (await client.list_tools()).tools}
        for uri in ("note://one", "note://two"):
            await client.subscribe_resource(uri)  # pyright: ignore[reportDeprecated] - of that era
            await client.call_tool("touch", {"uri": uri})
            await until_heard(uri)
        await client.unsubscribe_resource("note://one")  # pyright: ignore[reportDeprecated] - of that era
        heard.clear()
        await client.call_tool("touch", {"uri": "note://one"})
        await client.call_tool("touch", {"uri": "note://two"})
        await until_heard("note://two")
        assert "note://one" not in heard
