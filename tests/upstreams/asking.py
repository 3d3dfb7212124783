"""An MCP server whose tools ask the client, written with the official SDK only.

    confirm(question)      one form elicitation (modern key `confirm`): "yes", "no", or the action
    two_questions()        modern only: elicitations `first` and `second` in one leg, with a state
    checkpoint()           modern only: a leg with a state alone, then the state that came back
    capital(country)       one sampling request (modern key `draft`)
    folders()              one roots request (modern key `roots`)
    patient(question)      as `confirm`; a refusal of the client is told as "refused CODE"

On a modern connection they end a leg with an InputRequiredResult; on a legacy one they send a
request and wait. `serving.py` has the flags.
"""

from typing import Any

from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.elicitation import AcceptedElicitation
from mcp.server.mcpserver import Context
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    ListRootsRequest,
    ListRootsResult,
    SamplingMessage,
    TextContent,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel
from serving import STATE_SECURITY, run

server = MCPServer("asking", log_level="WARNING", request_state_security=STATE_SECURITY)


class Agreement(BaseModel):
    """What is asked for."""

    agreed: bool


def is_modern(ctx: Context) -> bool:
    """True on a connection where a tool may end a leg with a question."""
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def elicitation(question: str) -> ElicitRequest:
    """A form with one checkbox."""
    schema = Agreement.model_json_schema()
    return ElicitRequest(params=ElicitRequestFormParams(message=question, requested_schema=schema))


def sampling(country: str) -> dict[str, Any]:
    """A prompt for the client's model."""
    prompt = TextContent(type="text", text=f"The capital of {country}?")
    return {"messages": [SamplingMessage(role="user", content=prompt)], "max_tokens": 20}


def agreed(answer: Any) -> str:
    """An elicitation's result in one word."""
    assert isinstance(answer, ElicitResult)
    if answer.action != "accept":
        return answer.action
    return "yes" if (answer.content or {}).get("agreed") else "no"


@server.tool()
async def confirm(question: str, ctx: Context) -> str | InputRequiredResult:
    """Ask one question."""
    if is_modern(ctx):
        answer = (ctx.input_responses or {}).get("confirm")
        return (
            agreed(answer)
            if answer
            else InputRequiredResult(input_requests={"confirm": elicitation(question)})
        )
    result = await ctx.elicit(question, Agreement)
    if not isinstance(result, AcceptedElicitation):
        return result.action
    return "yes" if result.data.agreed else "no"


@server.tool()
async def patient(question: str, ctx: Context) -> str | InputRequiredResult:
    """Ask one question, and live with a refusal."""
    try:
        return await confirm(question, ctx)
    except MCPError as error:
        return f"refused {error.code}"


@server.tool()
def two_questions(ctx: Context) -> str | InputRequiredResult:
    """Ask two questions at once."""
    answers = ctx.input_responses or {}
    if "first" in answers and "second" in answers:
        return f"{agreed(answers['first'])} {agreed(answers['second'])} {ctx.request_state}"
    return InputRequiredResult(
        input_requests={"first": elicitation("First?"), "second": elicitation("Second?")},
        request_state="half-way",
    )


@server.tool()
def checkpoint(ctx: Context) -> str | InputRequiredResult:
    """Save where it stands, ask nothing."""
    return (
        f"resumed from {ctx.request_state}"
        if ctx.request_state
        else InputRequiredResult(request_state="mark")
    )


@server.tool()
async def capital(country: str, ctx: Context) -> str | InputRequiredResult:
    """Ask the client's model."""
    if is_modern(ctx):
        draft = (ctx.input_responses or {}).get("draft")
        if draft is None:
            request = CreateMessageRequest(params=CreateMessageRequestParams(**sampling(country)))
            return InputRequiredResult(input_requests={"draft": request})
    else:
        draft = await ctx.session.create_message(
            **sampling(country), related_request_id=ctx.request_id
        )
    assert isinstance(draft, CreateMessageResult)
    assert isinstance(draft.content, TextContent)
    return draft.content.text


@server.tool()
async def folders(ctx: Context) -> str | InputRequiredResult:
    """Ask for the client's roots."""
    if is_modern(ctx):
        roots = (ctx.input_responses or {}).get("roots")
        if roots is None:
            return InputRequiredResult(input_requests={"roots": ListRootsRequest()})
    else:
        roots = await ctx.session.list_roots()
    assert isinstance(roots, ListRootsResult)
    return " ".join(str(root.uri) for root in roots.roots)


if __name__ == "__main__":
    run(server)
