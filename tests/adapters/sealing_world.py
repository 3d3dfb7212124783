"""One database under processes that seal, each with its own keys, and who tampers with it."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import psycopg
import pytest

from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.postgres import Database, Row
from outlast.adapters.sealing import Sealer
from outlast.adapters.task_view import PostgresTaskViews
from outlast.domain import errors
from outlast.domain.task import Task
from outlast.tests.contracts.stores import happens, open_task
from outlast.tests.domain.given import starts
from outlast.tests.support.sealed import sealer


class Counting(Database):
    """Counts its statements."""

    count = 0

    async def rows(self, statement: str, *params: object) -> Sequence[Row]:
        """See `Database.rows`."""
        self.count += 1
        return await super().rows(statement, *params)


@dataclass
class Replica:
    """One process's log and views, with the keys that it was given."""

    database: Counting
    sealer: Sealer
    log: PostgresEventLog = field(init=False)
    views: PostgresTaskViews = field(init=False)

    def __post_init__(self) -> None:
        self.log = PostgresEventLog(self.database, sealer=self.sealer)
        self.views = PostgresTaskViews(self.database, self.sealer)

    async def started(self, task_id: str) -> Task:
        """A task at version 2."""
        return await happens(self.log, await open_task(self.log, task_id), starts())

    async def cannot_read(self, task_id: str, error: type[errors.PayloadError]) -> None:
        """Neither its events nor its view."""
        for _ in range(2):
            with pytest.raises(error):
                await self.log.read(task_id)
            with pytest.raises(error):
                await self.views.get(task_id)


@dataclass
class World:
    """A database, and the processes on it."""

    url: str
    stack: AsyncExitStack

    async def replica(self, *lines: str, seals: bool = True) -> Replica:
        """A process with these keys; without any, one that seals nothing."""
        database = Counting(self.url)
        await database.open()
        self.stack.push_async_callback(database.close)
        keeper = sealer(database, lines, seals=seals) if lines else Sealer(database)
        made = Replica(database, keeper)
        self.stack.callback(made.log.close)
        return made

    def sql(self, statement: str, *params: object) -> list[Row]:
        """By hand, as somebody with the database's password would."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), params)
            return cursor.fetchall() if cursor.description else []

    def states(self) -> list[Row]:
        """Every event as it is stored."""
        return self.sql(
            "SELECT originator_id, originator_version, state, digest FROM outlast.task_events"
            " ORDER BY notification_id"
        )

    def moves_event(self, source: tuple[str, int], target: tuple[str, int]) -> None:
        """Put what one event holds into another."""
        self.sql(
            "UPDATE outlast.task_events t SET state = s.state, digest = s.digest"
            " FROM outlast.task_events s WHERE (s.originator_id, s.originator_version) = (%s, %s)"
            " AND (t.originator_id, t.originator_version) = (%s, %s)",
            *source,
            *target,
        )
