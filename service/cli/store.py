"""What the commands that open the store share: the options that name it, and its settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ...domain import errors
from .. import config as configuration, logs, settings
from ..config import Config
from ..settings import Settings

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="The service's TOML file, which names the store; default: the one in .outlast/.",
        dir_okay=False,
    ),
]
DatabaseOption = Annotated[
    str | None, typer.Option("--database-url", help="PostgreSQL; default: what --config names.")
]


def config_of(path: Path | None, environment: Mapping[str, str] | None = None) -> Config:
    """What the file says, or the defaults. Raises ConfigurationError."""
    return configuration.read(path, environment) if path else configuration.parse("", "defaults")


def settings_for(config: Config, flags: Mapping[str, Any]) -> Settings:
    """The settings of a process with this file and these flags. Raises ConfigurationError."""
    has_issuers = bool(config.identity.issuers)
    return settings.load(flags, config.server, has_issuers=has_issuers)


def store_of(
    path: Path | None, database_url: str | None, ways: str = "--database-url or --config"
) -> tuple[Config, Settings]:
    """For a command beside the service; only errors are logged. `ways` is how to name a store.

    Raises ConfigurationError, also where there is no store.
    """
    logs.configure("error")
    config = config_of(path)
    chosen = settings_for(config, {"database_url": database_url})
    if chosen.database_url is None and not chosen.data_folder.is_dir():
        raise errors.ConfigurationError(f"there is no store in {chosen.data_folder}: give {ways}")
    return config, chosen
