"""The pool of connections, and callers that go away in the middle."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from outlast.adapters.postgres import Database
from outlast.tests.acceptance.waiting import until

pytestmark = pytest.mark.anyio

SOON_S_MAX = 5.0


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
    reading = asyncio.create_task(database.rows("SELECT pg_sleep(0.2), nextval('told')"))
    await asyncio.wait({reading}, timeout=0.1)
    reading.cancel()
    with anyio.fail_after(0.05):
        await asyncio.wait({reading})
    await until_whole(database)
    assert await database.rows("SELECT is_called FROM told") == [(True,)]
