"""The store's ports, once on PostgreSQL and once in memory, and what both are driven with."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from outlast.adapters.bus import Bus
from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.memory import MemoryStore
from outlast.adapters.postgres import Database
from outlast.adapters.run_queue import PostgresDispatcher
from outlast.adapters.signal import PostgresSignal
from outlast.adapters.task_view import PostgresTaskViews
from outlast.domain import decisions
from outlast.domain.ports import Dispatcher, EventLog, Signal, TaskViews
from outlast.domain.task import Task
from outlast.tests.acceptance.waiting import until
from outlast.tests.domain.given import OPENED, Wish, at

LIVE_S_MAX = 10.0


@dataclass(frozen=True)
class Ports:
    """One store, as the use cases see it."""

    log: EventLog
    views: TaskViews
    dispatcher: Dispatcher
    signal: Signal


@asynccontextmanager
async def in_memory() -> AsyncGenerator[Ports, None]:
    signal = Bus()
    store = MemoryStore(signal)
    yield Ports(store, store, store, signal)


@asynccontextmanager
async def on_postgres(url: str, signal_url: str | None = None) -> AsyncGenerator[Ports, None]:
    database = Database(url)
    signal = PostgresSignal(signal_url or url, database)
    log = PostgresEventLog(database)
    await database.open()
    await signal.open()
    try:
        await until_live(signal)
        yield Ports(
            log, PostgresTaskViews(database), PostgresDispatcher(database, patience_s=0), signal
        )
    finally:
        await signal.close()
        log.close()
        await database.close()


async def until_live(signal: PostgresSignal, seconds: float = LIVE_S_MAX) -> None:
    """Return once the signal hears what moves. Raises TimeoutError."""

    async def is_live() -> bool:
        return signal.is_live

    await until(is_live, seconds)


async def open_task(log: EventLog, task_id: str = OPENED.task_id, **changes: Any) -> Task:
    """Open one task."""
    return await log.append(None, decisions.open_task(replace(OPENED, task_id=task_id, **changes)))


async def happens(log: EventLog, task: Task, *wishes: Wish) -> Task:
    """Decide these wishes and append what follows, one append a wish."""
    for wish in wishes:
        task = await log.append(task, wish(task))
    return task


def progresses(amount: float = 1, seconds: float = 2) -> Wish:
    """The running call tells how far it is."""
    return lambda task: decisions.report_progress(
        task, task.attempt, amount, None, None, at(seconds)
    )
