"""The outbox on PostgreSQL: what waits to be delivered, claimed fairly, settled behind a fence."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from ..domain import errors
from ..domain.push import Attempt, DueDelivery, Health
from . import codec, postgres
from .sealing import VIEW, Sealer, is_sealed

BACKLOG_BATCH = 500
SWEEP_BATCH = 1_000
SETTLE_BATCH = 128
ATTEMPTS_KEPT = timedelta(days=30)

# Of a half-open endpoint this was the only probe, unless more is known of it by now.
_PUT_BACK = """
WITH back AS (
    UPDATE outlast.webhook_deliveries d
    SET due = clock_timestamp() + make_interval(secs => %s), is_leased = false, fence = d.fence + 1
    FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) claimed(id, fence, revision)
    WHERE d.id = claimed.id AND d.fence = claimed.fence
    RETURNING d.url, claimed.revision
)
UPDATE outlast.webhook_endpoints e SET probing_until = NULL, revision = e.revision + 1
FROM back
WHERE e.url = back.url AND e.revision = back.revision AND e.probing_until IS NOT NULL
"""


@dataclass
class _Outcome:
    """What came of one claim, until it is written down. Who waited for it may have gone away."""

    due: DueDelivery
    attempt: Attempt
    retry_in_s: float | None
    is_settled: asyncio.Future[bool]

    def facts(self) -> tuple[object, ...]:
        """The arguments of the call."""
        due, attempt = self.due, self.attempt
        return (
            due.id,
            due.fence,
            self.retry_in_s,
            attempt.webhook_id,
            attempt.number,
            attempt.at,
            attempt.category,
            attempt.status_class,
            attempt.latency_ms,
            attempt.step,
        )

    def answered(self, is_settled: bool) -> None:
        """Tell who waits."""
        if not self.is_settled.done():
            self.is_settled.set_result(is_settled)

    def failed(self, error: Exception) -> None:
        """Raise it where it is waited for."""
        if not self.is_settled.done():
            self.is_settled.set_exception(error)


class PostgresOutbox:
    """`Outbox` on PostgreSQL. All times are the server's."""

    def __init__(self, database: postgres.Database, sealer: Sealer | None = None) -> None:
        self._database = database
        self._sealer = sealer or Sealer(database)
        self._outcomes: list[_Outcome] = []
        self._settling: asyncio.Task[None] | None = None
        self._alone: set[asyncio.Task[None]] = set()

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
        claimed = [_due(row) for row in rows]
        try:
            await self._sealer.meet([due.task_id for due in claimed if _is_sealed(due)])
            return [await self._opened(due) for due in claimed]
        except Exception:
            # Nobody will know of what is leased. If this fails as well, the lease has to run out.
            with contextlib.suppress(errors.StoreUnavailable):
                await self._put_back(claimed, 0.0)
            raise

    async def _opened(self, due: DueDelivery) -> DueDelivery:
        """The claim with its view row opened.

        One that does not open is left out: the task's stream will say why, and no other claim has
        to suffer for it.
        """
        if due.present is None:
            return due
        try:
            key = await self._sealer.key_of(due.task_id)
            wire = self._sealer.open(key, due.task_id, due.version, VIEW, due.present[1])
        except errors.PayloadError:
            return replace(due, present=None)
        return replace(due, present=(due.version, wire))

    async def settle(self, due: DueDelivery, attempt: Attempt, retry_in_s: float | None) -> bool:
        """See `Outbox.settle`. Outcomes that come while others are written share one call."""
        outcome = _Outcome(due, attempt, retry_in_s, asyncio.get_running_loop().create_future())
        self._outcomes.append(outcome)
        if self._settling is None:
            self._settling = asyncio.create_task(self._settle_all())
        return await outcome.is_settled

    async def _settle_all(self) -> None:
        try:
            while self._outcomes:
                batch = self._outcomes[:SETTLE_BATCH]
                del self._outcomes[:SETTLE_BATCH]
                await self._settle_some(batch)
        finally:
            self._settling = None

    async def _settle_some(self, batch: Sequence["_Outcome"]) -> None:
        answers: Sequence[bool | None] = [None] * len(batch)
        if len(batch) > 1:
            # What goes wrong for all is found out, and told, by each for itself.
            with contextlib.suppress(Exception):
                answers = await self._settle_batch(batch)
        for outcome, answer in zip(batch, answers, strict=True):
            if answer is not None:
                outcome.answered(answer)
            else:  # it may have to wait for somebody, and the others need not
                alone = asyncio.create_task(self._settle_alone(outcome))
                self._alone.add(alone)
                alone.add_done_callback(self._alone.discard)

    async def _settle_batch(self, batch: Sequence["_Outcome"]) -> Sequence[bool | None]:
        columns = [list(column) for column in zip(*[each.facts() for each in batch], strict=True)]
        rows = await self._database.rows(
            "SELECT outlast.settle_delivery_batch(%s::bigint[], %s::bigint[], %s::float8[],"
            " %s::text[], %s::integer[], %s::timestamptz[], %s::text[], %s::integer[],"
            " %s::integer[], %s::text[])",
            *columns,
        )
        return rows[0][0]

    async def _settle_alone(self, outcome: "_Outcome") -> None:
        try:
            rows = await self._database.rows(
                "SELECT outlast.settle_delivery(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
                *outcome.facts(),
            )
        except Exception as error:  # noqa: BLE001 - handed to the one who waits for it
            outcome.failed(error)
        else:
            outcome.answered(bool(rows[0][0]))

    async def put_back(self, due: DueDelivery, delay_s: float) -> None:
        """See `Outbox.put_back`."""
        await self._put_back([due], delay_s)

    async def _put_back(self, found: Sequence[DueDelivery], delay_s: float) -> None:
        await self._database.rows(
            _PUT_BACK,
            delay_s,
            [due.id for due in found],
            [due.fence for due in found],
            [due.health.revision for due in found],
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
            " step, task_id, version FROM outlast.webhook_attempts"
            " WHERE subscription_id = %s AND (%s::text IS NULL OR webhook_id = %s)"
            " ORDER BY id DESC LIMIT %s",
            subscription_id,
            webhook_id,
            webhook_id,
            limit,
        )
        return [_attempt(row) for row in rows]

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

    async def is_empty(self) -> bool:
        """See `Outbox.is_empty`."""
        rows = await self._database.rows(
            "SELECT NOT EXISTS (SELECT 1 FROM outlast.webhook_deliveries)"
        )
        return bool(rows[0][0])


def _attempt(row: Sequence[Any]) -> Attempt:
    *facts, task_id, version = row
    return Attempt(*facts, event=(task_id, version) if task_id else None)


def _is_sealed(due: DueDelivery) -> bool:
    return due.present is not None and is_sealed(due.present[1])


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
        present=(version, bytes(wire)) if view_version == version else None,
        health=Health(*health),
    )
