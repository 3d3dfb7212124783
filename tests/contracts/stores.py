"""The store's ports, once on PostgreSQL and once in memory, and what both are driven with."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from outlast.adapters.bus import Bus
from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.memory import MemoryStore
from outlast.adapters.memory_past import MemoryPastTasks
from outlast.adapters.postgres import Database
from outlast.adapters.retention import PostgresOwnedData, PostgresPastTasks
from outlast.adapters.run_queue import PostgresDispatcher
from outlast.adapters.sealing import Sealer
from outlast.adapters.signal import PostgresSignal
from outlast.adapters.task_view import PostgresTaskViews
from outlast.domain import decisions
from outlast.domain.ports import Dispatcher, EventLog, Signal, TaskViews, Wakeup
from outlast.domain.quotas import Quotas
from outlast.domain.retaining import OwnedData, PastTasks
from outlast.domain.task import Task
from outlast.tests.acceptance.waiting import until
from outlast.tests.domain.given import OPENED, Wish, at
from outlast.tests.support.sealed import sealer

LIVE_S_MAX = 30.0
LAST = "the last to move"  # no task


@dataclass(frozen=True)
class Ports:
    """One store, as the use cases see it."""

    log: EventLog
    views: TaskViews
    dispatcher: Dispatcher
    signal: Signal
    past: PastTasks
    owned: OwnedData


@dataclass(frozen=True)
class Limits:
    """What one owner, and all together, may have."""

    quotas: Quotas = field(default_factory=Quotas)
    running_per_owner: int | None = None


UNLIMITED = Limits()


@asynccontextmanager
async def in_memory(limits: Limits = UNLIMITED) -> AsyncGenerator[Ports, None]:
    signal = Bus()
    store = MemoryStore(signal, limits.quotas, limits.running_per_owner)
    past = MemoryPastTasks(store)
    yield Ports(store, store, store, signal, past, past)


@asynccontextmanager
async def on_postgres(
    url: str,
    signal_url: str | None = None,
    *,
    seals: bool = False,
    limits: Limits = UNLIMITED,
) -> AsyncGenerator[Ports, None]:
    database = Database(url)
    signal = PostgresSignal(signal_url or url, database)
    keeper = sealer(database) if seals else Sealer(database)
    log = PostgresEventLog(database, limits.quotas, sealer=keeper)
    await database.open()
    await signal.open()
    try:
        await until_live(signal)
        yield Ports(
            log,
            PostgresTaskViews(database, keeper),
            PostgresDispatcher(database, 0, limits.running_per_owner),
            signal,
            PostgresPastTasks(database),
            PostgresOwnedData(database),
        )
    finally:
        await signal.close()
        log.close()
        await database.close()


def opened(url: str | None, limits: Limits) -> AbstractAsyncContextManager[Ports]:
    """The store on this database, or in memory, within these limits."""
    return in_memory(limits) if url is None else on_postgres(url, limits=limits)


async def until_live(signal: PostgresSignal, seconds: float = LIVE_S_MAX) -> None:
    """Return once the signal hears what moves. Raises TimeoutError."""

    async def is_live() -> bool:
        return signal.is_live

    await until(is_live, seconds)


async def moves_arrived(ports: Ports) -> None:
    """Return once all that has moved so far has been heard of, however late that comes.

    In memory it is heard at once. PostgreSQL tells everybody in the order of commits, so what is
    told now comes last.
    """
    if not isinstance(ports.signal, PostgresSignal):
        return
    async with ports.signal.watching(LAST) as last:
        while last.take().get(LAST) != 1:
            await ports.signal._database.rows("SELECT pg_notify('task_moved', %s)", f"{LAST}:1")
            assert await last.wait(LIVE_S_MAX)


async def forget_old_moves(ports: Ports, *watchers: Wakeup) -> None:
    """Let what moved before the test's own moves arrive, and begin to watch from there."""
    await moves_arrived(ports)
    for watcher in watchers:
        await watcher.wait(0)
        watcher.take()


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
