"""What a network does to the LISTEN connection is noticed and mended, and all look again."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outlast.adapters import signal
from outlast.adapters.postgres import Database
from outlast.adapters.signal import PostgresSignal
from outlast.tests.acceptance.waiting import until
from outlast.tests.contracts import stores
from outlast.tests.support import proxy
from outlast.tests.support.proxy import Proxy

pytestmark = pytest.mark.anyio

BOUND_S = 30.0
WATCHERS = 200


@pytest.fixture
def name() -> str:
    """What the server knows this signal by, and nobody that an earlier test may have left."""
    return f"outlast-signal-{secrets.token_hex(4)}"


@pytest.fixture
async def wire(module_database_url: str, name: str) -> AsyncIterator[Proxy]:
    async with proxy.between(make_conninfo(module_database_url, application_name=name)) as wire:
        yield wire


@pytest.fixture
async def database(module_database_url: str) -> AsyncIterator[Database]:
    """The way around the wire."""
    database = Database(module_database_url)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


@pytest.fixture
async def heard(wire: Proxy, database: Database) -> AsyncIterator[PostgresSignal]:
    """A signal that hears over the wire."""
    heard = PostgresSignal(wire.url, database)
    await heard.open()
    try:
        await stores.until_live(heard)
        yield heard
    finally:
        await heard.close()


@pytest.mark.usefixtures("unlooked")
async def test_a_terminated_connection_is_replaced_and_every_waiter_is_woken(
    module_database_url: str, heard: PostgresSignal, name: str
) -> None:
    async with heard.watching("task") as task, heard.watching_queue() as queue:
        waiting = [asyncio.create_task(each.wait(BOUND_S)) for each in (task, queue)]
        with psycopg.connect(module_database_url, autocommit=True) as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = %s",
                (name,),
            ).fetchall()
        assert ended == [(True,)]
        await until_deaf(heard)
        assert not any(each.done() for each in waiting)
        await stores.until_live(heard)
        assert await asyncio.gather(*waiting) == [True, True]
        notify(module_database_url, "task")
        assert await task.wait(BOUND_S)
        assert not await queue.wait(0)


async def test_a_server_that_refuses_is_asked_again_until_it_is_back(
    wire: Proxy, heard: PostgresSignal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "RECONNECT_PAUSE_S", 0.01)
    async with heard.watching("task") as watcher:
        wire.is_refusing = True
        wire.cut()
        await until_deaf(heard)
        before = wire.accepted

        async def has_tried_often() -> bool:
            return wire.accepted > before + 5

        await until(has_tried_often, BOUND_S)
        assert not heard.is_live
        wire.is_refusing = False
        await stores.until_live(heard)
        assert await watcher.wait(BOUND_S)


async def test_a_silent_network_is_noticed_in_time_and_mended(
    wire: Proxy, heard: PostgresSignal, module_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert signal.QUIET_S_MAX + signal.ANSWER_S_MAX <= 9
    monkeypatch.setattr(signal, "QUIET_S_MAX", 0.3)
    monkeypatch.setattr(signal, "ANSWER_S_MAX", 0.5)
    wire.cut()  # so that the connection that is watched from here on has the short limits
    await until_deaf(heard)
    await stores.until_live(heard)
    wire.block()
    await until_deaf(heard)
    wire.unblock()
    async with heard.watching("task") as watcher:
        await stores.until_live(heard)
        while await watcher.wait(0.05):
            pass
        notify(module_database_url, "task")
        assert await watcher.wait(BOUND_S)


@pytest.mark.usefixtures("unlooked")
async def test_a_network_that_is_silent_from_the_first_byte_holds_up_neither_start_nor_end(
    wire: Proxy, database: Database
) -> None:
    wire.block()
    # It would try for longer than this test waits.
    url = make_conninfo(wire.url, connect_timeout=str(round(10 * BOUND_S)))
    deaf = PostgresSignal(url, database)
    async with asyncio.timeout(BOUND_S):
        await deaf.open()
        async with deaf.watching("task") as watcher:
            assert not await watcher.wait(0.1)
        assert not deaf.is_live
        await deaf.close()


async def test_however_many_watch_there_is_one_connection(
    module_database_url: str, heard: PostgresSignal, wire: Proxy, name: str
) -> None:
    async with AsyncExitStack() as stack:
        watchers = [
            await stack.enter_async_context(heard.watching(f"task-{number}"))
            for number in range(WATCHERS)
        ]
        notify(module_database_url, *(f"task-{number}" for number in range(WATCHERS)))
        assert all(await asyncio.gather(*(watcher.wait(BOUND_S) for watcher in watchers)))
        with psycopg.connect(module_database_url) as connection:
            count = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", (name,)
            ).fetchone()
    assert count == (1,)
    assert wire.accepted == 1


async def test_after_the_close_nothing_is_live_and_no_connection_is_left(
    module_database_url: str, heard: PostgresSignal, name: str
) -> None:
    await heard.close()
    assert not heard.is_live

    async def is_gone() -> bool:
        with psycopg.connect(module_database_url) as connection:
            return not connection.execute(
                "SELECT 1 FROM pg_stat_activity WHERE application_name = %s", (name,)
            ).fetchall()

    await until(is_gone, BOUND_S)


async def until_deaf(heard: PostgresSignal) -> None:
    async def is_deaf() -> bool:
        return not heard.is_live

    await until(is_deaf, BOUND_S)


def notify(url: str, *task_ids: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for task_id in task_ids:
            connection.execute("SELECT pg_notify('task_moved', %s)", (f"{task_id}:2",))


async def test_a_move_that_nobody_heard_of_is_found_by_a_look(
    module_database_url: str, heard: PostgresSignal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "LOOK_LIVE_S", 0.05)
    monkeypatch.setattr(signal, "LOOK_DOWN_S", 0.05)
    async with stores.on_postgres(module_database_url) as ports:
        task = await stores.open_task(ports.log, "missed")
        async with heard.watching(task.id) as watcher:
            with psycopg.connect(module_database_url, autocommit=True) as connection:
                connection.execute(
                    "UPDATE outlast.task_view SET version = 7 WHERE task_id = %s", (task.id,)
                )
            async with asyncio.timeout(BOUND_S):
                while watcher.take().get(task.id) != 7:
                    await watcher.wait(BOUND_S)


async def test_what_comes_together_with_an_answer_is_heard(
    wire: Proxy, module_database_url: str, heard: PostgresSignal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "QUIET_S_MAX", 0.0)  # it asks all the time
    wire.cut()
    await until_deaf(heard)
    await stores.until_live(heard)
    async with heard.watching_queue() as queue:
        wire.block()
        while await queue.wait(0.1):  # when this is over, a question of its own is on the way
            pass
        with psycopg.connect(module_database_url, autocommit=True) as connection:
            connection.execute("NOTIFY task_runnable")
        wire.unblock()
        assert await queue.wait(BOUND_S)
    assert heard.is_live


@pytest.mark.usefixtures("unlooked")
async def test_what_is_no_news_of_ours_does_no_harm(
    module_database_url: str, heard: PostgresSignal
) -> None:
    async with heard.watching("task") as watcher:
        with psycopg.connect(module_database_url, autocommit=True) as connection:
            for strange in ("", "task", "task:", "task:new", ":", "task:x:y:z"):
                connection.execute("SELECT pg_notify('task_moved', %s)", (strange,))
        notify(module_database_url, "task")
        assert await watcher.wait(BOUND_S)
        assert watcher.take() == {"task": 2}
    assert heard.is_live
