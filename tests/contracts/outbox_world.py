"""The outbox on PostgreSQL, seen from several processes at once, and short words to drive it."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.outbox import PostgresOutbox
from outlast.adapters.owner_events import PostgresOwnerEvents
from outlast.adapters.postgres import Database
from outlast.adapters.task_view import PostgresTaskViews
from outlast.adapters.webhooks import PostgresWebhookSubscriptions
from outlast.domain import decisions, draft
from outlast.domain.owner import Owner
from outlast.domain.push import Attempt, DueDelivery, Filter, SubscriptionKey, SubscriptionWish
from outlast.domain.task import Task, evolve
from outlast.tests.acceptance.waiting import until
from outlast.tests.domain.given import OPENED, RESULT
from outlast.tests.support import databases
from outlast.tests.support.sealed import sealer

ALICE, BOB = Owner("tests", "alice", "default").key, Owner("tests", "bob", "default").key
HERE, THERE = "https://here.example/hook", "https://there.example/hook"
LONG_S, SHORT_S, PATIENCE_S = 60.0, 0.2, 30.0
MANY = 10_000

Place = tuple[str, int]  # a task, and a version of it


def now() -> datetime:
    return datetime.now(UTC)


class Process:
    """One process's view of the store, with a pool of its own."""

    def __init__(self, url: str, *, seals: bool = False) -> None:
        self.database = Database(url)
        self.sealer = sealer(self.database, seals=seals)
        self.outbox = PostgresOutbox(self.database, self.sealer)
        self.subscriptions = PostgresWebhookSubscriptions(self.database)
        self.events = PostgresOwnerEvents(self.database)
        self.views = PostgresTaskViews(self.database, self.sealer)


class Rig:
    """Two processes, a log, and who subscribes. Subscriptions are named by short ids."""

    def __init__(self, url: str, *, seals: bool = False) -> None:
        self.url = url
        self.one, self.other = Process(url, seals=seals), Process(url, seals=seals)
        self.log = PostgresEventLog(self.one.database, sealer=self.one.sealer)
        self.tasks: dict[str, Task] = {}
        self.outbox = self.one.outbox
        self._numbers = itertools.count(1)

    async def empties(self) -> None:
        """Begin with nothing."""
        await asyncio.to_thread(databases.empty, self.url)

    async def opened(self, owner: str = ALICE, tool: str = "build") -> str:
        """A task at version 1."""
        task_id = f"task-{next(self._numbers)}"
        opening = replace(
            OPENED, task_id=task_id, owner=owner, tool=tool, at=decisions.instant(now())
        )
        self.tasks[task_id] = await self.log.append(None, decisions.open_task(opening))
        return task_id

    async def started(self, owner: str = ALICE, tool: str = "build") -> str:
        """A task at version 2, which runs."""
        task_id = await self.opened(owner, tool)
        await self._happens(task_id, decisions.start_work(self.tasks[task_id], "tests", now()))
        return task_id

    async def progresses(self, task_id: str, times: int = 1) -> int:
        """So many events in one append; the version after them."""
        task, told = self.tasks[task_id], list[Any]()
        for _ in range(times):
            for event in decisions.report_progress(task, task.attempt, 1, None, None, now()):
                told.append(event)
                task = evolve(task, event)
        return await self._happens(task_id, tuple(told))

    async def ends(self, task_id: str) -> int:
        """The task completes."""
        task = self.tasks[task_id]
        return await self._happens(task_id, decisions.complete(task, task.attempt, RESULT, now()))

    async def _happens(self, task_id: str, events: Any) -> int:
        self.tasks[task_id] = await self.log.append(self.tasks[task_id], events)
        return self.tasks[task_id].version

    async def subscribes(
        self,
        name: str = "sub",
        *,
        url: str = HERE,
        owner: str = ALICE,
        start: int | None = None,
        secret: bytes = b"secret",
        ttl_s: float | None = 3_600,
        most: int = 100,
        former_s: float = LONG_S,
        known: Mapping[str, int] | None = None,
        event: str = draft.TASK_UPDATED,
        **narrowed: Sequence[str],
    ) -> bool:
        """Put a subscription, from now on unless `start` says where from."""
        if start is None:
            start = await self.one.events.head(owner)
        wanted = Filter(event, **{key: tuple(value) for key, value in narrowed.items()})
        ends = None if ttl_s is None else now() + timedelta(seconds=ttl_s)
        key = SubscriptionKey(owner, url, event, name)
        wish = SubscriptionWish(name, key, wanted, secret, ends, start, known)
        return await self.one.subscriptions.put(wish, most, former_s)

    async def sweeps(self) -> int:
        """Sweep until there is no more; how often it took."""
        for times in itertools.count(1):
            if not await self.outbox.sweep():
                return times
        raise AssertionError

    async def claims(
        self,
        limit: int = MANY,
        per_endpoint: int = MANY,
        lease_s: float = LONG_S,
        busy: Sequence[str] = (),
    ) -> list[DueDelivery]:
        return list(await self.outbox.claim(limit, per_endpoint, lease_s, busy))

    async def claims_one(self) -> DueDelivery:
        """The only delivery that is due."""
        (due,) = await self.claims()
        return due

    async def acks(self, due: DueDelivery) -> bool:
        return await self.outbox.settle(due, attempt(due), None)

    async def refuses(self, due: DueDelivery, retry_in_s: float | None = LONG_S) -> bool:
        return await self.outbox.settle(due, attempt(due, "http_5xx"), retry_in_s)

    async def told(self, *, sweeping: bool = True) -> list[Place]:
        """Acknowledge all that is due, one claim after another: what came, in order."""
        came: list[Place] = []
        while True:
            if sweeping:
                await self.sweeps()
            claimed = await self.claims()
            if not claimed:
                return came
            for due in claimed:
                came.append(place(due))
                assert await self.acks(due)

    async def queued(self, name: str = "sub") -> list[Place]:
        """The events that wait for a subscription, in the order of the log."""
        rows = await self.sql(
            "SELECT task_id, version FROM outlast.webhook_deliveries"
            " WHERE subscription_id = %s AND envelope IS NULL ORDER BY position",
            name,
        )
        return [(task_id, version) for task_id, version in rows]

    async def watermark(self, name: str = "sub") -> int:
        stored = await self.one.subscriptions.get(name)
        assert stored is not None
        return stored.watermark

    async def places(self, task_id: str) -> list[int]:
        """Where its events stand in the log."""
        rows = await self.one.database.rows(
            "SELECT notification_id FROM outlast.task_events WHERE originator_id = %s"
            " ORDER BY originator_version",
            task_id,
        )
        return [position for (position,) in rows]

    async def sql(self, statement: str, *params: object) -> Sequence[tuple[Any, ...]]:
        return await self.one.database.rows(statement, *params)

    async def passes(self, name: str = "sub") -> None:
        """The time of a subscription passes, and the minute after it."""
        await self.sql(
            "UPDATE outlast.webhook_subscriptions SET refresh_before = clock_timestamp()"
            " - interval '2 minutes' WHERE id = %s",
            name,
        )

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator["Transaction"]:
        """A process that stands still in the middle of a transaction, until told to commit."""
        connection = await psycopg.AsyncConnection.connect(self.url)
        try:
            yield Transaction(connection)
        finally:
            await connection.close()

    async def goes_as_far_as_it_can(self, work: "asyncio.Task[Any]") -> None:
        """Return once this has ended, or waits for a lock of somebody else's."""

        async def is_over() -> bool:
            if work.done():
                return True
            rows = await self.other.database.rows(
                "SELECT 1 FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            return bool(rows)

        await until(is_over, PATIENCE_S)


class Transaction:
    """See `Rig.transaction`."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def does(self, statement: str, *params: object) -> None:
        await self._connection.execute(statement, params)  # pyright: ignore[reportArgumentType]  # literals of tests

    async def commits(self) -> None:
        await self._connection.commit()


def place(due: DueDelivery) -> Place:
    return due.task_id, due.version


def attempt(due: DueDelivery, category: str | None = None) -> Attempt:
    status = 2 if category is None else 5
    step = "delivered" if category is None else "retry"
    return Attempt(
        now(), due.subscription_id, f"evt_{due.id}", due.attempts + 1, category, status, 7, step
    )


async def until_true(condition: Callable[[], Awaitable[bool]]) -> None:
    await until(condition, PATIENCE_S)


@asynccontextmanager
async def rig(url: str, *, seals: bool = False) -> AsyncGenerator[Rig]:
    """A rig on an empty store."""
    made = Rig(url, seals=seals)
    await made.one.database.open()
    await made.other.database.open()
    try:
        await made.empties()
        yield made
    finally:
        made.log.close()
        await made.one.database.close()
        await made.other.database.close()
