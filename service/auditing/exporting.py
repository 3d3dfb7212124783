"""Events of the log as CloudEvents 1.0, one JSON line each, for whoever keeps or searches them.

Attributes of ours beside the standard's: `position` (a decimal string: the standard's integers end
at 32 bits), `taskversion`, `ownerhash`, `tool`, `taskstatus`, `digest` (SHA-256 of the stored
state, hexadecimal), and `absent` with the reason where there is no `data`: `erased`, or why it
cannot be read.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from ...domain.audit import ERASED, AuditLog, Recorded
from ...domain.history import Told
from ..jsonrpc import dumps
from .history import Read, event_id, is_trouble, stamp

SPEC_VERSION = "1.0"
TYPE_PREFIX = "dev.outlast."
JSON_TYPE = "application/json"

Json = dict[str, Any]


class Positions(Protocol):
    """Where the log stands."""

    async def head(self) -> int:
        """The highest position that is visible; 0 for an empty log."""
        ...

    async def before(self, instant: datetime) -> int:
        """A position that every event recorded at this instant or later comes after."""
        ...

    async def tasks_of(self, owner: bytes, task_ids: Sequence[str]) -> frozenset[str]:
        """Which of these past tasks are of this owner."""
        ...


@dataclass(frozen=True)
class Wanted:
    """Which events: behind a position, from an instant on, and up to one of either; of whom."""

    after: int = 0
    since: datetime | None = None
    upto: int | None = None
    until: datetime | None = None
    owner: bytes | None = None


@dataclass(frozen=True)
class Line:
    """One event, as it is written. `is_whole` is False for a payload that cannot be read."""

    text: bytes
    is_whole: bool


class Exporter:
    """Walks the log and holds one batch of it at a time."""

    def __init__(self, log: AuditLog, positions: Positions, read: Read, source: str) -> None:
        self._log, self._positions, self._read = log, positions, read
        self._source = source

    async def lines(self, wanted: Wanted) -> AsyncGenerator[Line]:
        """The lines in the order of positions, up to where the log stood at the start."""
        after, last = wanted.after, await self._positions.head()
        if wanted.since is not None:
            after = max(after, await self._positions.before(wanted.since))
        if wanted.upto is not None:
            last = min(last, wanted.upto)
        async for batch in self._log.batches(after, last):
            rows = [row for row in batch if _is_within(row, wanted)]
            if wanted.owner is not None:
                rows = await self._owned(rows, wanted.owner)
            for row, told in zip(rows, await self._read(rows), strict=True):
                event = cloud_event(row, told, self._source)
                yield Line(dumps(event) + b"\n", not is_trouble(told))

    async def _owned(self, rows: Sequence[Recorded], owner: bytes) -> Sequence[Recorded]:
        """Those of the owner; an erasure names none, and is found by its task."""
        erased = [row.task_id for row in rows if row.owner is None and row.topic == ERASED]
        theirs = await self._positions.tasks_of(owner, erased) if erased else frozenset[str]()
        return [row for row in rows if row.owner == owner or row.task_id in theirs]


def _is_within(row: Recorded, wanted: Wanted) -> bool:
    if wanted.since is not None and row.recorded_at < wanted.since:
        return False
    return wanted.until is None or row.recorded_at <= wanted.until


def cloud_event(row: Recorded, told: Told, source: str) -> Json:
    """The event in the structured JSON form."""
    event: Json = {
        "specversion": SPEC_VERSION,
        "id": event_id(row),
        "source": source,
        "type": TYPE_PREFIX + row.topic,
        "subject": row.task_id,
        "time": stamp(row.recorded_at),
        "position": str(row.position),
        "taskversion": row.version,
        "digest": row.digest.hex(),
    }
    if row.owner is not None:
        event["ownerhash"] = row.owner.hex()
    if row.tool and row.tool.isprintable():  # an attribute holds no control characters
        event["tool"] = row.tool
    if row.status:
        event["taskstatus"] = row.status
    if told.absent is not None:
        return {**event, "absent": told.absent}
    return {**event, "datacontenttype": JSON_TYPE, "data": told.payload}
