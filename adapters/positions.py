"""Where the log stands, and where in it an instant is."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from . import postgres

# The store's clock may have been set back by as much; whoever looks for an instant begins earlier.
CLOCK_BACK_MAX = timedelta(minutes=10)

_HEAD = (
    "SELECT greatest((SELECT max(notification_id) FROM outlast.task_events),"
    " (SELECT max(notification_id) FROM outlast.past_events), 0)"
)
_RECORDED = (
    "SELECT position, recorded_at >= %s FROM ("
    "(SELECT notification_id AS position, recorded_at FROM outlast.task_events"
    " WHERE notification_id > %s ORDER BY notification_id LIMIT 1) UNION ALL"
    " (SELECT notification_id, recorded_at FROM outlast.past_events"
    " WHERE notification_id > %s ORDER BY notification_id LIMIT 1)"
    ") e ORDER BY position LIMIT 1"
)


class PostgresPositions:
    """Positions rise with time, so an instant is found by halving; no index on it is needed."""

    def __init__(self, database: postgres.Database) -> None:
        self._database = database

    async def head(self) -> int:
        """The highest position that is visible; 0 for an empty log."""
        rows = await self._database.rows(_HEAD)
        return int(rows[0][0])

    async def before(self, instant: datetime) -> int:
        """A position that every event recorded at this instant or later comes after."""
        wanted = instant - CLOCK_BACK_MAX
        low, high = 0, await self.head()
        # Whatever is at `low` or lower was recorded before; what comes behind `high`, was not.
        while low < high:
            middle = (low + high) // 2
            rows = await self._database.rows(_RECORDED, wanted, middle, middle)
            if not rows or rows[0][1]:
                high = middle
            else:
                low = int(rows[0][0])
        return low

    async def tasks_of(self, owner: bytes, task_ids: Sequence[str]) -> frozenset[str]:
        """Which of these past tasks are of this owner."""
        rows = await self._database.rows(
            "SELECT task_id FROM outlast.past_tasks WHERE task_id = ANY(%s) AND owner = %s",
            list(task_ids),
            owner,
        )
        return frozenset(row[0] for row in rows)

    async def epoch(self) -> int:
        """Which log this is: one that is made anew gives positions another meaning."""
        rows = await self._database.rows("SELECT epoch FROM outlast.log_epoch")
        return int(rows[0][0])
