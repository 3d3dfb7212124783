"""Whatever is said on its channels, and whatever goes wrong, the signal hears on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from outlast.adapters import signal
from outlast.adapters.postgres import Database
from outlast.adapters.signal import PostgresSignal
from outlast.tests.acceptance.waiting import until
from outlast.tests.contracts import stores

pytestmark = pytest.mark.anyio

BOUND_S = 30.0
DIGITS_MAX = 4_300  # the interpreter refuses to read more


class Stumbling(PostgresSignal):
    """Where `stumbles` says so, something goes wrong that nobody has foreseen."""

    def __init__(self, url: str, database: Database) -> None:
        super().__init__(url, database)
        self.stumbles = False
        self.looks = 0

    def owner_moved(self, owner_digest: str) -> None:
        if self.stumbles:
            raise RuntimeError("an odd owner")
        super().owner_moved(owner_digest)

    async def _look(self, task_ids: list[str]) -> None:
        self.looks += 1
        if self.stumbles:
            raise RuntimeError("an odd look")
        await super()._look(task_ids)


@pytest.fixture
async def heard(
    module_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stumbling]:
    monkeypatch.setattr(signal, "RECONNECT_PAUSE_S", 0.01)
    database = Database(module_database_url)
    await database.open()
    made = Stumbling(module_database_url, database)
    await made.open()
    try:
        await stores.until_live(made)
        yield made
    finally:
        await made.close()
        await database.close()


@pytest.mark.usefixtures("unlooked")
@pytest.mark.parametrize("version", ["9" * (DIGITS_MAX + 1), "9" * 20, "٣" * 5, "-1", "1.5", ""])
async def test_an_odd_number_is_passed_over(
    module_database_url: str, heard: Stumbling, version: str
):
    async with heard.watching("odd") as odd, heard.watching("task") as watcher:
        notify(module_database_url, f"odd:{version}:owner")
        notify(module_database_url, "task:2")
        assert await watcher.wait(BOUND_S)
        assert watcher.take() == {"task": 2}
        assert heard.is_live
        assert not await odd.wait(0)


@pytest.mark.usefixtures("unlooked")
async def test_a_fault_that_nobody_has_foreseen_is_logged_and_it_hears_on(
    module_database_url: str, heard: Stumbling, caplog: pytest.LogCaptureFixture
):
    heard.stumbles = True
    notify(module_database_url, "task:1:somebody")

    async def is_told() -> bool:
        return any(record.exc_info for record in caplog.records)

    await until(is_told, BOUND_S)
    heard.stumbles = False
    await stores.until_live(heard)
    async with heard.watching("task") as watcher:
        await hears(module_database_url, watcher)


async def test_a_look_that_stumbles_is_logged_and_taken_again(
    heard: Stumbling, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(signal, "LOOK_DOWN_S", 0.01)
    monkeypatch.setattr(signal, "LOOK_LIVE_S", 0.01)
    heard.stumbles = True
    async with heard.watching("task"):

        async def has_looked_often() -> bool:
            return heard.looks > 3

        await until(has_looked_often, BOUND_S)
    assert any(record.exc_info for record in caplog.records)


async def hears(url: str, watcher: Any) -> None:
    """It may be deaf for another moment: told again until it has heard."""

    async def has_heard() -> bool:
        await asyncio.to_thread(notify, url, "task:7")
        await watcher.wait(0.1)
        return watcher.take() == {"task": 7}

    await until(has_heard, BOUND_S)


def notify(url: str, payload: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_notify('task_moved', %s)", (payload,))
