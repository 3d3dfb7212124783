"""`outlast.toml`: parsed once at start; a mistake is named with its line and its reason."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from ..domain import errors
from ..domain.quotas import Quotas
from .config_source import Source
from .policy import Duration, Policies, Policy, Run
from .settings import LOOPBACK_HOSTS, Fields

_SECTIONS = (
    "server",
    "upstreams",
    "defaults",
    "tools",
    "events",
    "identity",
    "quotas",
    "console",
)
_ALWAYS_TASKS = (Run.TASK, Run.TASK_ONLY)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Upstream(BaseModel):
    """One server to stand in front of: a command to run, or the URL of its MCP endpoint.

    `${NAME}` in a value of `env` or `headers` is that variable of our own environment.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: list[str] | None = Field(default=None, min_length=1)
    url: str | None = Field(default=None, pattern=r"^https?://")
    era: Literal["auto", "modern", "legacy"] = "auto"
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    cwd: str | None = None
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    tasks: bool | None = None  # whether it may make tasks of its own; default: see below

    @property
    def makes_tasks(self) -> bool:
        """Every process of ours has a process of its own of a `command`, which need not know the
        tasks of another: so only what has a URL does, unless it is said."""
        return self.url is not None if self.tasks is None else self.tasks

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
    subscriptions: int = Field(default=100_000, ge=1)  # of all owners together
    ttl: Annotated[Duration, Field(ge=60_000)] = 86_400_000
    ttl_max: Annotated[Duration, Field(ge=60_000)] = 30 * 86_400_000


Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
_SCOPE_TEXT = r"^[\x21\x23-\x5B\x5D-\x7E]*$"  # what a scope may be made of (RFC 6749, 3.3)


def _secured(url: str) -> str:
    """Raises ValueError for a URL on whose way somebody else could answer."""
    parts = urlsplit(url)
    if parts.username is not None or parts.fragment or not parts.hostname:
        raise ValueError("must be a URL without a user name and a fragment")
    if parts.scheme != "https" and (parts.scheme, parts.hostname in LOOPBACK_HOSTS) != (
        "http",
        True,
    ):
        raise ValueError("must begin with https://; plain http is for loopback alone")
    return url


SecuredUrl = Annotated[str, AfterValidator(_secured)]


class Issuer(BaseModel):
    """An OAuth authorization server whose access tokens are accepted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: SecuredUrl  # compared as it is written, to the letter
    jwks_url: SecuredUrl | None = None  # default: discovered from the issuer's metadata
    audience: list[str] = Field(default_factory=list)  # default: the resource
    algorithms: list[Algorithm] = Field(default=["RS256", "PS256", "ES256", "EdDSA"], min_length=1)
    client_claim: str | None = Field(default=None, min_length=1)  # default: client_id, then azp
    ca_file: Path | None = None  # trusted beside the system's authorities

    @field_validator("audience", mode="before")
    @classmethod
    def _one_or_more(cls, given: Any) -> Any:
        return [given] if isinstance(given, str) else given


class Identity(BaseModel):
    """This service as an OAuth resource, and the issuers whose tokens open it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    resource: str | None = Field(default=None, pattern=r"^https?://[^/?#\s]+(/[^?#\s]*)?$")
    scope_prefix: str = Field(default="outlast:", pattern=_SCOPE_TEXT)
    issuers: list[Issuer] = Field(default_factory=list[Issuer])

    @model_validator(mode="after")
    def _complete(self) -> "Identity":
        names = [one.issuer for one in self.issuers]
        if names and self.resource is None:
            raise ValueError("issuers need resource: the URL by which clients name this service")
        if len(set(names)) < len(names):
            raise ValueError("an issuer is listed twice")
        return self


class SignInIssuer(BaseModel):
    """The issuer by which people sign in to the console."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: SecuredUrl = Field(description="one of `[[identity.issuers]]`, to the letter")
    client_id: str = Field(min_length=1, description="what the issuer knows this console as")
    client_secret: str | None = Field(
        default=None,
        min_length=1,
        repr=False,
        description="its secret, as `${NAME}` of the environment; default: a public client",
    )
    redirect_uri: SecuredUrl | None = Field(
        default=None,
        description="default: `/console/sign-in/oidc/callback` on the host of `identity.resource`",
    )
    scopes: list[Annotated[str, Field(pattern=_SCOPE_TEXT)]] = Field(
        default=[],
        description="scopes to ask for; default: all of this service, with `scope_prefix`",
    )


class Console(BaseModel):
    """Pages for people."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(default=True, description="serve the console at `/console`")
    session: Annotated[Duration, Field(ge=60_000, le=8 * 3_600_000)] = Field(
        default=8 * 3_600_000,
        description="how long somebody stays signed in, if the token does not end earlier",
    )
    redact: list[str] = Field(
        default=[],
        description="names, or paths with dots, of values that are hidden beside the usual ones",
    )
    oidc: SignInIssuer | None = Field(default=None, description="the table below")


def _count(value: Any) -> Any:
    if value == "unlimited":
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError('must be a whole number from 1 on, or "unlimited"')
    return value


def _size(value: Any) -> Any:
    match = re.fullmatch(r"(\d{1,6})(KiB|MiB|GiB|TiB)", value) if isinstance(value, str) else None
    if match is not None and int(match[1]):
        return int(match[1]) * 1024 ** (1 + ("KiB", "MiB", "GiB", "TiB").index(match[2]))
    try:
        return _count(value)
    except ValueError:
        raise ValueError('must be bytes, a size like "512MiB" or "1GiB", or "unlimited"') from None


Count = Annotated[int | None, BeforeValidator(_count)]
Size = Annotated[int | None, BeforeValidator(_size)]


class Limits(BaseModel):
    """What owners may have and how fast they may ask. Rates count in each `serve` for itself.

    None is "unlimited". `polls_per_minute` is of one task, and never less than its pace needs.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tasks_per_owner: Count = 100_000
    working_per_owner: Count = 1_000
    parked_per_owner: Count = 10_000
    bytes_per_owner: Size = 1024**3
    tasks: Count = None
    working: Count = None
    parked: Count = None
    bytes: Size = None
    running_per_owner: Count = None
    calls_per_minute: Count = 60_000
    calls_per_minute_in_all: Count = None
    polls_per_minute: Count = 1_200

    @property
    def quotas(self) -> Quotas:
        """Those that the store holds."""
        return Quotas(**{each.name: getattr(self, each.name) for each in fields(Quotas)})


@dataclass(frozen=True)
class Config:
    """What the file says. `server` is raw: `settings.py` merges it with environment and flags."""

    upstreams: Mapping[str, Upstream]
    policies: Policies
    server: Mapping[str, Any] = field(default_factory=dict[str, Any])
    events: Events = field(default_factory=Events)
    identity: Identity = field(default_factory=Identity)
    limits: Limits = field(default_factory=Limits)
    console: Console = field(default_factory=Console)

    @property
    def polls_per_minute(self) -> int | None:
        """At least twice what a client makes that keeps to the shortest interval."""
        most = self.limits.polls_per_minute
        return None if most is None else max(most, 2 * 60_000 // self.policies.poll_interval_min)


def read(path: Path, environment: Mapping[str, str] | None = None) -> Config:
    """The configuration in a file. Raises ConfigurationError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise errors.ConfigurationError(f"cannot read {path}: {error}") from error
    return parse(text, str(path), environment)


def parse(text: str, name: str, environment: Mapping[str, str] | None = None) -> Config:
    """The configuration in a text; `name` stands in messages. Raises ConfigurationError.

    Variables are filled in from `environment`. Without it they stay: who reaches no upstream needs
    none of its secrets.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise errors.ConfigurationError(f"{name}: {error}") from error
    source = Source(text, name, environment)
    for section, content in raw.items():
        if section not in _SECTIONS:
            raise source.mistake((section,), f"unknown section; there are {', '.join(_SECTIONS)}")
        if not isinstance(content, dict):
            raise source.mistake((section,), f"must be a table: [{section}]")
    source.model(Fields, ("server",), raw.get("server", {}))
    defaults = source.model(Policy, ("defaults",), raw.get("defaults", {}))
    if defaults.bridge is not None:
        raise source.mistake(("defaults", "bridge"), "a bridge belongs to one tool")
    tools = {
        tool: _overlay(source, defaults, ("tools", tool), table)
        for tool, table in cast(dict[str, Any], raw.get("tools", {})).items()
    }
    upstreams = {
        upstream: _upstream(source, upstream, table)
        for upstream, table in cast(dict[str, Any], raw.get("upstreams", {})).items()
    }
    events = source.model(Events, ("events",), raw.get("events", {}))
    identity = source.model(Identity, ("identity",), raw.get("identity", {}))
    limits = source.model(Limits, ("quotas",), raw.get("quotas", {}))
    console = _console(source, raw.get("console", {}), identity)
    policies = Policies(defaults, tools)
    return Config(upstreams, policies, raw.get("server", {}), events, identity, limits, console)


def _console(source: Source, table: Any, identity: Identity) -> Console:
    given = source.model(Console, ("console",), table)
    if given.oidc is None:
        return given
    where = ("console", "oidc")
    if given.oidc.issuer not in [one.issuer for one in identity.issuers]:
        raise source.mistake((*where, "issuer"), "must be one of [[identity.issuers]]")
    secret = given.oidc.client_secret
    if secret is None:
        return given
    filled = source.filled((*where, "client_secret"), secret)
    return given.model_copy(
        update={"oidc": given.oidc.model_copy(update={"client_secret": filled})}
    )


def _overlay(source: Source, defaults: Policy, where: tuple[str, ...], table: Any) -> Policy:
    own = source.model(Policy, where, table)
    given = {name: getattr(own, name) for name in own.model_fields_set}
    if own.bridge is not None and given.setdefault("run", Run.TASK) not in _ALWAYS_TASKS:
        raise source.mistake((*where, "run"), 'a tool with a bridge has "task" or "task-only"')
    return defaults.model_copy(update=given)


def _upstream(source: Source, name: str, table: Any) -> Upstream:
    if not _NAME.fullmatch(name):
        raise source.mistake(("upstreams", name), "a name has 1 to 64 letters, digits, - or _")
    given = source.model(Upstream, ("upstreams", name), table)
    return given.model_copy(
        update={
            part: {
                key: source.filled(("upstreams", name, part, key), value)
                for key, value in getattr(given, part).items()
            }
            for part in ("env", "headers")
        }
    )
