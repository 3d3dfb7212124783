"""What every input has to get, whatever it is: an answer of the right shape, with the right id."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from outlast.tests.fuzz.wire import Answer

PARSE_ERROR, INTERNAL = -32700, -32603
ID_LENGTH_MAX = 1024
DEPTH_MAX = 64
ACCEPTED, NO_CONTENT = 202, 204
# Refused before the body was read, or for what it was called: nobody knows an id then.
UNREAD = frozenset({401, 403, 408, 413, 415, 421, 431})
NO_ID = object()

# -32603 while the store and the upstream are up: a limit that says so is a cause, all else is not.
CAUSES = frozenset({"too_many_watches", "quota_exceeded"})


def read(text: bytes) -> Any:
    """The JSON value of a body as strict JSON has it; None for what is none."""
    try:
        value = json.loads(text.decode("utf-8"), parse_constant=_refuse, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate is no text
    except (ValueError, RecursionError):
        return None
    return value


def id_in(text: bytes) -> Any:
    """The id that an answer to this body has to carry; NO_ID where none can be told."""
    value = read(text)
    if not isinstance(value, dict) or "id" not in value or deeper(value, DEPTH_MAX):
        return NO_ID
    given = value["id"]
    if isinstance(given, bool) or not isinstance(given, str | int):
        return NO_ID
    if isinstance(given, str):
        return given if len(given) <= ID_LENGTH_MAX else NO_ID
    return given if -(2**63) <= given < 2**64 else NO_ID


def is_notification(text: bytes) -> bool:
    """Whether a body is a message that asks for no answer."""
    value = read(text)
    return isinstance(value, dict) and "id" not in value


def deeper(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        level = [child for node in level for child in _children(node)]
        if not level:
            return False
    return True


def _children(node: Any) -> list[Any]:
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
    return [child for child in children if isinstance(child, dict | list)]


def is_refused(answer: Answer, text: bytes, *, was_bent: bool) -> bool:
    """Whether the server refused. Raises AssertionError for an answer that may not be.

    `was_bent` says that the head of the request was no HTTP: the parser may answer by itself.
    """
    assert answer.status < 500, answer
    if was_bent and not answer.is_json and answer.status == 400:
        return True
    if answer.status == ACCEPTED:
        assert answer.content == b"", answer
        assert is_notification(text), answer
        return False
    assert answer.is_json, answer
    message = answer.body
    may_lack_id = answer.status in UNREAD or was_bent
    return judged(message, text, may_lack_id=may_lack_id) or answer.status >= 400


def judged(message: Any, text: bytes, *, may_lack_id: bool = False) -> bool:
    """Whether a JSON-RPC message is an error. Raises AssertionError when it answers wrongly."""
    assert isinstance(message, dict), message
    assert message.get("jsonrpc") == "2.0", message
    if "method" in message:  # a stream opened: its first frame names the request
        assert told_id(message) == id_in(text), message
        return False
    assert ("result" in message) != ("error" in message), message
    wanted = id_in(text)
    if "result" in message:
        assert message.get("id", NO_ID) == wanted, message
        assert type(message["id"]) is type(wanted), message
        return False
    error = message["error"]
    assert type(error["code"]) is int, message
    assert isinstance(error["message"], str), message
    assert error["code"] != INTERNAL or _cause(error) in CAUSES, message
    if "id" in message:
        assert message["id"] == wanted, message
        assert type(message["id"]) is type(wanted), message
    else:
        assert wanted is NO_ID or may_lack_id or error["code"] == PARSE_ERROR, message
    return True


def told_id(message: Mapping[str, Any]) -> Any:
    """The request that a frame of a stream belongs to."""
    params = message.get("params", {})
    subscription = params.get("_meta", {}).get("io.modelcontextprotocol/subscriptionId", NO_ID)
    return params.get("requestId", NO_ID) if subscription is NO_ID else subscription


def _cause(error: Mapping[str, Any]) -> Any:
    data = error.get("data")
    return data.get("reason") if isinstance(data, dict) else None


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(text)
    return number
