"""The model's jobs elsewhere: started by an attempt, and calling back whenever they like."""

from collections.abc import Callable, Iterator
from datetime import datetime

from outlast.domain import decisions
from outlast.domain.decisions import Events
from outlast.domain.events import TaskEvent
from outlast.domain.task import Task
from outlast.tests.domain.given import ERROR, RESULT, at

MUCH_LATER = at(1_000)  # whatever an attempt did for its time to live

Decide = Callable[[Task, datetime], Events]


def gives_on(attempt: int, until: datetime | None) -> Decide:
    """The tool returns and leaves the rest to its job."""
    return lambda task, now: decisions.delegate(task, attempt, until, now)


def callbacks(task: Task) -> Iterator[tuple[str, Decide]]:
    """Each attempt may have started a job, which may call back at any time, again and too late.

    A job that was started before its worker could say so is one of them.
    """
    for attempt in range(1, task.attempt + 1):
        for decide, outcome in ((decisions.complete, RESULT), (decisions.fail, ERROR)):
            told = f"job {attempt} {decide.__name__}s"
            yield (
                told,
                lambda task, now, n=attempt, decide=decide, outcome=outcome, told=told: decide(
                    task, n, outcome, now, told
                ),
            )


def expires_much_later(task: Task, now: datetime) -> Events:
    """A job without an end: the time to live is what ends its task."""
    return decisions.expire(task, MUCH_LATER) if task.is_delegated else ()


def counts_for_its_attempt(task: Task, event: TaskEvent) -> None:
    """Hold a callback's event against the task before it."""
    told = getattr(event, "callback_id", None)
    if told is not None:
        assert (task.is_delegated, told.split()[1]) == (True, str(task.attempt)), f"{told}: counted"
