"""An MCP server that tells where in a trace it was called.

where()             the `traceparent` of the call
slowly(path)        notes itself, then waits until somebody writes `go` beside it
red()               a tool's own error
"""

from pathlib import Path

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

mcp = MCPServer("telling", log_level="WARNING")


@mcp.tool()
async def where(ctx: Context, secret: str = "") -> str:
    """Say it."""
    meta = ctx.request_context.meta or {}
    return str(dict(meta).get("traceparent"))


@mcp.tool(annotations=ToolAnnotations(read_only_hint=True))
async def slowly(path: str) -> str:
    """May run twice; is quick once it is let go."""
    note = Path(path)
    note.write_text(f"{note.read_text()}." if note.exists() else ".")
    while not note.with_suffix(".go").exists():  # noqa: ASYNC110 - a file sets no event
        await anyio.sleep(0.05)  # noqa: TID251 - a slow tool is what it plays
    return "done"


@mcp.tool()
async def red() -> str:
    """End in a result that says it is an error."""
    raise ToolError("The build is red")


if __name__ == "__main__":
    mcp.run()
