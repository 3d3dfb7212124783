"""Asking the client of a session something, on the stream of the request that it is about."""

from collections.abc import Mapping
from typing import Any, cast

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    ClientCapabilities,
    Notification,
    Request,
    ServerRequest,
)
from mcp_types.version import is_version_at_least
from pydantic import BaseModel, ConfigDict, ValidationError

Context = ServerRequestContext[Any, Any]

ELICIT, SAMPLE, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"
DECLINED: Mapping[str, Any] = {"action": "decline"}

_CAPABILITY = {ELICIT: "elicitation", SAMPLE: "sampling", ROOTS: "roots"}
_ENDED = (CONNECTION_CLOSED, "Connection closed")  # what the SDK says of its own
_WITH_MODES = "2025-11-25"  # from there on an elicitation says whether it is a form or a page


class NotAnswered(MCPError):
    """What a tool needs of the client could not be had."""

    def __init__(self, method: str, why: str) -> None:
        super().__init__(INTERNAL_ERROR, f"The tool asks the client for {method}: {why}")


class _Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


def declared(context: Context) -> dict[str, Any]:
    """What the client can be asked for, as it said in `initialize`."""
    known: ClientCapabilities | None = context.session.client_capabilities
    if known is None:
        return {}
    given = known.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {key: given[key] for key in _CAPABILITY.values() if key in given}


async def ask(context: Context, request: Mapping[str, Any]) -> dict[str, Any]:
    """The client's answer to one input request. Raises NotAnswered, and MCPError when the session
    has ended meanwhile: that is no answer of anybody's.

    A question for a form that it cannot show is declined: that is an answer, which tools expect.
    """
    method, params = str(request.get("method")), cast(dict[str, Any], request.get("params") or {})
    if not _can_be_asked(context, method, params):
        if method == ELICIT:
            return dict(DECLINED)
        raise NotAnswered(method, "it has not declared that it can be asked")
    if method == ELICIT and not is_version_at_least(context.protocol_version, _WITH_MODES):
        params = {key: value for key, value in params.items() if key != "mode"}
    wire = Request[dict[str, Any] | None, str](method=method, params=params or None)
    to = ServerMessageMetadata(related_request_id=context.request_id)
    try:
        answer = await context.session.send_request(
            cast(ServerRequest, wire), _Anything, metadata=to
        )
    except NoBackChannelError:
        raise NotAnswered(method, "there is no way back to it") from None
    except MCPError as error:
        if (error.error.code, error.error.message) == _ENDED:
            raise
        raise NotAnswered(method, f"it answered with an error: {error.error.message}") from error
    except ValidationError:
        raise NotAnswered(method, "its answer is not valid") from None
    return answer.model_dump(mode="json", by_alias=True)


async def tell(context: Context, method: str, params: Mapping[str, Any], *, alone: bool) -> None:
    """Send a notification, on the request's own stream or on the session's."""
    wire = Notification[dict[str, Any] | None, str](method=method, params=dict(params) or None)
    to = None if alone else context.request_id
    await context.session.send_notification(cast(Any, wire), related_request_id=to)


def _can_be_asked(context: Context, method: str, params: Mapping[str, Any]) -> bool:
    if not context.session.can_send_request:
        return False
    given = declared(context).get(_CAPABILITY.get(method, ""))
    if given is None:
        return False
    return method != ELICIT or params.get("mode", "form") != "url" or "url" in given
