"""A tool's arguments out of words: `key=value` by the type that the tool's schema gives the key."""

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ....domain import errors

Json = dict[str, Any]

_TRIED = ("null", "boolean", "integer", "number", "array", "object", "string")  # the narrow first
_REFERENCES_MAX = 16


def json_object(given: str, option: str) -> Json:
    """A JSON object from an option's text or, after `@`, from that file.

    Raises ConfigurationError.
    """
    text = given
    if given.startswith("@"):
        try:
            text = Path(given[1:]).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise errors.ConfigurationError(f"{option}: cannot read {given[1:]}: {error}") from None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.ConfigurationError(f"{option} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise errors.ConfigurationError(f"{option} must be a JSON object")
    return cast(Json, value)


def pairs_of(words: Sequence[str]) -> list[tuple[str, str]]:
    """The words at their first `=`. Raises ConfigurationError."""
    pairs: list[tuple[str, str]] = []
    for word in words:
        name, found, value = word.partition("=")
        if not found or not name.strip(":"):
            raise errors.ConfigurationError(f"{word!r} is no key=value")
        pairs.append((name, value))
    return pairs


def typed(pairs: Sequence[tuple[str, str]], schema: Mapping[str, Any]) -> Json:
    """The arguments. `key:=value` is JSON whatever the schema says; a list may be given in turns.

    Raises ConfigurationError for a name the tool does not take and a value of the wrong type.
    """
    properties = _mapping(schema.get("properties"))
    found: Json = {}
    for given, text in pairs:
        name = given.removesuffix(":")
        # A name that the schema does not have is a slip, unless it says that there may be others.
        if name not in properties and not schema.get("additionalProperties", not properties):
            raise errors.ConfigurationError(_unknown(name, list(properties)))
        part = _resolved(_mapping(properties.get(name)), schema)
        if given.endswith(":"):
            found[name] = _json(name, text)
        elif _is_list(text, kinds := _kinds(part, schema)):
            before = found.get(name, [])
            if not isinstance(before, list):
                raise errors.ConfigurationError(f"{name}: {text!r} follows what is no list")
            found[name] = [*cast(list[Any], before), *_items(name, text, part, schema)]
        else:
            found[name] = _value(name, text, kinds)
    return found


def missing(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    """What the tool requires and was not given."""
    return [str(name) for name in _list(schema.get("required")) if name not in arguments]


def usage(name: str, schema: Mapping[str, Any]) -> str:
    """How the tool is called, in one line."""
    required = _list(schema.get("required"))
    words = [f"outlast call {name}"]
    for key, part in _mapping(schema.get("properties")).items():
        word = f"{key}={'|'.join(_kinds(_mapping(part), schema)) or 'value'}"
        words.append(word if key in required else f"[{word}]")
    return " ".join(words)


def _is_list(text: str, kinds: Sequence[str]) -> bool:
    """Whether the text is a list or one more item of it, and nothing else that is allowed."""
    is_null = text == "null" and "null" in kinds
    return "array" in kinds and "string" not in kinds and not is_null


def _items(name: str, text: str, part: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Any]:
    if text.lstrip().startswith("["):
        return _list(_json(name, text))
    branches = [part, *(_resolved(_mapping(each), schema) for each in _branches(part))]
    items = [_mapping(each["items"]) for each in branches if "items" in each]
    return [_value(name, text, _kinds(items[0], schema) if items else [])]


def _value(name: str, text: str, kinds: Sequence[str]) -> Any:
    if not kinds:  # anything may come: what reads as JSON is meant so
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    for kind in _TRIED:
        if kind in kinds:
            try:
                return _READERS[kind](text)
            except (ValueError, RecursionError):
                continue
    raise errors.ConfigurationError(f"{name}: {text!r} is no {' or '.join(kinds)}")


def _kinds(part: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    """The JSON types that the value may have; none when the schema does not say."""
    part = _resolved(part, schema)
    kind = part.get("type")
    if isinstance(kind, str):
        return [kind]
    if isinstance(kind, list):
        return [str(each) for each in cast(list[Any], kind)]
    branches = [_kinds(_mapping(each), schema) for each in _branches(part)]
    if branches:
        return list(dict.fromkeys(each for branch in branches for each in branch))
    values = _list(part.get("enum")) or ([part["const"]] if "const" in part else [])
    if values and all(isinstance(value, str) for value in values):
        return ["string"]
    return []


def _branches(part: Mapping[str, Any]) -> list[Any]:
    return _list(part.get("anyOf")) or _list(part.get("oneOf"))


def _resolved(part: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part itself, or what it refers to inside the same schema; nothing is fetched."""
    for _ in range(_REFERENCES_MAX):
        reference = part.get("$ref")
        if not isinstance(reference, str):
            return part
        target: Any = schema
        for step in reference.removeprefix("#/").split("/"):
            target = _mapping(target).get(step)
        part = _mapping(target)
    return {}


def _read_null(text: str) -> None:
    if text != "null":
        raise ValueError(text)


def _read_boolean(text: str) -> bool:
    word = text.lower()
    if word not in ("true", "false", "yes", "no"):
        raise ValueError(text)
    return word in ("true", "yes")


def _read_object(text: str) -> Json:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return cast(Json, value)


def _read_array(text: str) -> list[Any]:
    value = json.loads(text)
    if not isinstance(value, list):
        raise ValueError(text)
    return cast(list[Any], value)


def _read_number(text: str) -> int | float:
    value = json.loads(text, parse_constant=_refused)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(text)
    return value


def _refused(text: str) -> float:
    raise ValueError(text)


_READERS: Mapping[str, Any] = {
    "null": _read_null,
    "boolean": _read_boolean,
    "integer": int,
    "number": _read_number,
    "array": _read_array,
    "object": _read_object,
    "string": str,
}


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.ConfigurationError(f"{name}: {error}") from None


def _unknown(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; it takes {', '.join(known)}"
    return f"the tool takes no {name!r}{hint if known else ''}"


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []
