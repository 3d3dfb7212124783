"""JSON text of what the fast writers refuse: large integers and lone surrogates."""

import json
from math import isfinite
from typing import Any, cast


def slow_dumps(value: Any) -> bytes:
    """The text, in ASCII. As with the fast writers, a number that is not finite becomes null."""
    try:
        return _dumps(value)
    except ValueError:  # JSON has no word for one, and Python's own words no other reader knows
        return _dumps(_finite(value))


def _dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in cast(dict[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast(list[Any], value)]
    return value
