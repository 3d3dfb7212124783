"""An MCP server that writes to standard error, and has an argument that goes into a header."""

import sys
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations
from pydantic import Field

mcp = MCPServer("stdio-server")


@mcp.tool(annotations=ToolAnnotations(read_only_hint=True))
async def where(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
) -> str:
    """Gives the region back."""
    print("printed to standard error", file=sys.stderr, flush=True)  # noqa: T201 - what is tested
    return region


if __name__ == "__main__":
    mcp.run()
