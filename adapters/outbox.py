"""The outbox on PostgreSQL: what waits to be delivered, claimed fairly, settled behind a fence."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from ..domain.push import Attempt, DueDelivery, Health
from . import codec, postgres

BACKLOG_BATCH = 500
SWEEP_BATCH = 1_000
ATTEMPTS_KEPT = timedelta(days=30)


class PostgresOutbox:
    """`Outbox` on PostgreSQL. All times are the server's."""

    def __init__(self, database: postgres.Database) -> None:
        self._database = database

    async def claim(
        self, limit: int, per_endpoint: int, lease_s: float, busy: Sequence[str] = ()
    ) -> Sequence[DueDelivery]:
        """See `Outbox.claim`."""
        rows = await self._database.rows(
            "SELECT * FROM outlast.claim_deliveries(%s, %s, %s, %s::text[])",
            limit,
            per_endpoint,
            lease_s,
            list(busy),
        )
        return [_due(row) for row in rows]

    async def settle(self, due: DueDelivery, attempt: Attempt, retry_in_s: float | None) -> bool:
        """See `Outbox.settle`."""
        rows = await self._database.rows(
            "SELECT outlast.settle_delivery(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            due.id,
            due.fence,
            retry_in_s,
            attempt.webhook_id,
            attempt.number,
            attempt.at,
            attempt.category,
            attempt.status_class,
            attempt.latency_ms,
            attempt.step,
        )
        return bool(rows[0][0])

    async def put_back(self, due: DueDelivery, delay_s: float) -> None:
        """See `Outbox.put_back`."""
        await self._database.rows(
            "UPDATE outlast.webhook_deliveries"
            " SET due = clock_timestamp() + make_interval(secs => %s), is_leased = false,"
            " fence = fence + 1 WHERE id = %s AND fence = %s",
            delay_s,
            due.id,
            due.fence,
        )

    async def note_health(self, url: str, known: Health, now: Health) -> Health | None:
        """See `Outbox.note_health`."""
        rows = await self._database.rows(
            "UPDATE outlast.webhook_endpoints SET failures = %s, failing_since = %s, opened = %s,"
            " open_until = %s, probing_until = %s, revision = revision + 1"
            " WHERE url = %s AND revision = %s RETURNING 1",
            now.failures,
            now.failing_since,
            now.opened,
            now.open_until,
            now.probing_until,
            url,
            known.revision,
        )
        if rows:
            return None
        rows = await self._database.rows(
            "SELECT failures, failing_since, opened, open_until, probing_until, revision"
            " FROM outlast.webhook_endpoints WHERE url = %s",
            url,
        )
        return Health(*rows[0]) if rows else None

    async def suspend(self, subscription_id: str) -> None:
        """See `Outbox.suspend`."""
        await self._database.rows("SELECT outlast.suspend_subscription(%s)", subscription_id)

    async def attempts(
        self, subscription_id: str, webhook_id: str | None = None, limit: int = 100
    ) -> Sequence[Attempt]:
        """See `Outbox.attempts`."""
        rows = await self._database.rows(
            "SELECT at, subscription_id, webhook_id, number, category, status_class, latency_ms,"
            " step FROM outlast.webhook_attempts"
            " WHERE subscription_id = %s AND (%s::text IS NULL OR webhook_id = %s)"
            " ORDER BY id DESC LIMIT %s",
            subscription_id,
            webhook_id,
            webhook_id,
            limit,
        )
        return [Attempt(*row) for row in rows]

    async def resend(
        self,
        subscription_id: str,
        *,
        since: datetime | None = None,
        event: tuple[str, int] | None = None,
    ) -> int:
        """See `Outbox.resend`."""
        task_id, version = event or (None, None)
        rows = await self._database.rows(
            "SELECT outlast.resend_deliveries(%s, %s::text, %s::bigint, %s::timestamptz)",
            subscription_id,
            None if task_id is None else codec.storable(task_id),
            version,
            since,
        )
        return int(rows[0][0])

    async def sweep(self) -> bool:
        """See `Outbox.sweep`."""
        rows = await self._database.rows(
            "SELECT outlast.queue_backlog(%s), outlast.sweep_webhooks(%s, %s)",
            BACKLOG_BATCH,
            SWEEP_BATCH,
            ATTEMPTS_KEPT,
        )
        return any(rows[0])

    async def waiting(self) -> int:
        """See `Outbox.waiting`."""
        rows = await self._database.rows("SELECT count(*) FROM outlast.webhook_deliveries")
        return int(rows[0][0])


def _due(row: Sequence[Any]) -> DueDelivery:
    identity, fence, attempts, subscription_id, owner, url, name, secret, former, *rest = row
    envelope, why, position, task_id, version, watermark, tool, view_version, wire, *health = rest
    return DueDelivery(
        id=identity,
        fence=fence,
        attempts=attempts,
        subscription_id=subscription_id,
        owner=owner,
        url=url,
        name=name,
        secrets=[bytes(each) for each in (secret, former) if each is not None],
        envelope=envelope,
        why=why,
        position=position,
        task_id=task_id,
        version=version,
        watermark=watermark,
        tool=tool,
        present=None if view_version is None else (view_version, bytes(wire)),
        health=Health(*health),
    )
