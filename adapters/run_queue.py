"""The run queue on PostgreSQL: a small lease table. The append function puts and drops its rows.

A lease that has run out says that its worker is dead, or that nobody could renew because the store
was away. So only a process that has itself been in touch with the store for as long as a lease
takes the work of others: after an outage the living get the time to renew, and what is merely due
is claimed at once.

Claims go round the owners: each claim begins with the owner after the one that had the last turn,
so a task waits for one turn of each other owner, however many tasks those have.
"""

import math
import time
from collections.abc import Sequence

from ..domain.queueing import LEASE_S
from . import postgres

# While there is a lease that could run out, a worker asks every 1.5 s at least: after a longer gap
# the store was away. A worker that knows of no such lease asks less often and loses touch; it takes
# nothing over then, and there is nothing. Once it hears of one it is in touch before that ends.
SILENCE_S_MAX = 2.0


class Contact:
    """How long one process has been in touch with the store without a break."""

    def __init__(self) -> None:
        self._since = self._last = float("-inf")

    def made(self) -> None:
        """The store has just answered."""
        now = time.monotonic()
        if now - self._last > SILENCE_S_MAX:
            self._since = now
        self._last = now

    def lasts(self, seconds: float) -> bool:
        """True when it has lasted so long, up to now; always for no time at all."""
        now = time.monotonic()
        unbroken = now - self._last <= SILENCE_S_MAX
        return seconds <= 0 or (unbroken and now - self._since >= seconds)


class PostgresDispatcher:
    """`Dispatcher` on PostgreSQL. All times are the server's: clocks of workers do not matter.

    `patience_s` is how long this process must have been in touch before it takes others' work.
    `running_per_owner` holds for all workers that are given it; work that was opened by who runs
    it counts, and is not cut off.
    """

    def __init__(
        self,
        database: postgres.Database,
        patience_s: float = LEASE_S,
        running_per_owner: int | None = None,
    ) -> None:
        self._database = database
        self._contact, self._patience_s = Contact(), patience_s
        self._running_per_owner = running_per_owner
        self._place = b""  # whose turn was the last: the owners stand in a ring

    async def claim(self, worker: str, limit: int, lease_s: float) -> Sequence[str]:
        """See `Dispatcher.claim`. Skips rows that an append holds; its signal follows."""
        rows = await self._database.rows(
            "SELECT claimed_id, claimed_due, claimed_owner"
            " FROM outlast.claim_tasks(%s, %s::integer, %s, %s::bytea, %s::bigint, %s)",
            worker,
            limit,
            lease_s,
            self._place,
            self._running_per_owner,
            self._contact.lasts(self._patience_s),
        )
        self._contact.made()
        if rows:
            self._place = bytes(rows[-1][2])
        return [task_id for task_id, _due, _owner in sorted(rows, key=lambda row: row[1])]

    async def claim_looks(self, worker: str, limit: int, lease_s: float) -> Sequence[str]:
        """See `Dispatcher.claim_looks`."""
        rows = await self._database.rows(
            "SELECT claimed_id, claimed_due FROM outlast.claim_looks(%s, %s::integer, %s, %s)",
            worker,
            limit,
            lease_s,
            self._contact.lasts(self._patience_s),
        )
        self._contact.made()
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
        self._contact.made()
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

    async def quiet_s(self, worker: str) -> float:
        """See `Dispatcher.quiet_s`."""
        rows = await self._database.rows("SELECT outlast.quiet_seconds(%s)", worker)
        self._contact.made()
        return math.inf if rows[0][0] is None else float(rows[0][0])

    async def depth(self) -> int:
        """See `Dispatcher.depth`."""
        rows = await self._database.rows(
            "SELECT count(*) FROM outlast.run_queue WHERE due <= clock_timestamp()"
            " AND (lease_until IS NULL OR lease_until < clock_timestamp())"
        )
        return int(rows[0][0])
