"""What an owner wants is heeded also where a worker learns of it from its own append.

The append is refused, since the owner was first, and made anew on the newest task. Of the owner's
version the worker then hears as of one that it knows.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from outlast.adapters.bus import Bus
from outlast.domain import events
from outlast.domain.decisions import Events
from outlast.domain.ports import (
    CallNews,
    EventLog,
    Faulted,
    HeldAsk,
    Progress,
    Returned,
    ToolCall,
)
from outlast.domain.task import Task, TaskStatus
from outlast.service import wiring
from outlast.service.commands import Commands
from outlast.service.workbench import Workbench
from outlast.service.worker import Stores, Worker
from outlast.tests.domain.given import DEPLOY, RESULT
from outlast.tests.service.worker_bench import Bench, answer, cancel, ended, opened

pytestmark = pytest.mark.anyio

First = Callable[[str], Awaitable[object]]


@pytest.fixture
async def bench(database_url: str, tmp_path: Path) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(database_url, tmp_path / "journal", stack)


class Overtaken:
    """A log in which the owner is first, once, where progress is to be recorded.

    The bus is told of what this worker has appended, of the owner's wish with it: news may be late.
    """

    def __init__(self, real: EventLog, first: First) -> None:
        self.read, self.tail, self._real = real.read, real.tail, real
        self._first: First | None = first
        self.bus = Bus()

    async def append(self, before: Task | None, told: Events) -> Task:
        first = self._first
        if before is not None and first and isinstance(told[0], events.ProgressReported):
            self._first = None
            await first(before.id)
        after = await self._real.append(before, told)
        self.bus.moved(after.id, after.version)
        return after


class Telling:
    """An upstream and its one call: it tells this, and ends once it is answered or to stop."""

    def __init__(self, *told: CallNews) -> None:
        self._told, self._over = told, asyncio.Event()
        self._outcome: tuple[CallNews, ...] = ()

    async def ready(self, upstream: str, capabilities: Mapping[str, Any]) -> None:
        """It always is."""

    async def call(self, call: ToolCall) -> "Telling":
        return self

    async def news(self) -> AsyncIterator[CallNews]:
        for item in self._told:
            yield item
        await self._over.wait()
        for item in self._outcome:
            yield item

    async def cancel(self) -> None:
        self._over.set()


class Asking(Telling):
    """One that asks before, and ends with a result once it is answered."""

    def __init__(self, *told: CallNews) -> None:
        super().__init__(HeldAsk(DEPLOY, self._reply, self._refuse), *told)

    def _reply(self, answer: Mapping[str, Any]) -> None:
        self._outcome = (Returned({**RESULT, "structuredContent": answer}),)
        self._over.set()

    def _refuse(self, code: int, message: str) -> None:
        self._outcome = (Faulted(code, message),)
        self._over.set()


async def worked(bench: Bench, upstream: Any, first: Callable[..., Awaitable[object]]) -> Task:
    """The task at its end; its owner does that just before progress is recorded."""
    built = await bench.worker(claims=False)

    async def overtake(task_id: str) -> None:
        await first(built, task_id)

    log: Any = Overtaken(built.log, overtake)
    task_id = await opened(built, "new.any", {})
    workbench = Workbench(Commands(log, wiring.now), upstream, log.bus)
    worker = Worker("overtaken", workbench, Stores(built.dispatcher, built.retention), slots=1)
    worker.start()
    try:
        return await ended(built, task_id)
    finally:
        await worker.drain(0.0)


@pytest.mark.promise("cancel-reaches-upstream")
async def test_a_cancel_before_a_progress_is_recorded_is_heeded(bench: Bench):
    task = await worked(bench, Telling(Progress(1, 2, "half")), cancel)
    assert task.status is TaskStatus.CANCELLED


async def test_an_answer_before_a_progress_is_recorded_is_given(bench: Bench):
    async def answers(built: wiring.Built, task_id: str) -> None:
        await answer(built, task_id, "go")

    task = await worked(bench, Asking(Progress(1, 2, "half")), answers)
    assert task.status is TaskStatus.COMPLETED
    assert (task.result or {})["structuredContent"]["content"] == {"word": "go"}
