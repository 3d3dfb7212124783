"""What happened to one task, and what a client saw of it: for auditors. Over ports alone."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from ...domain import errors
from ...domain.audit import ERASED, AuditLog, Recorded
from ...domain.history import ERASED_PAYLOAD, Doing, History, Step, Told, history_of
from ...domain.task import Task, evolve, fold

Json = dict[str, Any]

# What each of these rows of the log says, opened; of one task or of many.
Read = Callable[[Sequence[Recorded]], Awaitable[Sequence[Told]]]
WireOf = Callable[[Task], bytes]


class UnknownTask(errors.OutlastError):
    """No event of such a task is in the log."""


class NoSuchVersion(errors.OutlastError):
    """The task has no such version."""


class Unreadable(errors.OutlastError):
    """What the task was then cannot be told any more."""


class Historian:
    """The past of tasks, of those that clients still know and of all others."""

    def __init__(self, log: AuditLog, read: Read, wire_of: WireOf) -> None:
        self._log, self._read, self._wire_of = log, read, wire_of

    async def history(self, task_id: str) -> History:
        """All that happened to this task. Raises UnknownTask."""
        rows = await self._log.of_task(task_id)
        history = history_of(rows, await self._read(rows))
        if history is None:
            raise UnknownTask
        return history

    def state_at(self, history: History, version: int) -> bytes:
        """The very bytes that a client's `tasks/get` was given of the task at this version.

        Raises NoSuchVersion, and Unreadable once a payload up to there is gone.
        """
        last = history.steps[-1].row.version
        if not 1 <= version <= last:
            raise NoSuchVersion(f"The task has the versions 1 to {last}")
        known = history.events_to(version)
        if known is None:
            raise Unreadable(f"Version {version} cannot be told any more: {why(history, version)}")
        task = fold(known)
        if task is None:
            raise Unreadable("The task's events do not begin with its opening")
        return self._wire_of(task)

    def states(self, history: History) -> Iterator[bytes]:
        """`state_at` for every version that a client could have seen, one after the other.

        Raises Unreadable at the first that cannot be told.
        """
        task: Task | None = None
        for place, step in enumerate(history.steps, 1):
            event = step.told.event
            if step.row.topic == ERASED:
                return
            if event is None or step.row.version != place:
                raise Unreadable(f"Version {place} cannot be told any more: {why(history, place)}")
            task = evolve(task, event)
            yield self._wire_of(task)


def why(history: History, version: int) -> str:
    """What is missing up to this version, for a person."""
    for step in history.steps[:version]:
        if step.told.absent is not None:
            return f"the payload of version {step.row.version} is {step.told.absent}"
        if step.told.event is None:
            return f"version {step.row.version} is a {step.row.topic}, which no client sees"
    return "the log does not hold every version up to there; run outlast audit verify"


def json_of(history: History) -> Json:
    """All of it as one JSON value, payloads whole."""
    opening, owner = history.opening, history.last("owner")
    return {
        "taskId": history.task_id,
        "owner": None if opening is None else opening.owner,
        "ownerHash": None if owner is None else bytes(owner).hex(),
        "tool": history.last("tool"),
        "status": history.last("status"),
        "isPast": history.steps[-1].row.is_past,
        "isErased": history.is_erased,
        "events": [_event(step) for step in history.steps],
        "totals": {f"{doing}Ms": millis(spent) for doing, spent in history.totals.items()},
    }


def _event(step: Step) -> Json:
    row, told = step.row, step.told
    given: Mapping[str, Any] = {
        "position": row.position,
        "version": row.version,
        "type": row.topic,
        "id": event_id(row),
        "recordedAt": stamp(row.recorded_at),
        "sincePreviousMs": None if step.since is None else millis(step.since),
        "attempt": step.attempt,
        "worker": step.worker,
        "status": row.status,
        "then": None if step.doing is Doing.OVER else step.doing.value,
        "bytes": len(row.state),
        "digest": row.digest.hex(),
    }
    if told.absent is not None:
        return {**given, "payload": None, "absent": told.absent}
    return {**given, "payload": told.payload}


def is_trouble(told: Told) -> bool:
    """True for a payload that should be there and cannot be read."""
    return told.absent is not None and told != ERASED_PAYLOAD


def event_id(row: Recorded) -> str:
    """The event's own id in its usual form."""
    digits = row.event_id.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def stamp(instant: datetime) -> str:
    """RFC 3339 in UTC, to the microsecond as the store has it."""
    return instant.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def millis(spent: timedelta) -> int:
    """Whole milliseconds."""
    return spent // timedelta(milliseconds=1)
