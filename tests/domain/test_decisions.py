"""The rules of `domain/decisions.py`, one sentence each, beside the field cases they answer."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from outlast.domain import decisions, errors
from outlast.domain.change import detailed_task
from outlast.domain.decisions import Events
from outlast.domain.events import (
    TaskExpired,
    TaskFailed,
    TtlChanged,
    WorkLost,
)
from outlast.domain.queueing import Queueing, queueing
from outlast.domain.task import Task, TaskStatus
from outlast.tests.domain.given import (
    DEPLOY,
    ERROR,
    RESULT,
    START,
    TTL_MS,
    YES,
    after,
    answers,
    asks,
    at,
    cancels,
    completes,
    ended,
    fails,
    holds,
    loses,
    opened,
    parked,
    running,
    starts,
)

WORKER_WISHES: dict[str, Callable[[Task, int], Events]] = {
    "progress": lambda task, n: decisions.report_progress(task, n, 1, 2, None, at(9)),
    "leg": lambda task, n: decisions.finish_leg(task, n, [DEPLOY], "state", at(9)),
    "ask": lambda task, n: decisions.ask(task, n, DEPLOY, 0, at(9)),
    "complete": lambda task, n: decisions.complete(task, n, RESULT, at(9)),
    "fail": lambda task, n: decisions.fail(task, n, ERROR, at(9)),
    "stop": lambda task, n: decisions.stop(task, n, at(9)),
    "lose": lambda task, n: decisions.lose_work(task, n, "gone", at(9)),
    "withdraw": lambda task, n: decisions.withdraw_work(task, n, "not sent", at(9)),
    "extend": lambda task, n: decisions.extend_ttl(task, n, at(590)),
}
by_worker_wish = pytest.mark.parametrize("wish", WORKER_WISHES.values(), ids=WORKER_WISHES)
by_end = pytest.mark.parametrize("task", ended().values(), ids=ended())


# Terminal is final: field cases 1, 2, 46, 47, 56, 58, 83.


@pytest.mark.promise("terminal-is-final")
@by_end
@by_worker_wish
def test_a_worker_changes_nothing_on_an_ended_task(
    task: Task, wish: Callable[[Task, int], Events]
) -> None:
    with pytest.raises(errors.TaskAlreadyEnded):
        wish(task, task.attempt)


@by_end
def test_no_attempt_starts_on_an_ended_task(task: Task) -> None:
    with pytest.raises(errors.TaskAlreadyEnded):
        decisions.start_work(task, "worker-b", at(9))


@by_end
def test_cancelling_an_ended_task_changes_nothing(task: Task) -> None:
    assert decisions.request_cancel(task, at(9)) == ()


@by_end
def test_an_answer_to_an_ended_task_changes_nothing(task: Task) -> None:
    assert decisions.receive_input(task, {"in-1": YES}, at(9)) == ()


@by_end
def test_an_ended_task_does_not_expire(task: Task) -> None:
    assert decisions.expire(task, at(999_999)) == ()


def test_the_result_of_a_completed_task_survives_a_late_cancel() -> None:
    completed = after(running(), completes())
    assert detailed_task(after(completed, cancels(9))) == detailed_task(completed)


# The fence: a stale attempt is refused.


@pytest.mark.promise("stale-attempt-is-refused")
@by_worker_wish
def test_a_stale_attempt_is_refused(wish: Callable[[Task, int], Events]) -> None:
    second = after(running(rerun_is_safe=True), loses(), starts("worker-b"))
    with pytest.raises(errors.StaleAttempt) as refused:
        wish(second, 1)
    assert (refused.value.attempt, refused.value.current) == (1, 2)


@by_worker_wish
def test_an_attempt_that_was_lost_is_refused_although_none_follows(
    wish: Callable[[Task, int], Events],
) -> None:
    with pytest.raises(errors.StaleAttempt):
        wish(after(running(rerun_is_safe=True), loses()), 1)


@by_worker_wish
def test_an_attempt_that_parked_its_task_is_refused(wish: Callable[[Task, int], Events]) -> None:
    with pytest.raises(errors.StaleAttempt):
        wish(parked(), 1)


def test_attempts_count_up() -> None:
    task = after(running(rerun_is_safe=True), loses(), starts(), loses(), starts())
    assert (task.attempt, task.worker) == (3, "worker-a")


@pytest.mark.parametrize("task", [running(), parked()], ids=["running", "parked"])
def test_a_task_that_runs_or_is_parked_is_not_started(task: Task) -> None:
    with pytest.raises(errors.TaskNotRunnable):
        decisions.start_work(task, "worker-b", at(9))


# Outcomes: field cases 4, 16.


def test_an_is_error_result_is_a_completed_task_with_that_very_result() -> None:
    result = {"content": [{"type": "text", "text": "no such branch"}], "isError": True}
    wire = detailed_task(after(running(), completes(result)))
    assert (wire["status"], wire["result"]) == ("completed", result)


def test_a_json_rpc_error_is_a_failed_task_with_that_very_error() -> None:
    wire = detailed_task(after(running(), fails()))
    assert (wire["status"], wire["error"]) == ("failed", ERROR)


def test_a_completed_task_no_longer_shows_its_progress() -> None:
    told = after(running(), decisions.report_progress(running(), 1, 3, 4, "linting", at(2)))
    assert detailed_task(told)["statusMessage"] == "linting"
    assert "statusMessage" not in detailed_task(after(told, completes()))


@pytest.mark.parametrize(
    ("total", "message", "shown"), [(4, None, "3 of 4"), (None, None, "3"), (4, "lint", "lint")]
)
def test_progress_shows_the_message_or_else_the_amount(
    total: float | None, message: str | None, shown: str
) -> None:
    task = running()
    told = after(task, decisions.report_progress(task, 1, 3, total, message, at(2)))
    assert told.status_message == shown


def test_progress_does_not_hide_what_a_task_waits_for() -> None:
    waiting = after(running(), holds(DEPLOY))
    told = after(waiting, decisions.report_progress(waiting, 1, 3, 4, "linting", at(3)))
    assert told.status_message == "Waiting for input"


# Time: field case 17.


@pytest.mark.promise("times-are-stable")
def test_the_instant_of_creation_stays_the_very_string_that_was_sent_first() -> None:
    wire = [detailed_task(task)["createdAt"] for task in (opened(), running(), *ended().values())]
    assert set(wire) == {"2026-07-28T12:00:00.000Z"}


def test_time_does_not_run_backwards_when_a_replicas_clock_does() -> None:
    late = after(opened(), starts(seconds=50))
    assert after(late, completes(seconds=20)).updated_at == late.updated_at


def test_the_last_update_moves_with_a_change() -> None:
    assert after(running(), completes(seconds=7)).updated_at == "2026-07-28T12:00:07.000Z"


def test_instants_are_utc_with_milliseconds_cut_off() -> None:
    assert decisions.instant(START + timedelta(microseconds=1_999)) == "2026-07-28T12:00:00.001Z"


# Lost workers.


@pytest.mark.promise("unsafe-tool-never-runs-twice")
def test_a_tool_that_is_not_safe_to_run_again_fails_with_its_worker() -> None:
    task = after(running(rerun_is_safe=False), loses())
    assert task.error is not None
    assert (task.status, task.error["data"]) == (TaskStatus.FAILED, {"reason": "worker_lost"})


def test_a_tool_that_is_safe_to_run_again_waits_for_the_next_worker() -> None:
    task = after(running(rerun_is_safe=True), loses())
    assert (task.status, task.is_runnable) == (TaskStatus.WORKING, True)


def test_an_unsafe_tool_with_a_checkpoint_resumes_from_it() -> None:
    task = after(running(rerun_is_safe=False), asks(state="half-way"), loses())
    assert (task.is_runnable, task.request_state) == (True, "half-way")


def test_a_task_that_outlives_no_worker_is_given_up() -> None:
    task = opened(rerun_is_safe=True)
    for _ in range(decisions.LOSSES_MAX):
        assert task.is_runnable
        task = after(task, starts(), loses())
    assert task.status is TaskStatus.FAILED


def hands_back(task: Task) -> Events:
    return decisions.lose_work(task, task.attempt, "shutdown", at(5), was_told=True)


def test_a_worker_that_is_told_to_stop_does_not_count_as_lost_by_the_task() -> None:
    task = opened(rerun_is_safe=True)
    for _ in range(decisions.LOSSES_MAX + 1):
        task = after(task, starts(), hands_back)
    assert (task.is_runnable, task.losses) == (True, 0)


def test_a_finished_leg_forgets_the_losses_before_it() -> None:
    task = after(running(rerun_is_safe=True), loses(), starts(), asks(state="half-way"))
    assert task.losses == 0


def withdraws(task: Task) -> Events:
    return decisions.withdraw_work(task, task.attempt, "no connection", at(5))


def test_an_unsafe_tool_whose_call_was_never_sent_is_tried_again_however_often() -> None:
    task = opened(rerun_is_safe=False)
    for _ in range(decisions.LOSSES_MAX + 1):
        task = after(task, starts(), withdraws)
    assert (task.is_runnable, task.losses) == (True, 0)


def test_a_call_that_was_never_sent_is_not_tried_again_after_a_cancel_request() -> None:
    assert after(running(), cancels(), withdraws).status is TaskStatus.CANCELLED


# Time to live: field cases 64, 65, 67, 73, 85.


@pytest.mark.parametrize("task", [opened(), parked()], ids=["no worker came", "nobody answered"])
def test_a_task_that_does_not_run_expires_a_ttl_after_its_creation(task: Task) -> None:
    assert decisions.expire(task, at(TTL_MS / 1000 - 0.001)) == ()
    (expired,) = decisions.expire(task, at(TTL_MS / 1000))
    assert isinstance(expired, TaskExpired)
    after_it = after(task, (expired,))
    assert (after_it.status, after_it.outstanding) == (TaskStatus.FAILED, ())


def test_a_running_attempt_does_not_expire_under_its_worker() -> None:
    assert decisions.expire(running(), at(999_999)) == ()


def test_a_lost_attempt_of_an_expired_task_expires() -> None:
    task = after(running(rerun_is_safe=True), loses(TTL_MS / 1000))
    assert len(decisions.expire(task, at(TTL_MS / 1000))) == 1


def test_an_attempt_that_comes_too_late_expires_the_task_instead() -> None:
    (expired,) = decisions.start_work(opened(ttl_ms=1), "worker-a", at(1))
    assert isinstance(expired, TaskExpired)


def test_running_work_gets_more_time_once_half_of_it_is_gone() -> None:
    task = running()
    assert decisions.extend_ttl(task, 1, at(299)) == ()
    (changed,) = decisions.extend_ttl(task, 1, at(300))
    assert isinstance(changed, TtlChanged)
    assert detailed_task(after(task, (changed,)))["ttlMs"] == 300_000 + TTL_MS


def test_a_tiny_time_to_live_is_extended_by_the_least_amount() -> None:
    task = after(opened(ttl_ms=10_000), starts())
    assert after(task, decisions.extend_ttl(task, 1, at(5))).ttl_ms == 65_000


def test_an_unlimited_task_neither_expires_nor_is_extended() -> None:
    task = running(ttl_ms=None)
    assert decisions.extend_ttl(task, 1, at(999_999)) == ()
    assert decisions.expire(opened(ttl_ms=None), at(999_999)) == ()
    assert detailed_task(after(task, completes()))["ttlMs"] is None


def test_an_outcome_stays_readable_for_a_while_even_when_it_comes_late() -> None:
    task = after(running(), completes(seconds=TTL_MS / 1000 - 1))
    assert task.ttl_ms == TTL_MS - 1_000 + decisions.END_GRACE_MS
    assert after(running(), completes(seconds=1)).ttl_ms == TTL_MS


def test_a_clock_before_the_creation_does_not_shorten_that_while() -> None:
    task = after(opened(ttl_ms=1_000), starts(seconds=0), completes(seconds=-3_600))
    assert task.ttl_ms == decisions.END_GRACE_MS


# The cap of a stream.


@pytest.fixture
def small_cap(monkeypatch: pytest.MonkeyPatch) -> int:
    """A stream of 20 events, whose last 8 are kept for its end."""
    monkeypatch.setattr(decisions, "STREAM_EVENTS_MAX", 20)
    return 20


def nearly_full(task: Task) -> Task:
    while told := decisions.report_progress(task, task.attempt, 1, None, None, at(2)):
        task = after(task, told)
    return task


def test_progress_is_no_longer_recorded_on_a_full_stream(small_cap: int) -> None:
    assert nearly_full(running()).version == small_cap - decisions.STREAM_EVENTS_RESERVED


def test_a_full_stream_has_no_place_for_more_time(small_cap: int) -> None:
    assert decisions.extend_ttl(nearly_full(running()), 1, at(599)) == ()


def test_a_full_stream_still_takes_its_result(small_cap: int) -> None:
    assert after(nearly_full(running()), completes()).status is TaskStatus.COMPLETED


def test_a_leg_that_ends_on_a_full_stream_fails_the_task_by_name(small_cap: int) -> None:
    task = after(nearly_full(running()), asks(DEPLOY))
    assert task.error is not None
    assert task.error["data"] == {"reason": "too_many_events"}


def test_a_question_on_a_full_stream_is_refused(small_cap: int) -> None:
    with pytest.raises(errors.StreamFull):
        decisions.ask(nearly_full(running()), 1, DEPLOY, 0, at(9))


def test_a_worker_lost_on_a_full_stream_ends_the_task(small_cap: int) -> None:
    task = nearly_full(running(rerun_is_safe=True))
    lost, failed = decisions.lose_work(task, 1, "gone", at(9))
    assert isinstance(lost, WorkLost)
    assert isinstance(failed, TaskFailed)


def test_a_call_that_cannot_be_sent_before_the_stream_is_full_fails_by_name(
    small_cap: int,
) -> None:
    task = after(nearly_full(running()), withdraws)
    assert task.error is not None
    assert task.error["data"] == {"reason": "too_many_events"}


def test_a_full_stream_takes_all_answers_at_once_but_no_part_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decisions, "STREAM_EVENTS_MAX", 12)
    task = parked()
    assert after(task, answers({"in-1": YES, "in-2": YES})).is_runnable
    assert after(task, answers({"in-1": YES})).status is TaskStatus.FAILED


# The run queue follows from the change.


@pytest.mark.parametrize(
    ("before", "after_it", "expected"),
    [
        (None, opened(), Queueing.PUT),
        (None, running(), Queueing.LEASE),
        (opened(), running(), Queueing.KEEP),
        (running(), parked(), Queueing.DROP),
        (parked(), after(parked(), answers({"in-1": YES})), Queueing.DROP),
        (parked(), after(parked(), answers({"in-1": YES, "in-2": YES})), Queueing.PUT),
        (running(rerun_is_safe=True), after(running(rerun_is_safe=True), loses()), Queueing.PUT),
        (running(), after(running(), completes()), Queueing.DROP),
        (parked(), after(parked(), cancels()), Queueing.DROP),
    ],
)
def test_the_run_queue_holds_what_runs_or_wants_to(
    before: Task | None, after_it: Task, expected: Queueing
) -> None:
    assert queueing(before, after_it) is expected


def test_a_task_that_stays_runnable_keeps_the_lease_that_it_has() -> None:
    lost: Any = after(running(rerun_is_safe=True), holds(DEPLOY), loses())
    assert queueing(lost, after(lost, answers({"in-1": YES}))) is Queueing.KEEP
