"""Every implementation of the store, for one contract body."""

from collections.abc import AsyncIterator

import psycopg
import pytest

from outlast.tests.contracts import stores
from outlast.tests.contracts.stores import Ports


@pytest.fixture(params=["postgres", "memory"])
def store_url(request: pytest.FixtureRequest, anyio_backend: str) -> str | None:
    """An empty database of this module; None for the store in memory."""
    if request.param == "memory":
        return None
    url: str = request.getfixturevalue("module_database_url")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("TRUNCATE outlast.task_events, outlast.task_view, outlast.run_queue")
    return url


@pytest.fixture
async def ports(store_url: str | None) -> AsyncIterator[Ports]:
    opened = stores.on_postgres(store_url) if store_url else stores.in_memory()
    async with opened as ports:
        yield ports
