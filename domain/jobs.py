"""Jobs elsewhere: one that a tool has started at its upstream is looked at until it ends. Pure.

One that calls back reports by `decisions`, as a worker does; and both end as every attempt does,
by `complete` and `fail`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from . import decisions, events
from .decisions import Events
from .events import Json
from .task import Question, Task, TaskStatus, amount, evolve, fold

PROGRESS_EVERY = timedelta(seconds=1)  # of one that calls back, and is told when it was too soon


@dataclass(frozen=True)
class Sight:
    """How far a job was when it was looked at, as far as that is told."""

    message: str | None = None
    progress: float | None = None
    total: float | None = None

    @property
    def words(self) -> str | None:
        """What the owner reads of it."""
        if self.message or self.progress is None:
            return self.message or None
        return amount(self.progress, self.total)


def follow(  # noqa: PLR0913, PLR0917 - the fields of one event, and the instant
    task: Task,
    attempt: int,
    job: Mapping[str, Json],
    until: datetime | None,
    look_at: datetime,
    now: datetime,
) -> Events:
    """The tool started a job at its upstream, which has time until then and is looked at.

    What the tool itself has asked is not the job's: `told` begins with the keys of those.
    After a cancel request the first look is due now. Raises TaskAlreadyEnded, StaleAttempt.
    """
    decisions.refuse_stale(task, attempt)
    known = {**job, "told": [question.key for question in task.questions]}
    end = None if until is None else decisions.instant(until)
    first = decisions.instant(now if task.cancel_requested else look_at)
    given = events.WorkFollowed(*decisions.next_fields(task, now), attempt, known, end, first)
    return decisions.outlasting(task, (given,), until, now)


def prolong(task: Task, attempt: int, now: datetime) -> Events:
    """The followed job goes on, and so does its task, to the end that a wait may have moved.

    One that has no end is given more and more; one that waits for its client is given nothing.
    Raises TaskAlreadyEnded, StaleAttempt.
    """
    if task.delegated_until is None:
        return decisions.extend_ttl(task, attempt, now)
    decisions.refuse_unheld(task, attempt)
    return decisions.outlasting(task, (), task.due_at, now)


def see_job(
    task: Task, attempt: int, sight: Sight, job: Mapping[str, Json], now: datetime
) -> Events:
    """A look found the job at work: recorded is what differs from what is known.

    Progress that is not ahead of what is known is none. Raises TaskAlreadyEnded, StaleAttempt.
    """
    decisions.refuse_unheld(task, attempt)
    if decisions.is_full(task):
        return ()
    told: Events = ()
    if sight.progress is not None and (task.progress is None or sight.progress > task.progress):
        fields = (attempt, sight.progress, sight.total, sight.message)
        told = (events.ProgressReported(*decisions.next_fields(task, now), *fields),)
        task = evolve(task, told[0])
    is_shown = task.status is TaskStatus.WORKING and not task.cancel_requested
    if job == task.job and (not is_shown or sight.words == task.status_message):
        return told
    seen = events.JobSeen(*decisions.next_fields(task, now), attempt, job, sight.words)
    return (*told, seen)


def ask_for_job(
    task: Task,
    attempt: int,
    asks: Sequence[decisions.Ask],
    now: datetime,
    job: Mapping[str, Json] | None = None,
) -> Events:
    """The followed job asks. What it has asked before is not asked again, answered or not.

    Nor is anything once its time is up: it would be as much up after the answer.
    `job` is what the look leaves to be known of it; None for what was known.
    Raises TaskAlreadyEnded, StaleAttempt; on a full stream the task fails.
    """
    decisions.refuse_unheld(task, attempt)
    # Whoever asks is there: what an earlier look told its owner, that it is missing, is taken back.
    seen = () if job is None or job == task.job else see_job(task, attempt, Sight(), job, now)
    task = fold(seen, task) or task
    known = [(q.name, q.request) for q in task.questions if q.held and q.leg == task.leg]
    new = [wanted for wanted in asks if (wanted.name, wanted.request) not in known]
    if not new or task.cancel_requested or decisions.is_overdue(task, now):
        return seen
    if decisions.is_full(task):
        return (*seen, *decisions.fail_full(task, now))
    return (*seen, decisions.asking(task, attempt, new, now, held=True))


def end_as_cancelled(task: Task, attempt: int, now: datetime) -> Events:
    """The followed job was cancelled, by whomever. Raises TaskAlreadyEnded, StaleAttempt."""
    decisions.refuse_unheld(task, attempt)
    return (decisions.cancelled(task, now),)


def end_overdue(task: Task, now: datetime) -> Events:
    """A job elsewhere that has not called back in its time has failed; nothing follows before."""
    if not decisions.is_overdue(task, now):
        return ()
    error = decisions.failure("timeout", "The job did not finish within its time limit")
    return (decisions.failed(task, error, now),)


def is_too_soon(task: Task, now: datetime) -> bool:
    """True while progress was told so lately that a job's next is not to be recorded yet."""
    if task.progress_at is None:
        return False
    last = datetime.fromisoformat(task.progress_at)
    return last <= now < last + PROGRESS_EVERY


def to_tell(task: Task) -> Sequence[Question]:
    """The job's questions whose answers it has not been given yet, oldest first."""
    told: Sequence[str] = () if task.job is None else task.job.get("told", ())
    return [q for q in task.questions if q.held and q.answer is not None and q.key not in told]
