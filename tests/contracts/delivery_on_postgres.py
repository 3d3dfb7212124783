"""The world's store on PostgreSQL: the LISTEN connection of each replica can be cut or blocked."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from outlast.adapters import signal as signals
from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.postgres import Database
from outlast.adapters.signal import PostgresSignal
from outlast.adapters.task_view import PostgresTaskViews
from outlast.delivery.feed import Feed
from outlast.domain.ports import EventLog, Signal, TaskViews
from outlast.tests.contracts.delivery_pushing import Pushing, Step, impatient
from outlast.tests.contracts.delivery_world import NEVER_S, REPLICAS
from outlast.tests.contracts.stores import until_live
from outlast.tests.support.proxy import Proxy, between


class OnPostgres:
    """`Store` over the adapters. A replica that is started anew keeps the signal of the last."""

    def __init__(
        self, database: Database, heard: list[PostgresSignal], wires: list[Proxy], *, pushes: bool
    ) -> None:
        self._database, self._heard, self._wires = database, heard, wires
        self._pushes = pushes
        self.log = PostgresEventLog(database)
        self.recheck_s = NEVER_S  # the signal looks by itself for what it missed

    def ports(self, replica: int) -> tuple[TaskViews, EventLog, Signal]:
        """See `Store.ports`."""
        return PostgresTaskViews(self._database), self.log, self._heard[replica]

    def pushing(self, replica: int, feed: Feed, step: Step) -> Pushing | None:
        """See `Store.pushing`."""
        heard = self._heard[replica]
        return Pushing(self._database, heard, feed, step) if self._pushes else None

    async def clear(self) -> None:
        """See `Store.clear`."""
        for table in ("deliveries", "subscriptions", "endpoints") if self._pushes else ():
            await self._database.rows(f"DELETE FROM outlast.webhook_{table}")

    async def places(self, task_id: str) -> Mapping[int, int]:
        """See `Store.places`."""
        rows = await self._database.rows(
            "SELECT originator_version, notification_id FROM outlast.task_events"
            " WHERE originator_id = %s",
            task_id,
        )
        return dict(rows)

    async def fate(self, fates: Sequence[str]) -> None:
        """See `Store.fate`. The server itself sends no signal twice."""
        for wire, fate in zip(self._wires, fates, strict=True):
            if fate == "lost":
                wire.cut()
            elif fate == "late":
                wire.block()

    async def settle(self) -> None:
        """See `Store.settle`."""
        for wire in self._wires:
            wire.unblock()

    def waited_for(self) -> list[str]:
        """See `Store.waited_for`."""
        return [name for heard in self._heard for name in heard.watched()]


@asynccontextmanager
async def on_postgres(url: str, *, pushes: bool = False) -> AsyncGenerator[OnPostgres]:
    """A store on this database, whose signals come back and look around at once.

    With `pushes`, its replicas send webhooks, and need not wait long before they try again.
    """
    database = Database(url)
    async with AsyncExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(signals, "RECONNECT_PAUSE_S", 0.02)
        patch.setattr(signals, "LOOK_DOWN_S", 0.05)
        if pushes:
            stack.enter_context(impatient())
        wires = [await stack.enter_async_context(between(url)) for _ in range(REPLICAS)]
        await database.open()
        stack.push_async_callback(database.close)
        heard = [PostgresSignal(wire.url, database) for wire in wires]
        store = OnPostgres(database, heard, wires, pushes=pushes)
        stack.callback(store.log.close)
        for each in heard:
            await each.open()
            stack.push_async_callback(each.close)
            await until_live(each)
        yield store
