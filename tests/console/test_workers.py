"""The page of workers: what waits, who holds what, who is behind, as the store knows it."""

from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from outlast.adapters.operations import PostgresOperations
from outlast.adapters.postgres import Database
from outlast.domain.audit import Standing
from outlast.domain.operating import Backlog, Lease, Load
from outlast.service.console.workers import holders, outbox_line, signal_line, tree_line
from outlast.tests.acceptance.waiting import until
from outlast.tests.contracts.stores import Ports, happens, open_task
from outlast.tests.domain.given import starts
from outlast.tests.service.conftest import desk_config
from outlast.tests.support.auditing import audited
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.serving import serving

pytestmark = [pytest.mark.anyio, pytest.mark.promise("operators-see-who-works-on-what")]

NOTHING = Backlog(0, 0, None)
LEASE_S = 60.0
SHORT_S = 0.05
BOUND_S = 60.0


@pytest.fixture
async def ports(database_url: str) -> AsyncIterator[tuple[Ports, PostgresOperations]]:
    database = Database(database_url)
    await database.open()
    try:
        async with audited(database_url) as world:
            yield world.ports, PostgresOperations(database)
    finally:
        await database.close()


async def test_an_idle_store_has_nothing_waiting_and_nobody_at_work(
    ports: tuple[Ports, PostgresOperations],
):
    _, operations = ports
    assert await operations.load() == Load(NOTHING, NOTHING, 0, 0)
    assert await operations.leases(10) == []


async def test_what_waits_is_counted_with_the_age_of_the_oldest(
    ports: tuple[Ports, PostgresOperations],
):
    store, operations = ports
    for name in ("one", "two", "three"):
        await open_task(store.log, name)
    await store.dispatcher.claim("w1", 1, LEASE_S)
    claimed = await store.dispatcher.claim("w2", 1, LEASE_S)
    await store.dispatcher.release("w2", claimed, LEASE_S)
    load = await operations.load()
    assert (load.queue.due, load.queue.later, load.held, load.workers) == (1, 1, 1, 1)
    assert load.queue.oldest_s is not None
    assert 0 <= load.queue.oldest_s < LEASE_S


async def test_a_lease_tells_its_worker_its_task_and_since_when(
    ports: tuple[Ports, PostgresOperations],
):
    store, operations = ports
    before = await open_task(store.log, "one")
    (task_id,) = await store.dispatcher.claim("w1", 1, LEASE_S)
    await happens(store.log, before, starts())
    (lease,) = await operations.leases(10)
    assert (lease.worker, lease.task_id) == ("w1", task_id)
    assert lease.since is not None
    assert 0 < lease.left_s <= LEASE_S


async def test_a_task_that_is_claimed_and_not_begun_has_no_beginning(
    ports: tuple[Ports, PostgresOperations],
):
    store, operations = ports
    await open_task(store.log, "one")
    await store.dispatcher.claim("w1", 1, LEASE_S)
    (lease,) = await operations.leases(10)
    assert lease.since is None


async def test_a_lease_that_has_run_out_is_listed_first_and_waits_again(
    ports: tuple[Ports, PostgresOperations],
):
    store, operations = ports
    for name in ("one", "two"):
        await open_task(store.log, name)
    await store.dispatcher.claim("alive", 1, LEASE_S)
    await store.dispatcher.claim("lost", 1, SHORT_S)

    async def ran_out() -> bool:
        return any(lease.left_s < 0 for lease in await operations.leases(10))

    await until(ran_out, BOUND_S)
    (first,) = await operations.leases(1)
    assert first.worker == "lost"
    load = await operations.load()
    assert (load.queue.due, load.held, load.workers) == (1, 1, 1)
    found = holders(await operations.leases(10))
    assert [(holder.name, holder.is_lost) for holder in found] == [("lost", True), ("alive", False)]


async def test_a_delivery_that_is_due_counts_as_waiting(
    ports: tuple[Ports, PostgresOperations], database_url: str
):
    _, operations = ports
    with psycopg.connect(database_url, autocommit=True) as connection:
        for number, due in enumerate(("- interval '90 s'", "+ interval '1 h'")):
            connection.execute(
                "INSERT INTO outlast.webhook_deliveries"
                " (subscription_id, url, position, task_id, version, due)"
                f" VALUES ('s', 'u', 1, 't', {number}, clock_timestamp() {due})".encode()
            )
    load = await operations.load()
    assert (load.outbox.due, load.outbox.later) == (1, 1)
    assert load.outbox.oldest_s is not None
    assert outbox_line(load, 1).word == "late"
    assert "1 subscription;" in outbox_line(load, 1).told


@pytest.mark.parametrize(
    ("behind", "unsigned", "age_s", "word"),
    [
        (0, 0, 9_999.0, "level"),
        (5, 0, 1.0, "following"),
        (0, 5, 1.0, "following"),
        (5, 5, 9_999.0, "late"),
        (5, 5, None, "following"),
    ],
)
async def test_a_follower_is_late_only_while_something_waits(
    behind: int, unsigned: int, age_s: float | None, word: str
):
    standing = Standing(10, 10, 10, 10, 10 - behind, 10 - unsigned, age_s)
    assert tree_line(standing, follows=True).word == word
    assert tree_line(standing, follows=False).word == "off"


async def test_a_deaf_process_says_so():
    assert signal_line(hears=True).word == "live"
    assert signal_line(hears=False).word == "deaf"


async def test_workers_are_listed_with_their_leases_together():
    leases = [Lease(worker, task, "tool", None, 1.0) for worker, task in ("xa", "xb", "yc")]
    assert [(each.name, len(each.leases)) for each in holders(leases)] == [("x", 2), ("y", 1)]


async def test_the_page_names_a_running_task_and_its_tool(database_url: str, tmp_path: Path):
    async with (
        serving(tmp_path, desk_config(), database_url) as server,
        http_client() as http,
    ):
        empty = await http.get(f"{server.base_url}/console/workers")
        assert empty.status_code == 200, empty.text
        assert "No worker holds a task" in empty.text
        marker = {"marker": str(tmp_path / "marker")}
        client = RawClient(server.url, http)
        task_id = await client.opened("hold_task", marker)

        async def is_named() -> bool:
            part = await http.get(f"{server.base_url}/console/workers?part=1")
            assert "<html" not in part.text
            return task_id in part.text and "hold_task" in part.text

        await until(is_named, BOUND_S)
        await client.request("tasks/cancel", {"taskId": task_id})  # or stopping waits for it
