"""The tree on PostgreSQL: read for proofs, and written by one follower at a time.

The follower holds an advisory lock of its own, which nobody else asks for, and a connection that
the lock ends with. Should two write all the same, the number of a leaf lets one of them through.
"""

from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import psycopg

from ..domain import errors, merkle
from ..domain.audit import KEPT_LEVELS, Checkpoint, Leaf, Notary, Recorded, Standing, leaf_of
from ..domain.merkle import Frontier, Range, Subtree
from . import audit_log, failures, postgres

LOCK = (7710428, 5)
LEAVES = 10_000  # read at once
EXTENDED_MAX = 2_000  # written at once

# A position that was never given out is a tamperer's. The tree does not follow it there: all that
# is yet to come would lie behind it.
_ISSUED = "(SELECT last_value FROM outlast.task_events_notification_id_seq)"
_TABLES = ("task_events", "past_events")


def _highest(condition: str = "") -> str:
    found = [f"(SELECT max(notification_id) FROM outlast.{t} {condition})" for t in _TABLES]
    return f"coalesce(greatest({', '.join(found)}), 0)"


# A sequence is read later than rows are seen, so no row is beyond it but one that was put there.
_STANDING = (
    f"SELECT {_highest(f'WHERE notification_id <= {_ISSUED}')}, {_ISSUED}, {_highest()},"
    " coalesce(l.number + 1, 0), coalesce(l.position, 0), coalesce(c.size, 0),"
    " extract(epoch FROM clock_timestamp() - c.signed_at)::float8 FROM (SELECT) one"
    " LEFT JOIN (SELECT * FROM outlast.audit_leaves ORDER BY number DESC LIMIT 1) l ON true"
    " LEFT JOIN (SELECT * FROM outlast.audit_checkpoints ORDER BY size DESC LIMIT 1) c ON true"
)
_CHECKPOINTS = (
    "SELECT size, root, position, note, signed_at, cosignatures FROM outlast.audit_checkpoints"
    " ORDER BY size"
)
# All hashes come in one piece, which costs the driver nothing; as a list it dumps each by itself.
_HASH = (
    f"substring(%s::bytea FROM ({merkle.HASH_SIZE} * (place - 1) + 1)::int FOR {merkle.HASH_SIZE})"
)
_KEEP_LEAVES = (
    "INSERT INTO outlast.audit_leaves (number, position, hash)"
    f" SELECT %s::bigint + place - 1, position, {_HASH}"
    " FROM unnest(%s::bigint[]) WITH ORDINALITY AS leaf (position, place)"
)
# What somebody may have planted in the place of a node is no news: a node follows from leaves.
_KEEP_NODES = (
    "INSERT INTO outlast.audit_nodes (level, number, hash)"
    f" SELECT level, number, {_HASH}"
    " FROM unnest(%s::smallint[], %s::bigint[]) WITH ORDINALITY AS node (level, number, place)"
    " ON CONFLICT (level, number) DO UPDATE SET hash = EXCLUDED.hash"
)
_KEEP_CHECKPOINT = (
    "INSERT INTO outlast.audit_checkpoints (size, root, position, note) VALUES (%s, %s, %s, %s)"
    " ON CONFLICT (size) DO NOTHING RETURNING signed_at"
)


class PostgresAuditTree:
    """`AuditTree` on PostgreSQL."""

    def __init__(self, database: postgres.Database) -> None:
        self._database = database

    async def leaves(self, upto: int) -> AsyncIterator[Sequence[Leaf]]:
        """See `AuditTree.leaves`."""
        with failures.as_ours():
            connection = await audit_log.connected(self._database.url)
        try:
            last = -1
            while rows := await self._leaves(connection, last, upto):
                yield rows
                last = rows[-1].number
        finally:
            await connection.close()

    async def _leaves(
        self, connection: psycopg.AsyncConnection[Any], last: int, upto: int
    ) -> list[Leaf]:
        with _answered(connection):
            async with connection.cursor(binary=True) as cursor:
                await cursor.execute(
                    "SELECT number, position, hash FROM outlast.audit_leaves"
                    " WHERE number > %s AND number < %s ORDER BY number LIMIT %s",
                    (last, upto, LEAVES),
                    prepare=True,
                )
                return [Leaf(*row) for row in await cursor.fetchall()]

    async def hashes(self, wanted: Collection[Subtree]) -> Mapping[Subtree, bytes]:
        """See `AuditTree.hashes`."""
        found: dict[Subtree, bytes] = {}
        by_level: dict[int, list[int]] = defaultdict(list)
        for each in wanted:
            by_level[each.level].append(each.number)
        for level, numbers in by_level.items():
            rows = await self._database.rows(*_hashes(level, numbers))
            found |= {Subtree(level, number): root for number, root in rows}
        return found

    async def leaf_at(self, position: int) -> Leaf | None:
        """See `AuditTree.leaf_at`."""
        rows = await self._database.rows(
            "SELECT number, position, hash FROM outlast.audit_leaves WHERE position = %s", position
        )
        return Leaf(*rows[0]) if rows else None

    async def checkpoints(self) -> Sequence[Checkpoint]:
        """See `AuditTree.checkpoints`."""
        return [Checkpoint(*row) for row in await self._database.rows(_CHECKPOINTS)]

    async def newest(self) -> Checkpoint | None:
        """See `AuditTree.newest`."""
        rows = await self._database.rows(f"{_CHECKPOINTS} DESC LIMIT 1")
        return Checkpoint(*rows[0]) if rows else None

    async def before(self, size: int) -> Checkpoint | None:
        """See `AuditTree.before`."""
        rows = await self._database.rows(
            "SELECT size, root, position, note, signed_at, cosignatures"
            " FROM outlast.audit_checkpoints WHERE size < %s ORDER BY size DESC LIMIT 1",
            size,
        )
        return Checkpoint(*rows[0]) if rows else None


class PostgresTreeFollowing:
    """`TreeFollowing` on PostgreSQL."""

    def __init__(self, database: postgres.Database) -> None:
        self._database, self._tree = database, PostgresAuditTree(database)
        self._grown: Grown | None = None

    async def standing(self) -> Standing:
        """See `TreeFollowing.standing`."""
        return Standing(*(await self._database.rows(_STANDING))[0])

    @asynccontextmanager
    async def alone(self) -> AsyncGenerator["PostgresTreePen | None"]:
        """See `TreeFollowing.alone`."""
        with failures.as_ours():
            connection = await audit_log.connected(self._database.url)
        try:
            with _answered(connection):
                cursor = await connection.execute("SELECT pg_try_advisory_lock(%s, %s)", LOCK)
                row = await cursor.fetchone()
            if row is None or not row[0]:
                yield None
                return
            pen = PostgresTreePen(connection, self._tree, self._grown)
            try:
                yield pen
            finally:
                self._grown = pen.grown
                # It would end with the connection, but only when the server comes to see that.
                with suppress(errors.StoreUnavailable, psycopg.Error), _answered(connection):
                    await connection.execute("SELECT pg_advisory_unlock(%s, %s)", LOCK)
        finally:
            await connection.close()


class Grown:
    """The tree as far as its writer knows it, so that it need not be read again each time."""

    def __init__(self, frontier: Frontier, position: int) -> None:
        self.frontier, self.position = frontier, position


class PostgresTreePen:
    """`TreePen` on PostgreSQL, over the connection that has the lock."""

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        tree: PostgresAuditTree,
        grown: Grown | None = None,
    ) -> None:
        self._connection, self._tree, self.grown = connection, tree, grown

    async def standing(self) -> Standing:
        """See `TreePen.standing`."""
        with _answered(self._connection):
            cursor = await self._connection.execute(_STANDING.encode(), prepare=True)
            return Standing(*(await cursor.fetchall())[0])

    async def extend(self, most: int) -> int:
        """See `TreePen.extend`."""
        grown, standing = await self._current()
        wanted = {
            "after": grown.position,
            "upto": standing.issued,
            "most": min(most, EXTENDED_MAX),
        }
        try:
            with _answered(self._connection):
                async with self._connection.transaction():
                    rows = await audit_log.recorded(self._connection, audit_log.BARE, wanted)
                    later = await self._write(grown.frontier.copy(), rows)
        except psycopg.errors.UniqueViolation:  # somebody wrote without the lock: read again
            self.grown = None
            return 0
        if rows:
            self.grown = Grown(later, rows[-1].position)
        return later.size - grown.frontier.size

    async def checkpoint(self, notary: Notary) -> Checkpoint | None:
        """See `TreePen.checkpoint`."""
        grown, standing = await self._current()
        size, root = grown.frontier.size, grown.frontier.root()
        if size == standing.checkpointed:
            return None
        note = notary.sign(size, root)
        with _answered(self._connection):
            cursor = await self._connection.execute(
                _KEEP_CHECKPOINT, (size, root, grown.position, note)
            )
            row = await cursor.fetchone()
        return None if row is None else Checkpoint(size, root, grown.position, note, row[0])

    async def _current(self) -> tuple[Grown, Standing]:
        """What is known of the tree, read again once somebody else has written to it."""
        standing = await self.standing()
        at = (standing.size, standing.position)
        if self.grown is None or (self.grown.frontier.size, self.grown.position) != at:
            self.grown = Grown(await self._read(standing.size), standing.position)
        return self.grown, standing

    async def _read(self, size: int) -> Frontier:
        """The tree of this size as it is stored. Raises TreeContradicts."""
        newest = await self._tree.newest()
        if newest is not None:
            is_whole = newest.size <= size
            if not is_whole or merkle.joined(await self._peaks(newest.size)) != newest.root:
                raise errors.TreeContradicts
        return Frontier(size, await self._peaks(size), KEPT_LEVELS)

    async def _peaks(self, size: int) -> list[bytes]:
        peaks = Range(0, size).subtrees
        parts = {part for peak in peaks for part in merkle.stored_parts(peak, KEPT_LEVELS)}
        stored = await self._tree.hashes(parts)
        try:
            return [merkle.assembled(peak, stored, KEPT_LEVELS) for peak in peaks]
        except KeyError:
            raise errors.TreeContradicts from None

    async def _write(self, frontier: Frontier, rows: Sequence[Recorded]) -> Frontier:
        """Store the leaves of these rows and the nodes above them."""
        first = frontier.size
        # Two rows of one position are tampering; the tree has a place for one.
        leaves = {row.position: merkle.leaf_hash(leaf_of(row)) for row in reversed(rows)}
        positions = sorted(leaves)
        nodes: list[tuple[Subtree, bytes]] = []
        for position in positions:
            nodes += frontier.append(leaves[position])
        async with self._connection.cursor() as cursor:
            if positions:
                hashes = b"".join(leaves[position] for position in positions)
                given = (first, hashes, positions)
                await cursor.execute(_KEEP_LEAVES.encode(), given, prepare=True)
            if nodes:
                levels = [node.level for node, _ in nodes]
                places = [node.number for node, _ in nodes]
                roots = b"".join(root for _, root in nodes)
                await cursor.execute(_KEEP_NODES.encode(), (roots, levels, places), prepare=True)
        return frontier


class PostgresWitnessRecord:
    """`WitnessRecord` on PostgreSQL."""

    def __init__(self, database: postgres.Database) -> None:
        self._database = database

    async def witnessed(self, url: str) -> int:
        """See `WitnessRecord.witnessed`."""
        rows = await self._database.rows(
            "SELECT size FROM outlast.audit_witness WHERE url = %s", url
        )
        return int(rows[0][0]) if rows else 0

    async def remember(self, url: str, size: int) -> None:
        """See `WitnessRecord.remember`."""
        await self._database.rows(
            "INSERT INTO outlast.audit_witness (url, size) VALUES (%s, %s)"
            " ON CONFLICT (url) DO UPDATE SET size = EXCLUDED.size",
            url,
            size,
        )

    async def keep(self, size: int, cosignatures: str) -> None:
        """See `WitnessRecord.keep`. The same lines, brought again by a replica, are kept once."""
        await self._database.rows(
            "UPDATE outlast.audit_checkpoints SET cosignatures = cosignatures || %s"
            " WHERE size = %s AND strpos(cosignatures, %s) = 0",
            cosignatures,
            size,
            cosignatures,
        )


def _hashes(level: int, numbers: Sequence[int]) -> tuple[str, *tuple[Any, ...]]:
    """The statement, with its arguments, that reads these subtrees of one level."""
    if level == 0:
        return (
            "SELECT number, hash FROM outlast.audit_leaves WHERE number = ANY (%s::bigint[])",
            list(numbers),
        )
    return (
        "SELECT number, hash FROM outlast.audit_nodes"
        " WHERE level = %s::smallint AND number = ANY (%s::bigint[])",
        level,
        list(numbers),
    )


@contextmanager
def _answered(connection: psycopg.AsyncConnection[Any]) -> Generator[None]:
    """One exchange with the store, within bounds. Raises StoreUnavailable."""
    with failures.as_ours(), postgres.answered_within(postgres.STATEMENT_S_MAX, connection):
        yield
