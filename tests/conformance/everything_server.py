"""A server with everything that the official suite asks for, written with the official SDK only.

`python -m outlast.tests.conformance.everything_server --port 8123` serves both eras at
http://127.0.0.1:8123/mcp. It passes the suite's required sets by itself; what it does not pass
through Outlast is Outlast's fault.
"""

import argparse
import base64
import json
from typing import Annotated, Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.server.mcpserver.tools import Tool
from mcp.shared.exceptions import MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    ClientCapabilities,
    Completion,
    CompletionArgument,
    CompletionContext,
    EmbeddedResource,
    EmptyResult,
    ImageContent,
    InputRequiredResult,
    LoggingLevel,
    MissingRequiredClientCapabilityErrorData,
    PromptReference,
    ResourceTemplateReference,
    SamplingCapability,
    SetLevelRequestParams,
    SubscribeRequestParams,
    TextContent,
    TextResourceContents,
    UnsubscribeRequestParams,
)
from pydantic import Field

from outlast.tests.conformance import round_tools, tasks_tools
from outlast.tests.conformance.asking import ask, form, sample
from outlast.tests.conformance.round_tools import STRING, Asking
from outlast.tests.conformance.schemas import CONTACT_SCHEMA, DEFAULTS, ENUMS

PAUSE_S = 0.05
# One red pixel, and one sample of silence.
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
SILENCE = base64.b64encode(
    b"RIFF\x26\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\2\0\0\0\0\0"
).decode()


async def test_simple_text() -> str:
    """Says something."""
    return "This is a simple text response for testing."


async def json_schema_2020_12_tool(name: str = "") -> str:
    """Has an input schema that uses much of JSON Schema 2020-12."""
    return f"Noted {name}"


server = MCPServer(
    "everything",
    version="1.0.0",
    instructions="Call what you like: nothing here does any harm.",
    log_level="WARNING",
    tools=[
        Tool.from_function(test_simple_text, structured_output=False),
        Tool.from_function(json_schema_2020_12_tool, structured_output=False).model_copy(
            update={"parameters": CONTACT_SCHEMA}
        ),
    ],
)
tool = server.tool(structured_output=False)
for round_tool in round_tools.TOOLS:
    tool(round_tool)


@tool
async def test_image_content() -> ImageContent:
    """Shows one pixel."""
    return ImageContent(data=PIXEL, mime_type="image/png")


@tool
async def test_audio_content() -> AudioContent:
    """Plays one sample of silence."""
    return AudioContent(data=SILENCE, mime_type="audio/wav")


def embedded(uri: str, mime_type: str, text: str) -> EmbeddedResource:
    contents = TextResourceContents(uri=uri, mime_type=mime_type, text=text)
    return EmbeddedResource(resource=contents)


@tool
async def test_embedded_resource() -> EmbeddedResource:
    """Brings a resource along."""
    text = "This is an embedded resource content."
    return embedded("test://embedded-resource", "text/plain", text)


@tool
async def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    """Says, shows and brings along."""
    text = json.dumps({"test": "data", "value": 123})
    return [
        TextContent(text="Multiple content types test:"),
        ImageContent(data=PIXEL, mime_type="image/png"),
        embedded("test://mixed-content-resource", "application/json", text),
    ]


@tool
async def test_error_handling() -> str:
    """Always fails."""
    raise ToolError("This tool intentionally returns an error for testing")


async def log(ctx: Context, message: str, level: LoggingLevel = "info") -> None:
    await ctx.log(level, message)  # pyright: ignore[reportDeprecated] - the suite asks for it


@tool
async def test_tool_with_logging(ctx: Context) -> str:
    """Logs three steps."""
    await log(ctx, "Tool execution started")
    await anyio.sleep(PAUSE_S)
    await log(ctx, "Tool processing data")
    await anyio.sleep(PAUSE_S)
    await log(ctx, "Tool execution completed")
    return "Logged three messages"


@tool
async def test_logging_tool(ctx: Context) -> str:
    """Logs one message, for those who asked for messages."""
    await log(ctx, "Nobody reads this unless they asked for it")
    return "Logged one message"


@tool
async def test_tool_with_progress(ctx: Context) -> str:
    """Reports three steps."""
    for done in (0, 50, 100):
        await ctx.report_progress(done, 100, f"Completed step {done} of 100")
        await anyio.sleep(PAUSE_S)
    return "Reported three steps"


@tool
async def test_x_mcp_header(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
) -> str:
    """Takes an argument that the client repeats in a header."""
    return f"In {region}"


@tool
async def test_trigger_tool_change(ctx: Context) -> str:
    """Says that the tools have changed."""
    await ctx.notify_tools_changed()
    return "Said so"


@tool
async def test_trigger_prompt_change(ctx: Context) -> str:
    """Says that the prompts have changed."""
    await ctx.notify_prompts_changed()
    return "Said so"


@tool
async def test_missing_capability(ctx: Context) -> str:
    """Is of no use without a client that samples."""
    needed = ClientCapabilities(sampling=SamplingCapability())
    if not ctx.session.check_client_capability(needed):
        data = MissingRequiredClientCapabilityErrorData(required_capabilities=needed)
        raise MCPError(
            MISSING_REQUIRED_CLIENT_CAPABILITY,
            "This tool needs a client that samples",
            data.model_dump(by_alias=True, mode="json", exclude_none=True),
        )
    return "The client samples"


@tool
async def test_sampling(prompt: str, ctx: Context) -> Asking:
    """Asks the client's model."""
    answers = await ask(ctx, {"answer": sample(prompt)})
    if isinstance(answers, InputRequiredResult):
        return answers
    return f"LLM response: {answers['answer'].content.text}"


async def asked(ctx: Context, message: str, properties: dict[str, Any]) -> Asking:
    answers = await ask(ctx, {"answer": form(message, properties)})
    if isinstance(answers, InputRequiredResult):
        return answers
    answer = answers["answer"]
    content = json.dumps(answer.content or {})
    return f"Elicitation completed: action={answer.action}, content={content}"


@tool
async def test_elicitation(message: str, ctx: Context) -> Asking:
    """Asks the user for a name and an address."""
    return await asked(ctx, message, {"username": STRING, "email": STRING})


@tool
async def test_streaming_elicitation(ctx: Context) -> Asking:
    """Asks the user, having told of progress."""
    await ctx.report_progress(0, 1, "About to ask")
    return await asked(ctx, "What is your name?", {"name": STRING})


@tool
async def test_elicitation_sep1034_defaults(ctx: Context) -> Asking:
    """Asks the user with a default for everything."""
    return await asked(ctx, "Please check this", DEFAULTS)


@tool
async def test_elicitation_sep1330_enums(ctx: Context) -> Asking:
    """Asks the user to choose, in each way there is."""
    return await asked(ctx, "Please choose", ENUMS)


@server.resource("test://static-text", mime_type="text/plain")
async def static_text() -> str:
    """A text that stays as it is."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
async def static_binary() -> bytes:
    """A picture that stays as it is."""
    return base64.b64decode(PIXEL)


@server.resource("test://watched-resource", mime_type="text/plain")
async def watched_resource() -> str:
    """A text that can be subscribed to."""
    return "Nothing has happened yet."


@server.resource("test://template/{id}/data", mime_type="application/json")
async def template_data(id: str) -> str:  # noqa: A002 the suite's template names it so
    """Data by id."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@server.prompt()
async def test_simple_prompt() -> str:
    """Takes nothing."""
    return "This is a simple prompt for testing."


@server.prompt()
async def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """Takes two arguments and repeats them."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.prompt()
async def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:
    """Brings the resource along."""
    text = "Embedded resource content for testing."
    return [
        UserMessage(embedded(resourceUri, "text/plain", text)),
        UserMessage("Please process the embedded resource above."),
    ]


@server.prompt()
async def test_prompt_with_image() -> list[UserMessage]:
    """Brings a picture along."""
    picture = ImageContent(data=PIXEL, mime_type="image/png")
    return [UserMessage(picture), UserMessage("Please analyze the image above.")]


@server.prompt()
async def test_input_required_result_prompt(ctx: Context) -> Asking:
    """Asks for its context first."""
    question = form("What context should the prompt use?", {"context": STRING})
    answers = await ask(ctx, {"user_context": question})
    if isinstance(answers, InputRequiredResult):
        return answers
    return f"In this context: {(answers['user_context'].content or {}).get('context')}"


@server.completion()
async def complete(
    ref: PromptReference | ResourceTemplateReference,
    argument: CompletionArgument,
    context: CompletionContext | None,
) -> Completion:
    known = [word for word in ("test", "testing", "tested") if word.startswith(argument.value)]
    return Completion(values=known, total=len(known), has_more=False)


async def acknowledge(ctx: Any, params: Any) -> EmptyResult:
    return EmptyResult()


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    # The suite waits long for tasks to end that are none, where nothing makes tasks of them.
    parser.add_argument("--without-task-tools", action="store_true")
    wish = parser.parse_args()
    for task_tool in () if wish.without_task_tools else tasks_tools.TOOLS:
        server.add_tool(task_tool)
    # These three ended with the older era, and the SDK's ergonomic server has no name for them.
    inner = server._lowlevel_server  # pyright: ignore[reportPrivateUsage] - see above
    inner.add_request_handler("logging/setLevel", SetLevelRequestParams, acknowledge)
    inner.add_request_handler("resources/subscribe", SubscribeRequestParams, acknowledge)
    inner.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, acknowledge)
    server.run("streamable-http", host="127.0.0.1", port=wish.port)


if __name__ == "__main__":
    main()
