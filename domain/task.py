"""The task as a value: its status, and what each event does to it (`evolve`, `fold`)."""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import singledispatch

from . import events
from .events import Json, TaskEvent


class TaskStatus(StrEnum):
    """The five statuses of the tasks specification."""

    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """True for a status that nothing leaves."""
        return self in _TERMINAL


_SMALL, _LARGE = 1e-6, 1e21  # between these a number is written without an exponent
_TERMINAL = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED})


@dataclass(frozen=True)
class Question:
    """One request to the client. `key` is ours, never reused; `name` is the upstream's own key."""

    key: str
    name: str
    request: Mapping[str, Json]
    leg: int
    held: bool
    answer: Mapping[str, Json] | None = None
    withdrawn: bool = False

    @property
    def is_outstanding(self) -> bool:
        """True while the client may still answer it."""
        return self.answer is None and not self.withdrawn


@dataclass(frozen=True)
class Task:
    """All that is known of one task after `version` events. `opened` keeps what was asked for.

    While it `is_delegated` or `is_followed` no worker holds the attempt, but a job elsewhere, which
    is given up at `delegated_until`. The one calls back: `heard` has the ids of the callbacks that
    were recorded. The other is looked at: `job` is what a look must know; and it may ask. The time
    since `waiting_since`, when it asked the first of what is outstanding, will not have counted.
    """

    opened: events.TaskOpened
    version: int
    status: TaskStatus
    updated_at: str
    ttl_ms: int | None
    status_message: str | None = None
    attempt: int = 0
    worker: str | None = None
    losses: int = 0
    leg: int = 0
    request_state: str | None = None
    cancel_requested: bool = False
    questions: tuple[Question, ...] = ()
    result: Mapping[str, Json] | None = None
    error: Mapping[str, Json] | None = None
    is_delegated: bool = False
    delegated_until: datetime | None = None
    progress: float | None = None
    progress_at: str | None = None
    heard: tuple[str, ...] = ()
    job: Mapping[str, Json] | None = None
    followed_at: str | None = None
    look_at: str | None = None
    cancel_requested_at: str | None = None
    waiting_since: str | None = None

    @property
    def id(self) -> str:
        """The task id, 43 URL-safe characters that nobody can guess."""
        return self.opened.task_id

    @property
    def owner(self) -> str:
        """The key of the owner (`Owner.key`)."""
        return self.opened.owner

    @property
    def created_at(self) -> str:
        """The very string that was sent first; it is never formatted again."""
        return self.opened.at

    @property
    def expires_at(self) -> datetime | None:
        """The instant at which the time to live ends; None for an unlimited one."""
        if self.ttl_ms is None:
            return None
        return datetime.fromisoformat(self.created_at) + timedelta(milliseconds=self.ttl_ms)

    @property
    def outstanding(self) -> tuple[Question, ...]:
        """The questions that the client may answer now, oldest first."""
        return tuple(question for question in self.questions if question.is_outstanding)

    @property
    def is_running(self) -> bool:
        """True while a worker holds the task."""
        return self.worker is not None

    @property
    def is_parked(self) -> bool:
        """True while the next leg waits for answers; a parked task holds no worker."""
        return not self.is_running and any(not question.held for question in self.outstanding)

    @property
    def is_followed(self) -> bool:
        """True while workers look at a job elsewhere, now and then."""
        return self.job is not None

    @property
    def due_at(self) -> datetime | None:
        """When a job elsewhere has had its time; None for never, and while it waits for answers."""
        return None if self.outstanding else self.delegated_until

    @property
    def waits_until(self) -> datetime | None:
        """When a worker is to look after the job elsewhere; None for never."""
        if self.look_at is not None:
            return datetime.fromisoformat(self.look_at)
        return self.delegated_until

    @property
    def is_runnable(self) -> bool:
        """True when a worker may start the next attempt."""
        held = self.is_running or self.is_parked or self.is_delegated or self.is_followed
        return not (self.status.is_terminal or held)

    @property
    def has_checkpoint(self) -> bool:
        """True when a new attempt resumes from a finished leg instead of from the start."""
        return self.leg > 0

    @property
    def leg_answers(self) -> Mapping[str, Json] | None:
        """The answers that the next leg's call carries, by the upstream's keys; None for none."""
        if self.leg == 0:
            return self.opened.carried_answers
        answers = {
            q.name: q.answer
            for q in self.questions
            if q.leg == self.leg and not q.held and q.answer is not None
        }
        return answers or None


def _with(task: Task, **changes: Json) -> Task:
    """The task with these changes, for a tenth of what `dataclasses.replace` takes.

    To fold is what every wish, verification and rebuild does with every event.
    """
    changed = object.__new__(Task)
    changed.__dict__.update(task.__dict__, **changes)
    return changed


_AT_FIRST = {each.name: each.default for each in fields(Task) if each.default is not MISSING}


def _born(opened: events.TaskOpened) -> Task:
    """The task as it is opened, for a quarter of what making one by its name takes."""
    born = object.__new__(Task)
    born.__dict__.update(  # in the order of the fields, in which a snapshot has them
        opened=opened,
        version=opened.version,
        status=TaskStatus.WORKING,
        updated_at=opened.at,
        ttl_ms=opened.ttl_ms,
        **_AT_FIRST,
    )
    return born


def fold(history: Iterable[TaskEvent], task: Task | None = None) -> Task | None:
    """The task after all of `history`, in order, from `task` on; None for nothing at all."""
    for event in history:
        task = evolve(task, event)
    return task


def evolve(task: Task | None, event: TaskEvent) -> Task:
    """The task after one more event. Never refuses: judging is `decisions`' part."""
    if isinstance(event, events.TaskOpened):
        return _born(event)
    if task is None:
        raise ValueError(f"the stream of a task begins with TaskOpened, not {type(event).__name__}")
    changed = _apply(event, task)
    return _with(changed, version=event.version, updated_at=event.at)


@singledispatch
def _apply(event: TaskEvent, task: Task) -> Task:  # noqa: ARG001 - the rules below read it
    raise TypeError(f"no rule for {type(event).__name__}")


@_apply.register
def _(event: events.WorkStarted, task: Task) -> Task:
    return _with(task, attempt=event.attempt, worker=event.worker, progress=None, progress_at=None)


@_apply.register
def _(event: events.WorkDelegated, task: Task) -> Task:
    return _with(_give_on(task, event), is_delegated=True)


@_apply.register
def _(event: events.WorkFollowed, task: Task) -> Task:
    given = _give_on(task, event)
    return _with(given, job=event.job, followed_at=event.at, look_at=event.look_at)


@_apply.register
def _(event: events.JobSeen, task: Task) -> Task:
    task = _with(task, job=event.job)
    if task.status is TaskStatus.INPUT_REQUIRED or task.cancel_requested:
        return task
    return _with(task, status_message=event.message)


@_apply.register
def _(event: events.ProgressReported, task: Task) -> Task:
    task = _hear(_with(task, progress=event.progress, progress_at=event.at), event.callback_id)
    if task.status is TaskStatus.INPUT_REQUIRED or task.cancel_requested:
        return task
    return _with(task, status_message=event.message or amount(event.progress, event.total))


@_apply.register
def _(event: events.CheckpointReached, task: Task) -> Task:
    return _with(task, leg=event.leg, request_state=event.request_state, losses=0)


@_apply.register
def _(event: events.InputRequested, task: Task) -> Task:
    asked = tuple(
        Question(key, question["name"], question["request"], task.leg, event.held)
        for key, question in event.questions.items()
    )
    return _with(
        task,
        status=TaskStatus.INPUT_REQUIRED,
        status_message="Waiting for input",
        questions=task.questions + asked,
        worker=task.worker if event.held else None,
        waiting_since=(task.waiting_since or event.at) if task.is_followed else None,
    )


@_apply.register
def _(event: events.InputReceived, task: Task) -> Task:
    answered = tuple(
        replace(q, answer=event.answers[q.key]) if q.key in event.answers else q
        for q in task.questions
    )
    return _settle(_with(task, questions=answered), event.at)


@_apply.register
def _(event: events.CancelRequested, task: Task) -> Task:
    wanted = _with(_withdraw(task, event.at), cancel_requested=True, cancel_requested_at=event.at)
    return _with(wanted, status_message="Cancellation requested")


@_apply.register
def _(event: events.WorkLost, task: Task) -> Task:
    return _with(task, worker=None, losses=task.losses + (event.was_sent and not event.was_told))


@_apply.register
def _(event: events.TtlChanged, task: Task) -> Task:
    return _with(task, ttl_ms=event.ttl_ms)


@_apply.register
def _(event: events.TaskCompleted, task: Task) -> Task:
    ended = _end(_hear(task, event.callback_id), TaskStatus.COMPLETED, None, event)
    return _with(ended, result=event.result)


@_apply.register(events.TaskFailed)
@_apply.register(events.TaskExpired)
def _(event: events.TaskFailed | events.TaskExpired, task: Task) -> Task:
    if isinstance(event, events.TaskFailed):
        task = _hear(task, event.callback_id)
    ended = _end(task, TaskStatus.FAILED, str(event.error["message"]), event)
    return _with(ended, error=event.error)


@_apply.register
def _(event: events.TaskCancelled, task: Task) -> Task:
    by_owner = task.cancel_requested
    message = "Cancelled on request" if by_owner else "The job was cancelled at its upstream"
    return _end(task, TaskStatus.CANCELLED, message, event)


_Ending = events.TaskCompleted | events.TaskFailed | events.TaskExpired | events.TaskCancelled


def _end(task: Task, status: TaskStatus, message: str | None, event: _Ending) -> Task:
    return _with(
        _withdraw(task, event.at),
        status=status,
        status_message=message,
        ttl_ms=event.ttl_ms,
        worker=None,
        is_delegated=False,
        delegated_until=None,
        job=None,
        look_at=None,
    )


def _give_on(task: Task, event: events.WorkDelegated | events.WorkFollowed) -> Task:
    """To a job elsewhere. It counts from its own start, whatever the tool told of its own steps."""
    given = _with(_withdraw(task, event.at), worker=None, progress=None)
    end = None if event.until is None else datetime.fromisoformat(event.until)
    return _with(given, delegated_until=end)


def _hear(task: Task, callback_id: str | None) -> Task:
    return task if callback_id is None else _with(task, heard=(*task.heard, callback_id))


def _withdraw(task: Task, at: str) -> Task:
    withdrawn = tuple(replace(q, withdrawn=True) if q.is_outstanding else q for q in task.questions)
    return _settle(_with(task, questions=withdrawn), at)


def _settle(task: Task, at: str) -> Task:
    """Back to `working` once nothing is asked any more."""
    if task.status is not TaskStatus.INPUT_REQUIRED or task.outstanding:
        return task
    settled = _with(task, status=TaskStatus.WORKING, status_message=None, waiting_since=None)
    if task.waiting_since is None or task.delegated_until is None:
        return settled
    waited = datetime.fromisoformat(at) - datetime.fromisoformat(task.waiting_since)
    return _with(settled, delegated_until=task.delegated_until + waited)


def amount(progress: float, total: float | None) -> str:
    """Progress in words."""
    done = _written(progress)
    return done if total is None else f"{done} of {_written(total)}"


def _written(number: float) -> str:
    """A whole number in full, any other with six digits that count.

    It has an exponent only where nobody could read it without: bytes and rows are many.
    """
    if isinstance(number, int) or (number.is_integer() and abs(number) < _LARGE):
        return str(int(number))
    if not _SMALL <= abs(number) < _LARGE:  # nor what is no number at all
        return f"{number:g}"
    return format(Decimal(f"{number:.6g}"), "f")
