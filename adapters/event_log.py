"""The event log on PostgreSQL: our recorder for the `eventsourcing` library, its mapper, and the port over both.

This file and `failures.py` alone name the library. What it would do to us, and what stands against it:
- it locks the events table for each append, which VACUUM or an index build turns into stalls: `insert_events` is
  overridden by one call of our SQL function, which keeps commit order with an advisory lock;
- its own database functions lose events under concurrency: refused in the constructor;
- its retry reports a commit whose reply was lost as a conflict: `append` compares event ids before it says stale;
- it creates tables by itself: never called, the migrations own the schema;
- rows name classes by import path: every event has a fixed topic, registered here.
"""

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from eventsourcing.persistence import StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore
from eventsourcing.utils import register_topic, resolve_topic
from psycopg.conninfo import conninfo_to_dict

from ..domain import change, errors
from ..domain.decisions import Events
from ..domain.events import EVENT_TYPES, TaskEvent
from ..domain.queueing import LEASE_S, queueing
from ..domain.task import Task, evolve
from . import codec, failures, postgres

WRITERS_MAX = 8  # appends in flight in one process; the rest wait for a thread
APPEND_PATIENCE_S = 10.0  # how long an append outlives a lost connection before it gives up
RETRY_PAUSE_S = 0.2

for _event_type in EVENT_TYPES:
    register_topic(_event_type.TOPIC, _event_type)


@dataclass(frozen=True)
class StoredTaskEvent(StoredEvent):
    """A stored event with its own id, by which a lost reply is told from a conflict."""

    event_id: uuid.UUID


class TaskEventMapper:
    """Events to rows and back. Old shapes are lifted by their class's `upcast_vN_vM` on the way back."""

    def to_stored_event(self, event: TaskEvent) -> StoredTaskEvent:
        """The row of a new event, under a fresh event id."""
        state = dict(vars(event))
        task_id, version = state.pop("task_id"), state.pop("version")
        if event.class_version > 1:
            state["class_version"] = event.class_version
        return StoredTaskEvent(task_id, version, event.TOPIC, codec.encode(state), uuid.uuid4())

    def to_domain_event(self, stored: StoredEvent) -> TaskEvent:
        """The event of a row, in today's shape."""
        event_type: type[TaskEvent] = resolve_topic(stored.topic)
        state: dict[str, Any] = codec.decode(stored.state)
        state["task_id"], state["version"] = str(stored.originator_id), stored.originator_version
        for older in range(state.pop("class_version", 1), event_type.class_version):
            getattr(event_type, f"upcast_v{older}_v{older + 1}")(state)
        return event_type(**state)


@dataclass(frozen=True)
class ViewRow:
    """What an append leaves of one task outside its stream."""

    task: Task
    expected: int
    queueing: str
    wire: bytes


class TaskEventRecorder(PostgresApplicationRecorder):
    """The library's recorder, writing through `outlast.append_events`."""

    STATEMENT = (
        "SELECT outlast.append_events(%b::text[], %b::bigint[], %b::text[], %b::bytea[], %b::uuid[],"
        " %b::text[], %b::bigint[], %b::bigint[], %b::text[], %b::text[], %b::text[],"
        " %b::timestamptz[], %b::timestamptz[], %b::text[], %b::text[], %b::bytea[], %b::text[], %b::text[], %b::float8)"
    )

    def __init__(self, datastore: PostgresDatastore) -> None:
        if datastore.enable_db_functions:
            raise errors.ConfigurationError("the event library's database functions lose events; keep them off")
        super().__init__(datastore, events_table_name="task_events")

    def insert_events(
        self, stored_events: Sequence[StoredEvent], *, rows: Sequence[ViewRow] = (), **kwargs: Any
    ) -> Sequence[int]:
        """Append in one round trip and return the global positions. Never retries: the caller must look first."""
        if kwargs or not rows:
            raise TypeError("append through PostgresEventLog, which brings the view rows")
        with self.datastore.get_connection() as connection:
            cursor = connection.execute(
                self.STATEMENT, _arguments(stored_events, rows), prepare=True, binary=True
            )
            answer = cursor.fetchone()
        return list(answer["append_events"]) if answer else []


def _arguments(stored_events: Sequence[StoredEvent], rows: Sequence[ViewRow]) -> list[Any]:
    tasks = [row.task for row in rows]
    return [
        [event.originator_id for event in stored_events],
        [event.originator_version for event in stored_events],
        [event.topic for event in stored_events],
        [event.state for event in stored_events],
        [event.event_id for event in stored_events if isinstance(event, StoredTaskEvent)],
        [task.id for task in tasks],
        [row.expected for row in rows],
        [task.version for task in tasks],
        [task.owner for task in tasks],
        [task.opened.tool for task in tasks],
        [task.status.value for task in tasks],
        [task.created_at for task in tasks],
        [task.expires_at for task in tasks],
        [task.opened.idempotency_key for task in tasks],
        [task.opened.call_digest for task in tasks],
        [row.wire for row in rows],
        [row.queueing for row in rows],
        [task.worker for task in tasks],
        LEASE_S,
    ]


class PostgresEventLog:
    """`EventLog` on PostgreSQL. Appends run on a bounded set of threads, for the library is synchronous."""

    def __init__(self, database: postgres.Database) -> None:
        self._database = database
        self._mapper = TaskEventMapper()
        self._recorder = TaskEventRecorder(_datastore(database.url))
        self._threads = ThreadPoolExecutor(WRITERS_MAX, thread_name_prefix="outlast-append")

    async def append(self, before: Task | None, events: Events) -> Task:
        """See `EventLog.append`."""
        after, expected = before, before.version if before else 0
        for event in events:
            after = evolve(after, event)
        if after is None:
            raise ValueError("nothing to append")
        row = ViewRow(after, expected, queueing(before, after), codec.encode(change.detailed_task(after)))
        stored = [self._mapper.to_stored_event(event) for event in events]
        loop = asyncio.get_running_loop()
        # Shielded: a caller that goes away must not leave an append half known. It happens, or it does not.
        await asyncio.shield(loop.run_in_executor(self._threads, self._append, stored, row))
        return after

    def _append(self, stored: Sequence[StoredTaskEvent], row: ViewRow) -> None:
        give_up_at = time.monotonic() + APPEND_PATIENCE_S
        while True:
            try:
                self._recorder.insert_events(stored, rows=[row])
                return
            except Exception as error:
                if failures.is_conflict(error):
                    self._resolve(stored, row, error)
                    return
                if not failures.is_passing(error):
                    raise
                if time.monotonic() > give_up_at:
                    raise errors.StoreUnavailable from error
                time.sleep(RETRY_PAUSE_S)

    def _resolve(self, stored: Sequence[StoredTaskEvent], row: ViewRow, error: Exception) -> None:
        """Return if our own events are what the append collided with: then it had happened after all."""
        first = stored[0]
        found = self._event_id(str(first.originator_id), first.originator_version)
        if found == first.event_id:
            return
        if failures.is_duplicate_opening(error):
            raise errors.DuplicateOpening from error
        raise errors.StaleVersion(row.task.id, row.expected) from error

    def _event_id(self, task_id: str, version: int) -> uuid.UUID | None:
        statement = (
            "SELECT event_id FROM outlast.task_events WHERE originator_id = %s AND originator_version = %s"
        )
        with failures.as_ours(), self._recorder.datastore.get_connection() as connection:
            answer = connection.execute(statement, (task_id, version)).fetchone()
        return answer["event_id"] if answer else None

    async def read(self, task_id: str) -> Sequence[TaskEvent]:
        """See `EventLog.read`."""
        rows = await self._database.rows(
            "SELECT originator_id, originator_version, topic, state FROM outlast.task_events"
            " WHERE originator_id = %s ORDER BY originator_version",
            task_id,
        )
        return [self._mapper.to_domain_event(StoredEvent(*row)) for row in rows]

    def close(self) -> None:
        """End the threads and their connections."""
        self._threads.shutdown()
        self._recorder.datastore.close()


def _datastore(url: str) -> PostgresDatastore:
    given: Mapping[str, Any] = conninfo_to_dict(url)
    datastore = PostgresDatastore(
        dbname=str(given.get("dbname") or ""),
        host=str(given.get("host") or ""),
        port=str(given.get("port") or ""),
        user=str(given.get("user") or ""),
        password=str(given.get("password") or ""),
        connect_timeout=postgres.POOL_WAIT_S_MAX,
        idle_in_transaction_session_timeout=5,
        pool_size=1,
        max_overflow=WRITERS_MAX - 1,
        schema="outlast",
        originator_id_type="text",
    )
    # The library knows five connection settings; TLS and the rest of the URL must not be lost on the way.
    datastore.pool.kwargs = {**datastore.pool.kwargs, **given, **postgres.KEEPALIVE}
    return datastore
