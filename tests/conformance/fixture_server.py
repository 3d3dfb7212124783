"""An ordinary MCP server with the tools that the official suite names. It has never heard of tasks.

Outlast stands in front of it, and `outlast.toml` alone says which of these tools become tasks.
Started over stdio: `python fixture_server.py`.
"""

from typing import Annotated

import anyio
from mcp.server.mcpserver import Elicit, MCPServer, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR
from pydantic import BaseModel, Field

SECONDS_MAX = 300.0  # the suite asks for 60 s at most, and cancels those

mcp = MCPServer("conformance-fixture")


class Name(BaseModel):
    """What is asked of somebody whose name is wanted."""

    name: str


class Confirmation(BaseModel):
    """What is asked before something is deleted."""

    confirm: bool


class NamedConfirmation(BaseModel):
    """The suite answers both questions of `multi_input` with these two fields."""

    name: str
    confirm: bool


async def who() -> Elicit[Name]:
    return Elicit("What is your name?", Name)


async def sure(filename: str) -> Elicit[Confirmation]:
    return Elicit(f"Delete {filename}?", Confirmation)


async def first() -> Elicit[NamedConfirmation]:
    return Elicit("Who goes first?", NamedConfirmation)


async def second() -> Elicit[NamedConfirmation]:
    return Elicit("Who goes second?", NamedConfirmation)


@mcp.tool()
async def greet(name: str) -> str:
    """Greets by name, at once."""
    return f"Hello, {name}!"


@mcp.tool()
async def slow_compute(
    seconds: Annotated[float, Field(ge=0, le=SECONDS_MAX)], label: str = "compute"
) -> str:
    """Computes for a while; stops when the call is cancelled."""
    await anyio.sleep(seconds)  # noqa: TID251 a tool that takes a while is meant
    return f"{label}: computed for {seconds:g} s"


@mcp.tool()
async def failing_job() -> str:
    """Runs for a second and then reports a failure of its own."""
    await anyio.sleep(1)  # noqa: TID251 a tool that takes a while is meant
    raise ToolError("The job ran and failed")


@mcp.tool()
async def protocol_error_job() -> str:
    """Ends in a JSON-RPC error instead of a result."""
    raise MCPError(code=INTERNAL_ERROR, message="The job broke the server")


@mcp.tool()
async def confirm_delete(filename: str, answer: Annotated[Confirmation, Resolve(sure)]) -> str:
    """Asks before it deletes."""
    return f"Deleted {filename}" if answer.confirm else f"Kept {filename}"


@mcp.tool()
async def multi_input(
    one: Annotated[NamedConfirmation, Resolve(first)],
    two: Annotated[NamedConfirmation, Resolve(second)],
) -> str:
    """Asks two questions at once."""
    return f"{one.name}, then {two.name}"


@mcp.tool()
async def test_tool_with_task(user: Annotated[Name, Resolve(who)]) -> str:
    """Asks for a name and then does the work."""
    return f"Worked for {user.name}"


if __name__ == "__main__":
    mcp.run()
