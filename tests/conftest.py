"""What every test may use: a real PostgreSQL, and fresh migrated databases on it."""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from outlast.adapters import migrations
from outlast.tests.support.databases import database

# A machine that stands still for a moment makes no example slow.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A server to make databases on: OUTLAST_TEST_DATABASE_URL, or an embedded one."""
    given = os.environ.get("OUTLAST_TEST_DATABASE_URL")
    if given:
        yield given
        return
    from outlast.adapters.embedded import EmbeddedServer

    with (
        tempfile.TemporaryDirectory(prefix="ol-") as folder,
        EmbeddedServer.start(Path(folder)) as server,
    ):
        yield server.url


@pytest.fixture(scope="session")
def template_url(postgres_url: str) -> Iterator[str]:
    """A migrated, empty database that others are copied from."""
    with database(postgres_url, "template") as url:
        asyncio.run(migrations.upgrade(url))
        yield url


@pytest.fixture
def database_url(postgres_url: str, template_url: str) -> Iterator[str]:
    """A fresh migrated database for one test, dropped after it."""
    with database(postgres_url, template=template_url) as url:
        yield url


@pytest.fixture(scope="module")
def module_database_url(postgres_url: str, template_url: str) -> Iterator[str]:
    """A fresh migrated database that the tests of one module share."""
    with database(postgres_url, template=template_url) as url:
        yield url
