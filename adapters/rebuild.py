"""The views made anew from the log, while the service runs.

One range of tasks after the other, each in a transaction of its own: the view rows are locked in
the order of ids, as appends and the end of retention do, so that none of these tasks moves; then
its events are read, folded, and written is only what differs. Readers wait for nothing and see a
row either as it was or as it should be. What owners use is corrected by the difference between the
count and the counter in one snapshot, which stays right whatever is appended meanwhile.

Whoever stops it at any moment leaves some ranges done and the others as they were.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg

from ..domain import errors
from ..domain.queueing import LEASE_S, Queueing, queueing
from ..domain.task import Task
from ..domain.views import Difference, Rebuilt
from . import failures, postgres
from .audit_log import connected
from .sealing import Sealer
from .view_check import (
    Folded,
    Folder,
    Unfoldable,
    event_differences,
    queue_differences,
    stray_differences,
    view_differences,
    wants_queue,
)
from .view_rows import (
    LANES,
    RANGE_S_MAX,
    Connection,
    Range,
    TaskRows,
    rows,
    tasks_of,
    views_of,
    walk,
)
from .view_verification import DRIFT, USAGE_S_MAX

LOCK = (7710428, 6)  # one rebuild at a time
TRIES_MAX = 5  # of one range that another transaction stands in the way of
IDLE_S_MAX = 10  # a rebuild that is stopped in its tracks lets go of what it has locked

_LOCK = "SELECT pg_try_advisory_lock(%s, %s)"
_UNLOCK = "SELECT pg_advisory_unlock(%s, %s)"
# Of these tasks, those that have events and, in the same snapshot, no view row: truly without one.
_WITHOUT_VIEW = (
    "SELECT w.id FROM unnest(%s::text[]) AS w(id)"
    " WHERE NOT EXISTS (SELECT FROM outlast.task_view v WHERE v.task_id = w.id)"
    " AND EXISTS (SELECT FROM outlast.task_events e WHERE e.originator_id = w.id)"
    " AND NOT EXISTS (SELECT FROM outlast.past_tasks p WHERE p.task_id = w.id)"
)
_FREE_NAMES = "UPDATE outlast.task_view SET idempotency_key = NULL WHERE task_id = ANY(%s)"
_PUT_VIEW = (
    "INSERT INTO outlast.task_view AS v (task_id, version, owner, tool, status, created_at,"
    " expires_at, idempotency_key, call_digest, wire)"
    " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, NULL, %s)"
    " ON CONFLICT (task_id) DO UPDATE SET version = EXCLUDED.version, owner = EXCLUDED.owner,"
    " tool = EXCLUDED.tool, status = EXCLUDED.status, created_at = EXCLUDED.created_at,"
    " expires_at = EXCLUDED.expires_at, idempotency_key = EXCLUDED.idempotency_key,"
    " call_digest = EXCLUDED.call_digest, wire = EXCLUDED.wire"
)
_DROP_VIEW = (
    "DELETE FROM outlast.task_view v WHERE v.task_id = ANY(%s)"
    " AND NOT EXISTS (SELECT FROM outlast.task_events e WHERE e.originator_id = v.task_id)"
    " RETURNING outlast.owner_hash(v.owner)"
)
# A view that goes leaves its owner's name for the audit; of these there is nothing to tell.
_DROP_NAMES = "SELECT outlast.drop_owner_names(%s::bytea[])"
_DROP_QUEUE = "DELETE FROM outlast.run_queue WHERE task_id = ANY(%s)"
_DROP_STRAY_QUEUE = (
    "DELETE FROM outlast.run_queue q WHERE q.task_id = ANY(%s)"
    " AND NOT EXISTS (SELECT FROM outlast.task_view v WHERE v.task_id = q.task_id)"
)
# A task that a worker runs is left to it for the length of a lease: it may be alive.
_PUT_QUEUE = (
    "INSERT INTO outlast.run_queue AS q (task_id, owner, due, is_look, worker, lease_until)"
    " VALUES (%s, %s, coalesce(%s, clock_timestamp()), %s, %s,"
    " CASE WHEN %s::text IS NOT NULL THEN clock_timestamp() + make_interval(secs => %s) END)"
    " ON CONFLICT (task_id) DO UPDATE SET owner = EXCLUDED.owner"
)
_MEND_EVENT = (
    "UPDATE outlast.task_events SET owner = %s, tool = %s, status = %s"
    " WHERE originator_id = %s AND originator_version = %s"
)
_TAKEN = (
    "SELECT w.id FROM unnest(%s::text[], %s::text[], %s::text[]) AS w(id, owner, name)"
    " JOIN outlast.task_view v ON v.owner = w.owner AND v.idempotency_key = w.name"
    " AND v.task_id <> w.id"
)
_TELL = (
    "SELECT pg_notify('task_moved', t.id || ':' || t.version || ':'"
    " || encode(sha256(convert_to(t.owner, 'UTF8')), 'hex'))"
    " FROM (SELECT %s::text, %s::bigint, %s::text) AS t(id, version, owner)"
)
# They come back by themselves, of the events alone.
_DROP_SNAPSHOTS = "DELETE FROM outlast.task_snapshots"
_TELL_WORKERS = "SELECT pg_notify('task_runnable', '')"
_MEND_USAGE = (
    "INSERT INTO outlast.owner_usage AS u (owner, tasks, working, parked, bytes)"
    f" SELECT owner, tasks, working, parked, bytes FROM ({DRIFT}) d ORDER BY owner"
    " ON CONFLICT (owner) DO UPDATE SET tasks = u.tasks + EXCLUDED.tasks,"
    " working = u.working + EXCLUDED.working, parked = u.parked + EXCLUDED.parked,"
    " bytes = u.bytes + EXCLUDED.bytes RETURNING owner"
)


@dataclass(frozen=True)
class _Mended:
    """One task as it should be. `name` is what is to be stored of its idempotency key."""

    rows: TaskRows
    folded: Folded
    wire: bytes
    name: str | None
    found: Sequence[Difference]

    @property
    def task(self) -> Task:
        return self.folded.task

    def concerns(self, table: str) -> bool:
        """Whether anything differs in this table."""
        return any(difference.column.startswith(table) for difference in self.found)


@dataclass
class _Range:
    """What one range comes to; counted once it is committed."""

    within: Range
    tasks: int = 0
    events: int = 0
    refused: int = 0
    mended: list[_Mended] = field(default_factory=list[_Mended])
    found: list[Difference] = field(default_factory=list[Difference])
    nameless: list[str] = field(default_factory=list[str])
    strays: list[str] = field(default_factory=list[str])


class Rebuild:
    """One run over all tasks."""

    def __init__(self, url: str, sealer: Sealer) -> None:
        self._url, self._folder = url, Folder(sealer)
        self.done = Rebuilt()

    async def run(self) -> AsyncGenerator[Difference]:
        """Mend everything; what differed, or could not be read, as it is met.

        Raises StoreUnavailable, and ConfigurationError while another rebuild runs.
        """
        with failures.as_ours():
            async with AsyncExitStack() as stack:
                lanes = [await self._lane(stack) for _ in range(LANES)]
                ((is_ours,),) = await rows(lanes[0], _LOCK, LOCK)
                if not is_ours:
                    raise errors.ConfigurationError("another rebuild of this store is running")
                stack.push_async_callback(_unlock, lanes[0])
                await rows(lanes[0], _DROP_SNAPSHOTS)
                nameless: list[str] = []
                async with aclosing(walk(lanes, self._patiently)) as ranges:
                    async for done in ranges:
                        self._count(done)
                        nameless += done.nameless
                        for difference in done.found:
                            yield difference
                # A name that was taken may be free now that its holder has been mended.
                for task_id in nameless:
                    await self._patiently(lanes[0], Range(task_id[:-1], task_id))
                mended = await rows(lanes[0], _MEND_USAGE, seconds=USAGE_S_MAX)
                self.done.owners = sum(1 for (owner,) in mended if owner)

    async def _lane(self, stack: AsyncExitStack) -> Connection:
        connection = await connected(self._url)
        stack.push_async_callback(connection.close)
        await rows(connection, f"SET idle_in_transaction_session_timeout = '{IDLE_S_MAX}s'")
        return connection

    async def _patiently(self, connection: Connection, within: Range) -> _Range:
        """One range, tried again when somebody else's transaction stood in the way."""
        for _ in range(TRIES_MAX):
            try:
                return await self._range(connection, within)
            except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
                continue
        raise errors.StoreUnavailable

    def _count(self, done: _Range) -> None:
        self.done.tasks += done.tasks
        self.done.events += done.events
        self.done.differing += len(done.mended)
        self.done.removed += len(done.strays)
        self.done.refused += done.refused

    async def _range(self, connection: Connection, within: Range) -> _Range:
        done = _Range(within)
        async with connection.transaction():
            views = await views_of(connection, within, lock=True)
            found = await tasks_of(connection, within, views)
            lost = [task.task_id for task in found.values() if task.events and task.view is None]
            viewless = {row[0] for row in await rows(connection, _WITHOUT_VIEW, (lost,))}
            for task in found.values():
                if task.events and (task.view is not None or task.task_id in viewless):
                    await self._judge(task, done)
                elif not task.events and (task.view is not None or task.is_queued):
                    done.strays.append(task.task_id)
                    done.found += stray_differences(task)
            await self._write(connection, done)
        return done

    async def _judge(self, task: TaskRows, done: _Range) -> None:
        """Whether this task's rows are as its events say, and what they should be."""
        done.tasks += 1
        done.events += len(task.events)
        try:
            key = await self._folder.key_of(task)
            folded = self._folder.fold(task.task_id, task.events, key)
        except Unfoldable as error:
            done.refused += 1
            done.found.append(error.difference)
            return
        names = await self._folder.names_of(folded.task, key)
        found = [*event_differences(task.events, folded, "task_events")]
        found += [*queue_differences(task, folded), *stray_differences(task)]
        if task.view is not None:
            wire = self._folder.opened_wire(task.view, key)
            found += view_differences(task.view, wire, folded, names)
        if found:
            wire = self._folder.sealed_wire(folded.task, key)
            done.mended.append(_Mended(task, folded, wire, names[0], found))
            done.found += found

    async def _write(self, connection: Connection, done: _Range) -> None:
        if done.strays:
            dropped = await rows(connection, _DROP_VIEW, (done.strays,))
            await rows(connection, _DROP_NAMES, ([owner for (owner,) in dropped],))
            await rows(connection, _DROP_STRAY_QUEUE, (done.strays,))
        views = [mended for mended in done.mended if mended.concerns("task_view")]
        queue = [mended for mended in done.mended if mended.concerns("run_queue")]
        if views:
            await self._write_views(connection, views, done)
        if queue:
            await _write_queue(connection, queue)
        columns = [row for mended in done.mended for row in _event_columns(mended)]
        if columns:
            await _each(connection, _MEND_EVENT, columns)
        if done.mended:
            told = [(each.task.id, each.task.version, each.task.owner) for each in done.mended]
            await _each(connection, _TELL, told)

    async def _write_views(
        self, connection: Connection, views: Sequence[_Mended], done: _Range
    ) -> None:
        await rows(connection, _FREE_NAMES, ([each.task.id for each in views],))
        named = [each for each in views if each.name is not None]
        taken = await rows(
            connection,
            _TAKEN,
            (
                [each.task.id for each in named],
                [each.task.owner for each in named],
                [each.name for each in named],
            ),
        )
        done.nameless += [task_id for (task_id,) in taken]
        await _each(connection, _PUT_VIEW, [_view_row(each, done.nameless) for each in views])


def _view_row(mended: _Mended, nameless: Sequence[str]) -> Sequence[Any]:
    task = mended.task
    return (
        task.id,
        task.version,
        task.owner,
        mended.folded.tool,
        task.status.value,
        task.created_at,
        task.expires_at,
        None if task.id in nameless else mended.name,
        mended.wire,
    )


async def _write_queue(connection: Connection, queue: Sequence[_Mended]) -> None:
    unwanted = [each.task.id for each in queue if not wants_queue(each.task)]
    await rows(connection, _DROP_QUEUE, (unwanted,))
    wanted = [_queue_row(each) for each in queue if wants_queue(each.task)]
    if wanted:
        await _each(connection, _PUT_QUEUE, wanted)
        await rows(connection, _TELL_WORKERS)


def _queue_row(mended: _Mended) -> Sequence[Any]:
    task = mended.task
    due = task.waits_until if queueing(None, task) is Queueing.WAIT else None
    owner, worker = mended.folded.owner_hash, task.worker
    return task.id, owner, due, task.is_followed, worker, worker, LEASE_S


def _event_columns(mended: _Mended) -> Iterator[Sequence[Any]]:
    if not mended.concerns("task_events"):
        return
    folded = mended.folded
    for row, status in zip(mended.rows.events, folded.statuses, strict=True):
        if (row.owner, row.tool, row.status) != (folded.owner_hash, folded.tool, status):
            yield folded.owner_hash, folded.tool, status, row.task_id, row.version


async def _each(connection: Connection, statement: str, many: Sequence[Sequence[Any]]) -> None:
    """The statement once for each of these, sent together."""
    with postgres.answered_within(RANGE_S_MAX, connection):
        async with connection.cursor() as cursor:
            await cursor.executemany(statement.encode(), many)


async def _unlock(connection: Connection) -> None:
    """For the next one: of a connection that is closed the server lets go a moment later."""
    with suppress(psycopg.Error, errors.StoreUnavailable):
        await rows(connection, _UNLOCK, LOCK)
