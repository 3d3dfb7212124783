"""What every process begins with: the store, and the clock."""

from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime

from ...adapters import (
    migrations,
    postgres,
    sealing,
)
from ...adapters.embedded import EmbeddedServer, find_running
from ..settings import Settings


def now() -> datetime:
    """The clock of the service."""
    return datetime.now(UTC)


@contextmanager
def database(settings: Settings, *, share: bool = False) -> Generator[str]:
    """The URL of the store: the one given, or an embedded server's that lives as long as this.

    With `share`, an embedded server that another process already owns is used instead.
    """
    if settings.database_url is not None:
        yield settings.database_url
        return
    running = find_running(settings.data_folder) if share else None
    if running is not None:
        yield running
        return
    with EmbeddedServer.start(settings.data_folder) as server:
        yield server.url


def sealer_of(settings: Settings, store: postgres.Database) -> sealing.Sealer:
    """What seals and opens payloads with the keys of these settings."""
    wrapping = sealing.LocalWrapping(settings.data_keys) if settings.data_keys else None
    return sealing.Sealer(store, wrapping, seals=settings.seals)


async def upgrade(url: str) -> list[str]:
    """Bring the schema up to this release; the names of the steps applied."""
    return await migrations.upgrade(url)
