"""The inbox on PostgreSQL; the table follows the view rows by triggers of migration 0013."""

from collections.abc import Sequence

from ..domain.inbox import OpenRequest, Place
from . import codec, postgres

_WAITING = (
    "SELECT r.task_id, v.owner, v.tool, r.since FROM outlast.open_requests r"
    " JOIN outlast.task_view v ON v.task_id = r.task_id WHERE {} ORDER BY r.since, r.task_id LIMIT"
    " %s"
)
_BEHIND = "(r.since, r.task_id) > (coalesce(%s::timestamptz, '-infinity'), %s::text)"
_OF_ALL = _WAITING.format(_BEHIND)
_OF_OWNER = _WAITING.format(f"r.owner = outlast.owner_hash(%s) AND v.owner = %s AND {_BEHIND}")


class PostgresOpenRequests:
    """`OpenRequests` on PostgreSQL."""

    def __init__(self, database: postgres.Database) -> None:
        self._database = database

    async def waiting(
        self, owner: str | None = None, after: Place | None = None, limit: int = 20
    ) -> Sequence[OpenRequest]:
        """See `OpenRequests.waiting`."""
        behind = (None, "") if after is None else (after.since, codec.storable(after.task_id))
        if owner is None:
            rows = await self._database.rows(_OF_ALL, *behind, limit)
        else:
            rows = await self._database.rows(_OF_OWNER, owner, owner, *behind, limit)
        return [OpenRequest(*row) for row in rows]
