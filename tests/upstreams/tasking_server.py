"""A server of `fastmcp-tasks`, not written by us: `tasking_server.py PORT FOLDER`. Polling only.

hold(name)      says "holding", and ends with "built NAME" once FOLDER/NAME.go exists
must(name)      the same, and refuses a client without tasks
plainly(name)   the same as hold
ask(name)       asks for two names before it goes on, under keys of its own
fails(name)     a protocol error with data
is_error(name)  a result that is an error
quick(name)     never a task

FOLDER/calls has a line for each thing that happened: a request by its method and `Mcp-Name`, and
what became of a tool's body. Its tasks are in its memory: they are gone when it is.
"""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from fastmcp import Context, FastMCP
from fastmcp.dependencies import Progress
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult

FOLDER = Path(sys.argv[2])
POLL = timedelta(milliseconds=100)

mcp: Any = FastMCP("tasking")
mcp.add_extension(TasksExtension(url="memory://", concurrency=64))
task = TaskConfig(mode="optional", poll_interval=POLL)


def note(line: str) -> None:
    with (FOLDER / "calls").open("a") as calls:
        calls.write(f"{line}\n")


async def held(name: str, progress: Any) -> str:
    note(f"begun {name}")
    try:
        await progress.set_message("holding")
        while not (FOLDER / f"{name}.go").exists():  # noqa: ASYNC110 - a file tells
            await anyio.sleep(0.02)
    except BaseException:
        note(f"stopped {name}")
        raise
    note(f"ended {name}")
    return f"built {name}"


@mcp.tool(task=task)
async def hold(name: str, progress: Any = Progress()) -> str:  # noqa: B008 - a dependency
    return await held(name, progress)


@mcp.tool(task=TaskConfig(mode="required", poll_interval=POLL))
async def must(name: str, progress: Any = Progress()) -> str:  # noqa: B008 - a dependency
    return await held(name, progress)


@mcp.tool(task=task)
async def plainly(name: str, progress: Any = Progress()) -> str:  # noqa: B008 - a dependency
    return await held(name, progress)


def question(message: str) -> ElicitRequest:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


@mcp.tool(task=task)
async def ask(ctx: Context, name: str) -> Any:
    note(f"asked {name}")
    answers = ctx.input_responses or {}
    names = ("first", "second")
    if not set(names) <= set(answers):
        asked: Any = {key: question(f"the {key} of {name}?") for key in names}
        return InputRequiredResult(input_requests=asked, request_state="s")
    given = [answer for key in names if isinstance(answer := answers[key], ElicitResult)]
    return " and ".join(str((answer.content or {})["name"]) for answer in given)


@mcp.tool(task=task)
async def fails(name: str) -> str:
    raise MCPError(-32050, f"no quota for {name}", {"retryAfterMs": 1500})


@mcp.tool(task=task)
async def is_error(name: str) -> str:
    raise RuntimeError(f"{name} is red")


@mcp.tool()
async def quick(name: str) -> str:
    return f"saw {name}"


class Noting:
    """In front of the server: a line for each request."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers") or ())
        method = headers.get(b"mcp-method", b"").decode()
        if method.startswith("tasks/") or method == "tools/call":
            note(f"{method} {headers.get(b'mcp-name', b'-').decode()}")
        await self.app(scope, receive, send)


if __name__ == "__main__":
    app = mcp.http_app(path="/mcp", stateless_http=True, json_response=True)
    uvicorn.run(Noting(app), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
