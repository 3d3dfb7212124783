"""One row a task on PostgreSQL: what `tasks/get` reads, and what retention goes by."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ..domain.ports import TaskView
from ..domain.task import TaskStatus
from . import codec, postgres

_COLUMNS = "task_id, version, owner, status, expires_at, call_digest, wire"


class PostgresTaskViews:
    """`TaskViews` on PostgreSQL."""

    def __init__(self, database: postgres.Database) -> None:
        self._database = database

    async def get(self, task_id: str) -> TaskView | None:
        """See `TaskViews.get`."""
        if not codec.is_storable(task_id):
            return None
        return _only(
            await self._database.rows(
                f"SELECT {_COLUMNS} FROM outlast.task_view WHERE task_id = %s", task_id
            )
        )

    async def opened_with(self, owner: str, idempotency_key: str) -> TaskView | None:
        """See `TaskViews.opened_with`."""
        return _only(
            await self._database.rows(
                f"SELECT {_COLUMNS} FROM outlast.task_view"
                " WHERE owner = %s AND idempotency_key = %s",
                owner,
                codec.digest(idempotency_key),
            )
        )

    async def due(self, now: datetime, limit: int) -> Sequence[TaskView]:
        """See `TaskViews.due`."""
        rows = await self._database.rows(
            f"SELECT {_COLUMNS} FROM outlast.task_view"
            " WHERE expires_at <= %s ORDER BY expires_at LIMIT %s",
            now,
            limit,
        )
        return [_view(row) for row in rows]

    async def forget(self, task_ids: Sequence[str]) -> None:
        """See `TaskViews.forget`."""
        await self._database.rows("SELECT outlast.forget_tasks(%s)", list(task_ids))


def _only(rows: Sequence[tuple[Any, ...]]) -> TaskView | None:
    return _view(rows[0]) if rows else None


def _view(row: tuple[Any, ...]) -> TaskView:
    task_id, version, owner, status, expires_at, call_digest, wire = row
    is_terminal = TaskStatus(status).is_terminal
    return TaskView(task_id, version, owner, is_terminal, expires_at, call_digest, bytes(wire))
