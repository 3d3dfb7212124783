"""Many subscriptions of others cost neither the sweep nor an owner's own reading of theirs."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import psycopg
import pytest

from outlast.adapters import postgres
from outlast.adapters.outbox import PostgresOutbox
from outlast.adapters.postgres import Database
from outlast.adapters.webhooks import PostgresWebhookSubscriptions
from outlast.domain.push import Filter, SubscriptionKey, SubscriptionWish

pytestmark = pytest.mark.anyio

ENDPOINTS = 40_000  # when each was compared with each, a statement came to its end far below this
OTHERS = 2_000
FILL = (
    "INSERT INTO outlast.webhook_subscriptions"
    " (id, owner, url, name, arguments, secret, refresh_before, begins)"
    " SELECT 'sub_' || md5(g::text), 'owner-' || g / 10, 'https://h.example/' || md5(g::text),"
    " 'task.updated', '{}', 's', now() + interval '1 day', 0 FROM generate_series(1, %s::bigint) g"
)
READ = (
    "SELECT (seq_tup_read + coalesce(idx_tup_fetch, 0))::int FROM pg_stat_xact_user_tables"
    " WHERE relname = 'webhook_subscriptions'"
)


class Counting(Database):
    """Each statement in a transaction that says how many subscriptions were read by it."""

    read = 0

    async def rows(self, statement: str, *params: object) -> Sequence[tuple[Any, ...]]:
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            await postgres._by_index(connection)  # pyright: ignore[reportPrivateUsage]  # as the pool does
            cursor = await connection.execute(statement, params)  # pyright: ignore[reportArgumentType]  # as it came
            found = await cursor.fetchall()
            [(self.read,)] = await (await connection.execute(READ)).fetchall()
        return found


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    made = Database(database_url)
    await made.open()
    yield made
    await made.close()


async def test_the_sweep_does_not_compare_every_endpoint_with_every_subscription(
    database: Database,
):
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(FILL, (ENDPOINTS,))
        connection.execute(
            "INSERT INTO outlast.webhook_endpoints (url)"
            " SELECT url FROM outlast.webhook_subscriptions UNION SELECT 'https://nobody.example'"
        )
    assert not await PostgresOutbox(database).sweep()
    await database.rows("SELECT outlast.drop_webhooks('owner-1')")
    kept = await database.rows("SELECT count(*) FROM outlast.webhook_endpoints")
    assert kept == [(ENDPOINTS - 10,)]


async def test_an_owner_who_asks_for_their_own_reads_no_others(database: Database):
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(FILL, (OTHERS,))
        connection.execute("ANALYZE outlast.webhook_subscriptions")
    counting = Counting(database.url)
    subscriptions = PostgresWebhookSubscriptions(counting)
    assert await subscriptions.find(owner="nobody", trouble="suspended") == []
    assert counting.read == 0
    assert len(await subscriptions.find(owner="owner-7")) == 10
    assert counting.read <= 20
    assert len(await subscriptions.find(limit=25)) == 25


async def test_all_and_one_owners_are_found_in_order_page_by_page(database: Database):
    subscriptions = PostgresWebhookSubscriptions(database)
    for owner in ("alice", "bob"):
        for number in range(3):
            name = f"{number}-{owner}"
            key = SubscriptionKey(owner, f"https://h.example/{name}", "task.updated", "{}")
            wish = SubscriptionWish(name, key, Filter("task.updated"), b"s", None, 0)
            await subscriptions.put(wish, 100, 1)
    await PostgresOutbox(database).suspend("1-bob")

    async def names(**how: Any) -> list[str]:
        return [each.id for each in await subscriptions.find(**how)]

    assert await names(limit=3, after="0-alice") == ["0-bob", "1-alice", "1-bob"]
    assert await names(owner="bob", after="0-bob", limit=1) == ["1-bob"]
    assert await names(owner="bob", trouble="suspended") == ["1-bob"]
    assert await names(trouble="suspended") == ["1-bob"]
    assert await names(owner="alice", trouble="suspended") == []
