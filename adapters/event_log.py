"""The event log on PostgreSQL: our recorder for the `eventsourcing` library, and the port over it.

This file and `failures.py` alone name the library. What it would do to us, and what stands against:
- it locks the events table for each append, which VACUUM or an index build turns into stalls:
  `insert_events` is one call of our SQL function, which keeps commit order by an advisory lock;
- its own database functions lose events under concurrency: refused in the constructor;
- its retry reports a commit whose reply was lost as a conflict: event ids are compared first;
- it creates tables by itself: never called, the migrations own the schema;
- rows name classes by import path: every event has a fixed topic, registered here.
"""

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from eventsourcing.persistence import StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore
from eventsourcing.utils import TopicError, register_topic, resolve_topic
from psycopg.rows import dict_row

from ..domain import errors
from ..domain.decisions import Events
from ..domain.events import AUDIT_EVENT_TYPES, EVENT_TYPES, TaskEvent
from ..domain.queueing import queueing
from ..domain.quotas import Quotas
from ..domain.task import Task, evolve
from . import append_rows, codec, postgres, snapshots
from .append_rows import ViewRow
from .group_commit import Appending, GroupCommit, Line
from .sealing import VIEW, Sealer

# Calls under way in one process. The store takes one at a time whoever sends it, so a second one
# would only make the batches smaller: with it, 3,600 creations a second instead of 4,400.
WRITERS_MAX = 1
APPEND_PATIENCE_S = 10.0  # how long an append outlives a lost connection before it gives up

_IDS_AT = (
    "SELECT e.event_id FROM unnest(%s::text[], %s::bigint[]) AS p(task_id, version)"
    " JOIN outlast.task_events e"
    " ON e.originator_id = p.task_id AND e.originator_version = p.version"
)

for _event_type in EVENT_TYPES + AUDIT_EVENT_TYPES:
    register_topic(_event_type.TOPIC, _event_type)


@dataclass(frozen=True)
class StoredTaskEvent(StoredEvent):
    """A stored event with its own id, by which a lost reply is told from a conflict."""

    event_id: uuid.UUID


class TaskEventMapper:
    """Events to rows and back. Old shapes are lifted by their class's `upcast_vN_vM`."""

    def to_stored_event(self, event: TaskEvent) -> StoredTaskEvent:
        """The row of a new event, under a fresh event id."""
        state = dict(vars(event))
        task_id, version = state.pop("task_id"), state.pop("version")
        class_version = event.lower(state)
        if class_version > 1:
            state["class_version"] = class_version
        return StoredTaskEvent(task_id, version, event.TOPIC, codec.encode(state), uuid.uuid4())

    def to_domain_event(self, stored: StoredEvent) -> TaskEvent:
        """The event of a row, in today's shape. Raises LookupError for one that is not known."""
        event_type = _type_of(stored.topic)
        state: dict[str, Any] = codec.decode(stored.state)
        state["task_id"], state["version"] = str(stored.originator_id), stored.originator_version
        written = state.pop("class_version", 1)
        if written > event_type.class_version:
            raise LookupError(f"{stored.topic!r} was stored by a newer release, at {written}")
        for older in range(written, event_type.class_version):
            getattr(event_type, f"upcast_v{older}_v{older + 1}")(state)
        return event_type(**state)


def _type_of(topic: str) -> type[TaskEvent]:
    try:
        found = resolve_topic(topic)
    except TopicError:
        found = None
    # The library would import any module that a row names; only our events count as found.
    if not (isinstance(found, type) and issubclass(found, TaskEvent)):
        raise LookupError(f"no event is known by the name {topic!r}; did a newer release store it?")
    return found


class TaskEventRecorder(PostgresApplicationRecorder):
    """The library's recorder, writing through `outlast.append_events`."""

    def __init__(self, datastore: PostgresDatastore) -> None:
        if datastore.enable_db_functions:
            raise errors.ConfigurationError(
                "the event library's database functions lose events; keep them off"
            )
        super().__init__(datastore, events_table_name="task_events")

    def insert_events(
        self,
        stored_events: Sequence[StoredEvent],
        *,
        rows: Sequence[ViewRow] = (),
        line: Line | None = None,
        most: Sequence[int | None] | None = None,
        **kwargs: Any,
    ) -> Sequence[int]:
        """Append to any number of tasks in one round trip and return the global positions.

        All of it or nothing. Never tries again: the caller must look first.
        """
        if kwargs or not rows:
            raise TypeError("append through PostgresEventLog, which brings the view rows")
        with (
            self.datastore.get_connection() as connection,
            (line or Line()).on(connection),
        ):
            events = cast("Sequence[StoredTaskEvent]", stored_events)
            given = append_rows.arguments(events, rows, most)
            cursor = connection.execute(append_rows.STATEMENT, given, prepare=True, binary=True)
            answer = cursor.fetchone()
        return list(answer["append_events"]) if answer else []


class _Appends:
    """The recorder, as those see it who append for many at once."""

    def __init__(self, recorder: TaskEventRecorder, quotas: Quotas) -> None:
        self._recorder, self._most = recorder, quotas.most

    def insert(self, batch: Sequence[Appending], line: Line) -> None:
        """See `Store.insert`."""
        events = [event for each in batch for event in each.events]
        rows = [each.row for each in batch]
        self._recorder.insert_events(
            cast("Sequence[StoredEvent]", events), rows=rows, line=line, most=self._most
        )

    def ids_at(self, batch: Sequence[Appending], line: Line) -> set[uuid.UUID]:
        """See `Store.ids_at`."""
        first = [each.events[0] for each in batch]
        places = [e.originator_id for e in first], [e.originator_version for e in first]
        with self._recorder.datastore.get_connection() as connection, line.on(connection):
            rows = connection.execute(_IDS_AT, places).fetchall()
        return {row["event_id"] for row in rows}


class PostgresEventLog:
    """`EventLog` on PostgreSQL. Appends of many tasks share calls; see `group_commit.py`."""

    def __init__(
        self,
        database: postgres.Database,
        quotas: Quotas | None = None,
        sealer: Sealer | None = None,
    ) -> None:
        self._database = database
        self._sealer = sealer or Sealer(database)
        self._mapper = TaskEventMapper()
        self._snapshots = snapshots.Snapshots(database, self._sealer)
        self._recorder = TaskEventRecorder(_datastore(database.url))
        quotas = quotas or Quotas()
        self.commits = GroupCommit(_Appends(self._recorder, quotas), quotas, WRITERS_MAX)

    async def append(self, before: Task | None, events: Events) -> Task:
        """See `EventLog.append`."""
        after, statuses = before, list[str]()
        for event in events:
            after = evolve(after, event)
            statuses.append(after.status.value)
        if after is None or not events:
            raise ValueError("nothing to append")
        row, stored = await self._rows(before, after, statuses, events)
        loop = asyncio.get_running_loop()
        await self.commits.append(Appending(row, stored, loop.time() + APPEND_PATIENCE_S))
        if before is None:
            self._sealer.opened(after.id, row.data_key)
        return after

    async def _rows(
        self, before: Task | None, after: Task, statuses: Sequence[str], events: Events
    ) -> tuple[ViewRow, Sequence[StoredTaskEvent]]:
        """What is stored of this append, sealed, with what comes with an opening."""
        sealer, task_id = self._sealer, after.id
        data_key = name = former = None
        if before is None:
            data_key, asked = await sealer.new_key(task_id), after.opened.idempotency_key
            key = data_key.key if data_key else None
            name = None if asked is None else await sealer.stored_name(asked)
        else:
            key, former = await sealer.key_of(task_id), before.status.value
        stored = [self._mapper.to_stored_event(event) for event in events]
        wire = codec.wire_of(after)
        if key is not None:
            stored = [self._sealed(key, event) for event in stored]
            wire = sealer.seal(key, task_id, after.version, VIEW, wire)
        expected, queued = before.version if before else 0, queueing(before, after)
        return ViewRow(after, expected, queued, wire, statuses, former, name, data_key), stored

    def _sealed(self, key: bytes, event: StoredTaskEvent) -> StoredTaskEvent:
        place = (str(event.originator_id), event.originator_version, event.topic)
        return replace(event, state=self._sealer.seal(key, *place, event.state))

    async def read(self, task_id: str) -> Sequence[TaskEvent]:
        """See `EventLog.read`."""
        _, events = await self.tail(task_id, 0)
        return events

    async def tail(
        self, task_id: str, version: int | None = None
    ) -> tuple[Task | None, Sequence[TaskEvent]]:
        """See `EventLog.tail`."""
        if not codec.is_storable(task_id):
            return None, []
        rows = await self._database.rows(*snapshots.tail_of(task_id, version))
        if not rows:
            return None, []
        key, task = await self._key(task_id, *rows[0][3:]), None
        if rows[0][1] == snapshots.TOPIC:
            task = self._snapshots.opened(key, task_id, rows[0][0], rows[0][2])
            if task is None:
                return await self.tail(task_id, 0)
        events = self._events(key, task_id, rows if task is None else rows[1:])
        if version is not None:
            return task, events
        return await self._snapshots.shortened(key, task, events)

    def _events(
        self, key: bytes | None, task_id: str, rows: Sequence[postgres.Row]
    ) -> list[TaskEvent]:
        opens, lifts = self._sealer.open, self._mapper.to_domain_event
        return [
            lifts(StoredEvent(task_id, version, topic, opens(key, task_id, version, topic, state)))
            for version, topic, state, *_ in rows
        ]

    async def _key(self, task_id: str, wrapped: bytes | None, by: str | None) -> bytes | None:
        """The key of a stored task, beside whose first event this row of `data_keys` was read."""
        if self._sealer.knows(task_id):
            return await self._sealer.key_of(task_id)
        return await self._sealer.learn(task_id, wrapped, by)

    def close(self) -> None:
        """End the threads and their connections; what is under way has a few seconds."""
        self.commits.close()
        self._recorder.datastore.close()


class _Datastore(PostgresDatastore):
    """The library's pool, opened by the first append and not before."""

    def register_type_adapters(self) -> None:
        """Nothing: no composite type is ever sent, and a constructor should not connect."""


def _datastore(url: str) -> PostgresDatastore:
    datastore = _Datastore(
        dbname="",
        host="",
        port="",
        user="",
        password="",
        connect_timeout=postgres.POOL_WAIT_S_MAX,
        idle_in_transaction_session_timeout=5,
        pool_size=1,
        max_overflow=WRITERS_MAX - 1,
        schema="outlast",
        originator_id_type="text",
    )
    # The library knows five connection settings; TLS and the rest of the URL must not be lost.
    datastore.pool.kwargs = {**postgres.settings_of(url), "row_factory": dict_row}
    datastore.pool.reconnect_timeout = postgres.RECONNECT_S_MAX
    return datastore
