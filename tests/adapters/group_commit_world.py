"""Logs whose calls are counted, on one database: what the tests of group commit share."""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import psycopg

from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.postgres import Database
from outlast.domain.quotas import Quotas
from outlast.domain.task import Task
from outlast.tests.acceptance.waiting import until
from outlast.tests.contracts.stores import open_task
from outlast.tests.support import proxy
from outlast.tests.support.proxy import Proxy

MANY = 200
BOUND_S = 30.0
IMPATIENT_S = 0.5

ORDER = "SELECT pg_advisory_xact_lock(7710428, 1)"  # by which all appends commit in order
BLOCKED = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND wait_event_type = 'Lock' AND query LIKE '%append_events%'"
)


class Made:
    """Logs on one database, each as a process of its own would have it."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self._url, self._stack = url, stack

    async def log(self, quotas: Quotas | None = None, url: str | None = None) -> PostgresEventLog:
        """One more, closed at the end."""
        database = Database(url or self._url)
        log = PostgresEventLog(database, quotas)
        await database.open()
        self._stack.push_async_callback(database.close)
        self._stack.callback(log.close)
        return log

    async def wire(self) -> Proxy:
        """A wire to the database."""
        return await self._stack.enter_async_context(proxy.between(self._url))


async def opened(log: PostgresEventLog, count: int, name: str = "task") -> list[Task]:
    return list(await asyncio.gather(*(open_task(log, f"{name}-{n}") for n in range(count))))


async def outcomes_of(*appends: Coroutine[Any, Any, Task]) -> list[Task | BaseException]:
    async with asyncio.timeout(BOUND_S):
        return await asyncio.gather(*appends, return_exceptions=True)


async def until_blocked(url: str, count: int) -> None:
    """Return once so many calls wait for a lock."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:

        async def are_blocked() -> bool:
            row = await (await connection.execute(BLOCKED)).fetchone()
            return row == (count,)

        await until(are_blocked, BOUND_S)
