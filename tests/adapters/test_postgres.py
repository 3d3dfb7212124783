"""The pool of connections, and callers that go away in the middle."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import psycopg
import pytest

from outlast.adapters.postgres import Database
from outlast.tests.acceptance.waiting import until

pytestmark = pytest.mark.anyio

SOON_S_MAX = 20.0
WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND wait_event_type = 'Lock' AND wait_event = 'advisory'"
)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = Database(database_url)
    await opened.open()
    yield opened
    await opened.close()


async def until_whole(database: Database) -> None:
    """Return once every connection of the pool is in the pool."""

    async def is_whole() -> bool:
        stats = database._pool.get_stats()
        return stats["pool_available"] == stats["pool_size"] > 0

    await until(is_whole, SOON_S_MAX)


async def test_a_caller_that_goes_away_while_its_connection_is_given_back_takes_it_not_along(
    database: Database, monkeypatch: pytest.MonkeyPatch
):
    giving_back, go_on = asyncio.Event(), asyncio.Event()
    give_back = database._pool.putconn

    async def hesitate(connection: Any) -> None:
        giving_back.set()
        await go_on.wait()  # as it happens when somebody else is about to wait for it
        await give_back(connection)

    monkeypatch.setattr(database._pool, "putconn", hesitate)
    reading = asyncio.create_task(database.rows("SELECT 1"))
    with anyio.fail_after(SOON_S_MAX):
        await giving_back.wait()
    reading.cancel()
    await asyncio.wait({reading})
    assert reading.cancelled()
    go_on.set()
    await until_whole(database)
    assert await database.rows("SELECT 2") == [(2,)]


async def test_a_caller_that_goes_away_is_not_held_up_and_its_statement_ends_by_itself(
    database: Database,
):
    await database.rows("CREATE SEQUENCE told")
    async with await psycopg.AsyncConnection.connect(database.url) as holder:
        await holder.execute("SELECT pg_advisory_xact_lock(1)")
        statement = "SELECT nextval('told') FROM pg_advisory_xact_lock(1)"
        reading = asyncio.create_task(database.rows(statement))

        async def is_under_way() -> bool:
            return await (await holder.execute(WAITING)).fetchone() == (1,)

        await until(is_under_way, SOON_S_MAX)
        reading.cancel()
        with anyio.fail_after(SOON_S_MAX):
            await asyncio.wait({reading})
        assert await is_under_way()
    await until_whole(database)
    assert await database.rows("SELECT is_called FROM told") == [(True,)]
