"""docs/configuration.md, made from the models that read the configuration: `make docs`."""

import enum
import json
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin

import annotated_types
from pydantic import AfterValidator, BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from outlast.ops.reference.words import SECTIONS, WORDS
from outlast.service import config, policy, secret_files, settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
# Any other section is the class of its name in `service/config.py`.
MODELS: Mapping[str, type[BaseModel]] = {
    "server": settings.Fields,
    "upstreams": config.Upstream,
    "defaults": policy.Policy,
    "tools": policy.Policy,
    "quotas": config.Limits,
}
NAMED = ("upstreams", "tools")  # tables of tables, by names of the operator's
PLAIN = {str: "text", int: "whole number", float: "number", bool: "boolean", Path: "path"}
WRITTEN = {
    policy.milliseconds: "duration",
    get_args(policy.Limit)[1].func: 'duration or `"unlimited"`',
    config._count: 'count or `"unlimited"`',
    config._size: 'size or `"unlimited"`',
    policy._place_or_number: "place or number",
    policy._place: "place",
}
UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
HEAD = """# Configuration

Made by `make docs` from the code that reads the settings; a test holds the two together. The file
is TOML, given with `--config`, and checked at start: a mistake is named with its line. What is not
set has its default, so a file with one upstream is enough.

Durations are written like `"250ms"`, `"2s"`, `"30m"`, `"24h"`, `"7d"`; sizes in bytes or like
`"512MiB"`, `"1GiB"`.
"""


class Unexplained(Exception):
    """A setting, or a section, that nothing explains."""


def page() -> str:
    """The whole text. Raises Unexplained."""
    parts = [HEAD]
    for name in config._SECTIONS:
        model = MODELS.get(name) or getattr(config, name.capitalize())
        parts.extend(_section(f"{name}.NAME" if name in NAMED else name, model))
    parts.append(_files())
    return "\n".join(parts)


def _section(where: str, model: type[BaseModel]) -> Iterator[str]:
    is_list = where == "identity.issuers"
    heading = f"[[{where}]]" if is_list else f"[{where}]"
    if where not in SECTIONS:
        raise Unexplained(f"ops/reference/words.py has no words for the section {where}")
    yield f"## `{heading}`\n\n{SECTIONS[where]}\n"
    has_variables = model is settings.Fields
    columns = ["setting", *(["variable"] if has_variables else []), "type", "default", "meaning"]
    rows = [columns, ["---"] * len(columns)]
    fields = model.model_fields
    names = (
        ["bridge"]
        if where == "tools.NAME"
        else [n for n in fields if where != "defaults" or n != "bridge"]
    )
    for name in names:
        variable = [f"`OUTLAST_{name.upper()}`"] if has_variables else []
        field = fields[name]
        meaning = _meaning(where, name, field)
        rows.append([f"`{name}`", *variable, _type(field), _default(field), meaning])
    yield "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"
    for name in names:
        inner = _model_in(fields[name].annotation)
        if inner is not None:
            yield from _section(f"{where}.{name}", inner)


def _meaning(where: str, name: str, field: FieldInfo) -> str:
    words = field.description or WORDS.get(f"{where}.{name}")
    if not words:
        raise Unexplained(f"{where}.{name} has no description")
    return words.replace("|", "\\|")


def _model_in(annotation: Any) -> type[BaseModel] | None:
    for one in (annotation, *get_args(annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None


def _notation(field: FieldInfo) -> str | None:
    for part in field.metadata:
        if isinstance(part, BeforeValidator | AfterValidator) and part.func in WRITTEN:
            return WRITTEN[part.func]
    return None


def _type(field: FieldInfo) -> str:
    return (_notation(field) or _named(field.annotation)) + _bounds(field)


def _named(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_named(one) for one in inner if one is not type(None))
    if origin in (list, tuple):
        words = "table" if _model_in(inner[0]) else _named(_bare(inner[0]))
        return f"list of {words if words.startswith('`') else words + 's'}"
    if origin is dict:
        return "table of texts"
    if _model_in(annotation):
        return "table"
    words = _choices(annotation)
    return ", ".join(f'`"{one}"`' for one in words) if words else PLAIN[_bare(annotation)]


def _choices(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    is_choice = isinstance(annotation, type) and issubclass(annotation, enum.StrEnum)
    return [one.value for one in annotation] if is_choice else []


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if hasattr(annotation, "__metadata__") else annotation


def _bounds(field: FieldInfo) -> str:
    least = most = ""
    is_duration = "duration" in (_notation(field) or "")
    for part in field.metadata:
        if isinstance(part, annotated_types.Ge):
            least = f" from {_number(part.ge, is_duration)}"
        elif isinstance(part, annotated_types.Gt):
            least = f" above {_number(part.gt, is_duration)}"
        elif isinstance(part, annotated_types.Le):
            most = f" to {_number(part.le, is_duration)}"
        elif isinstance(part, annotated_types.MinLen) and cast(int, part.min_length) > 1:
            least = f", {part.min_length} characters or more"
    return least + most


def _number(value: Any, is_duration: bool) -> str:
    return _length(value) if is_duration else f"{value:.0f}" if value % 1 == 0 else f"{value}"


def _length(milliseconds: int) -> str:
    for unit, size in UNITS:
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    raise AssertionError(milliseconds)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value, notation = field.get_default(call_default_factory=True), _notation(field) or ""
    if value is None or value == {}:
        return '`"unlimited"`' if "unlimited" in notation else ""
    if "duration" in notation:
        value = _length(value)
    elif isinstance(value, Path | enum.Enum):
        value = str(value)
    return f"`{json.dumps(value)}`"


def _files() -> str:
    names = "\n".join(f"- `{secret_files.variable_of(name)}`" for name in secret_files.NAMES)
    return (
        "## Secrets in files\n\n"
        "A file whose content is the setting, without the line break at its end. It wins over the\n"
        "configuration's `[server]`; with the variable of the setting itself it is refused.\n\n"
        f"{names}\n"
    )


def main() -> int:
    """Write the page; with `--check`, say whether it is as it should be."""
    text = page()
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
