"""The text of `outlast.toml`, and the words for what is wrong in it: the line and the reason."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from ..domain import errors
from . import variables

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Source:
    """The text, for naming the line of a mistake: the TOML parser keeps no positions."""

    text: str
    name: str
    environment: Mapping[str, str] | None = field(default=None, repr=False)

    def model(self, model: type[M], where: tuple[str, ...], table: Any) -> M:
        """The table as this model. Raises ConfigurationError."""
        try:
            return model.model_validate(table)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = where + tuple(str(part) for part in first["loc"])
            owner = _model_of(model, first["loc"][:-1])
            raise self.mistake(path, _reason(first["type"], first["msg"], owner)) from error

    def filled(self, where: Sequence[str], value: str) -> str:
        """The value with what it names of the environment in it."""
        if self.environment is None:
            return value
        try:
            return variables.filled(value, self.environment)
        except variables.NotThere as error:
            raise self.mistake(where, str(error)) from None

    def mistake(self, where: Sequence[str], reason: str) -> errors.ConfigurationError:
        """What to raise for what is wrong there."""
        line = self._line_of(where)
        return errors.ConfigurationError(f"{self.name}:{line}: {'.'.join(where)}: {reason}")

    def _line_of(self, where: Sequence[str]) -> int:
        """The line of the longest part of `where` that stands in the text; 1 when none does."""
        best, depth = 1, 0
        table: tuple[str, ...] = ()
        counts: dict[tuple[str, ...], int] = {}
        for number, line in enumerate(self.text.splitlines(), 1):
            header = re.match(r"^\s*\[+\s*([^\]]+?)\s*\]+", line)
            key = re.match(r"^\s*([A-Za-z0-9_.\"'-]+)\s*=", line)
            if header:
                table = _parts(header[1])
                if line.lstrip().startswith("[["):  # one more of an array: it goes by its number
                    counts[table] = counts.get(table, -1) + 1
                    table = (*table, str(counts[table]))
                path = table
            elif key:
                path = table + _parts(key[1])
            else:
                continue
            shared = _shared(path, where)
            if shared == len(path) and shared > depth:
                best, depth = number, shared
        return best


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(
        part.strip().strip("\"'") for part in re.findall(r'"[^"]*"|\'[^\']*\'|[^.]+', dotted)
    )


def _shared(path: Sequence[str], where: Sequence[str]) -> int:
    count = 0
    for mine, theirs in zip(path, where, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def _model_of(model: type[BaseModel], where: Sequence[str | int]) -> type[BaseModel]:
    """The model of the table in which a mistake is, as far as it is a table of its own."""
    for part in where:
        known = model.model_fields.get(str(part))
        choices = () if known is None else (known.annotation, *get_args(known.annotation))
        inner = (c for c in choices if isinstance(c, type) and issubclass(c, BaseModel))
        model = next(inner, model)
    return model


def _reason(kind: str, message: str, model: type[BaseModel]) -> str:
    if kind == "model_type":
        return "must be a table"
    if kind == "extra_forbidden":
        return f"unknown setting; there are {', '.join(model.model_fields)}"
    return message.removeprefix("Value error, ")
