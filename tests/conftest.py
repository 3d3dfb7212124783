"""What every test may use: a real PostgreSQL, and fresh migrated databases on it."""

import asyncio
import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outlast.adapters import migrations


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
def template_database(postgres_url: str) -> Iterator[str]:
    """A migrated, empty database that others are copied from."""
    name = f"outlast_template_{uuid.uuid4().hex[:8]}"
    _administer(postgres_url, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    asyncio.run(migrations.upgrade(_url_of(postgres_url, name)))
    yield name
    _administer(postgres_url, sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))


@pytest.fixture
def database_url(postgres_url: str, template_database: str) -> Iterator[str]:
    """A fresh migrated database for one test, dropped after it."""
    yield from _fresh_database(postgres_url, template_database)


@pytest.fixture(scope="module")
def module_database_url(postgres_url: str, template_database: str) -> Iterator[str]:
    """A fresh migrated database that the tests of one module share."""
    yield from _fresh_database(postgres_url, template_database)


def _fresh_database(postgres_url: str, template: str) -> Iterator[str]:
    name = f"outlast_{uuid.uuid4().hex[:12]}"
    _administer(
        postgres_url,
        sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(template)
        ),
    )
    try:
        yield _url_of(postgres_url, name)
    finally:
        _administer(
            postgres_url, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
        )


def _administer(url: str, statement: sql.Composed) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)


def _url_of(url: str, database: str) -> str:
    """The same server, another database, as a conninfo string."""
    return make_conninfo(**{**conninfo_to_dict(url), "dbname": database})
