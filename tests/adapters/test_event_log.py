"""What PostgreSQL alone can get wrong: lost replies, dead connections, commit order, old rows."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import psycopg
import pytest
from eventsourcing.postgres import PostgresDatastore
from psycopg.conninfo import make_conninfo
from psycopg_pool.base import AttemptWithBackoff

from outlast.adapters import event_log, postgres, signal
from outlast.domain import errors
from outlast.domain.task import fold
from outlast.tests.acceptance.waiting import until
from outlast.tests.contracts import stores
from outlast.tests.contracts.stores import Ports, happens, open_task, progresses
from outlast.tests.domain.given import DEPLOY, OPENED, asks, cancels, completes, starts
from outlast.tests.support import databases, proxy
from outlast.tests.support.proxy import Proxy

pytestmark = pytest.mark.anyio

REPLY = b"append_events"  # the name of the answer's only column
STARTING = b"task.work_started"  # stands in the request that appends it
OPENING = b"task.opened"

BOUND_S = 30.0
IMPATIENT_S = 0.5

WRITERS = 8
APPENDS_EACH = 25


@pytest.fixture
def url(module_database_url: str) -> str:
    databases.empty(module_database_url)
    return module_database_url


@pytest.fixture
async def wire(url: str) -> AsyncIterator[Proxy]:
    async with proxy.between(url) as wire:
        yield wire


@pytest.fixture
async def ports(wire: Proxy, url: str) -> AsyncIterator[Ports]:
    """A store whose log and views are reached over the wire; its signal is not."""
    async with stores.on_postgres(wire.url, signal_url=url) as ports:
        yield ports


@pytest.fixture
async def rival(url: str) -> AsyncIterator[Ports]:
    """The same store, reached by another process that the wire does not matter to."""
    async with stores.on_postgres(url) as ports:
        yield ports


@pytest.mark.promise("lost-reply-is-no-conflict")
@pytest.mark.parametrize("times", [1, 3])
async def test_a_commit_whose_reply_was_lost_is_a_success(
    wire: Proxy, ports: Ports, times: int
) -> None:
    task = await open_task(ports.log)
    wire.lose_replies(REPLY, times=1)
    wire.lose_requests(b"event_id", times=times - 1)  # the look at what is stored is lost as well
    task = await happens(ports.log, task, starts())
    assert wire.faults == times
    assert fold(await ports.log.read(task.id)) == task
    assert [event.version for event in await ports.log.read(task.id)] == [1, 2]


@pytest.mark.promise("lost-reply-is-no-conflict")
async def test_several_events_whose_reply_was_lost_are_stored_once(
    wire: Proxy, ports: Ports
) -> None:
    task = await happens(ports.log, await open_task(ports.log), starts())
    wire.lose_replies(REPLY)
    task = await happens(ports.log, task, asks(DEPLOY))
    assert (wire.faults, task.version) == (1, 4)
    assert fold(await ports.log.read(task.id)) == task


@pytest.mark.promise("lost-reply-is-no-conflict")
@pytest.mark.parametrize("key", [None, "key"])
async def test_an_opening_whose_reply_was_lost_is_a_success(
    wire: Proxy, ports: Ports, key: str | None
) -> None:
    wire.lose_replies(REPLY)
    task = await open_task(ports.log, idempotency_key=key)
    assert wire.faults == 1
    assert list(await ports.log.read(task.id)) == [replace(OPENED, idempotency_key=key)]
    assert await ports.dispatcher.depth() == 1


async def test_a_lost_reply_is_a_success_even_when_the_task_has_moved_on_since(
    wire: Proxy, ports: Ports, rival: Ports
) -> None:
    task = await open_task(ports.log)
    wire.lose_replies(REPLY)
    wire.is_refusing = True  # the open connection goes on until it is cut
    appending = asyncio.create_task(happens(ports.log, task, starts()))
    await until_fault(wire)
    seen = fold(await rival.log.read(task.id))
    assert seen is not None
    after = await happens(rival.log, seen, progresses())
    wire.is_refusing = False
    assert await appending == seen
    assert fold(await rival.log.read(task.id)) == after


async def test_a_lost_request_that_a_rival_overtook_is_stale(
    wire: Proxy, ports: Ports, rival: Ports
) -> None:
    task = await open_task(ports.log)
    wire.lose_requests(STARTING)
    wire.is_refusing = True  # the open connection goes on until it is cut
    appending = asyncio.create_task(happens(ports.log, task, starts("worker-a")))
    await until_fault(wire)
    overtaken = await happens(rival.log, task, starts("worker-b"))
    wire.is_refusing = False
    with pytest.raises(errors.StaleVersion):
        await appending
    assert fold(await rival.log.read(task.id)) == overtaken


async def test_a_lost_opening_whose_key_a_rival_used_is_a_duplicate(
    wire: Proxy, ports: Ports, rival: Ports
) -> None:
    await open_task(ports.log, "before")
    wire.lose_requests(OPENING)
    wire.is_refusing = True  # the open connection goes on until it is cut
    opening = asyncio.create_task(open_task(ports.log, "ours", idempotency_key="key"))
    await until_fault(wire)
    await open_task(rival.log, "theirs", idempotency_key="key")
    wire.is_refusing = False
    with pytest.raises(errors.DuplicateOpening):
        await opening
    assert list(await rival.log.read("ours")) == []


async def test_an_append_waits_for_a_server_that_comes_back(wire: Proxy, ports: Ports) -> None:
    task = await open_task(ports.log)
    wire.is_refusing = True
    wire.cut()
    refused_before = wire.accepted
    appending = asyncio.create_task(happens(ports.log, task, starts()))

    async def was_refused() -> bool:
        return wire.accepted > refused_before

    await until(was_refused, BOUND_S)
    wire.is_refusing = False
    task = await appending
    assert fold(await ports.log.read(task.id)) == task


@pytest.mark.parametrize("fault", ["refused", "silent"])
async def test_an_append_gives_up_on_a_server_that_stays_away(
    wire: Proxy, ports: Ports, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    task = await open_task(ports.log)
    if fault == "refused":
        wire.is_refusing = True
        wire.cut()
    else:
        wire.block()
    async with asyncio.timeout(BOUND_S):
        with monkeypatch.context() as patience:
            patience.setattr(event_log, "APPEND_PATIENCE_S", IMPATIENT_S)
            with pytest.raises(errors.StoreUnavailable):
                await happens(ports.log, task, starts())
    wire.is_refusing = False
    wire.unblock()
    seen = fold(await ports.log.read(task.id))
    assert seen is not None
    assert (await happens(ports.log, seen, cancels())).version == seen.version + 1 + (
        not seen.is_running
    )


async def test_a_read_gives_up_on_a_silent_server_and_recovers_by_itself(
    wire: Proxy, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await open_task(ports.log)
    assert await ports.views.get(task.id) is not None
    wire.block()
    async with asyncio.timeout(BOUND_S):
        with monkeypatch.context() as patience:
            patience.setattr(postgres, "STATEMENT_S_MAX", IMPATIENT_S)
            with pytest.raises(errors.StoreUnavailable):
                await ports.views.get(task.id)
    wire.unblock()
    view = await ports.views.get(task.id)
    assert view is not None
    assert view.version == 1


async def test_after_every_connection_was_terminated_all_ports_work_by_themselves(
    url: str, rival: Ports
) -> None:
    tasks = [await open_task(rival.log, f"task-{number}") for number in range(WRITERS)]
    await asyncio.gather(*(happens(rival.log, task, starts()) for task in tasks))
    await asyncio.gather(*(rival.views.get(task.id) for task in tasks))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    assert await rival.dispatcher.depth() == WRITERS
    views = await asyncio.gather(*(rival.views.get(task.id) for task in tasks))
    assert [view.version for view in views if view] == [2] * WRITERS
    running = [fold(await rival.log.read(task.id)) for task in tasks]
    ended = await asyncio.gather(
        *(happens(rival.log, task, completes()) for task in running if task)
    )
    assert [task.version for task in ended] == [3] * WRITERS


async def test_an_outage_ends_within_seconds_however_long_it_was(
    wire: Proxy, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    # After many doublings the pause between two tries would be this long.
    monkeypatch.setattr(AttemptWithBackoff, "DELAY_BACKOFF", 10 * BOUND_S)
    monkeypatch.setattr(event_log, "APPEND_PATIENCE_S", 10 * BOUND_S)
    task = await open_task(ports.log)
    assert await ports.views.get(task.id) is not None
    wire.is_refusing = True
    wire.cut()
    appending = asyncio.create_task(happens(ports.log, task, starts()))
    for _ in range(2):
        with pytest.raises(errors.StoreUnavailable):
            await ports.views.get(task.id)
    wire.is_refusing = False

    async def is_read() -> bool:
        with suppress(errors.StoreUnavailable):
            view = await ports.views.get(task.id)
            return view is not None and view.version == 2
        return False

    async with asyncio.timeout(BOUND_S):
        await appending
        await until(is_read, BOUND_S)


async def test_an_append_happens_although_its_caller_goes_away(url: str, rival: Ports) -> None:
    task = await open_task(rival.log)
    with psycopg.connect(url) as blocker:
        blocker.execute("SELECT 1 FROM outlast.task_view FOR UPDATE")
        appending = asyncio.create_task(happens(rival.log, task, starts()))

        async def is_blocked() -> bool:
            return await _waiting_appends(url) == 1

        await until(is_blocked, BOUND_S)
        appending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await appending

    async def has_happened() -> bool:
        return len(await rival.log.read(task.id)) == 2

    await until(has_happened, BOUND_S)


async def test_a_reader_of_what_is_new_never_passes_over_an_event(url: str, rival: Ports) -> None:
    # A number is drawn at the insert and shows at the commit; some commits are made to come late.
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF random() < 0.3 THEN PERFORM pg_sleep(0.005); END IF; RETURN NULL; END $$"
        )
        connection.execute(
            "CREATE TRIGGER dawdle AFTER INSERT ON outlast.task_events"
            " FOR EACH ROW EXECUTE FUNCTION dawdle()"
        )
    ended = asyncio.Event()
    reading = asyncio.create_task(_read_what_is_new(url, ended))
    tasks = [await open_task(rival.log, f"task-{number}") for number in range(WRITERS)]
    moves = [starts(), *(progresses(number) for number in range(APPENDS_EACH)), cancels()]
    await asyncio.gather(*(happens(rival.log, task, *moves) for task in tasks))
    ended.set()
    seen = await reading
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP FUNCTION dawdle CASCADE")
        stored = connection.execute(
            "SELECT notification_id, originator_id, originator_version"
            " FROM outlast.task_events ORDER BY notification_id"
        ).fetchall()
    assert len(stored) == WRITERS * (APPENDS_EACH + 3)
    assert seen == stored
    for task in tasks:
        versions = [version for _, task_id, version in stored if task_id == task.id]
        assert versions == list(range(1, len(moves) + 2))


async def test_the_library_is_refused_with_its_database_functions() -> None:
    datastore = PostgresDatastore("", "", "", "", "", enable_db_functions=True)
    with pytest.raises(errors.ConfigurationError):
        event_log.TaskEventRecorder(datastore)


async def test_the_recorder_cannot_be_used_without_the_rows_that_belong_to_the_events(
    url: str,
) -> None:
    datastore = event_log._datastore(url)
    recorder = event_log.TaskEventRecorder(datastore)
    stored = event_log.TaskEventMapper().to_stored_event(OPENED)
    with pytest.raises(TypeError):
        recorder.insert_events([stored])
    datastore.close()


async def test_what_the_url_says_reaches_the_server(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "QUIET_S_MAX", 10 * BOUND_S)  # LISTEN stays the last that it said
    named = make_conninfo(
        url, application_name="outlast-by-name", sslmode="disable", connect_timeout="7"
    )
    kept = event_log._datastore(named).pool.kwargs
    assert isinstance(kept, dict)
    assert (kept["sslmode"], kept["connect_timeout"]) == ("disable", "7")
    async with stores.on_postgres(named) as ports:
        await happens(ports.log, await open_task(ports.log), starts())
        await ports.views.get(OPENED.task_id)
        with psycopg.connect(url) as connection:
            queries = connection.execute(
                "SELECT query FROM pg_stat_activity WHERE application_name = 'outlast-by-name'"
            ).fetchall()
    for part in ("append_events", "task_view", "LISTEN"):
        assert any(part in query for (query,) in queries), part


async def until_fault(wire: Proxy) -> None:
    async def has_happened() -> bool:
        return wire.faults > 0

    await until(has_happened, BOUND_S)


async def _waiting_appends(url: str) -> int:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        cursor = await connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock' AND query LIKE '%append_events%'"
        )
        row = await cursor.fetchone()
        return row[0] if row else 0


async def _read_what_is_new(url: str, ended: asyncio.Event) -> list[tuple[int, str, int]]:
    seen: list[tuple[int, str, int]] = []
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while True:
            is_last_look = ended.is_set()
            cursor = await connection.execute(
                "SELECT notification_id, originator_id, originator_version"
                " FROM outlast.task_events WHERE notification_id > %s ORDER BY notification_id",
                (seen[-1][0] if seen else 0,),
            )
            seen += await cursor.fetchall()
            if is_last_look:
                return seen
