"""A store, workers on it, and upstreams that play a part: what comes when is up to the test."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from outlast.adapters.bus import Bus
from outlast.adapters.memory import MemoryStore
from outlast.adapters.memory_past import MemoryPastTasks
from outlast.domain import decisions, errors
from outlast.domain.decisions import Events
from outlast.domain.events import TaskOpened
from outlast.domain.jobs import Sight
from outlast.domain.ports import (
    CallNews,
    EventLog,
    Faulted,
    HeldAsk,
    Returned,
    RunningCall,
    Tool,
    ToolCall,
)
from outlast.domain.task import Task, TaskStatus
from outlast.service.bridging.port import Job, Pace, Seen, Working
from outlast.service.commands import Commands
from outlast.service.retention import Retention
from outlast.service.workbench import Workbench
from outlast.service.worker import Stores, Worker
from outlast.tests.acceptance.waiting import until
from outlast.tests.domain.given import DEPLOY, OPENED, RESULT, YES, Wish

PATIENCE_S = 30.0
JOB = {"kind": "played", "id": "job-1"}

Then = Callable[[str], Awaitable[object]]


class Played(RunningCall):
    """A call that tells this, and ends once it is told to stop, or `ends` with something."""

    def __init__(self, *told: CallNews) -> None:
        self._told, self._over = told, asyncio.Event()
        self._outcome: tuple[CallNews, ...] = ()
        self.was_stopped = False

    async def news(self) -> AsyncIterator[CallNews]:
        for item in self._told:
            yield item
        await self._over.wait()
        for item in self._outcome:
            yield item

    async def cancel(self) -> None:
        self.was_stopped |= not self._over.is_set()
        self._over.set()

    async def is_stopped(self) -> bool:
        """Whether it was told to stop before its end."""
        return self.was_stopped

    def ends(self, outcome: CallNews) -> None:
        """The outcome, unless there was an end before."""
        if not self._over.is_set():
            self._outcome = (outcome,)
            self._over.set()


class Closing(Played):
    """One that takes until it may to be over once it is told to stop."""

    def __init__(self, *told: CallNews) -> None:
        super().__init__(*told)
        self.may_close = asyncio.Event()

    async def cancel(self) -> None:
        await super().cancel()
        await self.may_close.wait()


class Asking(Played):
    """One that asks before, and ends with what it is answered."""

    def __init__(self, *told: CallNews) -> None:
        super().__init__(HeldAsk(DEPLOY, self._reply, self._refuse), *told)

    def _reply(self, answer: Mapping[str, Any]) -> None:
        self.ends(Returned({**RESULT, "structuredContent": answer}))

    def _refuse(self, code: int, message: str) -> None:
        self.ends(Faulted(code, message))


class Stage:
    """An upstream whose calls are these, one after the other."""

    def __init__(self, *calls: RunningCall) -> None:
        self._calls = list(calls)
        self.begun: list[ToolCall] = []
        self.given = 0
        self.is_ready, self.takes_calls = asyncio.Event(), asyncio.Event()  # nothing goes on before
        self.is_ready.set()
        self.takes_calls.set()

    async def tools(self) -> Sequence[Tool]:
        return []

    async def ready(self, upstream: str, capabilities: Mapping[str, Any] | None = None) -> None:
        await self.is_ready.wait()

    async def call(self, call: ToolCall) -> RunningCall:
        self.begun.append(call)
        await self.takes_calls.wait()
        self.given += 1
        return self._calls.pop(0)

    async def close(self) -> None:
        """Nothing is open."""

    async def is_calling(self) -> bool:
        """Whether a call is on its way, or has begun."""
        return bool(self.begun)

    async def has_given(self) -> bool:
        """Whether a call has begun."""
        return self.given > 0


class Eventful:
    """A log in which something happens, once, at the append that ends in an event of this kind.

    `before` happens first. `after` happens once it is stored, of which nobody is told then. `bus`
    hears what is appended here and nothing else: of what came before, together with that.
    """

    def __init__(
        self, real: EventLog, kind: type, *, before: Then | None = None, after: Then | None = None
    ) -> None:
        self.read, self.tail, self._real = real.read, real.tail, real
        self._kind, self._before, self._after = kind, before, after
        self._is_over = False
        self.bus = Bus()

    async def append(self, before: Task | None, events: Events) -> Task:
        """See `EventLog.append`."""
        stored = await self._appended(before, events)
        self.bus.moved(stored.id, stored.version)
        return stored

    async def _appended(self, before: Task | None, told: Events) -> Task:
        if self._is_over or not isinstance(told[-1], self._kind):
            return await self._real.append(before, told)
        self._is_over = True
        if self._before is not None:
            await self._before(told[-1].task_id)
        stored = await self._real.append(before, told)
        if self._after is not None:
            await self._after(stored.id)
            raise errors.StoreUnavailable
        return stored


async def nothing(_task_id: str) -> None:
    """Happens."""


def now() -> datetime:
    return datetime.now(UTC)


class Bridge:
    """Jobs that run for ever, are looked at once a minute, and count what they are told."""

    kind = "played"

    def __init__(self) -> None:
        self.looks, self.stops = 0, 0

    def job_in(self, task: Task, result: Mapping[str, Any]) -> Job | None:
        return JOB if result.get("isJob") else None

    def pace(self, task: Task) -> Pace:
        return Pace(shortest_ms=60_000, longest_ms=60_000)

    async def look(self, task: Task) -> Seen:
        self.looks += 1
        return Working(Sight("running"))

    async def answer(self, task: Task, answers: Mapping[str, Any]) -> bool:
        return True

    async def cancel(self, task: Task) -> bool | None:
        self.stops += 1
        return True


class Store(MemoryStore):
    """Counts what it is asked, and what was claimed. With a `last` claim, there are none after."""

    renewed = asked = claimed = 0
    last: Sequence[str] | None = None

    async def claim(self, worker: str, limit: int, lease_s: float) -> Sequence[str]:
        self.asked += 1
        if self.last is not None:
            found, self.last = self.last, ()
            return found
        found = await super().claim(worker, limit, lease_s)
        self.claimed += len(found)
        return found

    async def renew(self, worker: str, task_ids: Sequence[str], lease_s: float) -> Sequence[str]:
        self.renewed += 1
        return await super().renew(worker, task_ids, lease_s)


class World:
    """A store, and workers whose appends go by a log of their own."""

    def __init__(self) -> None:
        self.bus = Bus()
        self.store = Store(self.bus)
        self.commands = Commands(self.store, now)
        self.bridge = Bridge()

    @asynccontextmanager
    async def working(
        self, stage: Stage, log: EventLog | None = None, bus: Bus | None = None
    ) -> AsyncIterator[Worker]:
        """A worker on this stage, until the end of the block."""
        commands = Commands(log or self.store, now)
        bench = Workbench(commands, stage, bus or self.bus, bridges=(self.bridge,))
        past = MemoryPastTasks(self.store)
        retention = Retention(self.commands, self.store, past, timedelta(days=30))
        worker = Worker("here", bench, Stores(self.store, retention), slots=4)
        worker.start()
        try:
            yield worker
        finally:
            await worker.drain(0.0)

    async def opened(self, **facts: Any) -> str:
        """A task that waits for a worker."""
        return (await self.commands.open(decisions.open_task(opening(**facts)))).id

    async def change(self, task_id: str, *wishes: Wish) -> None:
        for wish in wishes:
            await self.commands.change(task_id, wish)

    async def cancel(self, task_id: str) -> None:
        await self.change(task_id, lambda task: decisions.request_cancel(task, now()))

    async def answer(self, task_id: str) -> None:
        def wish(task: Task) -> decisions.Events:
            return decisions.receive_input(task, {q.key: YES for q in task.outstanding}, now())

        await self.change(task_id, wish)

    async def until_is(self, task_id: str, status: TaskStatus) -> Task:
        async def is_so() -> bool:
            return (await self.commands.load(task_id)).status is status

        await until(is_so, PATIENCE_S)
        return await self.commands.load(task_id)

    async def is_claimed(self) -> bool:
        """Whether nothing waits for a worker."""
        return await self.store.depth() == 0

    async def has_claimed_its_last(self) -> bool:
        """Whether the last claim was made."""
        return self.store.last == ()

    async def has_asked_again(self) -> bool:
        """Whether a worker has asked for tasks, more than once."""
        return self.store.asked >= 2

    async def is_stopped(self) -> bool:
        """Whether the job was told to."""
        return self.bridge.stops > 0


def opening(**facts: Any) -> TaskOpened:
    fresh = {"task_id": secrets.token_urlsafe(32), "at": decisions.instant(now())}
    return replace(OPENED, **fresh | facts)
