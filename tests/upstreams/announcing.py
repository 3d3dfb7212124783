"""An MCP server that changes while it runs and announces it, written with the official SDK only.

    add_tool()       adds the tool `added` and announces that the tools have changed
    add_prompt()     likewise a prompt
    add_resource()   likewise a resource
    touch(uri)       announces that the resource has changed, to those who subscribed to it
    pid()            the server's process id

    --log FILE       one line for each `subscribe URI`, `unsubscribe URI`, `listen TOPICS` and
                     `unlisten TOPICS` of a client, in the order in which they came
    --quiet          announce nothing, and offer nothing of the kind
    --forbid URI     refuse subscriptions to this resource (legacy)
`serving.py` has the other flags.
"""

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, cast

from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import NotificationOptions
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.resources import TextResource
from mcp_types import EmptyResult, SubscribeRequestParams, UnsubscribeRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from serving import Context as RequestContext, run

parser = argparse.ArgumentParser(add_help=False)
parser.add_argument("--log", type=Path)
parser.add_argument("--quiet", action="store_true")
parser.add_argument("--forbid")
options, others = parser.parse_known_args()


def note(line: str) -> None:
    """Add a line to the log."""
    if options.log:
        with options.log.open("a") as log:
            log.write(f"{line}\n")


async def noting(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
    """Middleware: write down which streams are opened and ended."""
    if ctx.method != "subscriptions/listen":
        return await call_next(ctx)
    asked: Any = (ctx.params or {}).get("notifications", {})
    uris = asked.get("resourceSubscriptions") or []
    topics = " ".join(sorted([*(name for name in asked if asked[name] is True), *uris]))
    note(f"listen {topics}")
    try:
        return await call_next(ctx)
    finally:
        note(f"unlisten {topics}")


server = MCPServer(
    "announcing",
    log_level="WARNING",
    middleware=[noting],
    subscriptions=False if options.quiet else None,
)
inner = server._lowlevel_server  # pyright: ignore[reportPrivateUsage] - no public way to it
subscribed: dict[str, list[Any]] = {}


async def subscribe(ctx: RequestContext, params: SubscribeRequestParams) -> EmptyResult:
    """Legacy: tell this session of the resource."""
    note(f"subscribe {params.uri}")
    if str(params.uri) == options.forbid:
        raise MCPError(-32002, "Resource not found")
    subscribed.setdefault(str(params.uri), []).append(ctx.session)
    return EmptyResult()


async def unsubscribe(ctx: RequestContext, params: UnsubscribeRequestParams) -> EmptyResult:
    """Legacy: tell this session no more."""
    note(f"unsubscribe {params.uri}")
    subscribed.pop(str(params.uri), None)
    return EmptyResult()


if not options.quiet:
    inner.add_request_handler("resources/subscribe", SubscribeRequestParams, subscribe)
    inner.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, unsubscribe)
    every_list = NotificationOptions(
        tools_changed=True, prompts_changed=True, resources_changed=True
    )
    cast(Any, inner).create_initialization_options = partial(
        inner.create_initialization_options, every_list
    )


def is_modern(ctx: Context) -> bool:
    """True on a connection where changes are told on streams alone."""
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


@server.tool()
def pid() -> str:
    """Tell the process id."""
    return str(os.getpid())


@server.tool()
async def add_tool(ctx: Context) -> str:
    """Add a tool."""
    server.add_tool(pid, name="added")
    if is_modern(ctx):
        await ctx.notify_tools_changed()
    else:
        await ctx.session.send_tool_list_changed()
    return "added"


@server.tool()
async def add_prompt(ctx: Context) -> str:
    """Add a prompt."""
    server.add_prompt(Prompt.from_function(pid, name="added"))
    if is_modern(ctx):
        await ctx.notify_prompts_changed()
    else:
        await ctx.session.send_prompt_list_changed()
    return "added"


@server.tool()
async def add_resource(ctx: Context) -> str:
    """Add a resource."""
    server.add_resource(TextResource(uri="note://added", name="added", text="new"))
    if is_modern(ctx):
        await ctx.notify_resources_changed()
    else:
        await ctx.session.send_resource_list_changed()
    return "added"


@server.tool()
async def touch(uri: str, ctx: Context) -> str:
    """Change a resource."""
    if is_modern(ctx):
        await ctx.notify_resource_updated(uri)
    for session in subscribed.get(uri, []):
        await session.send_resource_updated(uri)
    return "touched"


if __name__ == "__main__":
    sys.argv[1:] = others
    run(server)
