"""A server of `fastmcp-tasks`, not written by us: `python fastmcp_server.py PORT`."""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
from fastmcp import Context, FastMCP
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension
from mcp.shared.exceptions import MCPError
from mcp_types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
)

mcp: Any = FastMCP("elsewhere")
mcp.add_extension(TasksExtension(url="memory://"))
task = TaskConfig(mode="optional", poll_interval=timedelta(milliseconds=100))


def question(message: str) -> ElicitRequest:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def asking(ctx: Context, *names: str) -> Any:
    answers = ctx.input_responses or {}
    if not set(names) <= set(answers):
        asked: Any = {name: question(name) for name in names}
        return InputRequiredResult(input_requests=asked, request_state="s")
    given = [answer for name in names if isinstance(answer := answers[name], ElicitResult)]
    return " and ".join(str((answer.content or {})["name"]) for answer in given)


@mcp.tool(task=task)
async def slow(text: str) -> str:
    await anyio.sleep(0.3)  # noqa: TID251 - it stands for work
    return text


@mcp.tool()
async def plain(text: str) -> str:
    return text


@mcp.tool(task=task)
async def ask(ctx: Context) -> Any:
    return asking(ctx, "first", "second")


@mcp.tool()
async def ask_plain(ctx: Context) -> Any:
    return asking(ctx, "first", "second")


@mcp.tool(task=task)
async def hold(marker: str) -> str:
    Path(marker).write_text("started")
    await anyio.sleep_forever()
    return "unreachable"


@mcp.tool(task=task)
async def fails() -> str:
    raise MCPError(-32050, "Quota exceeded", {"retryAfterMs": 1500})


@mcp.tool(task=task)
async def is_error() -> str:
    raise RuntimeError("The build is red")


if __name__ == "__main__":
    mcp.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
