"""An ordinary MCP server whose tools put a client's command line to the test.

count(steps, gate) counts, and says how far it is; half-way it waits for the file, if one is named
order()            asks for a form with every kind of field, and tells what it was given
visit()            asks for a visit to a URL
think()            asks the client's model, whatever the client declared
hostile()          says, asks and returns what would control a terminal
hold(marker)       writes `started`, and never ends by itself
sum_up(…)          tells its arguments as they came
echo(text)         tells the text as it came
red, fault         a tool's own error, a JSON-RPC error
"""

import json
from pathlib import Path
from typing import Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.request_state import RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    InputRequiredResult,
    SamplingMessage,
    TextContent,
    ToolAnnotations,
)

# One key for all processes: the next leg may come to another one.
SECURITY = RequestStateSecurity(keys=[b"this fixture server keeps no secret"], audience="cli")
EVIL = "\x1b[2J\x1b]0;owned\x07\x1b[31mevil\x1b[0m\x08"

mcp = MCPServer("cli", log_level="WARNING", request_state_security=SECURITY)

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "title": "Your name"},
        "mail": {"type": "string", "format": "email"},
        "count": {"type": "integer", "minimum": 1, "maximum": 9, "default": 3},
        "express": {"type": "boolean", "default": False, "description": "By tomorrow?"},
        "size": {
            "type": "string",
            "oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}],
        },
        "extras": {
            "type": "array",
            "items": {"type": "string", "enum": ["nuts", "milk", "salt"]},
            "maxItems": 2,
        },
        "note": {"type": "string"},
    },
    "required": ["name", "count", "size"],
}


@mcp.tool()
async def count(steps: int, ctx: Context, gate: str = "") -> str:
    """Count to a number."""
    for step in range(steps):
        await ctx.report_progress(step, steps, f"{step} of {steps}")
        while gate and step == steps // 2 and not Path(gate).exists():  # noqa: ASYNC110 - a file
            await anyio.sleep(0.05)  # noqa: TID251 - see below
        await anyio.sleep(0.3)  # noqa: TID251 - a slow tool is what it plays
    return f"counted {steps}"


@mcp.tool()
async def order(ctx: Context) -> str | InputRequiredResult:
    """Take an order by a form."""
    return _asked(ctx, ElicitRequestFormParams(message="What may it be?", requested_schema=FORM))


@mcp.tool()
async def visit(ctx: Context) -> str | InputRequiredResult:
    """Send somebody to a page."""
    url = "https://pages.example/pay?order=7"
    return _asked(ctx, ElicitRequestURLParams(message="Please pay.", url=url))


@mcp.tool()
async def hostile(ctx: Context) -> str | InputRequiredResult:
    """Say what a terminal would obey."""
    await ctx.report_progress(1, 2, f"{EVIL} progress")
    schema = {
        "type": "object",
        "properties": {"x": {"type": "string", "title": f"{EVIL} title", "description": EVIL}},
        "required": ["x"],
    }
    params = ElicitRequestFormParams(message=f"{EVIL} question", requested_schema=schema)
    answer = _asked(ctx, params)
    return answer if isinstance(answer, InputRequiredResult) else f"{EVIL} result"


@mcp.tool()
async def think(ctx: Context) -> str | InputRequiredResult:
    """Ask for a model."""
    if ctx.input_responses:
        return "thought"
    message = SamplingMessage(role="user", content=TextContent(text="Well?"))
    params = CreateMessageRequestParams(messages=[message], max_tokens=10)
    request = CreateMessageRequest(params=params)
    return InputRequiredResult(input_requests={"q": request}, request_state="asked")


@mcp.tool()
async def hold(marker: str, ctx: Context) -> str:
    """Never end by itself."""
    Path(marker).write_text("started")
    await ctx.report_progress(1, None, "holding")
    try:
        await anyio.sleep_forever()
    finally:
        Path(marker).write_text("stopped")
    return "unreachable"


@mcp.tool()
async def sum_up(
    name: str, count: int = 1, tags: list[str] | None = None, dry: bool = False
) -> str:
    """Tell the arguments."""
    return json.dumps([name, count, tags, dry])


@mcp.tool()
async def echo(text: str) -> str:
    """Tell the text."""
    return text


@mcp.tool()
async def red() -> str:
    """End in a result that says it is an error."""
    raise ToolError("The build is red")


@mcp.tool()
async def fault() -> str:
    """End in a JSON-RPC error."""
    raise MCPError(-32050, "Quota exceeded", {"retryAfterMs": 1500})


mcp.add_tool(order, name="order_plain", annotations=ToolAnnotations(read_only_hint=True))


def _asked(ctx: Context, params: Any) -> str | InputRequiredResult:
    responses = ctx.input_responses
    if responses:
        answer = responses["q"]
        return json.dumps(answer.model_dump(mode="json", by_alias=True, exclude_none=True))
    request = ElicitRequest(params=params)
    return InputRequiredResult(input_requests={"q": request}, request_state="asked")


if __name__ == "__main__":
    mcp.run()
