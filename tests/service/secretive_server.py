"""An MCP server whose every word could be found again: each has a mark and says what it is.

keep(word)    reports progress, asks for a name, and tells it
lose(word)    ends in a JSON-RPC error
spoil(word)   ends in a tool's own error
"""

from typing import Annotated

from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.request_state import RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types import ToolAnnotations
from pydantic import BaseModel

# One key for all processes: the next leg may come to another one.
STATE_SECURITY = RequestStateSecurity(
    keys=[b"this fixture server keeps no secret"], audience="secrets"
)

mcp = MCPServer("secrets", log_level="WARNING", request_state_security=STATE_SECURITY)


class Name(BaseModel):
    """What is asked for."""

    name: str


async def who() -> Elicit[Name]:
    return Elicit("mark-question-1?", Name)


async def keep(word: str, ctx: Context, name: Annotated[Name, Resolve(who)]) -> str:
    """Ask, then tell."""
    for step in range(3):
        await ctx.report_progress(step, 3, f"mark-progress-{step}")
    return f"mark-result-{word.rpartition('-')[2]} {name.name}"


mcp.add_tool(keep, annotations=ToolAnnotations(read_only_hint=True))


@mcp.tool()
async def lose(word: str) -> str:
    """Fail as a protocol does."""
    raise MCPError(-32050, f"mark-error-{len(word)}", {"why": "mark-data-1"})


@mcp.tool()
async def spoil(word: str) -> str:
    """Fail as a tool does."""
    raise ToolError(f"mark-failure-{len(word)}")


if __name__ == "__main__":
    mcp.run()
