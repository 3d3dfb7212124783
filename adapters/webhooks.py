"""Webhook subscriptions on PostgreSQL; the outbox is in `outbox.py`, the SQL in migration 0003."""

from collections.abc import Sequence
from typing import Any

import psycopg

from ..domain import errors
from ..domain.push import (
    Filter,
    Health,
    Outlook,
    SubscriptionKey,
    SubscriptionWish,
    Trouble,
    WebhookSubscription,
)
from . import failures, postgres

_LIVE = "(s.refresh_before IS NULL OR s.refresh_before > clock_timestamp()) AND s.ending IS NULL"
_WATERMARK = (
    "least(s.backlog_from, coalesce("
    "(SELECT min(d.position) - 1 FROM outlast.webhook_deliveries d"
    " WHERE d.subscription_id = s.id AND d.envelope IS NULL),"
    "greatest((SELECT max(e.notification_id) FROM outlast.task_events e"
    " WHERE e.owner = s.owner_hash),"
    " (SELECT r.removed_to FROM outlast.removed_events r WHERE r.owner = s.owner_hash), 0)))"
)
_IN_TROUBLE = (
    "(%s::text IS NULL OR CASE %s::text WHEN 'suspended' THEN NOT s.is_active"
    " ELSE s.is_active AND s.failed_since IS NOT NULL END)"
)
_COLUMNS = (
    "s.id, s.owner, s.url, s.name, s.arguments, s.task_ids, s.tools, s.statuses, s.secret,"
    " CASE WHEN s.former_until > clock_timestamp() THEN s.former_secret END, s.created_at,"
    " s.refresh_before, s.is_active, s.last_delivery_at, s.last_error, s.failed_since,"
    " (SELECT count(*) FROM outlast.webhook_deliveries d WHERE d.subscription_id = s.id),"
    f" {_WATERMARK}"
)


class PostgresWebhookSubscriptions:
    """`WebhookSubscriptions` on PostgreSQL."""

    def __init__(self, database: postgres.Database) -> None:
        self._database = database

    async def put(self, wish: SubscriptionWish, most: int, former_s: float) -> bool:
        """See `WebhookSubscriptions.put`."""
        key, wanted, known = wish.key, wish.wanted, wish.known
        try:
            rows = await self._database.rows(
                "SELECT outlast.put_subscription(%s, %s, %s, %s, %s, %s::text[], %s::text[],"
                " %s::text[], %s, %s, %s, %s::text[], %s::bigint[], %s, %s)",
                wish.id,
                key.owner,
                key.url,
                key.name,
                key.arguments,
                _list(wanted.task_ids),
                _list(wanted.tools),
                _list(wanted.statuses),
                wish.secret,
                wish.refresh_before,
                wish.start,
                None if known is None else list(known),
                None if known is None else list(known.values()),
                most,
                former_s,
            )
        except psycopg.Error as error:
            if error.sqlstate == failures.TOO_MANY_SUBSCRIPTIONS:
                raise errors.TooManySubscriptions(most) from error
            raise
        return bool(rows[0][0])

    async def get(self, subscription_id: str) -> WebhookSubscription | None:
        """See `WebhookSubscriptions.get`."""
        rows = await self._database.rows(
            f"SELECT {_COLUMNS} FROM outlast.webhook_subscriptions s WHERE s.id = %s AND {_LIVE}",
            subscription_id,
        )
        return _subscription(rows[0]) if rows else None

    async def find(
        self,
        *,
        owner: str | None = None,
        trouble: Trouble | None = None,
        after: str = "",
        limit: int = 100,
    ) -> Sequence[WebhookSubscription]:
        """See `WebhookSubscriptions.find`."""
        found = (
            f"SELECT {_COLUMNS} FROM outlast.webhook_subscriptions s"
            f" WHERE s.id > %s AND {_IN_TROUBLE} AND {_LIVE}"
        )
        # One statement for both would have one plan, which reads those of all owners. Nor may the
        # order of ids, which an index has already, be gone along past all others: hence the || ''.
        of_owner = " AND s.owner_hash = outlast.owner_hash(%s) ORDER BY s.id || '' LIMIT %s"
        rows = await (
            self._database.rows(found + " ORDER BY s.id LIMIT %s", after, trouble, trouble, limit)
            if owner is None
            else self._database.rows(found + of_owner, after, trouble, trouble, owner, limit)
        )
        return [_subscription(row) for row in rows]

    async def outlook(self, subscription_id: str) -> Outlook | None:
        """See `WebhookSubscriptions.outlook`. What is under way is not due again."""
        rows = await self._database.rows(
            "SELECT (SELECT e.recorded_at FROM outlast.task_events e WHERE e.owner = s.owner_hash"
            " AND e.notification_id > w.watermark ORDER BY e.notification_id LIMIT 1),"
            " (SELECT min(d.due) FROM outlast.webhook_deliveries d WHERE d.subscription_id = s.id"
            " AND NOT (d.is_leased AND d.due > clock_timestamp())),"
            " h.failures, h.failing_since, h.opened, h.open_until, h.probing_until, h.revision"
            " FROM outlast.webhook_subscriptions s"
            " JOIN outlast.webhook_endpoints h ON h.url = s.url"
            # OFFSET keeps it from being worked out anew for every event.
            f" CROSS JOIN LATERAL (SELECT {_WATERMARK} AS watermark OFFSET 0) w"
            f" WHERE s.id = %s AND {_LIVE}",
            subscription_id,
        )
        if not rows:
            return None
        behind_since, next_due, *health = rows[0]
        return Outlook(Health(*health), behind_since, next_due)

    async def resume(self, subscription_id: str) -> bool:
        """See `WebhookSubscriptions.resume`."""
        rows = await self._database.rows("SELECT outlast.resume_subscription(%s)", subscription_id)
        return bool(rows[0][0])

    async def count(self, owner: str | None = None) -> int:
        """See `WebhookSubscriptions.count`."""
        counted = f"SELECT count(*) FROM outlast.webhook_subscriptions s WHERE {_LIVE}"
        of_owner = " AND s.owner_hash = outlast.owner_hash(%s)"
        rows = await (
            self._database.rows(counted)
            if owner is None
            else self._database.rows(counted + of_owner, owner)
        )
        return int(rows[0][0])

    async def is_verified(self, owner: str, url: str) -> bool:
        """See `WebhookSubscriptions.is_verified`."""
        rows = await self._database.rows(
            "SELECT 1 FROM outlast.webhook_subscriptions s"
            f" WHERE s.owner_hash = outlast.owner_hash(%s) AND s.url = %s AND {_LIVE} LIMIT 1",
            owner,
            url,
        )
        return bool(rows)

    async def remove(self, subscription_id: str) -> bool:
        """See `WebhookSubscriptions.remove`. Lapsed at once; the sweep tidies up."""
        rows = await self._database.rows(
            "UPDATE outlast.webhook_subscriptions s SET refresh_before = clock_timestamp()"
            f" WHERE s.id = %s AND {_LIVE} RETURNING 1",
            subscription_id,
        )
        return bool(rows)

    async def end(self, subscription_id: str, why: str) -> bool:
        """See `WebhookSubscriptions.end`."""
        rows = await self._database.rows(
            "SELECT outlast.end_subscription(%s, %s)", subscription_id, why
        )
        return bool(rows[0][0])


def _list(texts: Sequence[str] | None) -> list[str] | None:
    return None if texts is None else list(texts)


def _subscription(row: Sequence[Any]) -> WebhookSubscription:
    identity, owner, url, name, arguments, task_ids, tools, statuses, secret, former, *rest = row
    created_at, refresh_before, is_active, told_at, error, failed_since, waiting, watermark = rest
    return WebhookSubscription(
        id=identity,
        key=SubscriptionKey(owner, url, name, arguments),
        wanted=Filter(name, _tuple(task_ids), _tuple(tools), _tuple(statuses)),
        secret=bytes(secret),
        former_secret=None if former is None else bytes(former),
        created_at=created_at,
        refresh_before=refresh_before,
        is_active=is_active,
        last_delivery_at=told_at,
        last_error=error,
        failed_since=failed_since,
        waiting=waiting,
        watermark=watermark,
    )


def _tuple(texts: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if texts is None else tuple(texts)
