"""One row a task on PostgreSQL: what `tasks/get` reads, and what retention goes by."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from ..domain.ports import TaskView
from ..domain.task import TaskStatus
from . import codec, postgres
from .sealing import VIEW, Sealer

_COLUMNS = "v.task_id, v.version, v.owner, v.status, v.expires_at"
_BARE = f"SELECT {_COLUMNS}, ''::bytea FROM outlast.task_view v"
_WHERE = "WHERE v.task_id = %s AND (%s::text IS NULL OR v.owner = %s)"
_GET = f"SELECT {_COLUMNS}, v.wire FROM outlast.task_view v {_WHERE}"
# For a task that this process has not met: still one statement.
_GET_WITH_KEY = (
    f"SELECT {_COLUMNS}, v.wire, k.wrapped, k.wrapped_by FROM outlast.task_view v"
    f" LEFT JOIN outlast.data_keys k ON k.task_id = v.task_id {_WHERE}"
)
_FACTS = 6


class PostgresTaskViews:
    """`TaskViews` on PostgreSQL."""

    def __init__(self, database: postgres.Database, sealer: Sealer | None = None) -> None:
        self._database = database
        self._sealer = sealer or Sealer(database)

    async def get(self, task_id: str, owner: str | None = None) -> TaskView | None:
        """See `TaskViews.get`. One statement, whatever comes of it."""
        if not codec.is_storable(task_id):
            return None
        # For an owner always the same one: it must not tell whether this process has met the task.
        is_met = self._sealer.knows(task_id)
        statement = _GET if owner is None and is_met else _GET_WITH_KEY
        rows = await self._database.rows(statement, task_id, owner, owner)
        if not rows:
            self._sealer.drop([task_id])  # forgotten elsewhere, perhaps to be erased
            return None
        *facts, wire = rows[0][:_FACTS]
        if not is_met:
            await self._sealer.learn(task_id, *rows[0][_FACTS:])
        key = await self._sealer.key_of(task_id)
        view = _view((*facts, wire))
        return replace(view, wire=self._sealer.open(key, task_id, view.version, VIEW, wire))

    async def opened_with(self, owner: str, idempotency_key: str) -> TaskView | None:
        """See `TaskViews.opened_with`."""
        rows = await self._database.rows(
            f"{_BARE} WHERE v.owner = %s AND v.idempotency_key = ANY(%s)",
            owner,
            await self._sealer.names_of(idempotency_key),
        )
        return _view(rows[0]) if rows else None

    async def due(self, now: datetime, limit: int) -> Sequence[TaskView]:
        """See `TaskViews.due`."""
        rows = await self._database.rows(
            f"{_BARE} WHERE v.expires_at <= %s ORDER BY v.expires_at LIMIT %s",
            now,
            limit,
        )
        return [_view(row) for row in rows]

    async def next_end(self) -> datetime | None:
        """See `TaskViews.next_end`."""
        rows = await self._database.rows("SELECT min(expires_at) FROM outlast.task_view")
        return rows[0][0]

    async def forget(self, task_ids: Sequence[str]) -> None:
        """See `TaskViews.forget`."""
        await self._database.rows("SELECT outlast.forget_tasks(%s)", list(task_ids))
        self._sealer.drop(task_ids)


def _view(row: tuple[Any, ...]) -> TaskView:
    task_id, version, owner, status, expires_at, wire = row
    is_terminal = TaskStatus(status).is_terminal
    return TaskView(task_id, version, owner, is_terminal, expires_at, bytes(wire))
