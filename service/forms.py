"""An elicitation's form: its fields out of the requested schema, and values out of typed text.

Nothing is asked here: the command line does that in `prompts`, the console by a page. What a schema
says beyond the specification's subset is left to the server, patterns among it: one that never ends
could hang whoever fills in the form.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from typing import Any, cast
from urllib.parse import urlsplit

Json = Mapping[str, Any]

YES, NO = frozenset({"y", "yes", "true", "1", "on"}), frozenset({"n", "no", "false", "0", "off"})
EXACT_BITS_MAX = 256  # a number of more is told by how many digits it has
EXACT_FLOAT_MAX = 2**53  # beyond, not every whole number is a float
_EMAIL = re.compile(r"[^\s@]+@[^\s@]+\.?[^\s@]+")


class Kind(Enum):
    """How a field is filled in."""

    TEXT = "text"
    NUMBER = "number"
    INTEGER = "integer"
    YES_NO = "yes or no"
    ONE_OF = "one of"
    SOME_OF = "some of"
    OTHER = "JSON"


class Unfit(ValueError):
    """The text is no value of this field; says what is wanted."""


@dataclass(frozen=True)
class Option:
    """One choice: what is sent, and what a person reads."""

    value: Any
    title: str


@dataclass(frozen=True)
class Field:
    """One entry of a form. `schema` is its part of the requested schema, the null taken out."""

    name: str
    kind: Kind
    is_required: bool
    schema: Json
    options: Sequence[Option] = ()

    @property
    def title(self) -> str:
        """What a person calls it."""
        return str(self.schema.get("title") or self.name)

    @property
    def description(self) -> str:
        """What it is for."""
        return str(self.schema.get("description") or "")

    @property
    def has_default(self) -> bool:
        """Whether the server proposes a value that fits its own rules."""
        if self.schema.get("default") is None:
            return False
        try:
            check(self, self.schema["default"])
        except Unfit:
            return False
        return True

    @property
    def default(self) -> Any:
        """The value that the server proposes."""
        return self.schema.get("default")


def fields_of(requested: Json) -> list[Field]:
    """The fields, in the order in which the server wrote them."""
    properties = _mapping(requested.get("properties"))
    required = requested.get("required")
    names = cast(list[Any], required) if isinstance(required, list) else []
    return [_field(name, _mapping(part), name in names) for name, part in properties.items()]


def parse(field: Field, text: str) -> Any:
    """The value that the text stands for. Raises Unfit."""
    value = _READERS[field.kind](field, text)
    check(field, value)
    return value


def check(field: Field, value: Any) -> None:
    """Raises Unfit unless the value is one that the field's schema allows."""
    _CHECKS.get(field.kind, _accept)(field, value)


def content_of(fields: Sequence[Field], given: Mapping[str, str]) -> dict[str, Any]:
    """The form filled in from texts by name, proposals where there is none. Raises Unfit."""
    known = {field.name: field for field in fields}
    strange = [name for name in given if name not in known]
    if strange:
        raise Unfit(f"the form has no {strange[0]!r}; it has {', '.join(known) or 'no fields'}")
    content: dict[str, Any] = {}
    for field in fields:
        if field.name in given:
            try:
                content[field.name] = parse(field, given[field.name])
            except Unfit as error:
                raise Unfit(f"{field.name}: {error}") from None
        elif field.has_default:
            content[field.name] = field.default
        elif field.is_required:
            raise Unfit(f"{field.name} is missing: {hint(field)}")
    return content


def hint(field: Field) -> str:
    """What may be given, in a few words."""
    if field.kind in (Kind.ONE_OF, Kind.SOME_OF):
        return f"{field.kind.value} {', '.join(str(option.value) for option in field.options)}"
    words = [str(field.schema.get("format") or field.kind.value)]
    for names, unit in ((("minimum", "maximum"), ""), (("minLength", "maxLength"), " characters")):
        low, high = (bound(field, name) for name in names)
        if low is not None and high is not None:
            words.append(f"{figure(low)} to {figure(high)}{unit}")
        elif low is not None:
            words.append(f"at least {figure(low)}{unit}")
        elif high is not None:
            words.append(f"at most {figure(high)}{unit}")
    return ", ".join(words)


def bound(field: Field, name: str) -> int | float | None:
    """What the schema says of `minimum`, `maxLength` and their like, and whole for what is counted.

    None where it says nothing that is a number.
    """
    value = field.schema.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and math.isnan(value):  # it cannot be asked of a large integer
        return None
    if field.kind is Kind.NUMBER or isinstance(value, int) or math.isinf(value):
        return value
    return math.ceil(value) if name.startswith("min") else math.floor(value)


def figure(number: float) -> str:
    """A bound as a person reads it, to its last digit unless nobody would read so many."""
    if isinstance(number, float):
        is_whole = number.is_integer() and abs(number) < EXACT_FLOAT_MAX
        return str(int(number)) if is_whole else str(number)
    if number.bit_length() <= EXACT_BITS_MAX:
        return str(number)
    digits = int(number.bit_length() * math.log10(2)) + 1
    return f"a {'negative ' if number < 0 else ''}number of {digits} digits"


def written(field: Field, value: Any) -> str:
    """The value as a person would type it: what `parse` reads back."""
    if field.kind is Kind.YES_NO:
        return "yes" if value else "no"
    if field.kind is Kind.SOME_OF:
        return ", ".join(str(each) for each in _list(value))
    if field.kind is Kind.INTEGER and isinstance(value, float):
        value = int(value)  # 5.0 is proposed, and only 5 is read
    return value if isinstance(value, str) else json.dumps(value)


def _field(name: str, part: Json, is_required: bool) -> Field:
    schema = _without_null(part)
    kind = schema.get("type")
    if kind == "array":
        options = _options(_mapping(schema.get("items")))
        return Field(name, Kind.SOME_OF if options else Kind.OTHER, is_required, schema, options)
    if options := _options(schema):
        return Field(name, Kind.ONE_OF, is_required, schema, options)
    kinds = {
        "string": Kind.TEXT,
        "number": Kind.NUMBER,
        "integer": Kind.INTEGER,
        "boolean": Kind.YES_NO,
    }
    return Field(name, kinds.get(str(kind), Kind.OTHER), is_required, schema)


def _without_null(part: Json) -> Json:
    """An optional value is often written as this or null; leaving a field out says the same."""
    kinds = part.get("type")
    if isinstance(kinds, list):
        real = [kind for kind in cast(list[Any], kinds) if kind != "null"]
        return {**part, "type": real[0] if real else "null"}
    branches = [_mapping(each) for each in _list(part.get("anyOf"))]
    real = [each for each in branches if each.get("type") != "null"]
    if len(real) == 1 and "const" not in real[0]:
        return {**{k: v for k, v in part.items() if k != "anyOf"}, **real[0]}
    return part


def _options(schema: Json) -> list[Option]:
    titled = [_mapping(each) for each in _list(schema.get("oneOf") or schema.get("anyOf"))]
    if titled and all("const" in each for each in titled):
        return [Option(each["const"], str(each.get("title", each["const"]))) for each in titled]
    values, names = _list(schema.get("enum")), _list(schema.get("enumNames"))
    titles = names if len(names) == len(values) else values
    return [Option(value, str(title)) for value, title in zip(values, titles, strict=True)]


def _read_number(field: Field, text: str) -> int | float:
    try:
        return int(text) if field.kind is Kind.INTEGER else _number(text)
    except ValueError:
        wanted = "a whole number" if field.kind is Kind.INTEGER else "a number"
        raise Unfit(f"{text!r} is not {wanted}") from None


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _read_yes_no(_field: Field, text: str) -> bool:
    word = text.strip().lower()
    if word not in YES | NO:
        raise Unfit("answer yes or no")
    return word in YES


def _read_one(field: Field, text: str) -> Any:
    wanted = text.strip()
    for option in field.options:
        if wanted in (str(option.value), option.title):
            return option.value
    for option in field.options:
        if wanted.lower() in (str(option.value).lower(), option.title.lower()):
            return option.value
    if wanted.isdecimal() and 1 <= int(wanted) <= len(field.options):
        return field.options[int(wanted) - 1].value
    raise Unfit(f"{wanted!r} is none of the choices")


def _read_some(field: Field, text: str) -> list[Any]:
    chosen: list[Any] = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        value = _read_one(field, part)
        if value not in chosen:
            chosen.append(value)
    return chosen


def _read_json(_field: Field, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Unfit("give it as JSON") from None


def _read_text(_field: Field, text: str) -> str:
    return text


_READERS = {
    Kind.TEXT: _read_text,
    Kind.NUMBER: _read_number,
    Kind.INTEGER: _read_number,
    Kind.YES_NO: _read_yes_no,
    Kind.ONE_OF: _read_one,
    Kind.SOME_OF: _read_some,
    Kind.OTHER: _read_json,
}


def _check_some(field: Field, value: Any) -> None:
    if not isinstance(value, list) or not all(_is_offered(field, v) for v in _list(value)):
        raise Unfit("give some of the choices")
    _within(len(_list(value)), field, ("minItems", "maxItems"), "choices")


def _check_one(field: Field, value: Any) -> None:
    if not _is_offered(field, value):
        raise Unfit("give one of the choices")


def _check_text(field: Field, value: Any) -> None:
    if not isinstance(value, str):
        raise Unfit("give a text")
    _within(len(value), field, ("minLength", "maxLength"), "characters")
    _well_formed(value, field.schema.get("format"))


def _check_yes_no(_field: Field, value: Any) -> None:
    if not isinstance(value, bool):
        raise Unfit("answer yes or no")


def _accept(_field: Field, _value: Any) -> None:
    """What has no rules of ours is for the server to judge."""


def _check_number(field: Field, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unfit("give a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise Unfit("give a number")
    if field.kind is Kind.INTEGER and value != int(value):
        raise Unfit("give a whole number")
    _within(value, field, ("minimum", "maximum"), "")


def _within(measure: float, field: Field, bounds: tuple[str, str], unit: str) -> None:
    low, high = (bound(field, name) for name in bounds)
    if low is not None and measure < low:
        raise Unfit(f"give at least {figure(low)} {unit}".rstrip())
    if high is not None and measure > high:
        raise Unfit(f"give at most {figure(high)} {unit}".rstrip())


def _well_formed(text: str, form: Any) -> None:
    if form == "email" and not _EMAIL.fullmatch(text):
        raise Unfit("give an e-mail address, like ada@example.org")
    try:
        if form == "uri" and not (urlsplit(text).scheme and not re.search(r"\s", text)):
            raise Unfit("give a URL with its scheme, like https://example.org/")
        if form == "date":
            date.fromisoformat(text)
        elif form == "date-time" and datetime.fromisoformat(text).tzinfo is None:
            raise Unfit("give the time zone too, like 2026-07-28T12:00:00Z")
    except Unfit:
        raise
    except ValueError:
        like = {"date": "2026-07-28", "date-time": "2026-07-28T12:00:00Z"}.get(str(form), "a URL")
        raise Unfit(f"give a {form}, like {like}") from None


def _is_offered(field: Field, value: Any) -> bool:
    return any(value == option.value for option in field.options)


def _mapping(value: Any) -> Json:
    return cast(Json, value) if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


_CHECKS = {
    Kind.SOME_OF: _check_some,
    Kind.ONE_OF: _check_one,
    Kind.TEXT: _check_text,
    Kind.NUMBER: _check_number,
    Kind.INTEGER: _check_number,
    Kind.YES_NO: _check_yes_no,
}
