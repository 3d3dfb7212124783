"""What is true of every task at every moment, whoever wished for what, in whichever order.

Each invariant takes the whole history and the task that it folds to, and raises AssertionError.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import orjson

from outlast.domain import decisions, events
from outlast.domain.change import detailed_task
from outlast.domain.events import TaskEvent
from outlast.domain.queueing import Queueing, queueing
from outlast.domain.task import Task, TaskStatus, evolve, fold

History = Sequence[TaskEvent]
Invariant = Callable[[History, Task], None]

TERMINAL = (
    events.TaskCompleted,
    events.TaskFailed,
    events.TaskCancelled,
    events.TaskExpired,
)
BY_THE_ATTEMPT = (
    events.ProgressReported,
    events.CheckpointReached,
    events.InputRequested,
    events.WorkLost,
    events.WorkDelegated,
    events.WorkFollowed,
    events.JobSeen,
)
WIRE_ALWAYS = {"taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"}
WIRE_BY_STATUS = {
    TaskStatus.WORKING: set[str](),
    TaskStatus.INPUT_REQUIRED: {"inputRequests"},
    TaskStatus.COMPLETED: {"result"},
    TaskStatus.FAILED: {"error"},
    TaskStatus.CANCELLED: set[str](),
}


def states(history: History) -> Iterator[Task]:
    """The task after each event."""
    task: Task | None = None
    for event in history:
        task = evolve(task, event)
        yield task


def versions_count_from_one(history: History, task: Task) -> None:
    numbers = [event.version for event in history]
    assert numbers == list(range(1, len(history) + 1)), numbers
    assert task.version == len(history)


def the_stream_stays_under_its_cap(history: History, task: Task) -> None:
    assert len(history) <= decisions.STREAM_EVENTS_MAX, len(history)


def a_terminal_event_is_the_only_one_and_the_last(history: History, task: Task) -> None:
    ends = [event.version for event in history if isinstance(event, TERMINAL)]
    assert ends == ([len(history)] if task.status.is_terminal else []), ends


def one_attempt_runs_at_a_time_and_attempts_count_up(history: History, task: Task) -> None:
    before: Task | None = None
    for event, state in zip(history, states(history), strict=True):
        if isinstance(event, events.WorkStarted):
            assert before is not None
            assert not before.is_running, f"attempt {event.attempt} began beside another"
            assert event.attempt == before.attempt + 1
        before = state


def _is_removal(event: events.TaskExpired) -> bool:
    return event.error.get("data") == {"reason": "removed"}


def only_the_running_attempt_reports(history: History, task: Task) -> None:
    """A worker while it holds the attempt, and the job elsewhere once it was given on.

    Of one that is followed, whoever looks at it tells.
    """
    before: Task | None = None
    for event, state in zip(history, states(history), strict=True):
        calls_back = getattr(event, "callback_id", None) is not None
        if isinstance(event, (*BY_THE_ATTEMPT, events.TaskCompleted)):
            assert before is not None
            looks = before.is_running or before.is_followed
            assert before.is_delegated if calls_back else looks, event
        if isinstance(event, BY_THE_ATTEMPT):
            assert before is not None
            assert event.attempt == before.attempt, event
        if calls_back:
            assert before is not None
            assert before.is_delegated, event
        if isinstance(event, events.TaskExpired) and not _is_removal(event):
            # What runs is left alone, unless it waits for its client.
            assert before is not None
            assert not (before.is_running or before.is_followed) or before.outstanding, event
        before = state


def a_callback_counts_once(history: History, task: Task) -> None:
    told = [getattr(event, "callback_id", None) for event in history]
    ids = [callback_id for callback_id in told if callback_id is not None]
    assert len(set(ids)) == len(ids), ids
    assert task.heard == tuple(ids)


def no_attempt_follows_one_that_was_delegated(history: History, task: Task) -> None:
    attempts = [event for event in history if isinstance(event, events.WorkStarted)]
    elsewhere = (events.WorkDelegated, events.WorkFollowed)
    given = [event for event in history if isinstance(event, elsewhere)]
    assert [event.attempt for event in given] in ([], [attempts[-1].attempt if attempts else 0])
    assert not given or given[0].version > attempts[-1].version


def ends_of_the_job(history: History) -> Iterator[datetime | None]:
    """Until when a job elsewhere has time, after each event; None for no such end.

    Of one that is followed the time does not count in which something is asked of its client. That
    is reckoned here from what was given and asked, and not from what the task says of its time.
    """
    end, since, before = None, None, None
    for event, state in zip(history, states(history), strict=True):
        now, was_asking = datetime.fromisoformat(event.at), bool(before and before.outstanding)
        if isinstance(event, (events.WorkDelegated, events.WorkFollowed)):
            end = None if event.until is None else datetime.fromisoformat(event.until)
        elif end is not None and state.outstanding and not was_asking:
            since = now
        elif end is not None and since is not None and was_asking and not state.outstanding:
            end, since = end + (now - since), None
        end = None if state.status.is_terminal else end
        yield end
        before = state


def a_job_has_its_time(history: History, task: Task) -> None:
    """It neither expires nor is it given up before, whatever the time to live was.

    But what waits for its client waits no longer than that was told.
    """
    before, until = task, None
    for event, state, end in zip(history, states(history), ends_of_the_job(history), strict=True):
        if until is not None and isinstance(event, events.TaskExpired):
            assert before.outstanding or event.at >= decisions.instant(until), event
        if until is not None and _is_given_up(event):
            assert not before.outstanding, event
            assert event.at >= decisions.instant(until), event
        if until is not None and before.is_delegated and getattr(event, "callback_id", "") is None:
            assert event.at >= decisions.instant(until), event
        assert state.delegated_until == end, (event, end)
        waits = state.is_followed and bool(state.outstanding)
        assert (state.waiting_since is not None) == waits, event
        before, until = state, end


def _is_given_up(event: TaskEvent) -> bool:
    reason = {"reason": "timeout"}
    return isinstance(event, events.TaskFailed) and event.error.get("data") == reason


def keys_are_minted_once(history: History, task: Task) -> None:
    keys = [
        key
        for event in history
        if isinstance(event, events.InputRequested)
        for key in event.questions
    ]
    assert keys == [f"in-{number}" for number in range(1, len(keys) + 1)], keys


def a_key_is_answered_once_and_only_while_it_waits(history: History, task: Task) -> None:
    before: Task | None = None
    for event, state in zip(history, states(history), strict=True):
        if isinstance(event, events.InputReceived):
            assert before is not None
            waiting = {question.key for question in before.outstanding}
            assert event.answers, "an empty update was recorded"
            assert set(event.answers) <= waiting, (event.answers, waiting)
        before = state


def time_does_not_run_backwards(history: History, task: Task) -> None:
    assert all(one.at <= two.at for one, two in pairwise(history))
    assert task.updated_at == history[-1].at


def the_creation_is_never_told_differently(history: History, task: Task) -> None:
    assert {detailed_task(state)["createdAt"] for state in states(history)} == {history[0].at}


def the_time_to_live_only_grows(history: History, task: Task) -> None:
    for one, two in pairwise(states(history)):
        if one.ttl_ms is None or two.ttl_ms is None:
            assert one.ttl_ms == two.ttl_ms
        else:
            assert one.ttl_ms <= two.ttl_ms


def input_is_required_exactly_while_something_is_asked(history: History, task: Task) -> None:
    assert (task.status is TaskStatus.INPUT_REQUIRED) == bool(task.outstanding)
    assert bool(detailed_task(task).get("inputRequests")) == bool(task.outstanding)


def nothing_is_asked_once_a_stop_is_wanted(history: History, task: Task) -> None:
    if task.cancel_requested:
        assert not task.outstanding
        stops = task.is_running or task.is_followed
        assert stops or task.status.is_terminal, "cancelled, yet it waits"


def an_outcome_is_there_exactly_when_the_status_says_so(history: History, task: Task) -> None:
    assert (task.result is not None) == (task.status is TaskStatus.COMPLETED)
    assert (task.error is not None) == (task.status is TaskStatus.FAILED)


def a_task_is_never_stuck(history: History, task: Task) -> None:
    """It has ended, or one thing holds.

    A worker has it, a job elsewhere has it, it is parked, or a worker may start.
    """
    elsewhere = (task.is_delegated, task.is_followed)
    assert not (task.status.is_terminal and (task.is_running or any(elsewhere)))
    if not task.status.is_terminal:
        holds = (task.is_running, *elsewhere, task.is_parked, task.is_runnable)
        assert sum(holds) == 1, holds
    assert any(elsewhere) or task.delegated_until is None
    assert task.is_followed == (task.look_at is not None)
    assert not (task.is_delegated and task.outstanding), "nobody waits for these answers"
    if task.is_parked:
        assert task.outstanding


def the_next_leg_gets_every_answer_of_its_leg(history: History, task: Task) -> None:
    if task.leg == 0 or task.status.is_terminal or not (task.is_runnable or task.is_running):
        return
    of_leg = [q for q in task.questions if q.leg == task.leg and not q.held and not q.withdrawn]
    assert all(question.answer is not None for question in of_leg)
    assert (task.leg_answers or {}) == {question.name: question.answer for question in of_leg}


def the_queue_has_a_row_exactly_while_the_task_wants_a_worker(history: History, task: Task) -> None:
    queued, before = False, None
    for state in states(history):
        queued = {
            Queueing.PUT: True,
            Queueing.LEASE: True,
            Queueing.WAIT: True,
            Queueing.KEEP: queued,
            Queueing.DROP: False,
        }[queueing(before, state)]
        before = state
        assert queued == wants_a_row(state), state


def wants_a_row(task: Task) -> bool:
    """A worker has it, wants it, looks at its job, or has to end it when the job's time is over."""
    held = task.is_running or task.is_runnable or task.is_followed
    return held or task.delegated_until is not None


def an_unsafe_tool_starts_once_without_a_checkpoint(history: History, task: Task) -> None:
    """A call that was certainly never sent does not count."""
    starts, before = 0, None
    for event, state in zip(history, states(history), strict=True):
        if isinstance(event, events.WorkStarted):
            starts += before is not None and not before.has_checkpoint
        if isinstance(event, events.WorkLost) and not event.was_sent:
            starts -= before is not None and not before.has_checkpoint
        before = state
    assert starts <= 1 or task.opened.rerun_is_safe, f"started {starts} times"


def the_wire_form_has_only_what_the_specification_names(history: History, task: Task) -> None:
    wire = detailed_task(task)
    assert set(wire) - {"statusMessage"} == WIRE_ALWAYS | WIRE_BY_STATUS[task.status]
    assert wire.get("inputRequests", {}) == {q.key: q.request for q in task.outstanding}


def the_wire_form_keeps_our_secrets(history: History, task: Task) -> None:
    """No worker, owner, callback, key or state of the upstream.

    Tests give these names that are found nowhere else.
    """
    text = orjson.dumps(detailed_task(task)).decode()
    told = [secret for event in history for secret in _secrets(event) if secret in text]
    assert not told, told


def _secrets(event: TaskEvent) -> Iterator[str]:
    callback_id: str | None = getattr(event, "callback_id", None)
    yield from [callback_id] if callback_id else []
    if isinstance(event, events.TaskOpened):
        yield event.owner
        yield from [event.carried_state] if event.carried_state else []
    if isinstance(event, events.WorkStarted):
        yield event.worker
    if isinstance(event, events.WorkFollowed):
        yield str(event.job["id"])
    if isinstance(event, events.CheckpointReached) and event.request_state:
        yield event.request_state
    if isinstance(event, events.InputRequested):
        yield from (question["name"] for question in event.questions.values())


def a_stored_history_is_the_same_history(history: History, task: Task) -> None:
    stored = [(type(event), orjson.dumps(vars(event))) for event in history]
    restored: list[Any] = [kind(**orjson.loads(text)) for kind, text in stored]
    assert restored == list(history)
    assert fold(restored) == task


# These ask only what the task is, so they also judge a state whose history is not kept.
OF_A_STATE: tuple[Invariant, ...] = (
    input_is_required_exactly_while_something_is_asked,
    nothing_is_asked_once_a_stop_is_wanted,
    an_outcome_is_there_exactly_when_the_status_says_so,
    a_task_is_never_stuck,
    the_next_leg_gets_every_answer_of_its_leg,
    the_wire_form_has_only_what_the_specification_names,
)
OF_A_HISTORY: tuple[Invariant, ...] = (
    versions_count_from_one,
    the_stream_stays_under_its_cap,
    a_terminal_event_is_the_only_one_and_the_last,
    one_attempt_runs_at_a_time_and_attempts_count_up,
    only_the_running_attempt_reports,
    a_callback_counts_once,
    no_attempt_follows_one_that_was_delegated,
    a_job_has_its_time,
    keys_are_minted_once,
    a_key_is_answered_once_and_only_while_it_waits,
    time_does_not_run_backwards,
    the_creation_is_never_told_differently,
    the_time_to_live_only_grows,
    the_queue_has_a_row_exactly_while_the_task_wants_a_worker,
    an_unsafe_tool_starts_once_without_a_checkpoint,
    the_wire_form_keeps_our_secrets,
    a_stored_history_is_the_same_history,
)


def check(history: History) -> Task:
    """Hold every invariant against this history; returns the task that it folds to."""
    task = fold(history)
    if task is None:
        raise AssertionError("a history begins with its opening")
    hold(OF_A_STATE + OF_A_HISTORY, history, task)
    return task


def hold(some: Sequence[Invariant], history: History, task: Task) -> None:
    """Hold these; the error names the one that is broken."""
    for invariant in some:
        try:
            invariant(history, task)
        except AssertionError as broken:
            raise AssertionError(f"{invariant.__name__}: {broken} in {task}") from broken
