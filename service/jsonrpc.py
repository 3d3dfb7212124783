"""JSON-RPC in and out as MCP 2026-07-28 frames it: one request a body, bounded, strictly parsed."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import orjson
from mcp_types import INVALID_REQUEST, PARSE_ERROR

from ..domain.jsontext import slow_dumps

DEPTH_MAX = 64  # no honest call nests deeper; deep ones exhaust validators further in
ID_LENGTH_MAX = 1024
ID_BODY_BYTES_MAX = 16 * 1024
ID_BITS_MAX = 64

# So many digits may be an integer beyond 64 bits.
_LONG, _DIGITS = b"0" * 19, bytes.maketrans(b"123456789", b"0" * 9)

RequestId = str | int


class Rejection(Exception):
    """A message that is answered with a JSON-RPC error. `status` is the HTTP status."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        data: Any = None,
        status: int = 400,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.data, self.status = code, message, data, status
        self.headers = dict(headers or {})


class InvalidMessage(Rejection):
    """JSON that is no request. `request_id` is its id where that much could be read."""

    def __init__(self, message: str, request_id: RequestId | None = None) -> None:
        super().__init__(INVALID_REQUEST, message)
        self.request_id = request_id


@dataclass(frozen=True)
class Message:
    """One decoded request, or a notification when `id` is None."""

    id: RequestId | None
    method: str
    body: dict[str, Any]

    @property
    def params(self) -> dict[str, Any]:
        """The parameters; empty when there are none."""
        return self.body.get("params") or {}


def parse(body: bytes) -> Message:
    """The message in a body. Raises Rejection with the code that JSON-RPC names."""
    return _message(decoded(body))


def decoded(body: bytes) -> dict[str, Any]:
    """The one JSON object in a body, not yet judged. Raises Rejection."""
    try:
        value = orjson.loads(body)
        if _LONG in body.translate(_DIGITS):
            value = json.loads(body)  # the quick parser makes floats of such integers
    except ValueError as error:  # also an integer of more digits than Python converts
        raise Rejection(PARSE_ERROR, f"Parse error: {error}") from None
    if isinstance(value, list):
        raise InvalidMessage("Batches are not supported: send one message a request")
    if not isinstance(value, dict):
        raise InvalidMessage("The body must be one JSON-RPC object")
    _refuse_deep(body, value)
    return cast(dict[str, Any], value)


def _message(body: dict[str, Any]) -> Message:
    request_id = _request_id(body)
    if body.get("jsonrpc") != "2.0":
        raise InvalidMessage('The member jsonrpc must be "2.0"', request_id)
    method = body.get("method")
    if not isinstance(method, str):
        raise InvalidMessage("Only requests and notifications are accepted: no method", request_id)
    if not isinstance(body.get("params", {}), dict):
        raise InvalidMessage("The member params must be an object", request_id)
    return Message(request_id, method, body)


def _request_id(body: dict[str, Any]) -> RequestId | None:
    """The id; None for a notification, which has no such member. Raises InvalidMessage."""
    if "id" not in body:
        return None
    request_id = body["id"]
    if not isinstance(request_id, str | int) or isinstance(request_id, bool):
        raise InvalidMessage("The member id must be a string or an integer")
    if isinstance(request_id, str) and len(request_id) > ID_LENGTH_MAX:
        raise InvalidMessage(f"The member id is longer than {ID_LENGTH_MAX} characters")
    if isinstance(request_id, int) and not -(2 ** (ID_BITS_MAX - 1)) <= request_id < 2**ID_BITS_MAX:
        raise InvalidMessage(f"The member id is an integer of more than {ID_BITS_MAX} bits")
    return request_id


def _refuse_deep(body: bytes, value: Any) -> None:
    # Counting brackets is far cheaper than walking, and settles it for nearly every body.
    if body.count(b"[") + body.count(b"{") <= DEPTH_MAX:
        return
    level = [value]
    for _ in range(DEPTH_MAX):
        level = [child for node in level for child in _children(node)]
        if not level:
            return
    raise InvalidMessage(f"The body nests deeper than {DEPTH_MAX} levels")


def _children(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return [v for v in cast(dict[str, Any], node).values() if isinstance(v, dict | list)]
    return [v for v in cast(list[Any], node) if isinstance(v, dict | list)]


def id_of(body: bytes) -> RequestId | None:
    """The id of a request that is not served, where it costs little to know it."""
    try:
        return parse(body).id if len(body) <= ID_BODY_BYTES_MAX else None
    except InvalidMessage as error:
        return error.request_id
    except Rejection:
        return None


def dumps(value: Any) -> bytes:
    """JSON text of what an upstream may have sent, integers beyond 64 bits included."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return slow_dumps(value)


def loads(text: bytes) -> Any:
    """The value that `dumps` was given, integers beyond 64 bits and lone surrogates included."""
    if _LONG not in text.translate(_DIGITS):
        with suppress(ValueError):
            return orjson.loads(text)
    # Also of a task that was stored with Infinity in it, before that became null.
    return json.loads(text)


def result_bytes(request_id: RequestId, result: bytes) -> bytes:
    """A success response around the JSON text of its result."""
    return b'{"jsonrpc":"2.0","id":' + orjson.dumps(request_id) + b',"result":' + result + b"}"


def error_bytes(request_id: RequestId | None, code: int, message: str, data: Any = None) -> bytes:
    """An error response; without an id when the request's could not be read."""
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    envelope: dict[str, Any] = {"jsonrpc": "2.0"}
    if request_id is not None:
        envelope["id"] = request_id
    return dumps({**envelope, "error": error})
