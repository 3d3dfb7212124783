"""The build farm as a tool: start a job there, say that it is pending, and be done.

    python examples/build_farm.py --port 8200
    BUILD_FARM=http://127.0.0.1:8200 python examples/farm_tool.py           MCP over stdio

Outlast hands the tool a URL and a secret for this one task; the farm reports there itself. The
tool's policy has to say `run = "task"`, or "task-only": a direct call has no task to report to.
"""

import os
from typing import Annotated, Literal

import httpx2
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult
from pydantic import BaseModel

FARM = "BUILD_FARM"
START_S_MAX = 10.0


class Build(BaseModel):
    """What became of a build. Outlast holds the farm's result against it."""

    project: str
    outcome: Literal["started", "built", "broken"]
    size_bytes: int | None = None
    sha256: str | None = None


async def build(project: str, ctx: Context) -> Annotated[CallToolResult, Build]:
    """Build and test a Python project (a folder) on the build farm."""
    callback = (ctx.request_context.meta or {}).get("dev.outlast/callback")
    if callback is None:
        raise ToolError("A build takes too long to wait for: call this tool as a task")
    async with httpx2.AsyncClient(timeout=START_S_MAX, trust_env=False) as http:
        job = {"project": project, "callback": callback}
        (await http.post(f"{os.environ[FARM]}/jobs", json=job)).raise_for_status()
    begun = Build(project=project, outcome="started").model_dump()
    return CallToolResult(content=[], structured_content=begun, _meta={"dev.outlast/pending": True})


def main() -> None:
    """Serve until the client leaves."""
    server = MCPServer("build-farm", version="1.0", log_level="WARNING")
    server.add_tool(build, title="Build a project")
    server.run()


if __name__ == "__main__":
    main()
