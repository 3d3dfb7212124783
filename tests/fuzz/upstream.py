"""An ordinary MCP server for the fuzzing, written with the official SDK only.

echo_direct, echo_auto, echo_task, echo_only    the text, as it came
region(region)      its argument is mirrored into the header Mcp-Param-Region
sign_before, sign_during    ask for a name, then sign with it
measured(size)      has an outputSchema
"""

from typing import Annotated, Any

from mcp.server.mcpserver import Elicit, MCPServer, Resolve
from mcp.server.request_state import RequestStateSecurity
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field

SECURITY = RequestStateSecurity(keys=[b"this fixture server keeps no secret"], audience="fuzz")
server = MCPServer("fuzz", log_level="CRITICAL", request_state_security=SECURITY)


class Name(BaseModel):
    """What is asked of somebody who is to sign."""

    name: str


class Size(BaseModel):
    """What was measured."""

    size: int


async def who() -> Elicit[Name]:
    return Elicit("Who signs?", Name)


def echo(text: str, count: int = 0, tags: list[str] | None = None, more: Any = None) -> str:
    """Give the text back."""
    return text


def region(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
    """Give the region back."""
    return region


async def sign(document: str, name: Annotated[Name, Resolve(who)]) -> str:
    """Ask, then sign."""
    return f"{document} signed by {name.name}"


def measured(size: int) -> Size:
    """Give the size back."""
    return Size(size=size)


for run in ("direct", "auto", "task", "only"):
    server.add_tool(echo, name=f"echo_{run}")
for ask in ("before", "during"):
    server.add_tool(sign, name=f"sign_{ask}", annotations=ToolAnnotations(read_only_hint=True))
server.add_tool(region, name="region")
server.add_tool(measured, name="measured", structured_output=True)

if __name__ == "__main__":
    server.run()
