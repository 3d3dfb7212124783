"""Every implementation of the store, for one contract body."""

from collections.abc import AsyncIterator

import pytest

from outlast.adapters import signal
from outlast.tests.contracts import stores
from outlast.tests.contracts.delivery_observers import WEBHOOK_WAY, Way
from outlast.tests.contracts.delivery_on_postgres import on_postgres
from outlast.tests.contracts.delivery_world import InMemory, Store
from outlast.tests.contracts.stores import Ports
from outlast.tests.support import databases

SEALED = "postgres-sealed"


@pytest.fixture
def unlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is woken by a look: the signal looks by itself a second after it is opened."""
    monkeypatch.setattr(signal, "LOOK_DOWN_S", 10 * stores.LIVE_S_MAX)


@pytest.fixture(params=["postgres", SEALED, "memory"])
def store_url(request: pytest.FixtureRequest, anyio_backend: str) -> str | None:
    """An empty database of this module; None for the store in memory."""
    if request.param == "memory":
        return None
    url: str = request.getfixturevalue("module_database_url")
    databases.empty(url)
    return url


@pytest.fixture
async def ports(store_url: str | None, request: pytest.FixtureRequest) -> AsyncIterator[Ports]:
    seals = SEALED in request.node.callspec.params.values()
    opened = stores.on_postgres(store_url, seals=seals) if store_url else stores.in_memory()
    async with opened as ports:
        yield ports


@pytest.fixture
def way_url(way: Way, request: pytest.FixtureRequest, anyio_backend: str) -> str | None:
    """The database of a way that needs one: webhooks leave by the outbox, which memory has not."""
    return request.getfixturevalue("module_database_url") if way is WEBHOOK_WAY else None


@pytest.fixture
async def store(way_url: str | None) -> AsyncIterator[Store]:
    """What the worlds of one test of delivery stand on."""
    if way_url is None:
        yield InMemory()
        return
    async with on_postgres(way_url, pushes=True) as made:
        yield made
