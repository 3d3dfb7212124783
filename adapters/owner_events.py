"""The events of one owner on PostgreSQL: `OwnerEvents` over the columns that every append fills."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ..domain.push import Filter, LoggedEvent, Page
from . import codec, postgres

_WANTED = "outlast.is_wanted(%s::text, %s::text[], %s::text[], e.topic, e.tool, e.status)"
_COLUMNS = "f.notification_id, f.originator_id, f.originator_version, f.topic, f.tool, f.status"
_AFTER = (
    "SELECT (SELECT coalesce(max(h.notification_id), 0) FROM outlast.task_events h"
    f" WHERE h.owner = outlast.owner_hash(%s)), {_COLUMNS}"
    " FROM (SELECT 1) one LEFT JOIN LATERAL ("
    " SELECT e.* FROM outlast.task_events e"
    " WHERE e.owner = outlast.owner_hash(%s) AND e.notification_id > %s"
    f" AND (%s::text[] IS NULL OR e.originator_id = ANY(%s::text[])) AND {_WANTED}"
    " ORDER BY e.notification_id LIMIT %s) f ON true ORDER BY f.notification_id"
)


class PostgresOwnerEvents:
    """`OwnerEvents` on PostgreSQL. Commits keep the order of positions, so none is ever missed."""

    def __init__(self, database: postgres.Database) -> None:
        self._database = database

    async def epoch(self) -> int:
        """See `OwnerEvents.epoch`."""
        return await self._number("SELECT epoch FROM outlast.log_epoch")

    async def head(self, owner: str) -> int:
        """See `OwnerEvents.head`."""
        return await self._number(
            "SELECT coalesce(max(notification_id), 0) FROM outlast.task_events"
            " WHERE owner = outlast.owner_hash(%s)",
            owner,
        )

    async def after(self, owner: str, wanted: Filter, position: int, limit: int) -> Page:
        """See `OwnerEvents.after`. One statement: what was looked at is what the head counts."""
        task_ids = None if wanted.task_ids is None else _storable(wanted.task_ids)
        rows = await self._database.rows(
            _AFTER,
            owner,
            owner,
            position,
            task_ids,
            task_ids,
            *narrowed(wanted),
            limit + 1,
        )
        head = int(rows[0][0])
        found = [LoggedEvent(*row[1:]) for row in rows if row[1] is not None]
        if len(found) > limit:
            return Page(found[:limit], found[limit - 1].position, has_more=True)
        return Page(found, max(head, position), has_more=False)

    async def floor(self, owner: str, since: datetime | None, newest: int) -> int:
        """See `OwnerEvents.floor`."""
        return await self._number(
            "SELECT greatest("
            "(SELECT e.notification_id FROM outlast.task_events e"
            " WHERE e.owner = outlast.owner_hash(%s)"
            " ORDER BY e.notification_id DESC OFFSET %s LIMIT 1),"
            "(SELECT e.notification_id FROM outlast.task_events e"
            " WHERE e.owner = outlast.owner_hash(%s) AND e.recorded_at < %s::timestamptz"
            " ORDER BY e.notification_id DESC LIMIT 1), 0)",
            owner,
            newest,
            owner,
            since,
        )

    async def removed_to(self, owner: str) -> int:
        """See `OwnerEvents.removed_to`."""
        return await self._number(
            "SELECT coalesce(max(removed_to), 0) FROM outlast.removed_events"
            " WHERE owner = outlast.owner_hash(%s)",
            owner,
        )

    async def place_of(self, task_id: str, version: int) -> int:
        """See `OwnerEvents.place_of`."""
        return await self._number(
            "SELECT coalesce(max(notification_id), 0) FROM outlast.task_events"
            " WHERE originator_id = %s AND originator_version = %s",
            codec.storable(task_id),
            version,
        )

    async def _number(self, statement: str, *params: object) -> int:
        rows = await self._database.rows(statement, *params)
        return int(rows[0][0])


def narrowed(wanted: Filter) -> tuple[Any, ...]:
    """The arguments of `outlast.is_wanted` that come from a filter."""
    tools = None if wanted.tools is None else _storable(wanted.tools)
    statuses = None if wanted.statuses is None else _storable(wanted.statuses)
    return wanted.name, tools, statuses


def _storable(texts: Sequence[str]) -> list[str]:
    return [text for text in texts if codec.is_storable(text)]
