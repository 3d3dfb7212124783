"""`outlast.toml`: parsed once at start; a mistake is named with its line and its reason."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..domain import errors
from .policy import Duration, Policies, Policy
from .settings import Fields

M = TypeVar("M", bound=BaseModel)

_SECTIONS = ("server", "upstreams", "defaults", "tools", "events")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Upstream(BaseModel):
    """One server to stand in front of: a command to run, or the URL of its MCP endpoint."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: list[str] | None = Field(default=None, min_length=1)
    url: str | None = Field(default=None, pattern=r"^https?://")
    era: Literal["auto", "modern", "legacy"] = "auto"
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_way(self) -> "Upstream":
        if (self.command is None) == (self.url is None):
            raise ValueError("give either command or url")
        if self.command is None and (self.env or self.cwd is not None):
            raise ValueError("env and cwd go with command")
        if self.url is None and self.headers:
            raise ValueError("headers go with url")
        return self


class Events(BaseModel):
    """The Triggers & Events draft, and webhooks. Lengths of time are in milliseconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = True
    webhooks: bool = True
    # Webhooks to loopback, over plain http and on any port, and for the local owner.
    development: bool = False
    ports: list[Annotated[int, Field(ge=1, le=65535)]] = [443]
    ca_file: Path | None = None  # trusted beside the system's authorities
    subscriptions_per_owner: int = Field(default=1_000, ge=1)
    ttl: Annotated[Duration, Field(ge=60_000)] = 86_400_000
    ttl_max: Annotated[Duration, Field(ge=60_000)] = 30 * 86_400_000


@dataclass(frozen=True)
class Config:
    """What the file says. `server` is raw: `settings.py` merges it with environment and flags."""

    upstreams: Mapping[str, Upstream]
    policies: Policies
    server: Mapping[str, Any] = field(default_factory=dict[str, Any])
    events: Events = field(default_factory=Events)


def read(path: Path) -> Config:
    """The configuration in a file. Raises ConfigurationError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise errors.ConfigurationError(f"cannot read {path}: {error}") from error
    return parse(text, str(path))


def parse(text: str, name: str) -> Config:
    """The configuration in a text; `name` stands in messages. Raises ConfigurationError."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise errors.ConfigurationError(f"{name}: {error}") from error
    source = _Source(text, name)
    for section, content in raw.items():
        if section not in _SECTIONS:
            raise source.mistake((section,), f"unknown section; there are {', '.join(_SECTIONS)}")
        if not isinstance(content, dict):
            raise source.mistake((section,), f"must be a table: [{section}]")
    source.model(Fields, ("server",), raw.get("server", {}))
    defaults = source.model(Policy, ("defaults",), raw.get("defaults", {}))
    tools = {
        tool: _overlay(source, defaults, ("tools", tool), table)
        for tool, table in cast(dict[str, Any], raw.get("tools", {})).items()
    }
    upstreams = {
        upstream: _upstream(source, upstream, table)
        for upstream, table in cast(dict[str, Any], raw.get("upstreams", {})).items()
    }
    events = source.model(Events, ("events",), raw.get("events", {}))
    return Config(upstreams, Policies(defaults, tools), raw.get("server", {}), events)


def _overlay(source: "_Source", defaults: Policy, where: tuple[str, ...], table: Any) -> Policy:
    own = source.model(Policy, where, table)
    return defaults.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})


def _upstream(source: "_Source", name: str, table: Any) -> Upstream:
    if not _NAME.fullmatch(name):
        raise source.mistake(("upstreams", name), "a name has 1 to 64 letters, digits, - or _")
    return source.model(Upstream, ("upstreams", name), table)


@dataclass(frozen=True)
class _Source:
    """The text, for naming the line of a mistake: the TOML parser keeps no positions."""

    text: str
    name: str

    def model(self, model: type[M], where: tuple[str, ...], table: Any) -> M:
        try:
            return model.model_validate(table)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = where + tuple(str(part) for part in first["loc"])
            raise self.mistake(path, _reason(first["type"], first["msg"], model)) from error

    def mistake(self, where: Sequence[str], reason: str) -> errors.ConfigurationError:
        line = self._line_of(where)
        return errors.ConfigurationError(f"{self.name}:{line}: {'.'.join(where)}: {reason}")

    def _line_of(self, where: Sequence[str]) -> int:
        """The line of the longest part of `where` that stands in the text; 1 when none does."""
        best, depth = 1, 0
        table: tuple[str, ...] = ()
        for number, line in enumerate(self.text.splitlines(), 1):
            header = re.match(r"^\s*\[+\s*([^\]]+?)\s*\]+", line)
            key = re.match(r"^\s*([A-Za-z0-9_.\"'-]+)\s*=", line)
            if header:
                table = _parts(header[1])
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


def _reason(kind: str, message: str, model: type[BaseModel]) -> str:
    if kind == "model_type":
        return "must be a table"
    if kind == "extra_forbidden":
        return f"unknown setting; there are {', '.join(model.model_fields)}"
    return message.removeprefix("Value error, ")
