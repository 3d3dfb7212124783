"""Are the views what the log says? Every row that is derived from events, held against their fold.

It reads while the service runs: each range of tasks in a snapshot of its own, in which an append is
there as a whole or not at all. Nothing is locked.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing

import psycopg

from ..domain.views import Checked, Difference
from . import failures
from .audit_log import connected
from .sealing import Sealer
from .view_check import (
    Folded,
    Folder,
    Unfoldable,
    event_differences,
    gap_in,
    past_differences,
    queue_differences,
    stray_differences,
    view_differences,
)
from .view_rows import FIRST, LANES, Connection, Range, TaskRows, rows, tasks_of, views_of, walk

USAGE_S_MAX = 600.0  # one statement counts everything that is stored

_USAGE = (
    "WITH counted AS ("
    " SELECT outlast.owner_hash(v.owner) AS owner, count(*) AS tasks,"
    " count(*) FILTER (WHERE v.status = 'working') AS working,"
    " count(*) FILTER (WHERE v.status = 'input_required') AS parked, coalesce(sum(b.bytes), 0)"
    " AS bytes FROM outlast.task_view v LEFT JOIN ("
    " SELECT originator_id, sum(length(state)) AS bytes FROM outlast.task_events GROUP BY 1"
    ") b ON b.originator_id = v.task_id GROUP BY 1"
    "), whole AS ("
    " SELECT * FROM counted UNION ALL SELECT '', coalesce(sum(tasks), 0),"
    " coalesce(sum(working), 0), coalesce(sum(parked), 0), coalesce(sum(bytes), 0) FROM counted"
    ") SELECT coalesce(w.owner, u.owner) AS owner,"
    " coalesce(w.tasks, 0)::bigint - coalesce(u.tasks, 0) AS tasks,"
    " coalesce(w.working, 0)::bigint - coalesce(u.working, 0) AS working,"
    " coalesce(w.parked, 0)::bigint - coalesce(u.parked, 0) AS parked,"
    " coalesce(w.bytes, 0)::bigint - coalesce(u.bytes, 0) AS bytes"
    " FROM whole w FULL JOIN outlast.owner_usage u ON u.owner = w.owner"
)
DRIFT = f"SELECT * FROM ({_USAGE}) d WHERE (d.tasks, d.working, d.parked, d.bytes) <> (0, 0, 0, 0)"
COLUMNS = ("tasks", "working", "parked", "bytes")


class ViewVerification:
    """Looks at every task that has any row, in the order of ids."""

    def __init__(self, url: str, sealer: Sealer) -> None:
        self._url, self._folder = url, Folder(sealer)
        self.checked = Checked()

    async def differences(
        self, after: str = FIRST, upto: str | None = None
    ) -> AsyncGenerator[Difference]:
        """All that is not as the events say, of the tasks behind `after`, up to and with `upto`.

        What owners use is looked at in the end, if there is no `upto`. Raises StoreUnavailable.
        """
        with failures.as_ours():
            async with AsyncExitStack() as stack:
                lanes = [await self._lane(stack) for _ in range(LANES)]
                async with aclosing(walk(lanes, self._range, after, upto)) as ranges:
                    async for found in ranges:
                        for difference in found:
                            yield difference
                if upto is None:
                    for drift in await rows(lanes[0], DRIFT, seconds=USAGE_S_MAX):
                        for difference in _drifted(drift):
                            yield difference

    async def _lane(self, stack: AsyncExitStack) -> Connection:
        connection = await connected(self._url)
        stack.push_async_callback(connection.close)
        await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        await connection.set_read_only(True)
        return connection

    async def _range(self, connection: Connection, within: Range) -> list[Difference]:
        """What is wrong in this range."""
        async with connection.transaction():
            tasks = await tasks_of(connection, within, await views_of(connection, within))
            found: list[Difference] = []
            for task in tasks.values():
                found += await self._task(connection, task)
        self.checked.tasks += len(tasks)
        self.checked.events += sum(len(t.events) + len(t.past_events) for t in tasks.values())
        return found

    async def _task(self, connection: Connection, task: TaskRows) -> list[Difference]:
        found = list(stray_differences(task))
        if task.events:
            found += await self._stored(connection, task)
        if task.past_events:
            found += await self._past(task)
        return found

    async def _stored(self, connection: Connection, task: TaskRows) -> list[Difference]:
        try:
            key = await self._folder.key_of(task)
            folded = self._folder.fold(task.task_id, task.events, key)
        except Unfoldable as error:
            return [error.difference]
        found = [*event_differences(task.events, folded, "task_events")]
        found += queue_differences(task, folded)
        if task.view is not None:
            names = await self._folder.names_of(folded.task, key)
            if task.view.idempotency_key not in names and await is_taken(connection, folded, names):
                names = [*names, None]
            wire = self._folder.opened_wire(task.view, key)
            found += view_differences(task.view, wire, folded, names)
        return found

    async def _past(self, task: TaskRows) -> list[Difference]:
        if task.past is not None and task.past.is_erased:
            gap = gap_in(task.past_events)
            return [gap] if gap is not None else []
        try:
            key = await self._folder.key_of(task)
            folded = self._folder.fold(task.task_id, task.past_events, key)
        except Unfoldable as error:
            return [error.difference]
        return [
            *event_differences(task.past_events, folded, "past_events"),
            *past_differences(task, folded),
        ]


async def is_taken(connection: Connection, folded: Folded, names: Sequence[str | None]) -> bool:
    """Whether another task of the owner stands under the same idempotency key.

    That comes of a lost view row: the key was free for as long. The rebuilt row goes without it.
    """
    statement = (
        "SELECT 1 FROM outlast.task_view"
        " WHERE owner = %s AND idempotency_key = ANY(%s) AND task_id <> %s LIMIT 1"
    )
    wanted = [name for name in names if name is not None]
    task = folded.task
    return bool(await rows(connection, statement, (task.owner, wanted, task.id)))


def _drifted(drift: Sequence[object]) -> Iterator[Difference]:
    owner, *counts = drift
    name = bytes(owner).hex() if isinstance(owner, bytes) else ""
    for column, count in zip(COLUMNS, counts, strict=True):
        if count:
            whose = f"of the owner {name}" if name else "of all owners"
            yield Difference("", f"owner_usage.{column}", f"{whose} is off by {count}")
