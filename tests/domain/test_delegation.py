"""Work that a tool gave to a job elsewhere: one sentence a rule. The job reports by callbacks."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from outlast.domain import decisions, errors, jobs
from outlast.domain.change import detailed_task
from outlast.domain.decisions import Events
from outlast.domain.events import ProgressReported, TaskCancelled, TtlChanged, WorkDelegated
from outlast.domain.queueing import Queueing, queueing
from outlast.domain.task import Task, TaskStatus
from outlast.tests.domain.given import (
    DEPLOY,
    ERROR,
    RESULT,
    TTL_MS,
    YES,
    after,
    answers,
    asks,
    at,
    calls_back,
    calls_back_with,
    cancels,
    completes,
    delegated,
    delegates,
    ended,
    holds,
    loses,
    opened,
    running,
    starts,
)

UNTIL = at(120)

CALLBACKS: dict[str, Callable[[Task, int, str], Events]] = {
    "progress": lambda t, n, i: decisions.report_progress(t, n, 1, 2, "linking", at(20), i),
    "result": lambda t, n, i: decisions.complete(t, n, RESULT, at(20), i),
    "error": lambda t, n, i: decisions.fail(t, n, ERROR, at(20), i),
}
by_callback = pytest.mark.parametrize("calls", CALLBACKS.values(), ids=CALLBACKS)
by_end = pytest.mark.parametrize("task", ended().values(), ids=ended())


def test_a_delegated_task_is_working_and_wants_no_worker() -> None:
    task = delegated(UNTIL)
    assert (task.status, task.worker, task.attempt) == (TaskStatus.WORKING, None, 1)
    assert (task.is_running, task.is_runnable, task.is_parked) == (False, False, False)
    assert (task.is_delegated, task.delegated_until) == (True, UNTIL)
    with pytest.raises(errors.TaskNotRunnable):
        decisions.start_work(task, "worker-b", at(9))


@by_callback
def test_a_callback_of_the_delegated_attempt_counts(calls: Callable[..., Events]) -> None:
    task = after(delegated(UNTIL), calls(delegated(UNTIL), 1, "evt-1"))
    assert task.heard == ("evt-1",)


def test_a_job_completes_its_task_with_its_very_result() -> None:
    wire = detailed_task(after(delegated(UNTIL), calls_back("evt-1"), calls_back_with()))
    assert (wire["status"], wire["result"]) == ("completed", RESULT)


@by_callback
def test_a_callback_that_comes_again_changes_nothing(calls: Callable[..., Events]) -> None:
    task = after(delegated(UNTIL), calls(delegated(UNTIL), 1, "evt-1"))
    for again in CALLBACKS.values():
        assert again(task, 1, "evt-1") == ()


@by_callback
@by_end
def test_a_new_callback_to_an_ended_task_is_refused(
    calls: Callable[..., Events], task: Task
) -> None:
    with pytest.raises(errors.TaskAlreadyEnded):
        calls(task, task.attempt, "evt-1")


@by_callback
@pytest.mark.parametrize(
    "task",
    [
        running(),
        opened(),
        after(running(rerun_is_safe=True), loses()),
        after(running(rerun_is_safe=True), loses(), starts("worker-b")),
        after(running(rerun_is_safe=True), loses(), starts("worker-b"), delegates(UNTIL)),
        after(running(), asks(DEPLOY)),
    ],
    ids=["running", "queued", "lost", "run again", "delegated again", "parked"],
)
def test_a_callback_of_an_attempt_that_is_not_delegated_is_refused(
    calls: Callable[..., Events], task: Task
) -> None:
    with pytest.raises(errors.StaleAttempt):
        calls(task, 1, "evt-1")


@by_callback
def test_the_id_of_a_callback_says_nothing_to_another_attempt(calls: Callable[..., Events]) -> None:
    again = after(running(rerun_is_safe=True), loses(), starts("worker-b"), delegates(UNTIL))
    task = after(again, calls_back("evt-1"))
    with pytest.raises(errors.StaleAttempt):
        calls(task, 1, "evt-1")


def test_a_worker_has_no_say_over_a_task_that_it_gave_away() -> None:
    for wish in (completes(), loses(), asks(DEPLOY), delegates(UNTIL)):
        with pytest.raises(errors.StaleAttempt):
            wish(delegated(UNTIL))


# Progress.


def test_progress_that_is_behind_what_is_recorded_is_dropped() -> None:
    task = after(delegated(UNTIL), calls_back("evt-3", 3))
    assert calls_back("evt-2", 2)(task) == ()
    assert len(calls_back("evt-4", 3)(task)) == 1


def test_a_job_counts_from_its_own_start_whatever_the_tool_had_told() -> None:
    told = after(running(), decisions.report_progress(running(), 1, 9, 9, "handed over", at(2)))
    task = after(told, delegates(UNTIL))
    assert detailed_task(task)["statusMessage"] == "handed over"
    assert len(calls_back("evt-1", 1)(task)) == 1


def test_progress_within_a_second_of_the_last_is_too_soon() -> None:
    task = delegated(UNTIL)
    assert not jobs.is_too_soon(task, at(6))
    task = after(task, calls_back("evt-1", seconds=6))
    assert jobs.is_too_soon(task, at(6))
    assert jobs.is_too_soon(task, at(6.999))
    assert not jobs.is_too_soon(task, at(7))


def test_progress_is_not_recorded_near_the_cap_and_a_result_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decisions, "STREAM_EVENTS_MAX", 4 + decisions.STREAM_EVENTS_RESERVED)
    task = after(delegated(), calls_back("evt-1"))
    assert calls_back("evt-2", 2)(task) == ()
    assert after(task, calls_back_with()).status is TaskStatus.COMPLETED


# Cancel and questions.


def test_a_delegated_task_is_cancelled_at_once_and_the_late_result_is_refused() -> None:
    task = after(delegated(UNTIL), cancels())
    assert (task.status, task.is_delegated) == (TaskStatus.CANCELLED, False)
    with pytest.raises(errors.TaskAlreadyEnded):
        calls_back_with()(task)


def test_a_tool_that_delegates_after_a_cancel_request_ends_its_task() -> None:
    task = after(running(), cancels())
    (event,) = delegates(UNTIL)(task)
    assert isinstance(event, TaskCancelled)


def test_what_the_tool_had_asked_is_withdrawn_when_it_gives_the_work_away() -> None:
    task = after(running(), holds(DEPLOY), delegates(UNTIL))
    assert (task.status, task.outstanding) == (TaskStatus.WORKING, ())
    assert answers({"in-1": YES})(task) == ()


# Time.


def test_a_job_has_its_time_and_is_given_up_then() -> None:
    task = delegated(UNTIL)
    assert jobs.end_overdue(task, UNTIL - timedelta(milliseconds=1)) == ()
    failed = after(task, jobs.end_overdue(task, UNTIL))
    assert (failed.status, failed.error and failed.error["data"]) == (
        TaskStatus.FAILED,
        {"reason": "timeout"},
    )
    with pytest.raises(errors.TaskAlreadyEnded):
        calls_back_with()(failed)


@pytest.mark.parametrize(
    "task", [running(), delegated(), *ended().values()], ids=lambda task: task.status.value
)
def test_only_a_job_with_an_end_is_ever_overdue(task: Task) -> None:
    assert jobs.end_overdue(task, at(999_999)) == ()


def test_the_time_to_live_outlasts_the_job() -> None:
    long = at(TTL_MS / 1000 + 3_600)
    given, longer = delegates(long)(running())
    assert (type(given), type(longer)) == (WorkDelegated, TtlChanged)
    task = after(running(), (given, longer))
    assert task.expires_at is not None
    assert task.expires_at > long
    assert len(delegates(at(TTL_MS / 1000 - 1))(running())) == 1
    assert len(delegates(long)(running(ttl_ms=None))) == 1


def test_a_job_with_an_end_does_not_expire_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where a full stream has no room for a longer time to live."""
    monkeypatch.setattr(decisions, "STREAM_EVENTS_MAX", 2 + decisions.STREAM_EVENTS_RESERVED)
    long = at(TTL_MS / 1000 + 3_600)
    task = delegated(long)
    assert task.ttl_ms == TTL_MS
    assert decisions.expire(task, long - timedelta(seconds=1)) == ()
    assert len(decisions.expire(task, long)) == 1


def test_a_job_without_an_end_has_as_long_as_its_task_may_live() -> None:
    task = delegated(None)
    assert decisions.expire(task, at(TTL_MS / 1000 - 1)) == ()
    assert len(decisions.expire(task, at(TTL_MS / 1000))) == 1


# The queue.


def test_a_delegated_task_waits_for_its_end_or_leaves_the_queue() -> None:
    assert queueing(running(), delegated(UNTIL)) is Queueing.WAIT
    assert queueing(None, delegated(UNTIL)) is Queueing.WAIT
    assert queueing(running(), delegated(None)) is Queueing.DROP
    told = after(delegated(UNTIL), calls_back("evt-1"))
    assert queueing(delegated(UNTIL), told) is Queueing.KEEP
    assert queueing(told, after(told, calls_back_with())) is Queueing.DROP


def test_an_event_stored_before_callbacks_were_has_none() -> None:
    state = {"task_id": "t", "version": 3, "at": "x", "attempt": 1}
    state |= {"progress": 1.0, "total": None, "message": None}
    ProgressReported.upcast_v1_v2(state)
    assert ProgressReported(**state).callback_id is None
