"""One row a task on PostgreSQL: what `tasks/get` reads, and what retention goes by."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ..domain import errors
from ..domain.ports import TaskView
from ..domain.task import TaskStatus
from . import codec, postgres
from .gathering import Gathering
from .sealing import VIEW, Sealer

_COLUMNS = "v.task_id, v.version, v.owner, v.status, v.expires_at"
_BARE = f"SELECT {_COLUMNS} FROM outlast.task_view v"
# With the key, whoever has met the task: how a statement looks must not tell that.
_GET = (
    f"SELECT {_COLUMNS}, v.wire, k.wrapped, k.wrapped_by, a.place FROM outlast.task_view v"
    " JOIN unnest(%s::text[], %s::text[]) WITH ORDINALITY AS a(task_id, owner, place)"
    " ON v.task_id = a.task_id AND (a.owner IS NULL OR v.owner = a.owner)"
    " LEFT JOIN outlast.data_keys k ON k.task_id = v.task_id"
)
_FACTS = 6
READS_MAX = 64  # views in one statement
READS_AT_ONCE = 2  # one statement is answered while the next is made

Wish = tuple[str, str | None]
Row = list[Any]


class PostgresTaskViews:
    """`TaskViews` on PostgreSQL."""

    def __init__(self, database: postgres.Database, sealer: Sealer | None = None) -> None:
        self._database = database
        self._sealer = sealer or Sealer(database)
        self._reads = Gathering(self._read, flights=READS_AT_ONCE, batch_max=READS_MAX)

    async def get(self, task_id: str, owner: str | None = None) -> TaskView | None:
        """See `TaskViews.get`. Read by a statement that began after this call, maybe with others.

        So whoever has been told of an append sees it, in whatever process it was.
        """
        if not codec.is_storable(task_id) or not codec.is_storable(owner or ""):
            return None
        row = await self._row((task_id, owner))
        if row is None:
            self._sealer.drop([task_id])  # forgotten elsewhere, perhaps to be erased
            return None
        if not self._sealer.knows(task_id):
            await self._sealer.learn(task_id, *row[_FACTS:])
        key = await self._sealer.key_of(task_id)
        return _view(row[:_FACTS], self._sealer.open(key, task_id, row[1], VIEW, row[5]))

    async def _row(self, wish: Wish) -> Row | None:
        # As for a statement of its own: whoever stands in line behind silent ones is told in time.
        longest_s = postgres.POOL_WAIT_S_MAX + postgres.STATEMENT_S_MAX
        try:
            return await self._reads.do(wish, asyncio.get_running_loop().time() + longest_s)
        except TimeoutError:
            raise errors.StoreUnavailable from None

    async def _read(self, wishes: Sequence[Wish]) -> Sequence[Row | None]:
        asked = list(dict.fromkeys(wishes))
        rows = await self._database.rows(_GET, *map(list, zip(*asked, strict=True)))
        found: dict[Wish, Row] = {asked[place - 1]: row for *row, place in rows}
        return [found.get(wish) for wish in wishes]

    async def opened_with(self, owner: str, idempotency_key: str) -> TaskView | None:
        """See `TaskViews.opened_with`."""
        rows = await self._database.rows(
            f"{_BARE} WHERE v.owner = %s AND v.idempotency_key = ANY(%s)",
            owner,
            await self._sealer.names_of(idempotency_key),
        )
        return _view(rows[0], b"") if rows else None

    async def due(self, now: datetime, limit: int) -> Sequence[TaskView]:
        """See `TaskViews.due`."""
        rows = await self._database.rows(
            f"{_BARE} WHERE v.expires_at <= %s ORDER BY v.expires_at LIMIT %s",
            now,
            limit,
        )
        return [_view(row, b"") for row in rows]

    async def next_end(self) -> datetime | None:
        """See `TaskViews.next_end`."""
        rows = await self._database.rows("SELECT min(expires_at) FROM outlast.task_view")
        return rows[0][0]

    async def forget(self, task_ids: Sequence[str]) -> None:
        """See `TaskViews.forget`."""
        await self._database.rows("SELECT outlast.forget_tasks(%s)", list(task_ids))
        self._sealer.drop(task_ids)


def _view(facts: Sequence[Any], wire: bytes) -> TaskView:
    task_id, version, owner, status, expires_at, *_ = facts
    return TaskView(task_id, version, owner, TaskStatus(status).is_terminal, expires_at, wire)
