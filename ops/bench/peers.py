"""The servers that a benchmark compares: `peers.py KIND PORT [URL]`.

`bare` is a FastAPI route that parses JSON and answers JSON, and nothing else: what the framework
allows. `sdk` is the official SDK's own server. `tasks` is `fastmcp-tasks` on the backend that the
URL names (`redis://…` or `memory://`). `tool` is the upstream of ours, over stdio: the same tool.
`stdio` is the tool of `sdk`, which answers at once, over stdio.

Each has the settings that its user would choose for speed: no sessions, JSON instead of a stream of
one event, no access log, uvloop and httptools.
"""

import sys
from datetime import timedelta
from typing import Any

HOST = "127.0.0.1"


def bare() -> Any:
    """The floor of the framework."""
    from fastapi import FastAPI, Request

    app = FastAPI(openapi_url=None)

    @app.post("/mcp")
    async def post(request: Request) -> dict[str, Any]:
        asked = await request.json()
        task = {"taskId": asked["params"]["taskId"], "status": "working", "ttlMs": 60_000}
        return {"jsonrpc": "2.0", "id": asked["id"], "result": task}

    return app


def quick() -> Any:
    """The official SDK's server with a tool that answers at once."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("sdk", log_level="ERROR")

    @server.tool()
    async def hold(task: str) -> str:
        """Answer at once."""
        return task

    return server


def sdk() -> Any:
    """The official SDK, without sessions, answering JSON."""
    return quick().streamable_http_app(stateless_http=True, json_response=True)


def tasks(backend: str) -> Any:
    """`fastmcp-tasks`, whose tool never ends."""
    import anyio
    from fastmcp import FastMCP
    from fastmcp.utilities.tasks import TaskConfig
    from fastmcp_tasks import TasksExtension

    server: Any = FastMCP("tasks")
    server.add_extension(TasksExtension(url=backend))

    @server.tool(task=TaskConfig(mode="optional", poll_interval=timedelta(seconds=2)))
    async def hold(task: str) -> str:
        """Never answer."""
        await anyio.sleep_forever()
        return task

    return server.http_app(path="/mcp", stateless_http=True, json_response=True)


def tool() -> None:
    """The tool of ours, over stdio."""
    import anyio
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("tool", log_level="ERROR")

    @server.tool()
    async def hold(task: str) -> str:
        """Never answer."""
        await anyio.sleep_forever()
        return task

    server.run("stdio")


def main() -> None:
    """Serve until SIGTERM."""
    import uvicorn

    kind, *rest = sys.argv[1:]
    if kind in {"tool", "stdio"}:
        tool() if kind == "tool" else quick().run("stdio")
        return
    app = {"bare": bare, "sdk": sdk}[kind]() if kind != "tasks" else tasks(rest[1])
    port = int(rest[0])
    uvicorn.run(
        app,
        host=HOST,
        port=port,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="error",
    )


if __name__ == "__main__":
    main()
