"""A form for people out of an elicitation, and an answer out of what they have typed.

The fields and their rules are those of `service/forms.py`; here they become controls of a page.
What was typed comes back with each error, so that nobody types anything twice.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

from ..forms import (
    EXACT_BITS_MAX,
    Field,
    Kind,
    Unfit,
    bound,
    check,
    fields_of,
    figure,
    hint,
    parse,
    written,
)
from .redaction import printable

NUMBER_CHARACTERS_MAX = 64
LINE_CHARACTERS_MAX = 200  # a text that may be longer gets a box of several lines
PREFIX = "f."  # so that no field of a server can pass for one of ours

# A browser reads these otherwise than we do, so the host that is shown might not be the one opened.
_DECEIVING = re.compile(r"[\s\\\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_INPUT_TYPES = {"email": "email", "uri": "url", "date": "date"}
_NOT_HERE = {
    "sampling/createMessage": "It asks for an answer by a language model.",
    "roots/list": "It asks for the folders of the client's own machine.",
}

Typed = Mapping[str, Sequence[str]]
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Choice:
    """One option as the page shows it; `value` is its number, for what is sent may be any JSON."""

    value: str
    title: str
    is_chosen: bool


@dataclass(frozen=True)
class Control:
    """One control of the form. `shape` says which: line, box, number, yes_no, one, some, json."""

    name: str
    shape: str
    title: str
    description: str
    hint: str
    is_required: bool
    value: str = ""
    choices: Sequence[Choice] = ()
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    error: str = ""


@dataclass(frozen=True)
class Link:
    """A URL in three parts, the host in the middle; only one that `is_safe` may be opened."""

    before: str
    host: str
    after: str
    is_safe: bool
    encoded_host: str = ""

    @property
    def url(self) -> str:
        """All of it."""
        return self.before + self.host + self.after


@dataclass(frozen=True)
class Answered:
    """What the form came to: the client's result, or an error beside each field that has one."""

    result: dict[str, Any] | None
    errors: Mapping[str, str] = field(default_factory=dict[str, str])


class Form:
    """One request to a person. `unanswerable` says why it is none, and is empty otherwise."""

    def __init__(self, request: Json) -> None:
        params = _mapping(request.get("params"))
        method = str(request.get("method"))
        self.message = str(params.get("message") or "")
        self.fields: Sequence[Field] = ()
        self.link: Link | None = None
        self.unanswerable = ""
        mode = params.get("mode") or "form"
        if method != "elicitation/create":
            self.unanswerable = _NOT_HERE.get(method, f"It is a request of the kind {method}.")
        elif mode == "url":
            self.link = link_of(printable(str(params.get("url") or "")))
        elif mode == "form":
            self.fields = fields_of(_mapping(params.get("requestedSchema")))
        else:
            self.unanswerable = f"It asks in a way that is not known here: {mode}."

    def controls(
        self, typed: Typed | None = None, errors: Mapping[str, str] | None = None
    ) -> list[Control]:
        """The controls: with what was typed if something was, else with what is proposed."""
        return [_control(each, typed, (errors or {}).get(each.name, "")) for each in self.fields]

    def accepted(self, typed: Typed) -> Answered:
        """The answer of who approves."""
        if self.link is not None:
            return Answered({"action": "accept"})
        content: dict[str, Any] = {}
        problems: dict[str, str] = {}
        for each in self.fields:
            try:
                value = _read(each, typed.get(PREFIX + each.name, ()))
            except Unfit as error:
                text = str(error)
                problems[each.name] = text[:1].upper() + text[1:]
            else:
                if value is not None:
                    content[each.name] = value[0]
        if problems:
            return Answered(None, problems)
        return Answered({"action": "accept", "content": content})


def link_of(url: str) -> Link:
    """The URL as it is shown: all of it, and which part of it is the host."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        encoded = host.encode("idna").decode("ascii") if not host.isascii() else ""
    except (ValueError, UnicodeError):
        return Link(url, "", "", is_safe=False)
    lowered = url.lower() if len(url.lower()) == len(url) else ""
    start = lowered.find(host, url.find("//") + 2 + parts.netloc.rfind("@") + 1)
    if not host or start < 0 or parts.scheme not in {"http", "https"} or _DECEIVING.search(url):
        return Link(url, "", "", is_safe=False)
    end = start + len(host)
    return Link(url[:start], url[start:end], url[end:], is_safe=True, encoded_host=encoded)


def _read(wanted: Field, texts: Sequence[str]) -> tuple[Any] | None:
    """The value in a tuple, for it may be anything; None for a field that is left out."""
    if wanted.kind is Kind.SOME_OF:
        return _read_some(wanted, texts)
    text = (texts[-1] if texts else "").replace("\r\n", "\n")
    if not text.strip():
        if wanted.is_required:
            raise Unfit("this is needed")
        return None
    if wanted.kind is Kind.ONE_OF:
        value = _option(wanted, text)
        check(wanted, value)
        return (value,)
    if wanted.kind in {Kind.NUMBER, Kind.INTEGER} and len(text) > NUMBER_CHARACTERS_MAX:
        raise Unfit("give a shorter number")
    return (parse(wanted, text),)


def _read_some(wanted: Field, texts: Sequence[str]) -> tuple[Any] | None:
    chosen = [_option(wanted, text) for text in dict.fromkeys(texts) if text]
    if not chosen and not wanted.is_required:
        return None
    check(wanted, chosen)
    return (chosen,)


def _option(wanted: Field, text: str) -> Any:
    for number, option in enumerate(wanted.options):
        if text == str(number):
            return option.value
    raise Unfit("give one of the choices")


_SHAPES = {
    Kind.NUMBER: "number",
    Kind.INTEGER: "number",
    Kind.YES_NO: "yes_no",
    Kind.ONE_OF: "one",
    Kind.SOME_OF: "some",
    Kind.OTHER: "json",
}


def _control(wanted: Field, typed: Typed | None, error: str) -> Control:
    texts = _proposed(wanted) if typed is None else list(typed.get(PREFIX + wanted.name, ()))
    shape = _SHAPES.get(wanted.kind) or _shape_of_text(wanted, texts)
    choices = [
        Choice(str(number), printable(option.title), str(number) in texts)
        for number, option in enumerate(wanted.options)
    ]
    if shape == "yes_no":
        choices = [Choice(word, word.title(), word in texts) for word in ("yes", "no")]
    return Control(
        name=PREFIX + wanted.name,
        shape=shape,
        title=printable(wanted.title),
        description=printable(wanted.description),
        hint=printable(_hint(wanted, shape)),
        is_required=wanted.is_required,
        value="" if choices or not texts else printable(texts[-1]),
        choices=choices,
        attributes=_attributes(wanted, shape),
        error=error,
    )


def _shape_of_text(wanted: Field, texts: Sequence[str]) -> str:
    if any("\n" in text or "\r" in text for text in texts):
        return "box"  # a browser takes the ends of lines out of what stands in a line
    longest = bound(wanted, "maxLength")
    is_long = longest is not None and longest > LINE_CHARACTERS_MAX
    return "box" if is_long and not wanted.schema.get("format") else "line"


def _proposed(wanted: Field) -> list[str]:
    if not wanted.has_default:
        return []
    default = wanted.default
    if wanted.options:
        given = cast(list[Any], default) if wanted.kind is Kind.SOME_OF else [default]
        return [str(n) for n, option in enumerate(wanted.options) if option.value in given]
    return [written(wanted, default)]


def _hint(wanted: Field, shape: str) -> str:
    if shape == "some":
        low, high = bound(wanted, "minItems"), bound(wanted, "maxItems")
        words = [
            f"at least {figure(low)}" if low else "",
            f"at most {figure(high)}" if high else "",
        ]
        return ", ".join(filter(None, words))
    if shape in {"one", "yes_no"}:
        return ""
    if wanted.schema.get("format") == "date-time":
        return "with its time zone, like 2026-07-28T12:00:00Z"
    told = hint(wanted)
    return "" if told == "text" else told


def _attributes(wanted: Field, shape: str) -> dict[str, str]:
    """What helps a browser to check early; the server checks all of it again."""
    schema, told = wanted.schema, dict[str, str]()
    if shape == "line":
        told["type"] = _INPUT_TYPES.get(str(schema.get("format")), "text")
    if shape == "number":
        told["type"], told["step"] = "number", "1" if wanted.kind is Kind.INTEGER else "any"
        names = {"minimum": "min", "maximum": "max"}
    else:
        names = {"minLength": "minlength", "maxLength": "maxlength"}
    if shape in {"line", "box", "number"}:
        for name, attribute in names.items():
            limit = bound(wanted, name)
            if limit is not None and _is_for_browsers(limit):
                told[attribute] = figure(limit)
    return told


def _is_for_browsers(limit: float) -> bool:
    """Whether a browser knows such a number."""
    if isinstance(limit, float):
        return math.isfinite(limit)
    return limit.bit_length() <= EXACT_BITS_MAX


def _mapping(value: Any) -> Json:
    return cast(Json, value) if isinstance(value, Mapping) else {}
