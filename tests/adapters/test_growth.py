"""What a full store costs: the rows and pages that a statement touches, and never its time."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.owner_events import PostgresOwnerEvents
from outlast.adapters.postgres import Database, Row
from outlast.adapters.retention import PostgresPastTasks
from outlast.adapters.run_queue import PostgresDispatcher
from outlast.adapters.sealing import Sealer
from outlast.adapters.task_view import PostgresTaskViews
from outlast.adapters.view_verification import ViewVerification
from outlast.domain.owner import LOCAL_OWNER
from outlast.domain.push import Filter
from outlast.ops.bench import seeding
from outlast.tests.acceptance.waiting import until
from outlast.tests.contracts.stores import happens, open_task, progresses
from outlast.tests.domain.given import OPENED, completes, starts
from outlast.tests.support.sealed import sealer

pytestmark = pytest.mark.anyio

TASKS = 5_000  # that is 21,000 events
ASKED = seeding.task_id(4_003)
OWNER = LOCAL_OWNER.key
ENDED = Filter("task.finished")
LATER = datetime.now(UTC) + timedelta(days=365)
# Each of them grows with the tasks that are stored.
LARGE = (
    "audit_leaves",
    "data_keys",
    "past_events",
    "past_tasks",
    "run_queue",
    "task_events",
    "task_snapshots",
    "task_view",
)
_SCANS = (
    "SELECT relname, seq_scan FROM pg_stat_user_tables"
    " WHERE schemaname = 'outlast' AND relname = ANY(%s) AND seq_scan > 0"
)
_OTHERS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
)


class Explaining(Database):
    """Has the server explain each statement, and keeps what it says of it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.plans: list[Mapping[str, Any]] = []

    async def rows(self, statement: str, *params: object) -> Sequence[Row]:
        """See `Database.rows`. A statement that writes is not made twice."""
        if statement.startswith(("SELECT", "WITH")) and "outlast.forget" not in statement:
            explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
            ((told,),) = await super().rows(explained, *params)
            self.plans.append(told[0]["Plan"])
        return await super().rows(statement, *params)

    def pages(self) -> int:
        """How many were looked at since the last time; no large table was read whole for it."""
        plans, self.plans = self.plans, []
        assert plans
        for node in (node for plan in plans for node in _nodes(plan)):
            whole = node["Node Type"] == "Seq Scan" and node["Relation Name"] in LARGE
            assert not whole, node
        return sum(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for plan in plans)


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[Explaining]:
    database = Explaining(url)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


@pytest.fixture(scope="module")
def full_url(module_database_url: str) -> str:
    """A store that has been in use for long. Nobody here adds to it."""
    seeding.fill(module_database_url, TASKS)
    return module_database_url


async def test_a_seeded_store_is_one_as_the_service_itself_would_have_written_it(
    full_url: str,
) -> None:
    database = Database(full_url)
    verification = ViewVerification(full_url, Sealer(database))
    assert [difference async for difference in verification.differences()] == []
    assert verification.checked.tasks == TASKS + 1


@pytest.mark.promise("a-full-store-is-as-quick")
async def test_reads_of_one_task_look_at_a_handful_of_pages(full_url: str) -> None:
    async with _opened(full_url) as database:
        views, log = PostgresTaskViews(database), PostgresEventLog(database)
        view = await views.get(ASKED, OWNER)
        assert view is not None
        assert database.pages() < 10
        assert await views.opened_with(OWNER, "key-0000004003") is not None
        assert database.pages() < 10
        assert len(await log.read(ASKED)) == view.version
        assert database.pages() < 20


@pytest.mark.promise("a-full-store-is-as-quick")
async def test_a_reader_of_an_owners_events_pays_for_what_is_new(full_url: str) -> None:
    async with _opened(full_url) as database:
        events = PostgresOwnerEvents(database)
        head = await events.head(OWNER)
        place = head - 20
        long_ago = datetime.now(UTC) - timedelta(days=3_650)
        database.pages()
        await events.after(OWNER, ENDED, place, 100)
        assert database.pages() < 40
        for since in (None, long_ago):
            assert await events.floor(OWNER, ENDED, place, since, 10_000) == place
            assert database.pages() < 40
        assert await events.floor(OWNER, ENDED, 0, long_ago, 100) > 0
        assert database.pages() < 250
        nobody = await events.after("nobody", ENDED, 0, 100)
        assert nobody.events == []
        assert database.pages() < 20


@pytest.mark.promise("a-full-store-is-as-quick")
async def test_a_reader_of_named_tasks_looks_at_their_own_streams(full_url: str) -> None:
    async with _opened(full_url) as database:
        events = PostgresOwnerEvents(database)
        named = Filter("task.finished", (ASKED, "unknown"))
        database.plans.clear()
        page = await events.after(OWNER, named, 0, 100)
        assert [event.task_id for event in page.events] == [ASKED]
        assert database.pages() < 40
        floor = await events.floor(OWNER, named, 0, LATER, 2**31 - 1)
        assert floor == page.events[-1].position
        assert database.pages() < 30


@pytest.mark.promise("a-full-store-is-as-quick")
async def test_what_looks_for_the_end_of_a_tasks_time_begins_at_the_oldest(full_url: str) -> None:
    async with _opened(full_url) as database:
        views, past = PostgresTaskViews(database), PostgresPastTasks(database)
        assert len(await views.due(LATER, 20)) == 20
        assert database.pages() < 60
        assert await views.next_end() is not None
        assert database.pages() < 10
        assert len(await past.to_erase(LATER, 20)) == 20
        assert database.pages() < 60


@pytest.mark.promise("a-full-store-is-as-quick")
async def test_plans_that_a_small_store_was_given_read_no_table_whole(database_url: str) -> None:
    """A plan is kept while the tables grow, and in one of ten rows all of it is the quickest."""
    with psycopg.connect(database_url, autocommit=True) as watching:
        database = Database(database_url)
        await database.open()
        keys = sealer(database)
        log = PostgresEventLog(database, sealer=keys)
        for number in range(10):
            await _a_life(log, database, keys, f"task-{number}")
            watching.execute("ANALYZE")
        log.close()
        await database.close()

        async def is_alone() -> bool:
            return watching.execute(_OTHERS).fetchone() == (0,)

        await until(is_alone, 30.0)  # what they have counted is told at the end of a connection
        assert watching.execute(_SCANS, [list(LARGE)]).fetchall() == []


async def _a_life(log: PostgresEventLog, database: Database, keys: Sealer, task_id: str) -> None:
    """All that a task meets on the way of requests, of a worker and of retention."""
    views, dispatcher = PostgresTaskViews(database, keys), PostgresDispatcher(database, 0)
    events, past = PostgresOwnerEvents(database), PostgresPastTasks(database, keys)
    task = await open_task(log, task_id, idempotency_key=task_id)
    await dispatcher.claim("worker-a", 1, 6.0)
    task = await happens(log, task, starts())
    await dispatcher.renew("worker-a", [task_id], 6.0)
    task = await happens(log, task, progresses())
    await views.get(task_id, OPENED.owner)
    await views.opened_with(OPENED.owner, task_id)
    await log.tail(task_id)
    await happens(log, task, completes())
    for wanted in (ENDED, Filter("task.updated", (task_id,))):
        await events.after(OPENED.owner, wanted, 0, 100)
        await events.floor(OPENED.owner, wanted, 0, datetime.now(UTC), 100)
    await views.due(LATER, 10)
    await views.next_end()
    if task_id.endswith("5"):
        await views.forget([task_id])
        await past.erase(await past.to_erase(LATER, 10), "a test")
