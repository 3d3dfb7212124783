"""JSON bytes and text for the store. Total: what an upstream or a client may send, we can keep."""

import hashlib
import json
from typing import Any

import orjson

from ..domain import change
from ..domain.jsontext import slow_dumps
from ..domain.task import Task

# A space in front says that the fast reader would lose something: large integers become floats.
_SLOW = b" "


def encode(value: Any) -> bytes:
    """JSON text of a JSON value. Large integers and lone surrogates survive (as `\\u` escapes)."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return _SLOW + slow_dumps(value)


def decode(text: bytes) -> Any:
    """The value that `encode` was given."""
    return json.loads(text) if text.startswith(_SLOW) else orjson.loads(text)


def is_storable(text: str) -> bool:
    """True for what a text column can hold: neither NUL nor a lone surrogate."""
    if text.isascii():  # nearly always, and at no cost
        return "\x00" not in text
    return storable(text) == text


def storable(text: str) -> str:
    """The text with a replacement character for all that a text column cannot hold."""
    clean = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return clean.replace("\x00", "\ufffd")


def digest(text: str) -> str:
    """A short stand-in for any text, the same for the same text only."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def wire_of(task: Task) -> bytes:
    """The bytes of a view row: what `tasks/get` answers. They are spliced, so no mark in front."""
    return encode(change.detailed_task(task)).removeprefix(_SLOW)
