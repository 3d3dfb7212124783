"""Where in a tool's answer something stands: a job's id, its state, how far it is.

Three ways to say it, for what servers answer with:

    structuredContent.job.id     a path in the result: names, and numbers for places in a list
    json.job.id                  the same in the JSON that the first text block holds
    /Job (\\w+) was started/      a regular expression with one group, searched for in the text
"""

import json
import re
from collections.abc import Mapping
from typing import Any, cast

TEXT_CHARS_MAX = 65_536  # of a text that is searched


class Place:
    """One place. Raises ValueError for what names none."""

    def __init__(self, text: str) -> None:
        self.text = text
        found = re.fullmatch("/(.+)/", text, re.DOTALL)
        self._pattern = None if found is None else _pattern(found[1])
        self._path = text.split(".")
        if self._pattern is None and (len(self._path) == 1 or not all(self._path)):
            raise ValueError(
                'a place is written like "structuredContent.id", "json.id" or "/job (\\w+)/"'
            )

    def find(self, result: Mapping[str, Any]) -> Any:
        """What stands there; None when there is nothing, or no single value."""
        if self._pattern is not None:
            found = self._pattern.search(text_of(result)[:TEXT_CHARS_MAX])
            return found and found[1]
        if self._path[0] == "json":
            return _single(_along(_json_of(result), self._path[1:]))
        return _single(_along(result, self._path))


def text_of(result: Mapping[str, Any]) -> str:
    """All text blocks of a result, one below the other."""
    return "\n".join(_texts(result))


def _texts(result: Mapping[str, Any]) -> list[str]:
    content = result.get("content")
    blocks = cast(list[Any], content) if isinstance(content, list) else []
    found = (cast(dict[str, Any], b).get("text") for b in blocks if isinstance(b, dict))
    return [text for text in found if isinstance(text, str)]


def _json_of(result: Mapping[str, Any]) -> Any:
    for text in _texts(result)[:1]:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return None
    return None


def _along(value: Any, path: list[str]) -> Any:
    for name in path:
        if isinstance(value, dict):
            value = cast(dict[str, Any], value).get(name)
        elif isinstance(value, list) and name.isdecimal() and name.isascii():
            items, number = cast(list[Any], value), int(name)
            value = items[number] if number < len(items) else None
        else:
            return None
    return value


def _single(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else None


def _pattern(text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    if pattern.groups != 1:
        raise ValueError("the regular expression needs one group, around what is looked for")
    return pattern
