"""An MCP server behind HTTPS that lets in who brings its token: PORT, CERTIFICATE, TOKEN."""

import sys

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

mcp = MCPServer("secured-server")


@mcp.tool()
async def build(target: str, ctx: Context) -> str:
    """Takes its time."""
    for step in range(3):
        await ctx.report_progress(step, 3)
        await anyio.sleep(0.1)  # noqa: TID251 - a tool that takes its time
    return f"Built {target}"


class Guarded:
    """An application for the bearers of one token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._wanted = app, f"Bearer {token}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = Request(scope).headers.get("authorization")
            if given != self._wanted:
                await Response(status_code=401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


if __name__ == "__main__":
    port, certificate, token = sys.argv[1:]
    app = Guarded(mcp.streamable_http_app(), token)
    uvicorn.run(app, port=int(port), ssl_certfile=certificate, log_level="warning")
