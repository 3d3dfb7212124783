"""Settings of a process: flags over environment over the file's [server] over defaults."""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from ..domain import errors

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


class Fields(BaseModel):
    """All that can be set. The file's [server] table is held against this alone, for its lines."""

    model_config = ConfigDict(extra="forbid")

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
    slots: int = Field(16, ge=1, le=1000, description="calls that one process runs at once")
    drain_s: float = Field(
        20.0, ge=0, le=3600, description="seconds that running calls get to finish on SIGTERM"
    )
    watches: int = Field(20_000, ge=1, description="watches that one process keeps open")
    watches_per_owner: int = Field(1_000, ge=1, description="of these, one owner's at most")
    secret_key: str | None = Field(
        None, min_length=32, description="key that seals request state; default: the database's own"
    )
    public_url: str | None = Field(
        None,
        pattern=r"^https?://[^/?#]+(/[^?#]*)?$",
        description="where jobs elsewhere reach this service; default: the address bound",
    )
    admin_token: str | None = Field(
        None, min_length=32, description="bearer token of /admin, which is not there without one"
    )
    webhook_signing_key: str | None = Field(
        None, description="whsk_ key that signs webhooks as this server, beside their secrets"
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("port", "slots", "drain_s", mode="before")
    @classmethod
    def _no_truth(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("must be a number")
        return value


class Settings(Fields, BaseSettings):
    """Each field can be set as `OUTLAST_<NAME>` in the environment."""

    model_config = SettingsConfigDict(env_prefix="OUTLAST_", extra="forbid", frozen=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, environment; the file's table arrives under its own key and comes last."""
        del dotenv_settings, file_secret_settings
        flags = dict(init_settings())
        table = flags.pop("file_table", {})
        return (
            InitSettingsSource(settings_cls, flags),
            env_settings,
            InitSettingsSource(settings_cls, table),
        )

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def load(flags: Mapping[str, Any], table: Mapping[str, Any]) -> Settings:
    """The settings of this process. Raises ConfigurationError that names the setting."""
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
    if not (settings.is_loopback or settings.tokens_file or settings.allow_anonymous):
        raise errors.ConfigurationError(
            f"bound to {settings.host}, everybody could act as the local owner: set tokens_file,"
            " or allow_anonymous if that is what you want"
        )
    return settings
