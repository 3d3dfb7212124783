"""How the tools of `everything_server.py` ask the client, in whichever era it speaks.

Since 2026-07-28 a question is a result, and the answer comes with the same call made again. Before,
it is a request of the server's own in the middle of the call.
"""

from collections.abc import Mapping
from typing import Any

from mcp.server.mcpserver import Context
from mcp.shared.message import ServerMessageMetadata
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

Question = ElicitRequest | CreateMessageRequest | ListRootsRequest
Answer = ElicitResult | CreateMessageResult | ListRootsResult
Answers = dict[str, Any]

_ANSWER_TYPES: dict[str, type[Answer]] = {
    "elicitation/create": ElicitResult,
    "sampling/createMessage": CreateMessageResult,
    "roots/list": ListRootsResult,
}


def form(message: str, properties: Mapping[str, Any]) -> ElicitRequest:
    """Ask the user for these properties; all of them are required unless they have a default."""
    schema = {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name, kind in properties.items() if "default" not in kind],
    }
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def sample(prompt: str, max_tokens: int = 100) -> CreateMessageRequest:
    """Ask the client's model."""
    message = SamplingMessage(role="user", content=TextContent(text=prompt))
    return CreateMessageRequest(
        params=CreateMessageRequestParams(messages=[message], max_tokens=max_tokens)
    )


def roots() -> ListRootsRequest:
    """Ask which folders the client works in."""
    return ListRootsRequest()


async def ask(
    ctx: Context, questions: Mapping[str, Question], state: str | None = None
) -> Answers | InputRequiredResult:
    """The answers, by key; or what to return so that they come. Others' keys are left alone.

    With `state`, only answers that came with that very state count.
    """
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return {key: await _asked_at_once(ctx, question) for key, question in questions.items()}
    given: Answers = ctx.input_responses or {}
    if questions.keys() <= given.keys() and ctx.request_state == state:
        return {key: given[key] for key in questions}
    return InputRequiredResult(input_requests=dict(questions), request_state=state)


async def _asked_at_once(ctx: Context, question: Question) -> Answer:
    # Without the request's id the question would go to the stream that belongs to no request.
    related = ServerMessageMetadata(related_request_id=ctx.request_id)
    return await ctx.session.send_request(
        question, _ANSWER_TYPES[question.method], metadata=related
    )
