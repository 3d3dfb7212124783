"""What is past, and what is an owner's, on PostgreSQL. The SQL is in migration 0006."""

import json
from collections.abc import Sequence
from datetime import datetime

import psycopg

from . import codec, failures, postgres
from .sealing import Sealer

# Where payloads, keys and names of owners have lain.
SCRUBBED = (
    "data_keys",
    "past_events",
    "past_owners",
    "task_events",
    "task_view",
    "webhook_deliveries",
    "webhook_subscriptions",
)

_NAMES = (
    "SELECT owner FROM outlast.task_view UNION SELECT owner FROM outlast.webhook_subscriptions"
    " UNION SELECT name FROM outlast.past_owners"
)


class PostgresPastTasks:
    """`PastTasks` on PostgreSQL."""

    def __init__(self, database: postgres.Database, sealer: Sealer | None = None) -> None:
        self._database, self._sealer = database, sealer

    async def to_erase(self, before: datetime, limit: int) -> Sequence[str]:
        """See `PastTasks.to_erase`."""
        rows = await self._database.rows(
            "SELECT task_id FROM outlast.past_tasks WHERE erased_at IS NULL AND archived_at <= %s"
            " ORDER BY archived_at LIMIT %s",
            before,
            limit,
        )
        return [row[0] for row in rows]

    async def erase(self, task_ids: Sequence[str], why: str) -> int:
        """See `PastTasks.erase`."""
        rows = await self._database.rows("SELECT outlast.erase_tasks(%s, %s)", list(task_ids), why)
        if self._sealer is not None:
            self._sealer.drop(task_ids)
        return rows[0][0]


class PostgresOwnedData:
    """`OwnedData` on PostgreSQL."""

    def __init__(self, database: postgres.Database) -> None:
        self._database = database

    async def owners(self, issuer: str, subject: str, client: str | None) -> Sequence[str]:
        """See `OwnedData.owners`. Looks at every task: it is for people who wait."""
        begins = json.dumps([issuer, subject], separators=(",", ":")).removesuffix("]") + ","
        rows = await self._database.rows(
            f"SELECT owner FROM ({_NAMES}) n WHERE starts_with(owner, %s) ORDER BY owner", begins
        )
        named = [row[0] for row in rows]
        return [owner for owner in named if client is None or json.loads(owner)[2] == client]

    async def is_known(self, owner: str) -> bool:
        """See `OwnedData.is_known`."""
        if not codec.is_storable(owner):
            return False
        rows = await self._database.rows(
            "SELECT EXISTS (SELECT FROM outlast.past_tasks WHERE owner = outlast.owner_hash(%s))"
            f" OR EXISTS (SELECT FROM ({_NAMES}) n WHERE owner = %s)",
            owner,
            owner,
        )
        return rows[0][0]

    async def stored(self, owner: str, limit: int) -> Sequence[str]:
        """See `OwnedData.stored`."""
        # The views have no index of owners. They are looked through once, at the end, for one whose
        # events somebody has taken away.
        rows = await self._database.rows(
            "SELECT originator_id FROM outlast.task_events"
            " WHERE owner = outlast.owner_hash(%s) AND originator_version = 1 LIMIT %s",
            owner,
            limit,
        ) or await self._database.rows(
            "SELECT task_id FROM outlast.task_view WHERE owner = %s LIMIT %s", owner, limit
        )
        return [row[0] for row in rows]

    async def past(self, owner: str, limit: int) -> Sequence[str]:
        """See `OwnedData.past`."""
        rows = await self._database.rows(
            "SELECT task_id FROM outlast.past_tasks"
            " WHERE owner = outlast.owner_hash(%s) AND erased_at IS NULL LIMIT %s",
            owner,
            limit,
        )
        return [row[0] for row in rows]

    async def drop_webhooks(self, owner: str) -> int:
        """See `OwnedData.drop_webhooks`."""
        return (await self._database.rows("SELECT outlast.drop_webhooks(%s)", owner))[0][0]


async def scrub(url: str) -> Sequence[str]:
    """Let the space of what was erased be used again; the tables where this was not allowed.

    Runs as long as it takes, on a connection of its own, beside all that serves.
    """
    kept: list[str] = []
    with failures.as_ours():
        connecting = psycopg.AsyncConnection.connect(**postgres.settings_of(url), autocommit=True)
        async with await connecting as connection:
            for table in SCRUBBED:
                warned: list[psycopg.errors.Diagnostic] = []
                connection.add_notice_handler(warned.append)
                await connection.execute(f"VACUUM outlast.{table}".encode())
                connection.remove_notice_handler(warned.append)
                kept += [table] if warned else []
    return kept
