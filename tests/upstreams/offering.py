"""An MCP server of resources, prompts and completions, written with the official SDK only.

    note://a, note://b   resources; the list has `note://a` twice, and every entry an `x-unknown`
    act://{verb}         a resource template, whose resources do what their names say:
                           echo   tells the request's `_meta` and headers as the server sees them
                           work   reports progress 1 and 2, logs at debug, info and warning
                           ask    one form elicitation (modern key `ask`, with a state): its action
                           fail   JSON-RPC error -32050 "no such thing" with data {"thing": 7}
                           gone   the error of 2025-11-25 for a resource that is not there, -32002
                           odd    a result with fields that no specification knows
    act://hold-FOLDER    never ends by itself; FOLDER is a path with its slashes as `|`
    greet(who)           a prompt with text, a link to `note://a`, and `note://b` embedded
    consult(topic)       a prompt that asks as `act://ask` does
    links()              a tool, whose result names resources in every way
    chat(count)          a tool that logs at info, COUNT times
    grow()               adds the resource `note://grown` and the prompt `grown`, says so
    grow_silently()      adds the resource `note://silent`, says nothing

    --log-level          know `logging/setLevel` (legacy), and log warnings alone until told
    --ttl MS             the caching hint of all lists, which are then `public`
    --instructions TEXT  what `server/discover` and `initialize` say
    --endless            `resources/list` always has a next page
    --bare               has tools alone
    --quiet              announce no changes of lists
`serving.py` has the other flags.
"""

import argparse
import json
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
from mcp import MCPDeprecationWarning, MCPError
from mcp.server import MCPServer
from mcp.server.caching import CacheHint
from mcp.server.context import CallNext, HandlerResult
from mcp.server.elicitation import AcceptedElicitation
from mcp.server.lowlevel import NotificationOptions
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.server.mcpserver.resources import TextResource
from mcp_types import (
    Annotations,
    CallToolResult,
    Completion,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    EmbeddedResource,
    EmptyResult,
    Icon,
    InputRequiredResult,
    PromptReference,
    ResourceLink,
    SetLevelRequestParams,
    TextContent,
    TextResourceContents,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel
from serving import STATE_SECURITY, Context as RequestContext, run

warnings.filterwarnings("ignore", category=MCPDeprecationWarning)  # logging is on its way out

parser = argparse.ArgumentParser(add_help=False)
parser.add_argument("--log-level", action="store_true")
parser.add_argument("--ttl", type=int)
parser.add_argument("--instructions")
parser.add_argument("--endless", action="store_true")
parser.add_argument("--bare", action="store_true")
parser.add_argument("--quiet", action="store_true")
options, others = parser.parse_known_args()

LISTS = {
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}
LEVELS = ["debug", "info", "warning"]
level_of: dict[Any, str] = {}


async def strangely(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
    """Middleware: what a handler returns is fitted to the specification, what this returns is
    not."""
    if ctx.method == "resources/read" and (ctx.params or {}).get("uri") == "act://odd":
        return {
            "resultType": "complete",
            "contents": [{"uri": "act://odd", "text": "odd", "x-part": 1}],
            "x-unknown": {"deep": [1, None, "act://odd"]},
            "_meta": {"dev.example/uri": "act://odd"},
            "ttlMs": 77,
            "cacheScope": "public",
        }
    whole: Any = await call_next(ctx)
    if key := LISTS.get(ctx.method):
        entries = [{**entry, "x-unknown": {"kept": None}} for entry in whole[key]]
        whole[key] = [*entries[:1], *entries] if key == "resources" else entries
        if options.endless and key == "resources":
            whole["nextCursor"] = "more"
    return whole


hint = CacheHint(ttl_ms=options.ttl, scope="public") if options.ttl is not None else None
server = MCPServer(
    "offering",
    version="7",
    instructions=options.instructions,
    log_level="WARNING",
    request_state_security=STATE_SECURITY,
    middleware=[strangely],
    cache_hints=dict.fromkeys(cast(Any, LISTS), hint) if hint else None,
    subscriptions=False if options.quiet else None,
)
inner = server._lowlevel_server  # pyright: ignore[reportPrivateUsage] - no public way to it
said = not options.quiet
every_list = NotificationOptions(tools_changed=said, prompts_changed=said, resources_changed=said)
cast(Any, inner).create_initialization_options = partial(
    inner.create_initialization_options, every_list
)


async def set_level(ctx: RequestContext, params: SetLevelRequestParams) -> EmptyResult:
    """Legacy: one level for the whole session."""
    level_of["session"] = params.level
    return EmptyResult()


if options.log_level:
    inner.add_request_handler("logging/setLevel", SetLevelRequestParams, set_level)


class Agreement(BaseModel):
    """What is asked for."""

    agreed: bool


def is_modern(ctx: Context) -> bool:
    """True on a connection where a request may end with a question."""
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


async def ask(ctx: Context, question: str) -> str | InputRequiredResult:
    """Ask one question."""
    if not is_modern(ctx):
        result = await ctx.elicit(question, Agreement)
        return "accept" if isinstance(result, AcceptedElicitation) else result.action
    answer = (ctx.input_responses or {}).get("ask")
    if isinstance(answer, ElicitResult):
        return f"{answer.action} {ctx.request_state}"
    schema = Agreement.model_json_schema()
    params = ElicitRequestFormParams(message=question, requested_schema=schema)
    return InputRequiredResult(
        input_requests={"ask": ElicitRequest(params=params)}, request_state="half-way"
    )


async def log(ctx: Context, level: Any, data: Any) -> None:
    """Log, unless this session wants it not."""
    wanted = level_of.get("session", "warning" if options.log_level else "debug")
    if LEVELS.index(level) >= LEVELS.index(wanted):
        await ctx.log(  # pyright: ignore[reportDeprecated] - on its way out
            level, data, logger_name="offering"
        )


@server.tool()
def links() -> CallToolResult:
    """Name resources in every way."""
    kept = TextResourceContents(uri="note://b", text="see note://a")
    return CallToolResult(
        content=[
            ResourceLink(name="a", uri="note://a"),
            EmbeddedResource(resource=kept),
            TextContent(type="text", text="note://a"),
        ],
        structured_content={"uri": "note://a"},
        _meta={"dev.example/uri": "note://a"},
    )


@server.tool()
async def chat(count: int, word: str, ctx: Context) -> str:
    """Log at info."""
    for number in range(count):
        await log(ctx, "info", f"{word} {number}")
        await anyio.lowlevel.checkpoint()
    return word


if not options.bare:

    @server.resource(
        "note://a",
        title="Note A",
        description="The first",
        mime_type="text/markdown",
        icons=[Icon(src="https://example.com/a.png", mime_type="image/png")],
        annotations=Annotations(priority=0.5),
        meta={"dev.example/key": {"a": None}},
    )
    def note_a() -> str:
        """The first note."""
        return "the text of note://a"

    @server.resource("note://b")
    def note_b() -> str:
        """The second note."""
        return "b"

    @server.resource("act://{verb}")
    async def act(verb: str, ctx: Context) -> str | InputRequiredResult:
        """Do as the verb says."""
        match verb:
            case "echo":
                meta = dict(ctx.request_context.meta or {})
                return json.dumps({"meta": meta, "headers": dict(ctx.headers or {})})
            case "work":
                for step, level in enumerate(LEVELS):
                    if step:
                        await ctx.report_progress(step, 2, f"step {step}")
                    await log(ctx, level, {"at": level})
                return "done"
            case "ask":
                return await ask(ctx, "Read?")
            case "fail":
                raise MCPError(-32050, "no such thing", {"thing": 7})
            case "gone":
                raise MCPError(-32002, "Resource not found", {"uri": "act://gone"})
            case _:
                return await hold(verb.removeprefix("hold-").replace("|", "/"))

    async def hold(folder: str) -> str:
        """Wait for ever."""
        Path(folder, "started").write_text("started")
        try:
            await anyio.sleep_forever()
        finally:
            Path(folder, "stopped").write_text("stopped")
        return "never"

    @server.prompt(icons=[Icon(src="https://example.com/p.png")])
    def greet(who: str) -> list[UserMessage]:
        """Greet somebody."""
        return [
            UserMessage(TextContent(type="text", text=f"Hello {who}, see note://a")),
            UserMessage(cast(Any, ResourceLink(name="a", uri="note://a"))),
            UserMessage(EmbeddedResource(resource=TextResourceContents(uri="note://b", text="b"))),
        ]

    @server.prompt()
    async def consult(topic: str, ctx: Context) -> str | InputRequiredResult:
        """Ask, then prompt."""
        return await ask(ctx, f"Consult on {topic}?")

    @server.completion()
    async def complete(ref: Any, argument: Any, context: Any) -> Completion:
        """Tell what was asked for."""
        named = ref.name if isinstance(ref, PromptReference) else ref.uri
        return Completion(values=[f"{named} {argument.name} {argument.value}"], total=1)

    @server.tool()
    async def grow(ctx: Context) -> str:
        """Add a resource and a prompt."""
        server.add_resource(TextResource(uri="note://grown", name="grown", text="new"))
        server.add_prompt(Prompt.from_function(note_b, name="grown"))
        if is_modern(ctx):
            await ctx.notify_resources_changed()
            await ctx.notify_prompts_changed()
        else:
            await ctx.session.send_resource_list_changed()
            await ctx.session.send_prompt_list_changed()
        return "grown"

    @server.tool()
    def grow_silently() -> str:
        """Add a resource."""
        server.add_resource(TextResource(uri="note://silent", name="silent", text="new"))
        return "grown"


if options.bare:
    for method in (*LISTS, "prompts/get", "resources/read"):
        cast(Any, inner)._request_handlers.pop(method, None)


if __name__ == "__main__":
    sys.argv[1:] = others
    run(server)
