"""Event occurrences: one event of one task as a client is told of it, whatever brings it there."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ...domain import base64url, draft, errors
from ...domain.events import ProgressReported, TaskEvent
from ...domain.push import LoggedEvent
from ...domain.task import Task
from ..feed import Feed
from ..frames import dumps

# A delivery should not be larger than 256 KiB; the room is for what stands around the data.
DATA_BYTES_MAX = 256 * 1024 - 8 * 1024
HASH_LENGTH = 22

# What is left out of data that are too large, until they are not.
_OUTCOME = ("result", "error", "inputRequests")
_TEXT = ("statusMessage", "message")

# Why a task cannot be opened here: its key, what is stored of it, or that a newer release wrote it.
UNOPENED = (errors.PayloadError, LookupError)

_log = logging.getLogger("outlast.events")

Occurrence = dict[str, Any]
Row = tuple[int, bytes]


class Occurrences:
    """Makes occurrences out of what is stored: the view row where it is enough, else the stream."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def one(
        self,
        name: str,
        task_id: str,
        version: int,
        present: Row | None,
        tool: str | None = None,
    ) -> Occurrence | None:
        """The occurrence of this event; None when the task is stored no more or never was so far.

        `present` is the task's view row. With it and the `tool` known, the newest event of a task
        costs no read at all. Raises UNOPENED.
        """
        if tool is not None and present is not None and _is_enough(name, version, present):
            return _of_wire(name, version, tool, present[1])
        return (await self._folded(name, task_id, [version])).get(version)

    async def many(self, name: str, events: Sequence[LoggedEvent]) -> Sequence[Occurrence | None]:
        """One for each event, in their order; None where `one` would say so, or raises UNOPENED.

        A task that cannot be opened here is a gap in the events of its owner, and not their end.
        """
        by_task: dict[str, list[LoggedEvent]] = {}
        for event in events:
            by_task.setdefault(event.task_id, []).append(event)
        found = {
            (task_id, version): occurrence
            for task_id, of_task in by_task.items()
            for version, occurrence in (await self._openable(name, of_task)).items()
        }
        return [found.get((event.task_id, event.version)) for event in events]

    async def _openable(self, name: str, events: Sequence[LoggedEvent]) -> Mapping[int, Occurrence]:
        """`_of_task`, and nothing of a task that cannot be opened."""
        try:
            return await self._of_task(name, events)
        except UNOPENED as error:
            facts = {"task": events[0].task_id, "why": str(error)}
            _log.warning("a task cannot be opened; its events are told as a gap", extra=facts)
            return {}

    async def _of_task(self, name: str, events: Sequence[LoggedEvent]) -> Mapping[int, Occurrence]:
        """All events of one task: mostly one, and that the newest."""
        first = events[0]
        if len(events) == 1 and name != draft.TASK_PROGRESS:
            present = await self._feed.present(first.task_id)
            if present is None:
                return {}
            if _is_enough(name, first.version, present):
                return {first.version: _of_wire(name, first.version, first.tool, present[1])}
        return await self._folded(name, first.task_id, [event.version for event in events])

    async def _folded(
        self, name: str, task_id: str, versions: Sequence[int]
    ) -> Mapping[int, Occurrence]:
        moments = await self._feed.moments(task_id, versions)
        told = ((version, self._told(name, *moment)) for version, moment in moments.items())
        return {version: occurrence for version, occurrence in told if occurrence is not None}

    def _told(self, name: str, event: TaskEvent, task: Task) -> Occurrence | None:
        if name == draft.TASK_PROGRESS:
            return _of_progress(event, task) if isinstance(event, ProgressReported) else None
        return _of_wire(name, task.version, task.opened.tool, self._feed.wire_of(task))


def event_id(name: str, task_id: str, version: int) -> str:
    """The same for the same event for ever, by whatever way it comes; only `[A-Za-z0-9_-]`."""
    digest = hashlib.sha256(f"{name}\0{task_id}".encode("utf-8", "surrogatepass")).digest()
    return f"evt_{base64url.encoded(digest)[:HASH_LENGTH]}_{version}"


def _is_enough(name: str, version: int, present: Row) -> bool:
    return name != draft.TASK_PROGRESS and present[0] == version


def _of_wire(name: str, version: int, tool: str, wire: bytes) -> Occurrence:
    # Not by the faster reader, which makes floats of large integers and fails on lone surrogates.
    task: dict[str, Any] = json.loads(wire)
    return _occurrence(name, task["lastUpdatedAt"], {**task, "tool": tool, "version": version})


def _of_progress(event: ProgressReported, task: Task) -> Occurrence:
    data = {"taskId": task.id, "tool": task.opened.tool, "version": task.version}
    told = {"progress": event.progress, "total": event.total, "message": event.message}
    data |= {member: value for member, value in told.items() if value is not None}
    return _occurrence(draft.TASK_PROGRESS, task.updated_at, data)


def _occurrence(name: str, timestamp: str, data: dict[str, Any]) -> Occurrence:
    return {
        "eventId": event_id(name, data["taskId"], data["version"]),
        "name": name,
        "timestamp": timestamp,
        "data": _fitting(data),
    }


def _fitting(data: dict[str, Any]) -> dict[str, Any]:
    """The data without what makes them too large; `omitted` names that."""
    omitted: list[str] = []
    for members in (_OUTCOME, _TEXT):
        if len(dumps(data)) <= DATA_BYTES_MAX:
            break
        gone = [member for member in members if member in data]
        omitted += gone
        data = {key: value for key, value in data.items() if key not in gone}
    return {**data, "omitted": omitted} if omitted else data
