"""JSON bytes for the store. Fast where it can be, and total: what an upstream may send, we can keep."""

import json
from typing import Any

import orjson


def encode(value: Any) -> bytes:
    """JSON text of a JSON value. Integers beyond 64 bits and lone surrogates survive (as `\\u` escapes)."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode("ascii")


def decode(text: bytes) -> Any:
    """The value that `encode` was given."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)
