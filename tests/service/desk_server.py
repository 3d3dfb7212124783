"""An ordinary MCP server, written with the official SDK only: a few behaviours under many names,
so that each policy can be tried on each of them.

    note_*(path, text, seconds)   adds a line to a file, waits, tells how many lines there are
    sign_*(document)              asks for a name, then signs with it
    hold_*(marker)                writes `started`, never ends; writes `stopped` once cancelled
    raises, red, fault            a Python exception, a tool's own error, a JSON-RPC error
"""

import sys
from pathlib import Path
from typing import Annotated

import anyio
from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.request_state import RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types import ToolAnnotations
from pydantic import BaseModel

STEPS = 5
RUNS = ("direct", "auto", "task", "only")

# One key for all processes: the next leg may come to another one.
STATE_SECURITY = RequestStateSecurity(
    keys=[b"this fixture server keeps no secret"], audience="desk"
)

mcp = MCPServer("desk", log_level="WARNING", request_state_security=STATE_SECURITY)


class Name(BaseModel):
    """What is asked of somebody who is to sign."""

    name: str


async def who() -> Elicit[Name]:
    return Elicit("Who signs?", Name)


async def note(path: str, ctx: Context, text: str = "", seconds: float = 0.0) -> str:
    """Add a line, and tell how far the waiting is."""
    with Path(path).open("a") as lines:
        lines.write(f"{text!r}\n")
    for step in range(STEPS if seconds else 0):
        await ctx.report_progress(step, STEPS, f"step {step}")
        await anyio.sleep(seconds / STEPS)  # noqa: TID251 - a slow tool is what it plays
    return str(len(Path(path).read_text().splitlines()))


async def sign(document: str, name: Annotated[Name, Resolve(who)]) -> str:
    """Ask, then sign."""
    return f"{document} signed by {name.name}"


async def hold(marker: str, ctx: Context) -> str:
    """Never end by itself."""
    Path(marker).write_text("started")
    try:  # from the mark on: who has read it may stop this at once
        await ctx.report_progress(1, None, "holding")
        await anyio.sleep_forever()
    finally:
        Path(marker).write_text("stopped")
    return "unreachable"


for run in RUNS:
    mcp.add_tool(note, name=f"note_{run}")
    mcp.add_tool(hold, name=f"hold_{run}")
    for ask in ("during", "before"):
        mcp.add_tool(
            sign, name=f"sign_{run}_{ask}", annotations=ToolAnnotations(read_only_hint=True)
        )
mcp.add_tool(sign, name="sign_soon")
mcp.add_tool(note, name="note_brief")
mcp.add_tool(hold, name="hold_hurried")


@mcp.tool()
async def raises() -> str:
    """Raise what no author foresaw."""
    raise ValueError("a bug in the tool")


@mcp.tool()
async def red() -> str:
    """End in a result that says it is an error."""
    raise ToolError("The build is red")


@mcp.tool()
async def fault() -> str:
    """End in a JSON-RPC error."""
    raise MCPError(-32050, "Quota exceeded", {"retryAfterMs": 1500, "window": None})


def filler() -> str:
    """Is there to be listed."""
    return "filler"


if __name__ == "__main__":
    for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 0):
        mcp.add_tool(filler, name=f"filler_{number:03}")
    mcp.run()
