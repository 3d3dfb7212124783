"""One task's past, told event by event: what was said, by whom, and what the task did between two.

What the task did follows from topics and statuses alone, so it is known after an erasure too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from . import events
from .audit import ERASED, Recorded
from .events import Json, TaskEvent
from .task import TaskStatus

NOTHING = timedelta()


@dataclass(frozen=True)
class Told:
    """What a row says, opened. `absent` tells why there is no payload; `event` needs a known topic.

    A payload that was erased by the rules is `ERASED_PAYLOAD`; any other reason is a trouble.
    """

    payload: Mapping[str, Json] | None
    event: TaskEvent | None
    absent: str | None = None


ERASED_PAYLOAD = Told(None, None, "erased")


class Doing(StrEnum):
    """What a task does until its next event."""

    WAITING = "waiting"  # for a worker
    WORKING = "working"
    ASKING = "asking"  # the client has to answer
    OVER = "over"


@dataclass(frozen=True)
class Step:
    """One event in its place. `since` is the time since the one before; None for the first.

    `attempt` and `worker` are those that the event is about, None where nobody can know.
    """

    row: Recorded
    told: Told
    since: timedelta | None
    attempt: int | None
    worker: str | None
    doing: Doing


@dataclass(frozen=True)
class History:
    """All steps of one task, in the order of their versions. There is at least one."""

    task_id: str
    steps: Sequence[Step]

    @property
    def opening(self) -> events.TaskOpened | None:
        """What was asked for, and by whom; None once it is erased."""
        first = self.steps[0].told.event
        return first if isinstance(first, events.TaskOpened) else None

    @property
    def is_erased(self) -> bool:
        """True once the log says that the payloads are gone."""
        return any(step.row.topic == ERASED for step in self.steps)

    @property
    def totals(self) -> Mapping[Doing, timedelta]:
        """For how long it did what, up to its last event."""
        spent = {doing: NOTHING for doing in Doing if doing is not Doing.OVER}
        for before, step in zip(self.steps, self.steps[1:], strict=False):
            if before.doing in spent and step.since is not None:
                spent[before.doing] += max(step.since, NOTHING)
        return spent

    def last(self, column: str) -> Json:
        """The newest value of a column that rows of the service's own leave empty."""
        values = (getattr(step.row, column) for step in reversed(self.steps))
        return next((value for value in values if value is not None), None)

    def events_to(self, version: int) -> Sequence[TaskEvent] | None:
        """What had happened at this version, for a fold; None when it cannot be known any more."""
        found = [step.told.event for step in self.steps if step.row.version <= version]
        known = [event for event in found if event is not None]
        return known if len(known) == len(found) == version else None


def history_of(rows: Sequence[Recorded], told: Iterable[Told]) -> History | None:
    """The history that these rows of one task make; None for no rows."""
    if not rows:
        return None
    teller = _Teller()
    steps = [teller.next(row, each) for row, each in zip(rows, told, strict=True)]
    return History(rows[0].task_id, steps)


_BEGIN_WORK = frozenset(
    {events.WorkStarted.TOPIC, events.WorkDelegated.TOPIC, events.WorkFollowed.TOPIC}
)
_BEGIN_WAIT = frozenset({events.TaskOpened.TOPIC, events.WorkLost.TOPIC})


class _Teller:
    """Goes along the rows and remembers who works."""

    def __init__(self) -> None:
        self._last: Recorded | None = None
        self._doing = Doing.WAITING
        self._attempts = 0
        self._workers: dict[int, str] = {}
        self._leg_is_over = False

    def next(self, row: Recorded, told: Told) -> Step:
        """The step of this row, which follows all before."""
        since = None if self._last is None else row.recorded_at - self._last.recorded_at
        attempt, worker = self._by_whom(row, told)
        self._doing = self._then(row)
        self._last = row
        return Step(row, told, since, attempt, worker, self._doing)

    def _by_whom(self, row: Recorded, told: Told) -> tuple[int | None, str | None]:
        if row.topic == events.WorkStarted.TOPIC:
            # Attempts are counted from 1 without a gap, so the number outlives the payload.
            self._attempts += 1
            if isinstance(told.event, events.WorkStarted):
                self._workers[self._attempts] = told.event.worker
        elif row.topic in _NOT_BY_A_WORKER or self._attempts == 0:
            return None, None
        return self._attempts, self._workers.get(self._attempts)

    def _then(self, row: Recorded) -> Doing:
        status = row.status
        if row.topic == ERASED or status in _OVER:
            return Doing.OVER
        if status == TaskStatus.INPUT_REQUIRED:
            return Doing.ASKING
        if row.topic == events.CheckpointReached.TOPIC:
            self._leg_is_over = True
        elif row.topic == events.WorkStarted.TOPIC:
            self._leg_is_over = False
        return self._then_busy(row.topic)

    def _then_busy(self, topic: str) -> Doing:
        if topic in _BEGIN_WORK:
            return Doing.WORKING
        if topic in _BEGIN_WAIT:
            return Doing.WAITING
        if self._doing is Doing.ASKING:  # all is answered: a call that was kept open goes on
            return Doing.WAITING if self._leg_is_over else Doing.WORKING
        return self._doing


_NOT_BY_A_WORKER = frozenset(
    {
        events.TaskOpened.TOPIC,
        events.InputReceived.TOPIC,
        events.CancelRequested.TOPIC,
        events.TaskExpired.TOPIC,
        ERASED,
    }
)


_OVER = frozenset(status.value for status in TaskStatus if status.is_terminal)
