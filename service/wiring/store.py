"""What every process begins with: the store, and the clock."""

import logging
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime

from ...adapters import (
    event_log,
    migrations,
    postgres,
    sealing,
)
from ...adapters.embedded import find_running, outliving
from ...adapters.embedded_owner import owned
from ...adapters.embedded_shared import using
from ..settings import Settings

# The most that one process of `serve` or `worker` opens: reads and the queue, appends, and one each
# for the signal and for following the log. What it opens at its start is closed by then.
CONNECTIONS_MAX = postgres.POOL_SIZE_MAX + event_log.WRITERS_MAX + 2

_log = logging.getLogger("outlast.store")


def now() -> datetime:
    """The clock of the service."""
    return datetime.now(UTC)


@contextmanager
def database(settings: Settings, *, share: bool = False) -> Generator[str]:
    """The URL of the store: the one given, or an embedded server's that lives as long as this.

    With `share`, an embedded server that another process already owns is used instead, and stays
    for as long as this if it is there for its users.
    """
    if settings.database_url is not None:
        yield settings.database_url
        return
    folder = settings.data_folder
    with using(folder) if share else nullcontext():
        running = find_running(folder) if share else None
        if running is not None:
            yield running
            return
        with owned(folder) as server:
            yield server.url


def orphaned(settings: Settings) -> AbstractContextManager[None]:
    """For the end of a process whose parent ran the store and is gone: the last one ends it."""
    return nullcontext() if settings.database_url else outliving(settings.data_folder)


async def see_to_room(url: str, processes: int) -> None:
    """Say so if the server has too few connections for so many. Raises StoreUnavailable."""
    allowed, most = await postgres.connections_allowed(url), processes * CONNECTIONS_MAX
    told = (processes, CONNECTIONS_MAX, most, allowed)
    if most <= allowed:
        _log.info("processes: %d, each with up to %d connections: %d of %d", *told)
        return
    _log.warning(
        "processes: %d, each with up to %d connections: %d, and PostgreSQL allows %d. Under load"
        " requests will wait and fail: raise max_connections, or run fewer processes",
        *told,
    )


def sealer_of(settings: Settings, store: postgres.Database) -> sealing.Sealer:
    """What seals and opens payloads with the keys of these settings."""
    wrapping = sealing.LocalWrapping(settings.data_keys) if settings.data_keys else None
    return sealing.Sealer(store, wrapping, seals=settings.seals)


async def upgrade(url: str) -> list[str]:
    """Bring the schema up to this release; the names of the steps applied."""
    return await migrations.upgrade(url)
