"""How the store stands, in one statement: what waits, and for how long."""

import asyncio
from collections.abc import Mapping

from . import postgres

# Of the queue only what nobody runs counts; a time that is yet to come is no wait.
_STANDING = """
SELECT q.depth, q.oldest, d.depth, d.oldest,
    (SELECT extract(epoch FROM clock_timestamp() - min(expires_at))::float8 FROM outlast.task_view)
FROM
    (SELECT count(*) AS depth, extract(epoch FROM clock_timestamp() - min(due))::float8 AS oldest
     FROM outlast.run_queue WHERE due <= clock_timestamp()
     AND (lease_until IS NULL OR lease_until < clock_timestamp())) q,
    (SELECT count(*) AS depth, extract(epoch FROM clock_timestamp() - min(due))::float8 AS oldest
     FROM outlast.webhook_deliveries) d
"""

KEPT_S = 2.0  # whoever asks again within this is told the same


class PostgresStanding:
    """The figures of one store. Asked by many, it looks once."""

    def __init__(self, database: postgres.Database) -> None:
        self._database = database
        self._found: Mapping[str, float] = {}
        self._until = 0.0
        self._one = asyncio.Lock()

    async def read(self) -> Mapping[str, float]:
        """Each by the name that it has on the page of metrics. Raises StoreUnavailable."""
        loop = asyncio.get_running_loop()
        async with self._one:
            if loop.time() >= self._until:
                ((depth, oldest, waiting, longest, overdue),) = await self._database.rows(_STANDING)
                self._found = {
                    "outlast_queue_depth": float(depth),
                    "outlast_queue_oldest_seconds": max(oldest or 0.0, 0.0),
                    "outlast_outbox_depth": float(waiting),
                    "outlast_outbox_oldest_seconds": max(longest or 0.0, 0.0),
                    "outlast_expiry_lag_seconds": max(overdue or 0.0, 0.0),
                }
                self._until = loop.time() + KEPT_S
            return self._found
