"""What every request must carry, whatever brings it: version, capabilities, matching headers."""

from collections.abc import Mapping
from typing import Any, cast, get_args

from mcp.shared.inbound import (
    InboundLadderRejection,
    classify_inbound_request,
    decode_header_value,
    find_duplicated_routing_header,
)
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    HEADER_MISMATCH,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
    LoggingLevel,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from ..domain import errors
from .heads import Heads
from .jsonrpc import Message, Rejection

_LOG_LEVELS: tuple[str, ...] = get_args(LoggingLevel)
TASK_METHODS = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})


def check(message: Message, headers: Heads | None, *, require_task_name: bool) -> None:
    """Judge a request's envelope; `headers` is None where there are none to repeat it.

    Raises Rejection with the code that the specification names.
    """
    if message.method == "initialize" and not _is_enveloped(message):
        raise _speaks_modern_only(message)
    if headers is not None and not headers.are_single:
        doubled = find_duplicated_routing_header(headers.items())
        if doubled is not None:
            raise Rejection(HEADER_MISMATCH, f"The header {doubled} came more than once")
    verdict = classify_inbound_request(message.body, headers=headers)
    if isinstance(verdict, InboundLadderRejection):
        raise Rejection(verdict.code, verdict.message, data=verdict.data)
    _check_meta(message.params["_meta"])
    if headers is not None and message.method in TASK_METHODS:
        _check_task_name(headers.get("mcp-name"), message, required=require_task_name)


def capabilities_of(message: Message) -> Mapping[str, Any]:
    """The client capabilities of a checked request. Raises InvalidCall."""
    declared = message.params["_meta"][CLIENT_CAPABILITIES_META_KEY]
    if not isinstance(declared, dict):
        raise errors.InvalidCall(f"{CLIENT_CAPABILITIES_META_KEY} must be an object")
    return cast(Mapping[str, Any], declared)


def _is_enveloped(message: Message) -> bool:
    """Whether a client of this revision sent it, for which it is a method like any unknown one."""
    meta = message.params.get("_meta")
    return isinstance(meta, dict) and PROTOCOL_VERSION_META_KEY in meta


def _check_meta(meta: Mapping[str, Any]) -> None:
    """The rest of the envelope, whether anybody reads it here or not. Raises InvalidCall."""
    client = meta.get(CLIENT_INFO_META_KEY)
    if client is not None and not _is_implementation(client):
        raise errors.InvalidCall(f"{CLIENT_INFO_META_KEY} must have a name and a version")
    token = meta.get("progressToken", 0)
    if not isinstance(token, str | int) or isinstance(token, bool):
        raise errors.InvalidCall("progressToken must be a string or an integer")
    if LOG_LEVEL_META_KEY in meta and meta[LOG_LEVEL_META_KEY] not in _LOG_LEVELS:
        raise errors.InvalidCall(f"{LOG_LEVEL_META_KEY} must be one of {', '.join(_LOG_LEVELS)}")


def _is_implementation(given: Any) -> bool:
    if not isinstance(given, dict):
        return False
    told = cast(Mapping[str, Any], given)
    return isinstance(told.get("name"), str) and isinstance(told.get("version"), str)


def _check_task_name(given: str | None, message: Message, *, required: bool) -> None:
    if given is None and not required:
        return
    if decode_header_value(given) != message.params.get("taskId"):
        raise Rejection(HEADER_MISMATCH, "The Mcp-Name header does not match the request's taskId")


def _speaks_modern_only(message: Message) -> Rejection:
    supported = list(MODERN_PROTOCOL_VERSIONS)
    requested = message.params.get("protocolVersion", "")
    return Rejection(
        UNSUPPORTED_PROTOCOL_VERSION,
        f"There is no handshake here: send each request under version {', '.join(supported)}",
        data={"supported": supported, "requested": str(requested)},
    )
