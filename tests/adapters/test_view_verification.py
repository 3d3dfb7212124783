"""Damage done by hand to what is derived from the log: it is named, and a rebuild mends it."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import psycopg
import pytest

from outlast.adapters import view_rows
from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.postgres import Database
from outlast.adapters.rebuild import LOCK, Rebuild
from outlast.adapters.sealing import Sealer
from outlast.adapters.task_view import PostgresTaskViews
from outlast.adapters.view_verification import ViewVerification
from outlast.domain import errors
from outlast.domain.task import Task
from outlast.domain.views import Difference
from outlast.tests.contracts.stores import happens, open_task, progresses
from outlast.tests.domain.given import DEPLOY, asks, completes, starts
from outlast.tests.support.sealed import NEW, sealer

pytestmark = pytest.mark.anyio

MOVES = 100

ENDED, RUNNING, PARKED, FRESH, PAST, ERASED = "ended", "running", "parked", "fresh", "past", "gone"


class Store:
    """One database with a task in each condition, sealed or not."""

    def __init__(self, url: str, keys: Sealer, log: PostgresEventLog) -> None:
        self.url, self.keys, self.log = url, keys, log
        self.tasks: dict[str, Task] = {}

    async def fill(self) -> None:
        for name in (ENDED, RUNNING, PARKED, FRESH, PAST, ERASED):
            key = f"key of {name}"
            self.tasks[name] = await open_task(self.log, name, idempotency_key=key)
        for name in (ENDED, RUNNING, PARKED, PAST, ERASED):
            await self.moves(name, starts())
        for name in (ENDED, PAST, ERASED):
            await self.moves(name, completes())
        await self.moves(PARKED, asks(DEPLOY))
        self.does("SELECT outlast.forget_tasks(%s)", [PAST, ERASED])
        self.does("SELECT outlast.erase_tasks(%s, 'a test')", [ERASED])

    async def moves(self, name: str, wish: Any) -> None:
        self.tasks[name] = await happens(self.log, self.tasks[name], wish)

    def does(self, statement: str, *params: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), params)
            return cursor.fetchall() if cursor.description else []

    async def differences(self) -> list[Difference]:
        audit = ViewVerification(self.url, self.keys)
        return [difference async for difference in audit.differences()]

    async def rebuild(self) -> Rebuild:
        rebuild = Rebuild(self.url, self.keys)
        async for _ in rebuild.run():
            pass
        return rebuild

    def views(self) -> list[tuple[Any, ...]]:
        return self.does("SELECT * FROM outlast.task_view ORDER BY task_id")


@pytest.fixture(params=["plain", "sealed"])
async def store(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Store]:
    database = Database(database_url)
    await database.open()
    keys = sealer(database) if request.param == "sealed" else Sealer(database)
    log = PostgresEventLog(database, sealer=keys)
    made = Store(database_url, keys, log)
    try:
        await made.fill()
        yield made
    finally:
        log.close()
        await database.close()


VIEW = "UPDATE outlast.task_view SET"
EVENT = "UPDATE outlast.task_events SET"
QUEUE = "INSERT INTO outlast.run_queue (task_id, owner, due)"

# What is done by hand: the task and the column that are named.
MENDABLE: dict[str, tuple[str, str, str]] = {
    "version": (f"{VIEW} version = 9 WHERE task_id = 'ended'", ENDED, "task_view.version"),
    "owner": (f"{VIEW} owner = 'x' WHERE task_id = 'ended'", ENDED, "task_view.owner"),
    "tool": (f"{VIEW} tool = 'x' WHERE task_id = 'ended'", ENDED, "task_view.tool"),
    "status": (f"{VIEW} status = 'working' WHERE task_id = 'ended'", ENDED, "task_view.status"),
    "created": (
        f"{VIEW} created_at = 'infinity' WHERE task_id = 'ended'",
        ENDED,
        "task_view.created_at",
    ),
    "expires": (f"{VIEW} expires_at = NULL WHERE task_id = 'ended'", ENDED, "task_view.expires_at"),
    "a key": (
        f"{VIEW} idempotency_key = 'x' WHERE task_id = 'ended'",
        ENDED,
        "task_view.idempotency_key",
    ),
    "no key": (
        f"{VIEW} idempotency_key = NULL WHERE task_id = 'ended'",
        ENDED,
        "task_view.idempotency_key",
    ),
    "digest": (f"{VIEW} call_digest = 'x' WHERE task_id = 'ended'", ENDED, "task_view.call_digest"),
    "one byte": (
        f"{VIEW} wire = set_byte(wire, 20, 64) WHERE task_id = 'ended'",
        ENDED,
        "task_view.wire",
    ),
    "another's wire": (
        f"{VIEW} wire = (SELECT wire FROM outlast.task_view WHERE task_id = 'running')"
        " WHERE task_id = 'ended'",
        ENDED,
        "task_view.wire",
    ),
    "lost view": ("DELETE FROM outlast.task_view WHERE task_id = 'parked'", PARKED, "task_view"),
    "event's owner": (
        f"{EVENT} owner = 'x' WHERE originator_id = 'parked' AND originator_version = 2",
        PARKED,
        "task_events.owner",
    ),
    "event's tool": (
        f"{EVENT} tool = NULL WHERE originator_id = 'parked' AND originator_version = 2",
        PARKED,
        "task_events.tool",
    ),
    "event's status": (
        f"{EVENT} status = 'failed' WHERE originator_id = 'parked' AND originator_version = 2",
        PARKED,
        "task_events.status",
    ),
    "lost queue row": (
        "DELETE FROM outlast.run_queue WHERE task_id = 'fresh'",
        FRESH,
        "run_queue",
    ),
    "lost lease": ("DELETE FROM outlast.run_queue WHERE task_id = 'running'", RUNNING, "run_queue"),
    "needless queue row": (f"{QUEUE} VALUES ('ended', '', now())", ENDED, "run_queue"),
    "queue's owner": (
        "UPDATE outlast.run_queue SET owner = '' WHERE task_id = 'fresh'",
        FRESH,
        "run_queue.owner",
    ),
    "stray queue row": (f"{QUEUE} VALUES ('nobody', '', now())", "nobody", "run_queue"),
    "stray view": (
        "INSERT INTO outlast.task_view (task_id, version, owner, tool, status, created_at, wire)"
        " VALUES ('nobody', 1, 'o', 't', 'completed', now(), '{}')",
        "nobody",
        "task_view",
    ),
    "view of a past task": (
        "INSERT INTO outlast.task_view (task_id, version, owner, tool, status, created_at, wire)"
        " VALUES ('past', 3, 'o', 't', 'completed', now(), '{}')",
        PAST,
        "task_view",
    ),
    "usage": ("UPDATE outlast.owner_usage SET bytes = bytes + 1", "", "owner_usage.bytes"),
    "no usage": ("DELETE FROM outlast.owner_usage", "", "owner_usage.tasks"),
}

# What no rebuild may touch: the log itself, and what is past.
LASTING: dict[str, tuple[str, str, str]] = {
    "hole": (
        "DELETE FROM outlast.task_events WHERE originator_id = 'parked' AND originator_version = 2",
        PARKED,
        "task_events",
    ),
    "first gone": (
        "DELETE FROM outlast.task_events WHERE originator_id = 'parked' AND originator_version = 1",
        PARKED,
        "task_events",
    ),
    "other payload": (
        f"{EVENT} state = convert_to('{{}}', 'UTF8') WHERE originator_id = 'parked'",
        PARKED,
        "task_events.state",
    ),
    "payload of another": (
        f"{EVENT} state = (SELECT state FROM outlast.task_events"
        " WHERE originator_id = 'running' AND originator_version = 2)"
        " WHERE originator_id = 'parked' AND originator_version = 1",
        PARKED,
        "task_events.state",
    ),
    "past task's status": (
        "UPDATE outlast.past_tasks SET status = 'failed' WHERE task_id = 'past'",
        PAST,
        "past_tasks.status",
    ),
    "past task's row": (
        "DELETE FROM outlast.past_tasks WHERE task_id = 'past'",
        PAST,
        "past_tasks",
    ),
    "past event's status": (
        "UPDATE outlast.past_events SET status = 'failed'"
        " WHERE originator_id = 'past' AND originator_version = 2",
        PAST,
        "past_events.status",
    ),
    "hole in an erased task": (
        "DELETE FROM outlast.past_events WHERE originator_id = 'gone' AND originator_version = 2",
        ERASED,
        "past_events",
    ),
    "erasure gone": (
        "DELETE FROM outlast.past_events WHERE originator_id = 'gone' AND topic = 'task.erased'",
        ERASED,
        "past_events",
    ),
}


async def test_nothing_differs_in_a_store_that_nobody_touched(store: Store):
    audit = ViewVerification(store.url, store.keys)
    assert [difference async for difference in audit.differences()] == []
    assert (audit.checked.tasks, audit.checked.events) == (6, 17)


@pytest.mark.promise("damaged-views-are-named-and-mended")
@pytest.mark.parametrize("damage", MENDABLE)
async def test_damage_to_what_is_derived_is_named_and_mended(store: Store, damage: str):
    statement, task_id, column = MENDABLE[damage]
    before = store.does("SELECT count(*), sum(version) FROM outlast.task_view")
    store.does(statement)
    found = await store.differences()
    assert (task_id, column) in {(each.task_id, each.column) for each in found}
    assert {each.task_id for each in found} <= {task_id, ""}
    await store.rebuild()
    assert await store.differences() == []
    assert store.does("SELECT count(*), sum(version) FROM outlast.task_view") == before


@pytest.mark.parametrize("damage", LASTING)
async def test_damage_to_the_log_is_named_and_left_as_it_is(store: Store, damage: str):
    statement, task_id, column = LASTING[damage]
    store.does(statement)
    found = await store.differences()
    assert (task_id, column) in {(each.task_id, each.column) for each in found}
    views = store.views()
    await store.rebuild()
    assert store.views() == views
    assert (task_id, column) in {(each.task_id, each.column) for each in await store.differences()}


async def test_a_stray_view_leaves_no_name_behind(store: Store):
    names = "SELECT name FROM outlast.past_owners ORDER BY 1"
    before = store.does(names)
    store.does(MENDABLE["stray view"][0])
    await store.rebuild()
    assert store.does(names) == before == [("owner-of-the-task",)]


async def test_all_views_are_made_anew_from_the_log_alone(store: Store):
    wires = [await _wire(store, name) for name in (ENDED, RUNNING, PARKED, FRESH)]
    store.does("TRUNCATE outlast.task_view, outlast.run_queue, outlast.owner_usage")
    rebuild = await store.rebuild()
    assert (rebuild.done.differing, rebuild.done.refused) == (4, 0)
    assert [await _wire(store, name) for name in (ENDED, RUNNING, PARKED, FRESH)] == wires
    assert await store.differences() == []
    await store.moves(RUNNING, completes())
    assert await store.differences() == []


async def _wire(store: Store, name: str) -> bytes:
    database = Database(store.url)
    await database.open()
    try:
        view = await PostgresTaskViews(database, store.keys).get(name)
    finally:
        await database.close()
    assert view is not None
    return view.wire


async def test_a_run_that_finds_nothing_writes_nothing(store: Store):
    stamps = "SELECT task_id, xmin::text, ctid::text FROM outlast.{} ORDER BY 1"
    tables = ("task_view", "run_queue")
    before = [store.does(stamps.format(table)) for table in tables]
    usage = store.does("SELECT xmin::text FROM outlast.owner_usage ORDER BY owner")
    rebuild = await store.rebuild()
    assert (rebuild.done.differing, rebuild.done.tasks) == (0, 4)
    # A lock of a row stamps it, and writes no other version of it.
    after = [store.does(stamps.format(table)) for table in tables]
    assert [[row[::2] for row in table] for table in after] == [
        [row[::2] for row in table] for table in before
    ]
    assert store.does("SELECT xmin::text FROM outlast.owner_usage ORDER BY owner") == usage


async def test_a_running_task_whose_queue_row_was_lost_keeps_its_worker(store: Store):
    store.does("DELETE FROM outlast.run_queue WHERE task_id = 'running'")
    await store.rebuild()
    ((worker, is_leased),) = store.does(
        "SELECT worker, lease_until > clock_timestamp() FROM outlast.run_queue"
        " WHERE task_id = 'running'"
    )
    assert (worker, is_leased) == (store.tasks[RUNNING].worker, True)


@pytest.mark.parametrize("most", [1, 2_000])
async def test_keys_that_were_swapped_between_two_rows_find_back(
    store: Store, monkeypatch: pytest.MonkeyPatch, most: int
):
    """In one range, and in two: the first task meets its name at a row that comes later."""
    monkeypatch.setattr(view_rows, "ROWS_MAX", most)
    store.does(f"{VIEW} idempotency_key = idempotency_key || 'x' WHERE task_id = 'ended'")
    store.does(
        f"{VIEW} idempotency_key = (SELECT left(idempotency_key, -1) FROM outlast.task_view"
        " WHERE task_id = 'ended') WHERE task_id = 'running'"
    )
    await store.rebuild()
    assert await store.differences() == []
    assert store.does("SELECT count(*) FROM outlast.task_view WHERE idempotency_key IS NULL") == [
        (0,)
    ]


@pytest.mark.promise("rebuild-tells-no-lie")
async def test_tasks_that_move_while_they_are_mended_lose_no_step(store: Store):
    moves, versions = 0, list[int]()

    async def move() -> None:
        nonlocal moves
        while moves < MOVES:
            moves += 1
            await store.moves(RUNNING, progresses(moves, moves))
            ((version,),) = store.does(
                "SELECT version FROM outlast.task_view WHERE task_id = 'running'"
            )
            versions.append(version)

    async with anyio.create_task_group() as moving:
        moving.start_soon(move)
        while moves < MOVES:
            store.does(f"{VIEW} tool = 'x' WHERE task_id = 'running'")
            await store.rebuild()
    assert versions == list(range(3, MOVES + 3))
    assert await store.differences() == []


async def test_a_key_that_was_used_again_meanwhile_stays_with_its_new_task(store: Store):
    store.does("DELETE FROM outlast.task_view WHERE task_id = 'ended'")
    await open_task(store.log, "again", idempotency_key="key of ended")
    await store.rebuild()
    assert await store.differences() == []
    rows = store.does("SELECT task_id FROM outlast.task_view WHERE idempotency_key IS NULL")
    assert rows == [("ended",)]


async def test_a_rebuild_that_is_over_stands_in_nobodys_way(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    left: list[psycopg.AsyncConnection[Any]] = []  # the server sees their end a moment later

    async def is_left(connection: psycopg.AsyncConnection[Any]) -> None:
        left.append(connection)

    monkeypatch.setattr(psycopg.AsyncConnection, "close", is_left)
    await store.rebuild()
    monkeypatch.undo()
    await store.rebuild()
    assert [await connection.close() for connection in left] != []


async def test_two_rebuilds_do_not_run_at_once(store: Store):
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s, %s)", LOCK)
        with pytest.raises(errors.ConfigurationError, match="another rebuild"):
            await store.rebuild()
    await store.rebuild()


async def test_tasks_without_their_key_are_named_and_left(store: Store):
    if not store.keys.seals:
        pytest.skip("plain tasks need no key")
    blind = replace_keys(store)
    store.does(f"{VIEW} status = 'failed' WHERE task_id = 'ended'")
    views = store.views()
    found = await blind.differences()
    assert (ENDED, "data_keys.wrapped") in {(each.task_id, each.column) for each in found}
    rebuild = await blind.rebuild()
    assert (rebuild.done.refused, rebuild.done.differing) == (4, 0)
    assert store.views() == views


def replace_keys(store: Store) -> Store:
    """The same store, to a process that has other keys."""
    return Store(store.url, sealer(Database(store.url), (NEW,)), store.log)
