"""The events of one owner on PostgreSQL: `OwnerEvents` over the columns that every append fills."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ..domain.push import Filter, LoggedEvent, Page
from . import codec, postgres

_WANTED = "outlast.is_wanted(%s::text, %s::text[], %s::text[], e.topic, e.tool, e.status)"
_COLUMNS = "f.notification_id, f.originator_id, f.originator_version, f.topic, f.tool, f.status"
_OF_ALL = "e.owner = outlast.owner_hash(%s) AND e.notification_id > %s"
# By the tasks' own streams, and not by all that the owner ever had: so || '' and + 0.
_OF_NAMED = (
    "e.owner || '' = outlast.owner_hash(%s) AND e.notification_id + 0 > %s"
    " AND e.originator_id = ANY(%s::text[])"
)
_AFTER = (
    "SELECT (SELECT coalesce(max(h.notification_id), 0) FROM outlast.task_events h"
    f" WHERE h.owner = outlast.owner_hash(%s)), {_COLUMNS}"
    " FROM (SELECT 1) one LEFT JOIN LATERAL ("
    " SELECT e.* FROM outlast.task_events e"
    f" WHERE {{0}} AND {_WANTED}"
    " ORDER BY e.notification_id{1} LIMIT %s) f ON true ORDER BY f.notification_id"
)
# It looks at no more than it may pass over, so a reader who keeps up pays for what is new alone.
_FLOOR = (
    "SELECT coalesce(max(n.notification_id), %s::bigint) FROM ("
    " SELECT e.notification_id, e.recorded_at,"
    " row_number() OVER (ORDER BY e.notification_id DESC) AS place"
    " FROM outlast.task_events e WHERE {0}"
    " ORDER BY e.notification_id{1} DESC LIMIT %s::bigint + 1"
    ") n WHERE n.place > %s OR n.recorded_at < %s::timestamptz"
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
        where, place = _place(owner, wanted, position)
        rows = await self._database.rows(
            _AFTER.format(*where), owner, *place, *narrowed(wanted), limit + 1
        )
        head = int(rows[0][0])
        found = [LoggedEvent(*row[1:]) for row in rows if row[1] is not None]
        if len(found) > limit:
            return Page(found[:limit], found[limit - 1].position, has_more=True)
        return Page(found, max(head, position), has_more=False)

    async def floor(
        self, owner: str, wanted: Filter, position: int, since: datetime | None, newest: int
    ) -> int:
        """See `OwnerEvents.floor`."""
        where, place = _place(owner, wanted, position)
        return await self._number(_FLOOR.format(*where), position, *place, newest, newest, since)

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


def _place(owner: str, wanted: Filter, position: int) -> tuple[tuple[str, str], tuple[Any, ...]]:
    """The condition for the owner's events behind this position, how to order, and arguments."""
    if wanted.task_ids is None:
        return (_OF_ALL, ""), (owner, position)
    return (_OF_NAMED, " + 0"), (owner, position, _storable(wanted.task_ids))


def narrowed(wanted: Filter) -> tuple[Any, ...]:
    """The arguments of `outlast.is_wanted` that come from a filter."""
    tools = None if wanted.tools is None else _storable(wanted.tools)
    statuses = None if wanted.statuses is None else _storable(wanted.statuses)
    return wanted.name, tools, statuses


def _storable(texts: Sequence[str]) -> list[str]:
    return [text for text in texts if codec.is_storable(text)]
