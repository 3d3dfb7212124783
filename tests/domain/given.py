"""Tasks to start a test from: an opening, a clock in seconds, and short histories."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from outlast.domain import decisions
from outlast.domain.decisions import Ask, Events
from outlast.domain.events import TaskOpened
from outlast.domain.task import Task, evolve, fold

START = datetime(2026, 7, 28, 12, tzinfo=UTC)
TTL_MS = 600_000

OPENED = TaskOpened(
    task_id="task-1",
    version=1,
    at=decisions.instant(START),
    owner="owner-of-the-task",
    upstream="ci",
    tool="run_ci_pipeline",
    arguments={"branch": "main"},
    client_capabilities={},
    ttl_ms=TTL_MS,
    poll_interval_ms=2_000,
    timeout_ms=None,
    rerun_is_safe=False,
)

DEPLOY = Ask("upstream-deploy", {"method": "elicitation/create", "params": {"message": "Deploy?"}})
REGION = Ask("upstream-region", {"method": "elicitation/create", "params": {"message": "Where?"}})
YES = {"action": "accept", "content": {"ok": True}}
NO = {"action": "decline"}
RESULT = {"content": [{"type": "text", "text": "done"}], "isError": False}
ERROR = {"code": -32000, "message": "The disk is full", "data": {"disk": "/dev/sda"}}

Wish = Callable[[Task], Events]


def at(seconds: float) -> datetime:
    """The instant so many seconds after the opening."""
    return START + timedelta(seconds=seconds)


def opened(**changes: Any) -> Task:
    """A task that nobody runs yet."""
    task = fold(decisions.open_task(replace(OPENED, **changes)))
    if task is None:
        raise ValueError("an opening makes a task")
    return task


def after(task: Task, *wishes: Wish | Events) -> Task:
    """The task once these wishes, one after the other, have been decided and have happened."""
    for wish in wishes:
        for event in wish if isinstance(wish, tuple) else wish(task):
            task = evolve(task, event)
    return task


def starts(worker: str = "worker-a", seconds: float = 1) -> Wish:
    """A worker begins the next attempt."""
    return lambda task: decisions.start_work(task, worker, at(seconds))


def asks(*wanted: Ask, state: str | None = "state-1", seconds: float = 2) -> Wish:
    """The running leg ends with these questions."""
    return lambda task: decisions.finish_leg(task, task.attempt, wanted, state, at(seconds))


def holds(wanted: Ask, occurrence: int = 0, seconds: float = 2) -> Wish:
    """The running call asks and waits."""
    return lambda task: decisions.ask(task, task.attempt, wanted, occurrence, at(seconds))


def answers(replies: Mapping[str, Any], seconds: float = 3) -> Wish:
    """The client answers."""
    return lambda task: decisions.receive_input(task, replies, at(seconds))


def cancels(seconds: float = 4) -> Wish:
    """The owner wants it stopped."""
    return lambda task: decisions.request_cancel(task, at(seconds))


def loses(seconds: float = 5) -> Wish:
    """The running attempt is gone."""
    return lambda task: decisions.lose_work(task, task.attempt, "its lease ran out", at(seconds))


def completes(result: Mapping[str, Any] = RESULT, seconds: float = 6) -> Wish:
    """The running call returns."""
    return lambda task: decisions.complete(task, task.attempt, result, at(seconds))


def fails(error: Mapping[str, Any] = ERROR, seconds: float = 6) -> Wish:
    """The running call ends in a JSON-RPC error."""
    return lambda task: decisions.fail(task, task.attempt, error, at(seconds))


def delegates(until: datetime | None = None, seconds: float = 5) -> Wish:
    """The running call returns and leaves the rest to a job elsewhere."""
    return lambda task: decisions.delegate(task, task.attempt, until, at(seconds))


def calls_back(callback_id: str, progress: float = 1, seconds: float = 6) -> Wish:
    """The job tells how far it is."""
    return lambda task: decisions.report_progress(
        task, task.attempt, progress, None, None, at(seconds), callback_id
    )


def calls_back_with(
    result: Mapping[str, Any] = RESULT, callback_id: str = "evt-done", seconds: float = 7
) -> Wish:
    """The job has a result."""
    return lambda task: decisions.complete(task, task.attempt, result, at(seconds), callback_id)


def stops(seconds: float = 6) -> Wish:
    """The running body stops because of the cancel request."""
    return lambda task: decisions.stop(task, task.attempt, at(seconds))


def running(**changes: Any) -> Task:
    """A task in its first attempt."""
    return after(opened(**changes), starts())


def parked(**changes: Any) -> Task:
    """A task whose first leg asked for `in-1` (deploy?) and `in-2` (where?)."""
    return after(running(**changes), asks(DEPLOY, REGION))


def ended() -> dict[str, Task]:
    """One task for each way to end."""
    return {
        "completed": after(running(), completes()),
        "failed": after(running(), fails()),
        "cancelled": after(running(), cancels(), stops()),
        "expired": after(opened(), lambda task: decisions.expire(task, at(TTL_MS / 1000))),
    }


def delegated(until: datetime | None = None, **changes: Any) -> Task:
    """A task whose job runs elsewhere."""
    return after(running(**changes), delegates(until))
