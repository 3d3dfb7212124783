"""The log for auditors on PostgreSQL: `AuditLog` over present and past events together.

One statement reads both tables, so that an event which moves from one to the other while somebody
walks along is met once and not missed.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from ..domain.audit import ERASED, Recorded
from . import codec, failures, postgres

BATCH = 4_000  # rows, and
BATCH_BYTES = 16 * 2**20  # of stored state; a single row may be larger, and comes alone
WALK_S_MAX = 60.0  # a batch unanswered this long: nobody is there

# An instant beyond the reach of calendars is nobody's but a tamperer's; it shall not stop a walk.
_MICROSECONDS = (
    "CASE WHEN e.recorded_at >= '0001-01-02Z' AND e.recorded_at < '9999-12-30Z'"
    " THEN (extract(epoch FROM e.recorded_at) * 1000000)::bigint ELSE -62135596800000000 END"
)
_SKELETON = (
    "e.notification_id, e.originator_id, e.originator_version, e.topic, uuid_send(e.event_id),"
    f" {_MICROSECONDS}, coalesce(e.digest, '')"
)
# Not EXISTS: that may be answered by a scan of the whole table, once for each batch.
_IS_ERASED = (
    "e.state = '' AND coalesce((SELECT true FROM outlast.past_events x"
    f" WHERE x.originator_id = e.originator_id AND x.topic = '{ERASED}' LIMIT 1), false)"
)
_WHOLE = (
    f"{_SKELETON}, e.state, e.owner, e.tool, e.status, e.is_past, {_IS_ERASED},"
    " k.wrapped, k.wrapped_by"
)
_KEYS = "LEFT JOIN outlast.data_keys k ON k.task_id = e.originator_id"


def both(columns: str, tail: str) -> str:
    """What present and past events have in these columns, `is_past` and the `tail` with each."""
    tables = (("task_events", "false"), ("past_events", "true"))
    parts = [f"(SELECT {columns}, {past} AS is_past FROM outlast.{t} {tail})" for t, past in tables]
    return " UNION ALL ".join(parts)


_STORED = (
    "originator_id, originator_version, topic, state, event_id, notification_id, recorded_at,"
    " owner, tool, status, digest"
)
_NEXT = (
    "WHERE notification_id > %(after)s AND notification_id <= %(upto)s"
    " ORDER BY notification_id LIMIT %(most)s"
)
# How far the next batch goes. Lengths are known without reading the states themselves.
_REACH = (
    "SELECT max(notification_id) AS position FROM (SELECT notification_id,"
    " sum(octet_length(state)) OVER nth AS bytes, row_number() OVER nth AS number"
    f" FROM ({both('notification_id, state', _NEXT)}) n WINDOW nth AS (ORDER BY notification_id)"
    ") n WHERE number = 1 OR number <= %(most)s AND bytes <= %(bytes)s"
)
_WITHIN = "WHERE notification_id > %(after)s AND notification_id <= (SELECT position FROM reach)"
_WALK = (
    f"WITH reach AS MATERIALIZED ({_REACH}) SELECT {_WHOLE}"
    f" FROM ({both(_STORED, _WITHIN)}) e {_KEYS} ORDER BY e.notification_id, e.is_past"
)
_OF_TASK = (
    f"SELECT {_WHOLE} FROM ({both(_STORED, 'WHERE originator_id = %s')}) e {_KEYS}"
    " ORDER BY e.originator_version, e.is_past"
)
BARE = (
    f"SELECT {_SKELETON} FROM ({both(_STORED, _NEXT)}) e"
    " ORDER BY e.notification_id, e.is_past LIMIT %(most)s"
)
_END = 2**63 - 1


class PostgresAuditLog:
    """`AuditLog` on PostgreSQL. A walk has a connection of its own, and holds no snapshot."""

    def __init__(self, database: postgres.Database, batch: int = BATCH) -> None:
        self._database, self._batch = database, batch

    async def batches(
        self, after: int = 0, upto: int | None = None
    ) -> AsyncIterator[Sequence[Recorded]]:
        """See `AuditLog.batches`."""
        last = _END if upto is None else upto
        with failures.as_ours():
            connection = await connected(self._database.url)
        try:
            while rows := await self._next(connection, after, last):
                yield rows
                after = rows[-1].position
        finally:
            await connection.close()

    async def _next(
        self, connection: psycopg.AsyncConnection[Any], after: int, upto: int
    ) -> Sequence[Recorded]:
        with failures.as_ours(), postgres.answered_within(WALK_S_MAX, connection):
            wanted = {"after": after, "upto": upto, "most": self._batch, "bytes": BATCH_BYTES}
            return await recorded(connection, _WALK, wanted)

    async def of_task(self, task_id: str) -> Sequence[Recorded]:
        """See `AuditLog.of_task`."""
        if not codec.is_storable(task_id):
            return []
        rows = await self._database.rows(_OF_TASK, task_id, task_id)
        return [Recorded(*row) for row in rows]


async def connected(url: str) -> psycopg.AsyncConnection[Any]:
    """A connection of one's own, in autocommit."""
    settings = postgres.settings_of(url)
    return await psycopg.AsyncConnection.connect(autocommit=True, row_factory=tuple_row, **settings)


async def recorded(
    connection: psycopg.AsyncConnection[Any], statement: str, wanted: Mapping[str, object]
) -> list[Recorded]:
    """The rows of a statement that selects what `Recorded` holds."""
    async with connection.cursor(binary=True) as cursor:
        await cursor.execute(statement.encode(), wanted, prepare=True)
        return [Recorded(*row) for row in await cursor.fetchall()]
