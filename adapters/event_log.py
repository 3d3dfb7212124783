"""The event log on PostgreSQL: our recorder for the `eventsourcing` library, and the port over it.

This file and `failures.py` alone name the library. What it would do to us, and what stands against:
- it locks the events table for each append, which VACUUM or an index build turns into stalls:
  `insert_events` is one call of our SQL function, which keeps commit order by an advisory lock;
- its own database functions lose events under concurrency: refused in the constructor;
- its retry reports a commit whose reply was lost as a conflict: `append` compares event ids first;
- it creates tables by itself: never called, the migrations own the schema;
- rows name classes by import path: every event has a fixed topic, registered here.
"""

import asyncio
import threading
import time
import uuid
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from eventsourcing.persistence import PersistenceError, StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore
from eventsourcing.utils import TopicError, register_topic, resolve_topic
from psycopg.rows import dict_row

from ..domain import errors
from ..domain.decisions import Events
from ..domain.events import AUDIT_EVENT_TYPES, EVENT_TYPES, TaskEvent
from ..domain.queueing import LEASE_S, queueing
from ..domain.quotas import Quotas
from ..domain.task import Task, evolve
from . import codec, failures, postgres
from .sealing import VIEW, DataKey, Sealer

WRITERS_MAX = 8  # appends in flight in one process; the rest wait for a thread
APPEND_PATIENCE_S = 10.0  # how long an append outlives a lost connection before it gives up
RETRY_PAUSE_S = 0.2

for _event_type in EVENT_TYPES + AUDIT_EVENT_TYPES:
    register_topic(_event_type.TOPIC, _event_type)


# The key comes with the first row: a stream is read at one go, whoever has met the task before.
_READ = (
    "SELECT e.originator_version, e.topic, e.state, k.wrapped, k.wrapped_by"
    " FROM outlast.task_events e LEFT JOIN outlast.data_keys k"
    " ON k.task_id = e.originator_id AND e.originator_version = 1"
    " WHERE e.originator_id = %s ORDER BY e.originator_version"
)


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
        if event.class_version > 1:
            state["class_version"] = event.class_version
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


@dataclass(frozen=True)
class ViewRow:
    """What an append leaves of one task outside its stream. `statuses`: one after each event.

    `former` is the status before, None for a task that is opened; `data_key` is what seals one
    that is opened, `name` what is stored of its idempotency key.
    """

    task: Task
    expected: int
    queueing: str
    wire: bytes
    statuses: Sequence[str]
    former: str | None
    name: str | None = None
    data_key: DataKey | None = None


class Line:
    """The connection that one append uses just now, so that a silent one can be hung up on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None
        self.is_over = False

    @contextmanager
    def on(self, connection: psycopg.Connection[Any]) -> Generator[None, None, None]:
        """The block waits on this connection. Raises StoreUnavailable when the time is up."""
        with self._lock:
            if self.is_over:
                raise errors.StoreUnavailable
            self._connection = connection
        try:
            yield
        finally:
            with self._lock:
                self._connection = None

    def hang_up(self) -> None:
        """The time is up."""
        with self._lock:
            self.is_over = True
            if self._connection is not None:
                postgres.hang_up(self._connection)


class TaskEventRecorder(PostgresApplicationRecorder):
    """The library's recorder, writing through `outlast.append_events`."""

    STATEMENT = (
        "SELECT outlast.append_events("
        "%b::text[], %b::bigint[], %b::text[], %b::bytea[], %b::uuid[], %b::text[],"
        " %b::text[], %b::bigint[], %b::bigint[], %b::text[], %b::text[], %b::text[],"
        " %b::timestamptz[], %b::timestamptz[], %b::text[], %b::text[], %b::bytea[],"
        " %b::text[], %b::text[], %b::timestamptz[], %b::float8,"
        " %b::text[], %b::bytea[], %b::text, %b::bigint[])"
    )

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
        """Append in one round trip and return the global positions.

        Never tries again: the caller must look first.
        """
        if kwargs or not rows:
            raise TypeError("append through PostgresEventLog, which brings the view rows")
        with (
            self.datastore.get_connection() as connection,
            (line or Line()).on(connection),
        ):
            cursor = connection.execute(
                self.STATEMENT, _arguments(stored_events, rows, most), prepare=True, binary=True
            )
            answer = cursor.fetchone()
        return list(answer["append_events"]) if answer else []


def _arguments(
    stored_events: Sequence[StoredEvent],
    rows: Sequence[ViewRow],
    most: Sequence[int | None] | None,
) -> list[Any]:
    tasks = [row.task for row in rows]
    data_keys = [row.data_key for row in rows]
    return [
        [event.originator_id for event in stored_events],
        [event.originator_version for event in stored_events],
        [event.topic for event in stored_events],
        [event.state for event in stored_events],
        [event.event_id for event in stored_events if isinstance(event, StoredTaskEvent)],
        [status for row in rows for status in row.statuses],
        [task.id for task in tasks],
        [row.expected for row in rows],
        [task.version for task in tasks],
        [task.owner for task in tasks],
        [codec.storable(task.opened.tool) for task in tasks],
        [task.status.value for task in tasks],
        [task.created_at for task in tasks],
        [task.expires_at for task in tasks],
        [row.name for row in rows],
        [None for _ in rows],  # a digest of the arguments would let one guess them
        [row.wire for row in rows],
        [row.queueing for row in rows],
        [task.worker for task in tasks],
        [task.delegated_until for task in tasks],
        LEASE_S,
        [row.former for row in rows],
        [key.wrapped if key else None for key in data_keys],
        next((key.wrapped_by for key in data_keys if key), None),
        None if most is None else list(most),
    ]


class PostgresEventLog:
    """`EventLog` on PostgreSQL. Appends run on a bounded set of threads: the library blocks."""

    def __init__(
        self,
        database: postgres.Database,
        quotas: Quotas | None = None,
        sealer: Sealer | None = None,
    ) -> None:
        self._database = database
        self._sealer = sealer or Sealer(database)
        self._most = (quotas or Quotas()).most
        self._mapper = TaskEventMapper()
        self._recorder = TaskEventRecorder(_datastore(database.url))
        self._threads = ThreadPoolExecutor(WRITERS_MAX, thread_name_prefix="outlast-append")

    async def append(self, before: Task | None, events: Events) -> Task:
        """See `EventLog.append`."""
        after, expected = before, before.version if before else 0
        statuses: list[str] = []
        for event in events:
            after = evolve(after, event)
            statuses.append(after.status.value)
        if after is None or not events:
            raise ValueError("nothing to append")
        wire = codec.wire_of(after)
        former = before.status.value if before else None
        row = ViewRow(after, expected, queueing(before, after), wire, statuses, former)
        row, stored = await self._sealed(row, map(self._mapper.to_stored_event, events))
        loop, line = asyncio.get_running_loop(), Line()
        appended = loop.run_in_executor(self._threads, self._append, stored, row, line)
        timer = loop.call_later(APPEND_PATIENCE_S, line.hang_up)
        appended.add_done_callback(lambda _: timer.cancel())
        # Shielded: a caller that goes away leaves no append half known. It happens, or it does not.
        await asyncio.shield(appended)
        if before is None:
            self._sealer.opened(after.id, row.data_key)
        return after

    async def _sealed(
        self, row: ViewRow, events: Iterable[StoredTaskEvent]
    ) -> tuple[ViewRow, Sequence[StoredTaskEvent]]:
        """Both as they are stored, with what comes with an opening."""
        sealer, task = self._sealer, row.task
        if row.former is None:
            data_key = await sealer.new_key(task.id)
            key, asked = data_key.key if data_key else None, task.opened.idempotency_key
            name = None if asked is None else await sealer.stored_name(asked)
            row = replace(row, data_key=data_key, name=name)
        else:
            key = await sealer.key_of(task.id)

        def sealed(event: StoredTaskEvent) -> StoredTaskEvent:
            place = (task.id, event.originator_version, event.topic)
            return replace(event, state=sealer.seal(key, *place, event.state))

        wire = sealer.seal(key, task.id, task.version, VIEW, row.wire)
        return replace(row, wire=wire), [sealed(event) for event in events]

    def _append(self, stored: Sequence[StoredTaskEvent], row: ViewRow, line: Line) -> None:
        while True:
            try:
                self._append_once(stored, row, line)
            except Exception as error:
                if not failures.is_passing(error):
                    raise
                if line.is_over:
                    raise errors.StoreUnavailable from error
                time.sleep(RETRY_PAUSE_S)  # a thread of ours, and the server needs time
            else:
                return

    def _append_once(self, stored: Sequence[StoredTaskEvent], row: ViewRow, line: Line) -> None:
        try:
            self._recorder.insert_events(stored, rows=[row], line=line, most=self._most)
        except PersistenceError as error:
            reached = failures.quota_of(error)
            if reached is not None:
                most = self._most[reached - 1] or 0
                raise errors.QuotaExceeded(Quotas.name_of(reached), most) from error
            if not failures.is_conflict(error):
                raise
            # If our own events are what it met, an earlier try had happened after all.
            if self._event_id(stored[0], line) == stored[0].event_id:
                return
            if failures.is_duplicate_opening(error):
                raise errors.DuplicateOpening from error
            raise errors.StaleVersion(row.task.id, row.expected) from error

    def _event_id(self, event: StoredTaskEvent, line: Line) -> uuid.UUID | None:
        """The id of what is stored in the place of this event."""
        statement = (
            "SELECT event_id FROM outlast.task_events"
            " WHERE originator_id = %s AND originator_version = %s"
        )
        place = (event.originator_id, event.originator_version)
        with self._recorder.datastore.get_connection() as connection, line.on(connection):
            answer = connection.execute(statement, place).fetchone()
        return answer["event_id"] if answer else None

    async def read(self, task_id: str) -> Sequence[TaskEvent]:
        """See `EventLog.read`."""
        if not codec.is_storable(task_id):
            return []
        rows = await self._database.rows(_READ, task_id)
        if not rows:
            return []
        key = await self._key(task_id, *rows[0][3:])
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
        """End the threads and their connections."""
        self._threads.shutdown()
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
