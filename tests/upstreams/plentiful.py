"""An MCP server with much of everything, for the differential test; with the official SDK only.

What it answers is mostly what it is asked to answer, so that a generator decides:

    say(result)            a tool: this very object as its result, whatever is in it
    saw(…)                 a tool: the parameters and the MCP headers as they came, in the result
    tell(news)             a tool: progress and log messages, one after another
    ask(requests, state)   a tool: these input requests with this state; then what came of them
    fail(code, text, data) a tool: this JSON-RPC error
    broken(why), crash()   tools that fail as tools do, and by mistake
    say://JSON, ask://JSON, tell://JSON, fail://JSON  resources; JSON is base64url, without padding
    say, ask, fail         prompts with one argument `what`, JSON as text
    many://N               resources, and prompts and tools `many_N`, so that lists have pages

`serving.py` has the flags.
"""

import base64
import json
import warnings
from typing import Annotated, Any

from mcp import MCPDeprecationWarning, MCPError
from mcp.server import MCPServer
from mcp.server.caching import CacheHint
from mcp.server.context import CallNext, HandlerResult
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.resources import TextResource
from mcp_types import (
    INVALID_PARAMS,
    Annotations,
    AudioContent,
    Completion,
    EmbeddedResource,
    Icon,
    ImageContent,
    PromptReference,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from pydantic import BaseModel, Field
from serving import LISTS, Context as RequestContext, run

warnings.filterwarnings("ignore", category=MCPDeprecationWarning)  # logging is on its way out

PAGE_SIZE = 40
MANY = 70
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
ICON = Icon(src="https://example.com/i.png", mime_type="image/png", sizes=["48x48"])
META = {"dev.example/deep": {"a": [None, 2**70, "ü\u2028"]}, "plain": 1}
WORDS = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


def unpacked(word: str) -> Any:
    """What base64url of JSON says."""
    try:
        return json.loads(base64.urlsafe_b64decode(word + "=" * (-len(word) % 4)))
    except ValueError:
        raise MCPError(INVALID_PARAMS, "Not base64url of JSON") from None


def wanted(method: str, params: dict[str, Any]) -> tuple[str, Any]:
    """What a checked request wants done, and with what."""
    name = params[WORDS[method]]
    if method == "resources/read":
        verb, _, rest = name.partition("://")
        return (verb, unpacked(rest)) if verb in {"say", "ask", "tell", "fail"} else ("", None)
    arguments = params.get("arguments") or {}
    if method == "prompts/get":
        return name, json.loads(arguments["what"]) if name in {"say", "ask", "fail"} else None
    return name, arguments


def asked(params: dict[str, Any], what: dict[str, Any]) -> dict[str, Any] | None:
    """The questions; None once their answers are there."""
    if params.get("inputResponses") is not None:
        return None
    given = {"inputRequests": what.get("requests"), "requestState": what.get("state")}
    return {"resultType": "input_required", **{k: v for k, v in given.items() if v is not None}}


async def tell(ctx: RequestContext, news: list[Any]) -> None:
    """Progress and log messages, in order."""
    for item in news:
        if "level" in item:
            await ctx.session.send_log_message(  # pyright: ignore[reportDeprecated] - see above
                level=item["level"],
                data=item.get("data"),
                logger=item.get("logger"),
                related_request_id=ctx.request_id,
            )
        else:
            await ctx.session.report_progress(
                item["progress"], item.get("total"), item.get("message")
            )


def whole_answer(method: str, text: str) -> dict[str, Any]:
    """A result of this method with one text in it."""
    match method:
        case "tools/call":
            return {"resultType": "complete", "content": [{"type": "text", "text": text}]}
        case "prompts/get":
            message = {"role": "user", "content": {"type": "text", "text": text}}
            return {"resultType": "complete", "messages": [message]}
        case _:
            return {"resultType": "complete", "contents": [{"uri": "say://", "text": text}]}


async def done(ctx: RequestContext, verb: str, what: Any) -> dict[str, Any] | None:
    """What a request that has passed all checks leads to; None for the SDK's own answer."""
    params = dict(ctx.params or {})
    match verb:
        case "say":
            given = what.get("result", what)
            return {"resultType": "complete", **given} if isinstance(given, dict) else None
        case "saw":
            given = ctx.request.headers if ctx.request else {}
            headers = {k: v for k, v in given.items() if k.startswith("mcp-")}
            saw = {"params": params, "headers": headers}
            return {"resultType": "complete", "content": [], "structuredContent": saw}
        case "ask":
            seen = json.dumps([params.get("inputResponses"), params.get("requestState")])
            return asked(params, what) or whole_answer(ctx.method, seen)
        case "tell":
            await tell(ctx, what["news"])
            return whole_answer(ctx.method, "told")
        case "fail":
            raise MCPError(what["code"], what["text"], what.get("data"))
        case _:
            return None


async def as_wanted(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
    """Middleware: the SDK checks and answers, then the answer is what the request wants."""
    if ctx.method in LISTS:
        return await page(ctx, call_next)
    result = await call_next(ctx)
    if ctx.method not in WORDS:
        return result
    verb, what = wanted(ctx.method, dict(ctx.params or {}))
    own = await done(ctx, verb, what)
    return result if own is None else own


async def page(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
    """One page of a list. A cursor that was never given is refused."""
    key = LISTS[ctx.method]
    whole: Any = await call_next(ctx)
    given = (ctx.params or {}).get("cursor")
    start = 0
    if given is not None:
        if not (isinstance(given, str) and given.startswith("from-") and given[5:].isdecimal()):
            raise MCPError(INVALID_PARAMS, "No such cursor")
        start = int(given[5:])
    rest = (
        {"nextCursor": f"from-{start + PAGE_SIZE}"} if start + PAGE_SIZE < len(whole[key]) else {}
    )
    entries = [{**e, "x-unknown": {"kept": None}} for e in whole[key][start : start + PAGE_SIZE]]
    return {**whole, key: entries, **rest}


server = MCPServer(
    "plentiful",
    version="3",
    title="Plentiful",
    instructions="Ask, and it is answered.",
    website_url="https://example.com",
    icons=[ICON],
    log_level="CRITICAL",
    middleware=[as_wanted],
    cache_hints={"resources/list": CacheHint(ttl_ms=4_000, scope="public")},
)


# --- tools


@server.tool(structured_output=False)
def say(result: Any = None) -> str:
    """Say what is given."""
    return "said"


@server.tool(structured_output=False)
def tell_news(news: list[Any]) -> str:
    """Never called by this name."""
    return "told"


server.add_tool(tell_news, name="tell", structured_output=False)


@server.tool(structured_output=False)
def saw(anything: Any = None) -> str:
    """Tell what came."""
    return "saw"


@server.tool(structured_output=False)
def ask(requests: Any = None, state: Any = None) -> str:
    """Ask."""
    return "asked"


@server.tool(structured_output=False)
def fail(code: int, text: str, data: Any = None) -> str:
    """Fail with an error of the protocol."""
    return "never"


@server.tool(structured_output=False)
def broken(why: str) -> str:
    """Fail as tools do."""
    raise ToolError(why)


@server.tool(structured_output=False)
def crash() -> str:
    """Fail by mistake."""
    raise RuntimeError("a detail that nobody shall read")


class Sum(BaseModel):
    """What `add` gives."""

    total: int
    parts: list[int]


@server.tool(
    title="Adds",
    icons=[ICON],
    meta=META,
    annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, title="Adding"),
)
def add(a: int, b: int = 2) -> Sum:
    """Add, with structured output."""
    return Sum(total=a + b, parts=[a, b])


@server.tool(structured_output=False)
def shapes() -> list[Any]:
    """Every kind of content."""
    return [
        TextContent(text="ü\u2028", annotations=Annotations(priority=0.5, audience=["user"])),
        ImageContent(data=PIXEL, mime_type="image/png"),
        AudioContent(data="AAAA", mime_type="audio/wav"),
        ResourceLink(name="a", uri="note://a", icons=[ICON]),
        EmbeddedResource(resource=TextResourceContents(uri="note://a", text="x")),
    ]


@server.tool(structured_output=False)
def forecast(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
    days: Annotated[int, Field(json_schema_extra={"x-mcp-header": "Days"})] = 1,
    sure: Annotated[bool, Field(json_schema_extra={"x-mcp-header": "Sure"})] = False,
) -> str:
    """Take arguments that stand in headers as well."""
    return f"{region} {days} {sure}"


for odd in ("dots.in.it", "Schrägstrich-Ü", "with space", "a_b__c", "CASE", "case"):
    server.add_tool(saw, name=odd, structured_output=False)


# --- resources


@server.resource(
    "note://a",
    title="Note A",
    mime_type="text/markdown",
    icons=[ICON],
    annotations=Annotations(priority=0.5, audience=["assistant"]),
    meta=META,
)
def note() -> str:
    """A text."""
    return "the text of note://a, ü\u2028"


@server.resource("blob://pixel", mime_type="image/png")
def pixel() -> bytes:
    """Bytes."""
    return base64.b64decode(PIXEL)


@server.resource("pair://{one}/{two}", title="Pairs", icons=[ICON], meta=META)
def pair(one: str, two: str) -> str:
    """A template with two places."""
    return f"{one} and {two}"


def done_elsewhere(word: str) -> str:
    """Answered by the middleware."""
    return word


for scheme in ("say", "ask", "tell", "fail"):
    server.resource(f"{scheme}://{{word}}", name=scheme)(done_elsewhere)

for number in range(MANY):
    server.add_resource(TextResource(uri=f"many://{number}", name=f"ü{number}", text=str(number)))
    server.add_tool(crash, name=f"many_{number}", structured_output=False)
    server.add_prompt(Prompt.from_function(note, name=f"many_{number}"))


# --- prompts


@server.prompt(name="say")
def say_prompt(what: str) -> str:
    """Say what is given."""
    return what


@server.prompt(name="ask")
def ask_prompt(what: str) -> str:
    """Ask."""
    return what


@server.prompt(name="fail")
def fail_prompt(what: str) -> str:
    """Fail."""
    return what


@server.prompt(title="Greets", icons=[ICON])
def greet(who: str, mood: str = "glad") -> str:
    """Greet somebody."""
    return f"Be {mood}, {who}"


@server.completion()
async def complete(ref: Any, argument: Any, context: Any) -> Completion:
    """Tell what was asked for."""
    named = ref.name if isinstance(ref, PromptReference) else ref.uri
    told = f"{named} {argument.name} {argument.value} {context and context.arguments}"
    return Completion(values=[told, "ü"], total=2, has_more=argument.value == "more")


if __name__ == "__main__":
    run(server)
