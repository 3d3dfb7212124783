"""The run queue on PostgreSQL: a small lease table. The append function puts and drops its rows."""

from collections.abc import Sequence

from . import postgres


class PostgresDispatcher:
    """`Dispatcher` on PostgreSQL. All times are the server's: clocks of workers do not matter."""

    def __init__(self, database: postgres.Database) -> None:
        self._database = database

    async def claim(self, worker: str, limit: int, lease_s: float) -> Sequence[str]:
        """See `Dispatcher.claim`. Skips rows that an append holds; its signal follows."""
        rows = await self._database.rows(
            "WITH free AS MATERIALIZED ("
            " SELECT task_id FROM outlast.run_queue"
            " WHERE due <= clock_timestamp()"
            " AND (lease_until IS NULL OR lease_until < clock_timestamp())"
            " ORDER BY due LIMIT %s FOR UPDATE SKIP LOCKED)"
            " UPDATE outlast.run_queue q"
            " SET worker = %s, lease_until = clock_timestamp() + make_interval(secs => %s)"
            " FROM free WHERE q.task_id = free.task_id RETURNING q.task_id, q.due",
            limit,
            worker,
            lease_s,
        )
        return [task_id for task_id, _due in sorted(rows, key=lambda row: row[1])]

    async def renew(self, worker: str, task_ids: Sequence[str], lease_s: float) -> Sequence[str]:
        """See `Dispatcher.renew`.

        Locked in the order of ids, as appends do, so that neither waits in a circle.
        """
        rows = await self._database.rows(
            "WITH held AS MATERIALIZED ("
            " SELECT task_id FROM outlast.run_queue WHERE task_id = ANY(%s) AND worker = %s"
            " ORDER BY task_id FOR UPDATE)"
            " UPDATE outlast.run_queue q"
            " SET lease_until = clock_timestamp() + make_interval(secs => %s)"
            " FROM held WHERE q.task_id = held.task_id RETURNING q.task_id",
            list(task_ids),
            worker,
            lease_s,
        )
        return [row[0] for row in rows]

    async def release(self, worker: str, task_ids: Sequence[str], delay_s: float) -> None:
        """See `Dispatcher.release`."""
        await self._database.rows(
            "WITH held AS MATERIALIZED ("
            " SELECT task_id FROM outlast.run_queue WHERE task_id = ANY(%s) AND worker = %s"
            " ORDER BY task_id FOR UPDATE)"
            " UPDATE outlast.run_queue q SET worker = NULL, lease_until = NULL,"
            " due = clock_timestamp() + make_interval(secs => %s)"
            " FROM held WHERE q.task_id = held.task_id",
            list(task_ids),
            worker,
            delay_s,
        )

    async def depth(self) -> int:
        """See `Dispatcher.depth`."""
        rows = await self._database.rows(
            "SELECT count(*) FROM outlast.run_queue WHERE due <= clock_timestamp()"
            " AND (lease_until IS NULL OR lease_until < clock_timestamp())"
        )
        return int(rows[0][0])
