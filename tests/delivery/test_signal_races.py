"""The signal where a look or an answer takes its time, and the world moves on meanwhile."""

import asyncio
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, cast

import anyio
import pytest

from outlast.adapters import signal as module
from outlast.adapters.bus import Bus
from outlast.adapters.postgres import Database
from outlast.adapters.signal import PostgresSignal

pytestmark = pytest.mark.anyio

SOON_S = 20.0
ANSWER_S = 2.0


class SlowRows:
    """A database whose answer comes when the test lets it."""

    def __init__(self) -> None:
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def rows(self, _statement: str, task_ids: list[str]) -> list[tuple[str, int]]:
        self.asked.set()
        await self.may_answer.wait()
        return [(task_id, 5) for task_id in task_ids if task_id != "gone"]


@pytest.mark.parametrize("task_id", ["stored", "gone"])
async def test_a_look_that_comes_back_after_the_watcher_has_left_leaves_nothing(task_id: str):
    """Found: for each such task the version that was seen was kept for ever."""
    rows = SlowRows()
    heard = PostgresSignal("", cast(Database, rows))
    with anyio.fail_after(SOON_S):
        async with heard.watching(task_id):
            looking = asyncio.create_task(heard._look_at_all())
            await rows.asked.wait()
        rows.may_answer.set()
        await looking
        assert heard._heard == {}
        # And who comes later is told as anybody is.
        async with heard.watching(task_id) as waiter:
            await heard._look_at_all()
            assert await waiter.wait(0)


async def test_what_nobody_waits_for_is_not_noted_as_told():
    bus = Bus()
    bus.found("t", 5)
    async with bus.watching("t") as waiter:
        bus.found("t", 5)
        assert waiter.take() == {"t": 5}


class SlowConnection(AbstractAsyncContextManager["SlowConnection"]):
    """A LISTEN connection on which each answer takes ANSWER_S of a clock that is ours."""

    def __init__(self, clock: list[float]) -> None:
        self._clock = clock

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def add_notify_handler(self, _handler: Any) -> None:
        """Nothing is told."""

    async def execute(self, _statement: str) -> None:
        self._clock[0] += ANSWER_S


class Hearing(PostgresSignal):
    """Hears nothing, once, and then is gone."""

    lags: list[float]

    async def _hear(self, connection: Any) -> None:
        self.lags.append(self.lag_s)
        if len(self.lags) > 1:
            raise ConnectionError


async def test_it_has_heard_all_up_to_the_question_and_not_up_to_the_answer(
    monkeypatch: pytest.MonkeyPatch,
):
    """Found: what was told while an answer was on its way counted as heard already."""
    clock = [100.0]

    async def connect(**_settings: Any) -> SlowConnection:
        return SlowConnection(clock)

    monkeypatch.setattr(module.psycopg.AsyncConnection, "connect", connect)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    heard = Hearing("postgresql://nowhere.example/none", cast(Database, None))
    heard.lags = []
    with pytest.raises(ConnectionError):
        await heard._listen()
    assert heard.lags == [0.0, ANSWER_S]
