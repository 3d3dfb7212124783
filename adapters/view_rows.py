"""All that is stored of a range of tasks, read together: events, view, queue, keys, the past.

Ranges are of ids in the database's own order, so they follow the primary keys of every table, and
one holds about as much as a transaction should lock or a snapshot should see.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import psycopg

from . import postgres

ROWS_MAX = 2_000  # of one table in one range, but for the rest of its last task
BYTES_MAX = 16 * 1024 * 1024
LANES = 3  # ranges under way at once
RANGE_S_MAX = 60.0  # a statement unanswered this long is given up

FIRST = ""  # no task has this id; every other one comes after it

# Calendars end before PostgreSQL's do, and a tamperer may write what lies beyond them.
_SANE = (
    "CASE WHEN {0} IS NULL OR ({0} > '0001-01-02Z' AND {0} < '9999-12-30Z') THEN {0}"
    " ELSE '0001-01-02Z'::timestamptz END"
)

_NEXT_OF = (
    "(SELECT id FROM (SELECT id, row_number() OVER place AS number, sum(bytes) OVER place AS bytes"
    " FROM (SELECT {id} AS id, {version} AS version, length({payload}) AS bytes"
    " FROM outlast.{table} WHERE {id} > %(after)s ORDER BY {id}, {version} LIMIT %(most)s) next"
    " WINDOW place AS (ORDER BY id, version)) n"
    " WHERE number = %(most)s OR bytes > %(bytes)s ORDER BY number LIMIT 1)"
)
_UPTO = "SELECT least(%(last)s::text, {})".format(
    ", ".join(
        _NEXT_OF.format(table=table, id=key, version=version, payload=payload)
        for table, key, version, payload in (
            ("task_view", "task_id", "0::int", "wire"),
            ("run_queue", "task_id", "0::int", "task_id"),
            ("task_events", "originator_id", "originator_version", "state"),
            ("past_events", "originator_id", "originator_version", "state"),
        )
    )
)
_RANGE = "{0} > %(after)s AND (%(upto)s::text IS NULL OR {0} <= %(upto)s::text)"
_VIEWS = (
    "SELECT task_id, version, owner, tool, status,"
    f" {_SANE.format('created_at')}, {_SANE.format('expires_at')},"
    " idempotency_key, call_digest, wire FROM outlast.task_view"
    f" WHERE {_RANGE.format('task_id')} ORDER BY task_id"
)
_EVENTS = (
    "SELECT originator_id, originator_version, topic, state, owner, tool, status, notification_id"
    " FROM outlast.{0}"
    f" WHERE {_RANGE.format('originator_id')} ORDER BY originator_id, originator_version"
)
_QUEUE = f"SELECT task_id, owner FROM outlast.run_queue WHERE {_RANGE.format('task_id')}"
_PAST = (
    f"SELECT task_id, owner, tool, status, {_SANE.format('created_at')}, erased_at IS NOT NULL"
    f" FROM outlast.past_tasks WHERE {_RANGE.format('task_id')}"
)
_KEYS = (
    "SELECT task_id, wrapped, wrapped_by FROM outlast.data_keys"
    f" WHERE {_RANGE.format('task_id')} AND task_id <> ''"
)

Connection = psycopg.AsyncConnection[Any]
T = TypeVar("T")


class ViewRow(NamedTuple):
    """One row of `task_view`. An instant that no calendar has is the first day of all."""

    task_id: str
    version: int
    owner: str
    tool: str
    status: str
    created_at: datetime
    expires_at: datetime | None
    idempotency_key: str | None
    call_digest: str | None
    wire: bytes


class EventRow(NamedTuple):
    """One event as stored, with the columns that are derived of it."""

    task_id: str
    version: int
    topic: str
    state: bytes
    owner: bytes | None
    tool: str | None
    status: str | None
    position: int


class PastRow(NamedTuple):
    """One row of `past_tasks`."""

    task_id: str
    owner: bytes
    tool: str
    status: str
    created_at: datetime
    is_erased: bool


@dataclass
class TaskRows:
    """What is stored of one task. `queued` has the queue row's owner, if there is such a row."""

    task_id: str
    events: list[EventRow] = field(default_factory=list[EventRow])
    past_events: list[EventRow] = field(default_factory=list[EventRow])
    view: ViewRow | None = None
    past: PastRow | None = None
    is_queued: bool = False
    queue_owner: bytes | None = None
    wrapped: tuple[bytes, str] | None = None


class _Found(dict[str, TaskRows]):
    def __missing__(self, task_id: str) -> TaskRows:
        return self.setdefault(task_id, TaskRows(task_id))


class Range:
    """Where one batch begins and ends. `upto` is None in the last one."""

    def __init__(self, after: str, upto: str | None) -> None:
        self.after, self.upto = after, upto

    @property
    def bounds(self) -> Mapping[str, str | None]:
        """As parameters."""
        return {"after": self.after, "upto": self.upto}


async def next_range(connection: Connection, after: str, last: str | None = None) -> Range:
    """The range that begins behind this id, and goes no further than the last."""
    wanted = {"after": after, "most": ROWS_MAX, "bytes": BYTES_MAX}
    ((upto,),) = await rows(connection, _UPTO, {**wanted, "last": last})
    return Range(after, upto)


async def walk(
    connections: Sequence[Connection],
    work: Callable[[Connection, Range], Coroutine[Any, Any, T]],
    after: str = FIRST,
    last: str | None = None,
) -> AsyncGenerator[T]:
    """What the work on each range comes to, in their order; each connection has a range at a time.

    So PostgreSQL reads the one while this process looks at the other.
    """
    free, running = deque(connections), deque[tuple[asyncio.Task[T], Connection]]()
    is_all = False
    try:
        while running or not is_all:
            while free and not is_all:
                connection = free.popleft()
                within = await next_range(connection, after, last)
                running.append((asyncio.create_task(work(connection, within)), connection))
                is_all = within.upto in {None, last}
                after = within.upto or after
            done, connection = running.popleft()
            yield await done
            free.append(connection)
    finally:
        for task, _ in running:
            task.cancel()
        await asyncio.gather(*(task for task, _ in running), return_exceptions=True)


async def views_of(connection: Connection, within: Range, *, lock: bool = False) -> list[ViewRow]:
    """The view rows of the range. A lock lets nobody append to these tasks before the commit."""
    statement = f"{_VIEWS} FOR UPDATE" if lock else _VIEWS
    return [ViewRow(*row) for row in await rows(connection, statement, within.bounds)]


async def tasks_of(
    connection: Connection, within: Range, views: Sequence[ViewRow]
) -> dict[str, TaskRows]:
    """Everything else of the range, by task."""
    found = _Found()
    for view in views:
        found[view.task_id].view = view
    for row in await rows(connection, _EVENTS.format("task_events"), within.bounds):
        found[row[0]].events.append(EventRow(*row))
    for row in await rows(connection, _EVENTS.format("past_events"), within.bounds):
        found[row[0]].past_events.append(EventRow(*row))
    for task_id, owner in await rows(connection, _QUEUE, within.bounds):
        found[task_id].is_queued, found[task_id].queue_owner = True, owner
    for row in await rows(connection, _PAST, within.bounds):
        found[row[0]].past = PastRow(*row)
    for task_id, wrapped, wrapped_by in await rows(connection, _KEYS, within.bounds):
        found[task_id].wrapped = wrapped, wrapped_by
    return found


async def rows(
    connection: Connection,
    statement: str,
    wanted: Mapping[str, Any] | Sequence[Any] = (),
    seconds: float = RANGE_S_MAX,
) -> Sequence[tuple[Any, ...]]:
    """All rows of a statement of ours, in binary form. Raises StoreUnavailable when it hangs."""
    with postgres.answered_within(seconds, connection):
        async with connection.cursor(binary=True) as cursor:
            await cursor.execute(statement.encode(), wanted, prepare=True)
            return await cursor.fetchall() if cursor.description else []
