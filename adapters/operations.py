"""`Operations` on PostgreSQL: counts over the run queue and the outbox, when somebody looks."""

from collections.abc import Sequence
from typing import Any

from ..domain.operating import Backlog, Lease, Load
from . import postgres

# What is leased waits for nobody, until its lease has run out: then it is as good as free.
_LOAD = """
SELECT q.due, q.later, q.oldest, o.due, o.later, o.oldest, q.held, q.workers
FROM (
    SELECT count(*) FILTER (WHERE is_free AND is_due) AS due,
        count(*) FILTER (WHERE is_free AND NOT is_due) AS later,
        extract(epoch FROM statement_timestamp() - min(r.due) FILTER (WHERE is_free AND is_due))
            ::float8 AS oldest,
        count(*) FILTER (WHERE NOT is_free) AS held,
        count(DISTINCT worker) FILTER (WHERE NOT is_free) AS workers
    FROM (SELECT due, worker, due <= statement_timestamp() AS is_due,
              worker IS NULL OR lease_until < statement_timestamp() AS is_free
          FROM outlast.run_queue) r
) q, (
    SELECT count(*) FILTER (WHERE is_due) AS due,
        count(*) FILTER (WHERE NOT is_due) AS later,
        extract(epoch FROM statement_timestamp() - min(d.due) FILTER (WHERE is_due))
            ::float8 AS oldest
    FROM (SELECT due, due <= statement_timestamp() AS is_due FROM outlast.webhook_deliveries) d
) o
"""
# An attempt lasts from its start to whatever takes the task off the worker.
_LEASES = """
SELECT q.worker, q.task_id, coalesce(v.tool, ''), started.recorded_at,
    extract(epoch FROM q.lease_until - clock_timestamp())::float8
FROM (
    SELECT worker, task_id, lease_until FROM outlast.run_queue WHERE worker IS NOT NULL
    ORDER BY lease_until, task_id LIMIT %s
) q
LEFT JOIN outlast.task_view v ON v.task_id = q.task_id
LEFT JOIN LATERAL (
    SELECT CASE e.topic WHEN 'task.work_started' THEN e.recorded_at END AS recorded_at
    FROM outlast.task_events e
    WHERE e.originator_id = q.task_id AND e.topic IN ('task.work_started', 'task.work_lost',
        'task.input_requested', 'task.work_delegated', 'task.work_followed')
    ORDER BY e.originator_version DESC LIMIT 1
) started ON true
ORDER BY q.worker, q.lease_until, q.task_id
"""


class PostgresOperations:
    """`Operations` on PostgreSQL. All times are the server's."""

    def __init__(self, database: postgres.Database) -> None:
        self._database = database

    async def load(self) -> Load:
        """See `Operations.load`."""
        row: Sequence[Any] = (await self._database.rows(_LOAD))[0]
        return Load(Backlog(*row[:3]), Backlog(*row[3:6]), int(row[6]), int(row[7]))

    async def leases(self, limit: int) -> Sequence[Lease]:
        """See `Operations.leases`."""
        return [Lease(*row) for row in await self._database.rows(_LEASES, limit)]
