"""Which events follow from a wish. Pure: task and instant go in, events or an error come out.

The rules that hold whoever asks:
- terminal is final: nothing follows after completed, failed or cancelled;
- a worker's wish names its attempt, and a stale attempt is refused;
- what a job elsewhere calls back names the attempt too, and counts once for each callback's id;
- what a look at a job found names it as well, and counts only if it is new;
- input keys are minted here, `in-1`, `in-2` …, and never reused in a task's life;
- an answer to a key that is unknown, answered or withdrawn is ignored;
- once the owner wants it stopped, nothing more is asked and no further leg begins;
- time never runs backwards within a task, whatever the clocks of the replicas say;
- a stream has a cap, and the last places in it are kept for its end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from . import errors, events
from .events import Json, TaskEvent
from .task import Question, Task, evolve, fold

Events = tuple[TaskEvent, ...]

STREAM_EVENTS_MAX = 10_000  # a task that needs more fails with `too_many_events`
STREAM_EVENTS_RESERVED = 8  # kept free, so that a full task can still be lost, failed or cancelled
LOSSES_MAX = 5  # workers lost in a row by one leg before giving up: the task may be what kills them
END_GRACE_MS = 300_000  # a terminal task stays readable at least this long,
END_GRACE_POLLS = 3  # and for so many of its own poll intervals
EXTENSION_MS_MIN = 60_000  # a running task's time to live grows by at least this much at once

INTERNAL_ERROR = -32603


@dataclass(frozen=True)
class Ask:
    """One request of an upstream. `name` is its own key, `request` `{"method", "params"}`."""

    name: str
    request: Mapping[str, Json]


def instant(now: datetime) -> str:
    """RFC 3339 in UTC with milliseconds; these strings compare as their instants do."""
    return now.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def failure(reason: str, message: str) -> dict[str, Json]:
    """A JSON-RPC error of our own making; `data.reason` is a fixed word that programs may read."""
    return {"code": INTERNAL_ERROR, "message": message, "data": {"reason": reason}}


def open_task(opening: events.TaskOpened) -> Events:
    """The call becomes a task. `opening` is complete: version 1, its own instant, its own id."""
    return (opening,)


def start_work(task: Task, worker: str, now: datetime) -> Events:
    """The next attempt begins. Raises TaskAlreadyEnded, TaskNotRunnable."""
    _refuse_ended(task)
    if not task.is_runnable:
        raise errors.TaskNotRunnable
    if is_expired(task, now):
        return expire(task, now)
    return (events.WorkStarted(*next_fields(task, now), attempt=task.attempt + 1, worker=worker),)


def report_progress(  # noqa: PLR0913, PLR0917 - the fields of one event, and the instant
    task: Task,
    attempt: int,
    progress: float,
    total: float | None,
    message: str | None,
    now: datetime,
    callback_id: str | None = None,
) -> Events:
    """The tool told how far it is; not recorded on a full stream.

    Callbacks may overtake each other: one that is behind what is recorded is not recorded either.
    Raises TaskAlreadyEnded, StaleAttempt.
    """
    if _is_heard(task, attempt, callback_id) or is_full(task):
        return ()
    if callback_id is not None and task.progress is not None and progress < task.progress:
        return ()
    return (
        events.ProgressReported(
            *next_fields(task, now), attempt, progress, total, message, callback_id
        ),
    )


def delegate(task: Task, attempt: int, until: datetime | None, now: datetime) -> Events:
    """The tool started a job elsewhere that has time until then. Nobody can be told to stop it.

    So after a cancel request the task ends here. Raises TaskAlreadyEnded, StaleAttempt.
    """
    refuse_stale(task, attempt)
    if task.cancel_requested:
        return (cancelled(task, now),)
    end = None if until is None else instant(until)
    given = events.WorkDelegated(*next_fields(task, now), attempt, end)
    return outlasting(task, (given,), until, now)


def is_overdue(task: Task, now: datetime) -> bool:
    """True once a job elsewhere has had its time; the time it waits for answers is not its own."""
    return task.due_at is not None and now >= task.due_at


def finish_leg(
    task: Task, attempt: int, asks: Sequence[Ask], request_state: str | None, now: datetime
) -> Events:
    """A leg ended with an InputRequiredResult: a checkpoint, and questions if it asked any.

    A leg that only carries state runs on; one that asks nothing and carries none fails the task,
    for nobody could ever answer it. After a cancel request the task ends here: to park it would
    ask the owner for something that is not wanted. Raises TaskAlreadyEnded, StaleAttempt.
    """
    refuse_stale(task, attempt)
    if not asks and request_state is None:
        return fail(
            task,
            attempt,
            failure("no_question", "The tool asked for input without naming any request"),
            now,
        )
    if task.cancel_requested:
        return (cancelled(task, now),)
    if is_full(task):
        return fail_full(task, now)
    reached = events.CheckpointReached(
        *next_fields(task, now), attempt, leg=task.leg + 1, request_state=request_state
    )
    if not asks:
        return (reached,)
    return (reached, asking(evolve(task, reached), attempt, asks, now, held=False))


def ask(task: Task, attempt: int, wanted: Ask, occurrence: int, now: datetime) -> Events:
    """The running tool asks mid-call and waits (a legacy upstream).

    `occurrence` counts, from 0, how often this attempt has asked this very request in this leg.
    What an earlier attempt asked is not asked again: no event follows, and `asked` finds the
    question with its answer or still waiting. Raises TaskAlreadyEnded, StaleAttempt, StreamFull,
    and TaskNotRunnable after a cancel request.
    """
    refuse_stale(task, attempt)
    if asked(task, wanted, occurrence) is not None:
        return ()
    if task.cancel_requested:
        raise errors.TaskNotRunnable
    if is_full(task):
        raise errors.StreamFull
    return (asking(task, attempt, [wanted], now, held=True),)


def asked(task: Task, wanted: Ask, occurrence: int) -> Question | None:
    """The question that stands for this request at this occurrence, if it was put."""
    same = [
        q for q in task.questions if q.held and q.leg == task.leg and q.request == wanted.request
    ]
    return same[occurrence] if occurrence < len(same) else None


def receive_input(
    task: Task, answers: Mapping[str, Json], now: datetime, by: str | None = None
) -> Events:
    """The client answered. Keys that are not outstanding are ignored; all are on an ended task.

    One by one they could outgrow the reserved places: a full stream takes all answers, or fails.
    """
    waiting = {question.key for question in task.outstanding}
    accepted = {key: answer for key, answer in answers.items() if key in waiting}
    if not accepted:
        return ()
    if is_full(task) and len(accepted) < len(waiting):
        return fail_full(task, now)
    return (events.InputReceived(*next_fields(task, now), accepted, by),)


def request_cancel(task: Task, now: datetime) -> Events:
    """The owner wants it stopped. Idempotent; a task that nobody runs is cancelled at once."""
    if task.status.is_terminal:
        return ()
    if task.is_running or task.is_followed:
        return () if task.cancel_requested else (events.CancelRequested(*next_fields(task, now)),)
    wanted = events.CancelRequested(*next_fields(task, now))
    return (wanted, cancelled(evolve(task, wanted), now))


def complete(
    task: Task,
    attempt: int,
    result: Mapping[str, Json],
    now: datetime,
    callback_id: str | None = None,
) -> Events:
    """The call returned; a late result after a cancel request still counts.

    Raises TaskAlreadyEnded, StaleAttempt.
    """
    if _is_heard(task, attempt, callback_id):
        return ()
    ttl_ms = _ttl_at_end(task, now)
    return (events.TaskCompleted(*next_fields(task, now), ttl_ms, result, callback_id),)


def fail(
    task: Task,
    attempt: int,
    error: Mapping[str, Json],
    now: datetime,
    callback_id: str | None = None,
) -> Events:
    """The call ended in a JSON-RPC error. Raises TaskAlreadyEnded, StaleAttempt."""
    if _is_heard(task, attempt, callback_id):
        return ()
    return (failed(task, error, now, callback_id),)


def stop(task: Task, attempt: int, now: datetime) -> Events:
    """The body stopped because of the cancel request.

    Raises TaskAlreadyEnded, StaleAttempt, and TaskNotRunnable when nobody asked for it.
    """
    refuse_stale(task, attempt)
    if not task.cancel_requested:
        raise errors.TaskNotRunnable
    return (cancelled(task, now),)


def lose_work(
    task: Task, attempt: int, why: str, now: datetime, *, was_told: bool = False
) -> Events:
    """An attempt is gone without an outcome: run again when that is safe, else a clear error.

    Safe is what the policy or the tool's hints call safe, and what resumes from a checkpoint.
    A worker that was told to stop does not count towards LOSSES_MAX.
    Raises TaskAlreadyEnded, StaleAttempt.
    """
    refuse_stale(task, attempt)
    lost = events.WorkLost(*next_fields(task, now), attempt, why, was_told=was_told)
    after = evolve(task, lost)
    if task.cancel_requested:
        return (lost, cancelled(after, now))
    if not (task.opened.rerun_is_safe or task.has_checkpoint):
        message = f"The worker was lost ({why}); this tool is not known to be safe to run again"
        return (lost, failed(after, failure("worker_lost", message), now))
    if after.losses >= LOSSES_MAX or is_full(after):
        message = f"The worker was lost {after.losses} times in a row; giving up"
        return (lost, failed(after, failure("worker_lost", message), now))
    return (lost,)


def withdraw_work(task: Task, attempt: int, why: str, now: datetime) -> Events:
    """An attempt whose call was certainly never sent: any tool may be tried again.

    Raises TaskAlreadyEnded, StaleAttempt.
    """
    refuse_stale(task, attempt)
    lost = events.WorkLost(*next_fields(task, now), attempt, why, was_sent=False)
    after = evolve(task, lost)
    if task.cancel_requested:
        return (lost, cancelled(after, now))
    if is_full(after):
        return (lost, *fail_full(after, now))
    return (lost,)


def extend_ttl(task: Task, attempt: int, now: datetime) -> Events:
    """Work that still runs does not run out of time: more is added once half of it is gone.

    A call that waits for the client gets none: it has as long as the client was told.
    """
    refuse_unheld(task, attempt)
    if task.ttl_ms is None or task.opened.ttl_ms is None or task.outstanding or is_full(task):
        return ()
    age_ms, more_ms = _age_ms(task, now), max(task.opened.ttl_ms, EXTENSION_MS_MIN)
    if task.ttl_ms - age_ms > more_ms // 2:
        return ()
    return (events.TtlChanged(*next_fields(task, now), ttl_ms=age_ms + more_ms),)


def is_expired(task: Task, now: datetime) -> bool:
    """True once the time to live has ended."""
    return task.expires_at is not None and now >= task.expires_at


def expire(task: Task, now: datetime) -> Events:
    """The time to live ended first.

    A running attempt is left alone unless it waits for the client: its worker extends the time, or
    is lost. So is a job elsewhere as long as it has time of its own, and one that is looked at.
    """
    is_at_work = (task.is_running or task.is_followed) and not task.outstanding
    has_time = task.due_at is not None and not is_overdue(task, now)
    if task.status.is_terminal or is_at_work or has_time or not is_expired(task, now):
        return ()
    return (_expired(task, "expired", "The task's time to live ended before the call did", now),)


def remove(task: Task, now: datetime) -> Events:
    """All that its owner has stored is removed: so ends whatever runs, or waits."""
    why = "All that its owner had stored was removed"
    return () if task.status.is_terminal else (_expired(task, "removed", why, now),)


def outlasting(task: Task, given: Events, until: datetime | None, now: datetime) -> Events:
    """The work given on, if it is now, and a time to live that lasts until its end."""
    after, expires_at = fold(given, task) or task, task.expires_at
    if expires_at is None or until is None or expires_at >= until or is_full(after):
        return given
    ttl_ms = _age_ms(task, until) + EXTENSION_MS_MIN
    return (*given, events.TtlChanged(*next_fields(after, now), ttl_ms=ttl_ms))


def asking(
    task: Task, attempt: int, asks: Sequence[Ask], now: datetime, *, held: bool
) -> events.InputRequested:
    """These questions, under keys of our own."""
    first = len(task.questions) + 1
    questions = {
        f"in-{number}": {"name": wanted.name, "request": dict(wanted.request)}
        for number, wanted in enumerate(asks, first)
    }
    return events.InputRequested(*next_fields(task, now), attempt, held=held, questions=questions)


def failed(
    task: Task, error: Mapping[str, Json], now: datetime, callback_id: str | None = None
) -> events.TaskFailed:
    """The end by an error."""
    return events.TaskFailed(*next_fields(task, now), _ttl_at_end(task, now), error, callback_id)


def _expired(task: Task, reason: str, message: str, now: datetime) -> events.TaskExpired:
    error = failure(reason, message)
    return events.TaskExpired(*next_fields(task, now), ttl_ms=_ttl_at_end(task, now), error=error)


def fail_full(task: Task, now: datetime) -> Events:
    """The end of a task whose stream has no room for what must follow."""
    message = f"The task needs more than {STREAM_EVENTS_MAX} events"
    return (failed(task, failure("too_many_events", message), now),)


def cancelled(task: Task, now: datetime) -> events.TaskCancelled:
    """The end that its owner, or somebody at its upstream, has asked for."""
    return events.TaskCancelled(*next_fields(task, now), ttl_ms=_ttl_at_end(task, now))


def next_fields(task: Task, now: datetime) -> tuple[str, int, str]:
    """What every event begins with."""
    return task.id, task.version + 1, max(instant(now), task.updated_at)


def _ttl_at_end(task: Task, now: datetime) -> int | None:
    grace_ms = max(END_GRACE_MS, END_GRACE_POLLS * task.opened.poll_interval_ms)
    return None if task.ttl_ms is None else max(task.ttl_ms, _age_ms(task, now) + grace_ms)


def _age_ms(task: Task, now: datetime) -> int:
    return max(0, (now - datetime.fromisoformat(task.created_at)) // timedelta(milliseconds=1))


def is_full(task: Task) -> bool:
    """True once only the places that are kept for the end are left."""
    return task.version >= STREAM_EVENTS_MAX - STREAM_EVENTS_RESERVED


def _refuse_ended(task: Task) -> None:
    if task.status.is_terminal:
        raise errors.TaskAlreadyEnded


def refuse_stale(task: Task, attempt: int) -> None:
    """Raises TaskAlreadyEnded, and StaleAttempt unless a worker holds this attempt."""
    _refuse_ended(task)
    if not task.is_running or task.attempt != attempt:
        raise errors.StaleAttempt(attempt, task.attempt)


def refuse_unheld(task: Task, attempt: int) -> None:
    """The same, but for a job that is looked at: nobody holds its attempt."""
    if not (task.is_followed and task.attempt == attempt):
        refuse_stale(task, attempt)


def _is_heard(task: Task, attempt: int, callback_id: str | None) -> bool:
    """True for a callback that was recorded before. Raises for who has no say here."""
    if callback_id is None:
        refuse_unheld(task, attempt)
        return False
    if task.attempt == attempt and callback_id in task.heard:
        return True
    _refuse_ended(task)
    if not task.is_delegated or task.attempt != attempt:
        raise errors.StaleAttempt(attempt, task.attempt)
    return False
