"""How the fixture servers of this folder are run: over stdio, or over Streamable HTTP on a loopback
port.

python everyday.py                       stdio, both eras python everyday.py --legacy
stdio, knows the `initialize` handshake only python everyday.py --http 8123
http://127.0.0.1:8123/mcp, both eras python everyday.py --page-size 2         lists in pages
"""

import argparse
from typing import Any

import anyio
from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.request_state import RequestStateSecurity
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp_types import METHOD_NOT_FOUND

# One key for ever, so that a state sealed by one process is good in the next.
STATE_SECURITY = RequestStateSecurity(
    keys=[b"the fixture servers keep no secret"], audience="fixtures"
)

Context = ServerRequestContext[Any, Any]


async def refuse_modern(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Middleware: be an HTTP server that was written before `server/discover`."""
    if ctx.method == "server/discover":
        raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method)
    return await call_next(ctx)


LISTS = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}


def paged(size: int) -> Any:
    """Middleware: give lists in pages of `size`."""

    async def page(ctx: Context, call_next: CallNext) -> HandlerResult:
        key = LISTS.get(ctx.method)
        if key is None:
            return await call_next(ctx)
        whole: Any = await call_next(ctx)
        start = int((ctx.params or {}).get("cursor", "0"))
        rest = {"nextCursor": str(start + size)} if start + size < len(whole[key]) else {}
        return {**whole, key: whole[key][start : start + size], **rest}

    return page


async def serve_handshake_only(server: MCPServer[Any]) -> None:
    """Serve stdio as servers did before the modern era; `Server.run` takes the first request's
    era for good."""
    inner = server._lowlevel_server  # pyright: ignore[reportPrivateUsage] - no public way to it
    async with stdio_server() as (read, write), inner.lifespan(inner) as state:
        await serve_loop(
            inner,
            read,
            write,
            lifespan_state=state,
            init_options=inner.create_initialization_options(),
        )


def run(server: MCPServer[Any]) -> None:
    """Read the command line and serve until the input closes or the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int, metavar="PORT")
    parser.add_argument("--legacy", action="store_true")
    parser.add_argument("--page-size", type=int)
    options = parser.parse_args()
    if options.legacy:
        server.middleware.insert(0, refuse_modern)
    if options.page_size:
        server.middleware.insert(0, paged(options.page_size))
    if options.http:
        server.run("streamable-http", host="127.0.0.1", port=options.http)
    elif options.legacy:
        anyio.run(serve_handshake_only, server)
    else:
        server.run("stdio")
