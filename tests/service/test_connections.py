"""How many connections a process opens to PostgreSQL: what it says is what it keeps to."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import psycopg
import pytest
from psycopg import sql

from outlast.service import wiring
from outlast.tests.support.databases import name_of
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.services import Service, served

pytestmark = [pytest.mark.anyio, pytest.mark.promise("connections-are-bounded")]

CLIENTS = 48


@contextmanager
def watching(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def connections_to(connection: psycopg.Connection) -> int:
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    ).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.parametrize("count", [1, 2])
async def test_no_load_opens_more_connections_than_it_is_said(
    database_url: str, tmp_path: Path, count: int
):
    most = 0
    async with served(Service(tmp_path, database_url, count)) as service:
        with watching(database_url) as store:
            async with http_client() as http, anyio.create_task_group() as group:
                client = RawClient(f"{service.url}/mcp", http)
                left = CLIENTS

                async def ask(number: int) -> None:
                    nonlocal left
                    path = {"path": str(tmp_path / f"note-{number}")}
                    for _ in range(15):
                        task_id = await client.opened("note_task", path)
                        await client.task(task_id)
                        await client.request("tasks/cancel", {"taskId": task_id})
                    left -= 1

                for number in range(CLIENTS):
                    group.start_soon(ask, number)
                while left:
                    most = max(most, await asyncio.to_thread(connections_to, store))
    assert count * 4 < most <= count * wiring.CONNECTIONS_MAX


async def test_too_few_connections_are_named_at_the_start(database_url: str, tmp_path: Path):
    few = 2 * wiring.CONNECTIONS_MAX - 1
    with watching(database_url) as store:
        name = sql.Identifier(name_of(database_url))
        limit = sql.SQL("ALTER DATABASE {} CONNECTION LIMIT {}").format(name, sql.Literal(few))
        store.execute(limit)
    async with served(Service(tmp_path, database_url)) as service:
        said = service.log.read_text()
    each = wiring.CONNECTIONS_MAX
    warned = f"processes: 2, each with up to {each} connections: {2 * each}, and PostgreSQL allows"
    assert f"{warned} {few}. " in said
    async with served(Service(tmp_path, database_url, 1)) as service:
        said = service.log.read_text()[len(said) :]
    assert f"processes: 1, each with up to {each} connections: {each} of {few}" in said
    assert "warning" not in said
