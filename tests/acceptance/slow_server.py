"""An ordinary MCP server, written with the official SDK only, for clients to drive through Outlast.

Started over stdio: `python slow_server.py`. Only `count` is unsafe to run twice; its file tells.
"""

from pathlib import Path
from typing import Annotated

import anyio
from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    ResourceTemplateReference,
    ToolAnnotations,
)
from pydantic import BaseModel

STEPS = 5
QUOTA_EXCEEDED = -32050

mcp = MCPServer("slow-server")


class Name(BaseModel):
    """What is asked of somebody whose name is wanted."""

    name: str


async def who() -> Elicit[Name]:
    return Elicit("What is your name?", Name)


@mcp.tool(annotations=ToolAnnotations(read_only_hint=True))
async def slow_echo(text: str, ctx: Context, seconds: float = 0.5) -> str:
    """Gives the text back after a while, and tells how far it is."""
    for step in range(STEPS):
        await ctx.report_progress(step, STEPS, f"step {step} of {STEPS}")
        await anyio.sleep(seconds / STEPS)
    return text


@mcp.tool(annotations=ToolAnnotations(read_only_hint=True))
async def ask_name(name: Annotated[Name, Resolve(who)]) -> str:
    """Asks for a name and greets it."""
    return f"Hello, {name.name}"


@mcp.tool()
async def sleep_forever(marker: str) -> str:
    """Writes `started` to the file `marker`, and `stopped` once cancelled; never ends by itself."""
    Path(marker).write_text("started")
    try:
        await anyio.sleep_forever()
    finally:
        Path(marker).write_text("stopped")
    return "unreachable"


@mcp.tool(annotations=ToolAnnotations(read_only_hint=True))
async def echo_once_there_is(path: str, text: str) -> str:
    """Writes `waits` to the file beside, and gives the text back once there is this one."""
    Path(path).with_suffix(".waits").write_text("waits")
    while not Path(path).exists():  # noqa: ASYNC110 - a file sets no event
        await anyio.sleep(0.05)
    return text


@mcp.tool()
async def fails() -> str:
    """Ends in a JSON-RPC error of its own."""
    raise MCPError(QUOTA_EXCEEDED, "Quota exceeded", {"retryAfterMs": 1500})


@mcp.tool()
async def is_error() -> str:
    """Ends in a result that says it is an error."""
    raise ToolError("The build is red")


@mcp.tool()
async def count(path: str) -> str:
    """Adds a line to a file and returns how many there are: running it twice shows."""
    with Path(path).open("a") as lines:
        lines.write("called\n")
    return str(len(Path(path).read_text().splitlines()))


@mcp.resource("notes://today", mime_type="text/plain")
async def today() -> str:
    """What is to be done."""
    return "Water the plants"


@mcp.resource("notes://day/{day}", mime_type="text/plain")
async def note(day: str) -> str:
    """What was to be done that day."""
    return f"Nothing on {day}"


@mcp.prompt()
async def explain(topic: str) -> str:
    """Asks for an explanation."""
    return f"Explain {topic}"


@mcp.completion()
async def topics(
    ref: PromptReference | ResourceTemplateReference,
    argument: CompletionArgument,
    context: CompletionContext | None,
) -> Completion:
    values = [topic for topic in ("boats", "bridges", "trains") if topic.startswith(argument.value)]
    return Completion(values=values, total=len(values), has_more=False)


if __name__ == "__main__":
    mcp.run()
