"""The tools that the suite's `tasks-*` scenarios name. They have never heard of tasks.

`everything_server.py` offers them with all the rest; `outlast.toml` alone says which become tasks.
"""

from typing import Annotated

import anyio
from mcp.server.mcpserver import Elicit, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR
from pydantic import BaseModel, Field

SECONDS_MAX = 300.0  # the suite asks for 60 s at most, and cancels those


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


async def greet(name: str) -> str:
    """Greets by name, at once."""
    return f"Hello, {name}!"


async def slow_compute(
    seconds: Annotated[float, Field(ge=0, le=SECONDS_MAX)], label: str = "compute"
) -> str:
    """Computes for a while; stops when the call is cancelled."""
    await anyio.sleep(seconds)  # noqa: TID251 a tool that takes a while is meant
    return f"{label}: computed for {seconds:g} s"


async def failing_job() -> str:
    """Runs for a second and then reports a failure of its own."""
    await anyio.sleep(1)  # noqa: TID251 a tool that takes a while is meant
    raise ToolError("The job ran and failed")


async def protocol_error_job() -> str:
    """Ends in a JSON-RPC error instead of a result."""
    raise MCPError(code=INTERNAL_ERROR, message="The job broke the server")


async def confirm_delete(filename: str, answer: Annotated[Confirmation, Resolve(sure)]) -> str:
    """Asks before it deletes."""
    return f"Deleted {filename}" if answer.confirm else f"Kept {filename}"


async def multi_input(
    one: Annotated[NamedConfirmation, Resolve(first)],
    two: Annotated[NamedConfirmation, Resolve(second)],
) -> str:
    """Asks two questions at once."""
    return f"{one.name}, then {two.name}"


async def test_tool_with_task(user: Annotated[Name, Resolve(who)]) -> str:
    """Asks for a name and then does the work."""
    return f"Worked for {user.name}"


TOOLS = (
    greet,
    slow_compute,
    failing_job,
    protocol_error_job,
    confirm_delete,
    multi_input,
    test_tool_with_task,
)
