"""An ordinary MCP server, written with the official SDK only, with one tool for each scenario.

fast(text)          gives the text back at once
slow(text)          the same after a few steps of progress
wait(file)          gives back what is in the file, once there is one
ask(path)           asks `name`, adds a line to the file, greets
ask_two()           asks `first` and `second` in one leg
hold(path)          writes `started` to the file, and never ends by itself
fails()             ends in a JSON-RPC error
brief()             as fast; its task is kept for a moment only
"""

from pathlib import Path
from typing import Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    ToolAnnotations,
)

STEPS = 3

mcp = MCPServer("scenarios")
again = ToolAnnotations(read_only_hint=True)


def question(message: str) -> ElicitRequest:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def said(answer: object) -> str:
    assert isinstance(answer, ElicitResult)
    return str((answer.content or {}).get("name", answer.action))


@mcp.tool(annotations=again)
def fast(text: str) -> str:
    """Gives the text back."""
    return text


@mcp.tool(annotations=again)
async def slow(text: str, ctx: Context) -> str:
    """Gives the text back after a while."""
    for step in range(STEPS):
        await ctx.report_progress(step, STEPS, f"step {step}")
        await anyio.sleep(0.1)  # noqa: TID251 - it stands for work
    return text


@mcp.tool(annotations=again)
async def wait(file: str) -> str:
    """Waits for a file."""
    # It is there before its content is.
    while not (Path(file).exists() and Path(file).read_text()):  # noqa: ASYNC110 - another process's
        await anyio.sleep(0.05)  # noqa: TID251 - see above
    return Path(file).read_text()


@mcp.tool()
def ask(path: str, ctx: Context) -> str | InputRequiredResult:
    """Asks for a name and greets it."""
    answers = ctx.input_responses or {}
    if "name" not in answers:
        return InputRequiredResult(input_requests={"name": question("Name?")}, request_state="s")
    with Path(path).open("a") as lines:
        lines.write("greeted\n")
    return f"Hello, {said(answers['name'])}"


@mcp.tool()
def ask_two(ctx: Context) -> str | InputRequiredResult:
    """Asks two questions at once."""
    answers = ctx.input_responses or {}
    if not {"first", "second"} <= answers.keys():
        asked: Any = {name: question(name) for name in ("first", "second")}
        return InputRequiredResult(input_requests=asked, request_state="s")
    return f"{said(answers['first'])} and {said(answers['second'])}"


@mcp.tool()
async def hold(path: str) -> str:
    """Never ends by itself."""
    Path(path).write_text("started")
    await anyio.sleep_forever()
    return "unreachable"


@mcp.tool()
def fails() -> str:
    """Ends in an error."""
    raise MCPError(-32050, "Quota exceeded", {"retryAfterMs": 1500})


mcp.add_tool(ask, name="ask_direct")
mcp.add_tool(ask, name="ask_before")

if __name__ == "__main__":
    mcp.run()
