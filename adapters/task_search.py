"""The list of tasks on PostgreSQL: pages by keyset, along the indexes of migration 0012.

First which tasks, from as few columns as decide it; then what a row of the list shows of them. A
status is one range of each index, so several are read side by side from their newest ends. Where no
index decides, tasks are looked through one by one, at most `LOOKED_AT_MAX` for a page.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..domain import errors
from ..domain.searching import ListedTask, TaskFilter, TaskPage, TaskPlace
from ..domain.task import TaskStatus
from . import codec, postgres
from .sealing import VIEW, Sealer, is_sealed

LOOKED_AT_MAX = 1_000
HEAD_BYTES = 4_096  # of a view row's JSON: the message stands near its beginning
SEALED_BYTES_MAX = 65_536  # a sealed row opens as a whole or not at all
ID_INDEXED = 8  # characters of an id in the index
_LAST = "\U0010ffff"  # comes after every other character

_MESSAGE = re.compile(
    rb'\{"taskId": ?"[^"]*", ?"status": ?"[a-z_]+", ?"statusMessage": ?(".*)', re.DOTALL
)
# As far as it is whole, wherever the bytes end.
_TEXT = re.compile(rb'"(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*')

_HEAD = (
    f"CASE WHEN substr(v.wire, 1, 1) <> '\\x01'::bytea THEN substr(v.wire, 1, {HEAD_BYTES})"
    f" WHEN length(v.wire) <= {SEALED_BYTES_MAX} THEN v.wire ELSE ''::bytea END"
)
# Of a search: what is sealed does not leave the database.
_PLAIN_HEAD = (
    "CASE WHEN substr(v.wire, 1, 1) <> '\\x01'::bytea"
    f" THEN substr(v.wire, 1, {HEAD_BYTES}) ELSE ''::bytea END"
)
_SHOWN = (
    f"SELECT v.task_id, v.version, v.owner, v.tool, v.status, v.created_at, {_HEAD}"
    " FROM unnest(%s::text[]) AS a(task_id) JOIN outlast.task_view v ON v.task_id = a.task_id"
)
_LIST = (
    "SELECT f.task_id, f.created_at, f.tool, f.head FROM unnest(%s::text[]) AS s(status)"
    " CROSS JOIN LATERAL (SELECT v.task_id, v.created_at, v.tool, {head} AS head"
    " FROM outlast.task_view v WHERE v.status = s.status{where}"
    ' ORDER BY v.created_at {way}, v.task_id COLLATE "C" {way} LIMIT {most}) f'
    ' ORDER BY f.created_at {way}, f.task_id COLLATE "C" {way} LIMIT {most}'
)
_START = '"left"(v.task_id, 8) COLLATE "C"'
# Any of them: to put all that begin so in order would be to read them all.
_BY_ID = (
    "SELECT v.task_id, v.created_at, v.tool, {head}, v.owner, v.status FROM outlast.task_view v"
    f" WHERE {_START} >= %s AND {_START} < %s AND starts_with(v.task_id, %s) LIMIT {{most}}"
)
_BY_KEY = (
    "SELECT v.task_id, v.created_at, v.tool, {head}, v.owner, v.status FROM outlast.task_view v"
    " WHERE v.owner = %s AND v.idempotency_key = %s"
)

Found = tuple[Any, ...]


@dataclass
class _Where:
    """Conditions, and the arguments that they need."""

    text: str = ""
    values: list[object] = field(default_factory=list[object])

    def add(self, condition: str, *values: object) -> None:
        self.text += f" AND {condition}"
        self.values += values


class PostgresTaskSearch:
    """`TaskSearch` on PostgreSQL."""

    def __init__(self, database: postgres.Database, sealer: Sealer | None = None) -> None:
        self._database = database
        self._sealer = sealer or Sealer(database)

    async def page(
        self,
        wanted: TaskFilter,
        limit: int,
        *,
        before: TaskPlace | None = None,
        after: TaskPlace | None = None,
    ) -> TaskPage:
        """See `TaskSearch.page`."""
        texts = (wanted.owner, wanted.tool, wanted.id_prefix, wanted.key)
        places = [place.task_id for place in (before, after) if place is not None]
        if not all(codec.is_storable(text or "") for text in (*texts, *places)):
            return TaskPage([])
        if wanted.id_prefix is not None or wanted.key is not None:
            return await self._found_by_name(wanted, limit)
        return await self._along(wanted, limit, before, after)

    async def _along(
        self, wanted: TaskFilter, limit: int, before: TaskPlace | None, after: TaskPlace | None
    ) -> TaskPage:
        fits = _rest(wanted)
        most = limit + 1 if fits is None else max(limit + 1, LOOKED_AT_MAX)
        statement, values = listing(wanted, most, before, after)
        found = await self._database.rows(statement, *values)
        fitting = [row for row in found if fits is None or fits(row)]
        shown = fitting[:limit]
        is_cut = len(fitting) <= limit and len(found) == most
        further = None  # where the list goes on in the way it was read
        if len(fitting) > limit:
            further = _place(shown[-1])
        elif is_cut:
            further = _place(found[-1])
        if after is not None:
            back = _place(shown[0]) if shown else None
            tasks = await self._shown(shown[::-1])
            return TaskPage(tasks, newer=further, older=back, is_cut=is_cut)
        back = _place(shown[0]) if shown and before is not None else None
        tasks = await self._shown(shown)
        return TaskPage(tasks, newer=back, older=further, is_cut=is_cut)

    async def _found_by_name(self, wanted: TaskFilter, limit: int) -> TaskPage:
        head = "''::bytea" if wanted.message is None else _PLAIN_HEAD
        if wanted.key is not None:
            statement, values = _BY_KEY.format(head=head), (wanted.owner, codec.digest(wanted.key))
        else:
            start = (wanted.id_prefix or "")[:ID_INDEXED]
            statement = _BY_ID.format(head=head, most=LOOKED_AT_MAX)
            values = (start, start + _LAST, wanted.id_prefix)
        found = await self._database.rows(statement, *values)
        rest = _rest(wanted, by_name=True)
        fitting = sorted((row for row in found if rest is None or rest(row)), key=_place)[::-1]
        is_cut = len(fitting) > limit or len(found) == LOOKED_AT_MAX
        return TaskPage(await self._shown(fitting[:limit]), is_cut=is_cut)

    async def _shown(self, found: Sequence[Found]) -> list[ListedTask]:
        """The rows of these tasks, in this order; without those that are gone meanwhile."""
        if not found:
            return []
        ids = [row[0] for row in found]
        rows = {row[0]: row for row in await self._database.rows(_SHOWN, ids)}
        await self._sealer.meet([row[0] for row in rows.values() if is_sealed(row[6])])
        return [await self._listed(rows[task_id]) for task_id in ids if task_id in rows]

    async def _listed(self, row: Found) -> ListedTask:
        task_id, version, owner, tool, status, created_at, stored = row
        head = bytes(stored)
        if is_sealed(head):
            try:
                key = await self._sealer.key_of(task_id)
                head = self._sealer.open(key, task_id, version, VIEW, head) if head else b""
            except errors.PayloadError:
                head = b""
        message = message_of(head)
        return ListedTask(task_id, version, owner, tool, TaskStatus(status), created_at, message)


def listing(
    wanted: TaskFilter, most: int, before: TaskPlace | None = None, after: TaskPlace | None = None
) -> tuple[str, list[object]]:
    """The statement that finds the next `most` along an index, and its arguments."""
    where = _Where()
    if wanted.owner is not None:
        where.add("hashtextextended(v.owner, 0) = hashtextextended(%s, 0)", wanted.owner)
        where.add("v.owner = %s", wanted.owner)
    elif wanted.tool is not None:
        where.add("v.tool = %s", wanted.tool)
    if wanted.since is not None:
        where.add("v.created_at >= %s::timestamptz", wanted.since)
    if wanted.until is not None:
        where.add("v.created_at < %s::timestamptz", wanted.until)
    for place, sign in ((before, "<"), (after, ">")):
        if place is not None:
            where.add(f"v.created_at {sign}= %s::timestamptz", place.created_at)
            same = f'v.created_at = %s::timestamptz AND NOT v.task_id COLLATE "C" {sign} %s'
            where.add(f"NOT ({same})", place.created_at, place.task_id)
    text = _LIST.format(
        head="''::bytea" if wanted.message is None else _PLAIN_HEAD,
        where=where.text,
        way="DESC" if after is None else "ASC",
        most=most,
    )
    statuses = sorted(status.value for status in wanted.statuses)
    return text, [statuses, *where.values]


def message_of(head: bytes) -> str | None:
    """The status message at the beginning of a view row's JSON; its own beginning if it is cut."""
    found = _MESSAGE.match(head)
    if found is None:
        return None
    text = _TEXT.match(found[1])
    return None if text is None else str(json.loads(text[0].decode("utf-8", "ignore") + '"'))


def _rest(wanted: TaskFilter, *, by_name: bool = False) -> Callable[[Found], bool] | None:
    """What no index decides, asked of one row; None if nothing is left."""
    tool = wanted.tool if by_name or wanted.owner is not None else None
    part = None if wanted.message is None else wanted.message.casefold()
    if tool is None and part is None and not by_name:
        return None

    def fits(row: Found) -> bool:
        if tool is not None and row[2] != tool:
            return False
        if part is not None and part not in (message_of(bytes(row[3])) or "").casefold():
            return False
        return not by_name or _is_among(wanted, row)

    return fits


def _is_among(wanted: TaskFilter, row: Found) -> bool:
    task_id, created_at, *_, owner, status = row
    return (
        (wanted.owner is None or owner == wanted.owner)
        and status in wanted.statuses
        and (wanted.since is None or created_at >= wanted.since)
        and (wanted.until is None or created_at < wanted.until)
        and (wanted.id_prefix is None or task_id.startswith(wanted.id_prefix))
    )


def _place(row: Found) -> TaskPlace:
    return TaskPlace(row[1], row[0])
