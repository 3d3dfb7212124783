"""A log to audit: events appended in the real way, a follower, and hands that tamper."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from outlast.adapters.audit_log import PostgresAuditLog
from outlast.adapters.audit_tree import PostgresAuditTree, PostgresTreeFollowing
from outlast.adapters.notes import CheckpointNotary, SigningKey
from outlast.adapters.postgres import Database
from outlast.domain.audit import Checkpoint
from outlast.service.auditing.following import Follower, Pace
from outlast.service.auditing.report import Report
from outlast.service.auditing.verifying import LogCheck, Stored
from outlast.tests.contracts import stores
from outlast.tests.contracts.stores import Ports, happens, open_task, progresses
from outlast.tests.domain.given import starts

ORIGIN = "log.example/outlast"
KEY = SigningKey(ORIGIN, bytes(range(32)))
NOTARY = CheckpointNotary(ORIGIN, KEY, [KEY.verifier])
AT_ONCE = Pace(1, 0.001)  # a checkpoint for each event
HOURLY = Pace(1_000_000, 3_600)


@dataclass(frozen=True)
class Audited:
    """One store with all that audits it."""

    url: str
    database: Database
    ports: Ports
    log: PostgresAuditLog
    tree: PostgresAuditTree
    following: PostgresTreeFollowing

    def follower(self, pace: Pace = HOURLY) -> Follower:
        """One that shares its memory of the tree with the others of this store."""
        return Follower(self.following, NOTARY, pace)

    async def happened(self, *names: str, events: int = 4) -> None:
        """Tasks of these names, each with so many events."""
        for name in names:
            task = await happens(self.ports.log, await open_task(self.ports.log, name), starts())
            for number in range(events - 2):
                task = await happens(self.ports.log, task, progresses(number, number + 2))

    async def signed(self) -> Checkpoint:
        """Everything that has happened, followed and signed."""
        await self.extended()
        async with self.following.alone() as pen:
            assert pen is not None
            await pen.checkpoint(NOTARY)
        newest = await self.tree.newest()
        assert newest is not None
        return newest

    async def extended(self) -> None:
        """Everything that has happened, followed and not signed."""
        async with self.following.alone() as pen:
            assert pen is not None
            while await pen.extend(1_000):
                pass

    async def verified(self, kept: str | None = None) -> Report:
        """What `verify` finds."""
        report = Report()
        stored = Stored(self.log, self.tree, NOTARY, self.following.standing)
        await LogCheck(stored, kept)(report)
        return report

    def tamper(self, statement: str, *arguments: Any) -> Sequence[Any]:
        """What somebody does who may write to the database."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), arguments)
            return cursor.fetchall() if cursor.description else []

    def skip_position(self) -> int:
        """What an append does that takes a position and is rolled back."""
        taken = "SELECT nextval(pg_get_serial_sequence('outlast.task_events', 'notification_id'))"
        return self.tamper(taken)[0][0]

    @property
    def positions(self) -> list[int]:
        """Of all events, in their order."""
        rows = self.tamper(
            "SELECT notification_id FROM outlast.task_events UNION"
            " SELECT notification_id FROM outlast.past_events ORDER BY 1"
        )
        return [row[0] for row in rows]


@asynccontextmanager
async def audited(url: str, batch: int = 4_000) -> AsyncGenerator[Audited]:
    """The store at this URL."""
    database = Database(url)
    await database.open()
    try:
        async with stores.on_postgres(url) as ports:
            yield Audited(
                url,
                database,
                ports,
                PostgresAuditLog(database, batch),
                PostgresAuditTree(database),
                PostgresTreeFollowing(database),
            )
    finally:
        await database.close()


@asynccontextmanager
async def twelve_events(url: str) -> AsyncGenerator[Audited]:
    """Of three tasks, with a gap behind the first; eight of them are signed, and then all."""
    async with audited(url, batch=5) as world:
        await world.happened("one")
        world.skip_position()
        await world.happened("two")
        await world.signed()
        await world.happened("three")
        await world.signed()
        yield world


def places(world: Audited, *numbers: int) -> list[int]:
    """The positions of these events, counted from 0."""
    return [world.positions[number] for number in numbers]


def told(report: Report) -> list[tuple[str, int | None]]:
    """What was found and where, without its words."""
    return [(finding.what, finding.position) for finding in report.ordered]
