"""Settings of a process: flags over environment over the file's [server] over defaults."""

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from ..domain import errors
from . import secret_files

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
# Nothing refuses an empty variable of these: it counts as not set.
MAY_BE_EMPTY = ("data_keys", "webhook_signing_key", "audit_signing_key")
DATA_KEY = re.compile(r"([A-Za-z0-9._-]{1,64}):[A-Za-z0-9_-]{43}=?")


class Fields(BaseModel):
    """All that can be set. The file's [server] table is held against this alone, for its lines."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    host: str = Field("127.0.0.1", description="address to bind")
    port: int = Field(
        8000, ge=0, le=65535, description="TCP port; 0 asks the kernel for a free one"
    )
    database_url: str | None = Field(
        None,
        min_length=1,
        description="PostgreSQL URL; without one an embedded server runs in data_folder",
    )
    data_folder: Path = Field(Path(".outlast"), description="folder of the embedded PostgreSQL")
    tokens_file: Path | None = Field(None, description="TOML file of static bearer tokens")
    allow_anonymous: bool = Field(
        False, description="serve everybody as one owner although not bound to loopback"
    )
    allowed_hosts: list[str] = Field(
        list(LOOPBACK_HOSTS), description='names accepted in the Host header; "*" for any'
    )
    allowed_origins: list[str] = Field(
        list(LOOPBACK_HOSTS), description='host names accepted in the Origin header; "*" for any'
    )
    require_task_name_header: bool = Field(
        False, description="refuse tasks/* without Mcp-Name; some clients do not send it"
    )
    processes: int = Field(
        1, ge=1, le=64, description="processes of one `serve` that share its port"
    )
    worker_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="TCP port where `outlast worker` has its figures and health; without one, none",
    )
    legacy: bool = Field(
        True, description="serve clients that begin with `initialize` (revisions up to 2025-11-25)"
    )
    sessions: int = Field(
        10_000, ge=1, description="sessions of such clients that one process keeps"
    )
    sessions_per_owner: int = Field(1_000, ge=1, description="of these, one owner's at most")
    session_idle_s: float = Field(
        1800.0, gt=0, le=86_400, description="seconds without a request after which a session ends"
    )
    slots: int = Field(16, ge=1, le=1000, description="calls that one process runs at once")
    drain_s: float = Field(
        20.0, ge=0, le=3600, description="seconds that running calls get to finish on SIGTERM"
    )
    watches: int = Field(20_000, ge=1, description="watches that one process keeps open")
    watches_per_owner: int = Field(1_000, ge=1, description="of these, one owner's at most")
    secret_key: str | None = Field(
        None, min_length=32, description="key that seals request state; default: the database's own"
    )
    audit_period_s: float = Field(
        30 * 86_400,
        ge=0,
        le=100 * 365 * 86_400,
        description="seconds that payloads are kept for the audit once a task is forgotten",
    )
    audit_source: str | None = Field(
        None,
        pattern=r"^[!-~]+$",
        description="source of exported events, a URI; default: /outlast/ and the log's number",
    )
    public_url: str | None = Field(
        None,
        pattern=r"^https?://[^/?#]+(/[^?#]*)?$",
        description="where jobs elsewhere reach this service; default: the address bound",
    )
    admin_token: str | None = Field(
        None,
        min_length=32,
        description="bearer token of operators: it opens /admin, /metrics and /audit",
    )
    webhook_signing_key: str | None = Field(
        None, description="whsk_ key that signs webhooks as this server, beside their secrets"
    )
    data_keys: Annotated[list[str], NoDecode] = Field(
        [],
        repr=False,
        description="keys around the data keys of tasks, NAME:KEY each; the first is current",
    )
    encrypt: Literal["auto", "on", "off"] = Field(
        "auto", description="seal what tasks hold in the store; auto: once there are data_keys"
    )
    audit: bool = Field(True, description="build the Merkle tree over the log, and sign it")
    audit_checkpoint_events: int = Field(
        1_000, ge=1, description="events after which a checkpoint is signed"
    )
    audit_checkpoint_s: float = Field(
        60.0, gt=0, description="seconds after which one is signed if there is any new event"
    )
    audit_origin: str = Field(
        "outlast", pattern=r"^[^\s+]+$", description="name of this log and its key in checkpoints"
    )
    audit_signing_key: str | None = Field(
        None,
        repr=False,
        description="32 random bytes in base64url that sign checkpoints; default: derived from"
        " secret_key, or from the database's own key",
    )
    audit_trusted_keys: list[str] = Field(
        [], description="verifier keys whose checkpoints count too, such as former ones"
    )
    audit_witness_url: str | None = Field(
        None, pattern=r"^https?://[^?#]+$", description="witness that cosigns each checkpoint"
    )
    audit_witness_key: str | None = Field(
        None, description="verifier key of the witness; without it its signatures are kept unread"
    )
    traces: Literal["auto", "on", "off"] = Field(
        "auto",
        description="send OpenTelemetry traces; auto: once OTEL_EXPORTER_OTLP_ENDPOINT is set",
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("data_keys", mode="before")
    @classmethod
    def _keys(cls, value: Any) -> Any:
        """A list, as JSON or with commas; the message never shows what may be a secret."""
        if isinstance(value, str):
            words = [word.strip(" \n\r\t[]\"'") for word in value.split(",")]
            value = [word for word in words if word]
        if not isinstance(value, list):
            raise ValueError("must be a list of keys, as `outlast keys new` prints them")
        names: list[str] = []
        for number, line in enumerate(cast(list[Any], value), 1):
            found = DATA_KEY.fullmatch(line) if isinstance(line, str) else None
            if found is None:
                raise ValueError(f"key {number} is not one that `outlast keys new` has printed")
            names.append(found[1])
        if len(set(names)) < len(names):
            raise ValueError("two keys have the same name")
        return cast(list[Any], value)

    @field_validator(
        "port",
        "worker_port",
        "processes",
        "sessions",
        "sessions_per_owner",
        "session_idle_s",
        "slots",
        "drain_s",
        "audit_period_s",
        "audit_checkpoint_events",
        "audit_checkpoint_s",
        mode="before",
    )
    @classmethod
    def _no_truth(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("must be a number")
        return value


class Settings(Fields, BaseSettings):
    """Each field can be set as `OUTLAST_<NAME>` in the environment, a secret by its file too."""

    model_config = SettingsConfigDict(
        env_prefix="OUTLAST_", extra="forbid", frozen=True, hide_input_in_errors=True
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, environment, the files that it names; then the table, under a key of its own."""
        del dotenv_settings, file_secret_settings
        flags = dict(init_settings())
        table = flags.pop("file_table", {})
        files, given = secret_files.read(os.environ), env_settings()
        # An empty variable would take the place of its file, and no key that of the keys.
        unset = {name for name, value in given.items() if value == ""}
        unset &= {*files, *MAY_BE_EMPTY}
        heard = {name: value for name, value in given.items() if name not in unset}
        return (
            InitSettingsSource(settings_cls, flags),
            InitSettingsSource(settings_cls, heard),
            InitSettingsSource(settings_cls, dict(files)),
            InitSettingsSource(settings_cls, table),
        )

    @property
    def seals(self) -> bool:
        """Whether what new tasks hold is sealed."""
        return bool(self.data_keys) and self.encrypt != "off"

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def load(
    flags: Mapping[str, Any], table: Mapping[str, Any], *, has_issuers: bool = False
) -> Settings:
    """The settings of this process. Raises ConfigurationError that names the setting.

    `has_issuers` says that callers are known by the tokens of some OAuth issuer.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        settings = Settings(**given, file_table=table)  # pyright: ignore[reportCallIssue]  # taken out above
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise errors.ConfigurationError(f"setting {name}: {first['msg']}") from error
    except SettingsError as error:
        hint = 'a list is written as JSON, like ["localhost"]'
        raise errors.ConfigurationError(f"environment: {error}; {hint}") from None
    is_guarded = settings.tokens_file is not None or has_issuers
    if not (settings.is_loopback or is_guarded or settings.allow_anonymous):
        raise errors.ConfigurationError(
            f"bound to {settings.host}, everybody could act as the local owner: set tokens_file"
            " or [[identity.issuers]], or allow_anonymous if that is what you want"
        )
    _must_say_how_to_store(settings)
    return settings


def _must_say_how_to_store(settings: Settings) -> None:
    if settings.data_keys or settings.encrypt == "off":
        return
    hint = "run `outlast keys new` and set OUTLAST_DATA_KEYS to what it prints"
    if settings.encrypt == "on":
        raise errors.ConfigurationError(f"encrypt is on and there are no data_keys: {hint}")
    if not settings.is_loopback:
        raise errors.ConfigurationError(
            f"bound to {settings.host}, what tasks hold would be stored in the clear: {hint},"
            ' or say encrypt = "off" if that is what you want'
        )
