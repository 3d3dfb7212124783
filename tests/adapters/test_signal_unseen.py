"""Owners and the outbox have no version to look for: who waits for them is woken, heard or not."""

from collections.abc import AsyncIterator

import psycopg
import pytest

from outlast.adapters import codec, signal
from outlast.adapters.postgres import Database
from outlast.adapters.signal import PostgresSignal
from outlast.tests.contracts import stores
from outlast.tests.support import proxy
from outlast.tests.support.proxy import Proxy

pytestmark = pytest.mark.anyio

BOUND_S = 30.0


@pytest.fixture
async def wire(module_database_url: str) -> AsyncIterator[Proxy]:
    async with proxy.between(module_database_url) as wire:
        yield wire


@pytest.fixture
async def heard(wire: Proxy, module_database_url: str) -> AsyncIterator[PostgresSignal]:
    """A signal that hears over the wire, and looks around it."""
    database = Database(module_database_url)
    heard = PostgresSignal(wire.url, database)
    await database.open()
    await heard.open()
    try:
        await stores.until_live(heard)
        yield heard
    finally:
        await heard.close()
        await database.close()


def notify(url: str, channel: str, payload: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_notify(%s, %s)", (channel, payload))


@pytest.mark.usefixtures("unlooked")
async def test_an_owner_and_the_outbox_are_heard_of(
    module_database_url: str, heard: PostgresSignal
) -> None:
    async with (
        heard.watching("task") as task,
        heard.watching_owner("alice") as alice,
        heard.watching_owner("bob") as bob,
        heard.watching_outbox() as outbox,
    ):
        notify(module_database_url, "task_moved", "task:7")  # an older process says no more
        assert await task.wait(BOUND_S)
        assert task.take() == {"task": 7}
        assert not await alice.wait(0)
        notify(module_database_url, "task_moved", f"task:8:{codec.digest('alice')}")
        assert await alice.wait(BOUND_S)
        assert await task.wait(BOUND_S)
        assert task.take() == {"task": 8}
        notify(module_database_url, "webhook_due", "")
        assert await outbox.wait(BOUND_S)
        assert not await bob.wait(0)


async def test_while_nothing_is_heard_they_are_woken_again_and_again(
    wire: Proxy, heard: PostgresSignal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "LOOK_DOWN_S", 0.05)
    async with (
        heard.watching_owner("alice") as alice,
        heard.watching_outbox() as outbox,
        heard.watching_queue() as queue,
    ):
        wire.is_refusing = True
        wire.cut()
        for _ in range(3):
            for waiter in (alice, outbox, queue):
                assert await waiter.wait(BOUND_S)
        assert not heard.is_live


async def test_they_are_not_looked_for_among_the_tasks(heard: PostgresSignal) -> None:
    async with (
        heard.watching("task"),
        heard.watching_owner("alice"),
        heard.watching_outbox(),
        heard.watching_queue(),
    ):
        assert heard.watched() == ["task"]
