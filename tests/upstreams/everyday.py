"""An ordinary MCP server, written with the official SDK only, whose tools ask for nothing.

    add(a, b)        structured result {"result": a + b}
    who_asks()       the request's `_meta` and the client's capabilities, as the server sees them
    pid()            the server's process id
    steps(count)     progress 1..count of count, each with the message "step N"
    grumble()        a result with isError
    fault()          JSON-RPC error -32050 "no such thing" with data {"thing": 7}
    closed_code()    JSON-RPC error -32000, which the SDK also uses for a closed connection
    strange()        a result with fields that no specification knows
    region(region)   its argument is mirrored into the header Mcp-Param-Region
    hold(folder)     writes `folder`/started, never ends by itself; `folder`/stopped when cancelled
    noisy()          writes a line to stderr
    grow()           adds the tool `grown` and says that the tools have changed

Every entry of its `tools/list` has an `x-unknown` field. `serving.py` has the flags.
"""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import anyio
from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.context import CallNext, HandlerResult
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field
from serving import STATE_SECURITY, Context as RequestContext, run


async def strangely(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
    """Middleware: what a handler returns is fitted to the specification, what this returns is
    not."""
    params: Any = ctx.params or {}
    if ctx.method != "tools/call" or params.get("name") != "strange":
        whole: Any = await call_next(ctx)
        if ctx.method == "tools/list":
            whole["tools"] = [{**tool, "x-unknown": {"kept": None}} for tool in whole["tools"]]
        return whole
    return {
        "resultType": "complete",
        "content": [{"type": "text", "text": "odd", "x-part": 1}],
        "structuredContent": {"nothing": None},
        "x-unknown": {"deep": [1, None, "two"]},
        "_meta": {"dev.example/key": {"a": None}},
    }


server = MCPServer(
    "everyday", log_level="WARNING", request_state_security=STATE_SECURITY, middleware=[strangely]
)


@server.tool(structured_output=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def who_asks(ctx: Context) -> str:
    """Tell what the server knows of the request."""
    known = ctx.client_capabilities
    capabilities = (
        known.model_dump(by_alias=True, mode="json", exclude_none=True) if known else None
    )
    return json.dumps({"meta": dict(ctx.request_context.meta or {}), "capabilities": capabilities})


@server.tool()
def pid() -> str:
    """Tell the process id."""
    return str(os.getpid())


@server.tool()
async def steps(count: int, ctx: Context) -> str:
    """Report progress."""
    for step in range(1, count + 1):
        await ctx.report_progress(step, count, f"step {step}")
    return "done"


@server.tool()
def grumble() -> str:
    """Fail as a tool does."""
    raise ToolError("not today")


@server.tool()
def fault() -> str:
    """Fail as a protocol does."""
    raise MCPError(-32050, "no such thing", {"thing": 7})


@server.tool()
def closed_code() -> str:
    """Fail with a code that others use too."""
    raise MCPError(-32000, "Connection closed")


@server.tool()
def strange() -> str:
    """Answer with more than is known."""
    return "never reached"


@server.tool()
def region(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})], ctx: Context
) -> str:
    """Tell the argument and the header that mirrors it."""
    return json.dumps([region, (ctx.headers or {}).get("mcp-param-region")])


@server.tool()
async def hold(folder: str) -> str:
    """Wait for ever."""
    Path(folder, "started").write_text("started")
    try:
        await anyio.sleep_forever()
    finally:
        Path(folder, "stopped").write_text("stopped")
    return "never"


@server.tool()
def noisy() -> str:
    """Talk to stderr."""
    sys.stderr.write("the child has something to say\n")
    sys.stderr.flush()
    return "said"


@server.tool()
async def grow(ctx: Context) -> str:
    """Add a tool."""
    server.add_tool(pid, name="grown")
    await ctx.notify_tools_changed()
    await ctx.session.send_tool_list_changed()
    return "grown"


if __name__ == "__main__":
    run(server)
