"""The rules for what a task asks its client, and for wanting it stopped, one sentence each."""

import pytest

from outlast.domain import decisions, errors
from outlast.domain.change import detailed_task
from outlast.domain.decisions import Ask
from outlast.domain.events import CancelRequested, InputReceived, TaskCancelled
from outlast.domain.task import Task, TaskStatus
from outlast.tests.domain.given import (
    DEPLOY,
    ERROR,
    NO,
    REGION,
    RESULT,
    YES,
    after,
    answers,
    asks,
    at,
    cancels,
    completes,
    fails,
    holds,
    loses,
    opened,
    parked,
    running,
    starts,
    stops,
)

# Questions: field cases 8, 40 to 47.


def test_a_leg_that_asks_parks_the_task_with_our_keys() -> None:
    task = parked()
    assert detailed_task(task)["inputRequests"] == {
        "in-1": DEPLOY.request,
        "in-2": REGION.request,
    }
    assert (task.is_parked, task.worker, task.has_checkpoint) == (True, None, True)


def test_a_leg_that_asks_for_nothing_and_carries_no_state_fails_the_task() -> None:
    task = after(running(), asks(state=None))
    assert task.error is not None
    assert task.error["data"] == {"reason": "no_question"}


def test_a_leg_that_only_carries_state_is_a_checkpoint_and_runs_on() -> None:
    task = after(running(), asks(state="half-way"))
    assert (task.is_running, task.leg, task.request_state) == (True, 1, "half-way")
    assert task.leg_answers is None


def test_a_part_of_the_answers_does_not_resume_the_task() -> None:
    task = after(parked(), answers({"in-1": YES}))
    assert detailed_task(task)["inputRequests"] == {"in-2": REGION.request}
    assert task.is_parked


@pytest.mark.parametrize("order", [("in-1", "in-2"), ("in-2", "in-1")])
def test_two_updates_that_answer_one_key_each_both_land(order: tuple[str, str]) -> None:
    task = after(parked(), *(answers({key: YES}) for key in order))
    assert (task.status, task.is_runnable) == (TaskStatus.WORKING, True)
    assert task.leg_answers == {DEPLOY.name: YES, REGION.name: YES}


def test_the_same_update_twice_resumes_once_and_keeps_the_first_answer() -> None:
    once = after(parked(), answers({"in-1": YES, "in-2": YES}))
    assert decisions.receive_input(once, {"in-1": NO, "in-2": NO}, at(9)) == ()


def test_a_repeated_update_is_ignored_once_the_next_attempt_runs() -> None:
    again = after(parked(), answers({"in-1": YES, "in-2": YES}), starts())
    assert decisions.receive_input(again, {"in-1": YES}, at(9)) == ()


def test_unknown_keys_are_ignored_while_the_good_ones_of_the_update_count() -> None:
    (received,) = decisions.receive_input(parked(), {"in-1": YES, "in-9": YES, "x": NO}, at(9))
    assert isinstance(received, InputReceived)
    assert received.answers == {"in-1": YES}


def test_an_update_of_unknown_keys_alone_changes_nothing() -> None:
    assert decisions.receive_input(parked(), {"in-9": YES, "upstream-deploy": YES}, at(9)) == ()


@pytest.mark.promise("input-keys-are-never-reused")
def test_the_same_question_in_a_later_leg_gets_a_fresh_key() -> None:
    task = after(parked(), answers({"in-1": YES, "in-2": YES}), starts(), asks(DEPLOY))
    assert [question.key for question in task.outstanding] == ["in-3"]
    assert decisions.receive_input(task, {"in-1": YES}, at(9)) == ()


def test_a_leg_gets_its_own_answers_and_not_those_of_an_earlier_one() -> None:
    second = after(parked(), answers({"in-1": YES, "in-2": YES}), starts(), asks(DEPLOY))
    assert after(second, answers({"in-3": NO})).leg_answers == {DEPLOY.name: NO}


def test_an_empty_answer_is_an_answer() -> None:
    task = after(running(), asks(DEPLOY), answers({"in-1": {}}))
    assert task.leg_answers == {DEPLOY.name: {}}


def test_the_first_leg_carries_what_was_answered_before_the_task_was_opened() -> None:
    assert opened(carried_answers={"upstream-deploy": YES}).leg_answers == {"upstream-deploy": YES}


# Questions that a call asks while it stays open.


def test_a_held_question_leaves_the_attempt_running() -> None:
    task = after(running(), holds(DEPLOY))
    assert (task.status, task.is_running) == (TaskStatus.INPUT_REQUIRED, True)
    assert after(task, answers({"in-1": YES})).status is TaskStatus.WORKING


@pytest.mark.promise("answered-is-never-asked-again")
def test_a_held_question_is_not_asked_again_after_a_crash_and_its_answer_is_replayed() -> None:
    task = after(running(rerun_is_safe=True), holds(DEPLOY), answers({"in-1": YES}))
    task = after(task, loses(), starts("worker-b"))
    assert decisions.ask(task, 2, DEPLOY, 0, at(9)) == ()
    question = decisions.asked(task, DEPLOY, 0)
    assert question is not None
    assert (question.key, question.answer) == ("in-1", YES)


def test_a_held_question_still_waits_under_its_key_after_a_crash() -> None:
    task = after(running(rerun_is_safe=True), holds(DEPLOY), loses())
    assert (task.status, task.is_runnable) == (TaskStatus.INPUT_REQUIRED, True)
    task = after(task, starts("worker-b"))
    assert decisions.ask(task, 2, DEPLOY, 0, at(9)) == ()
    assert [question.key for question in task.outstanding] == ["in-1"]


def test_the_second_asking_of_the_same_question_is_a_new_question() -> None:
    task = after(running(), holds(DEPLOY, 0), answers({"in-1": YES}), holds(DEPLOY, 1))
    assert [question.key for question in task.outstanding] == ["in-2"]


def test_an_answer_of_an_earlier_leg_does_not_satisfy_the_same_question_of_a_later_one() -> None:
    task = after(running(), holds(DEPLOY), answers({"in-1": YES}), asks(state="half-way"))
    task = after(task, loses(), starts("worker-b"))
    assert decisions.asked(task, DEPLOY, 0) is None
    assert len(decisions.ask(task, 2, DEPLOY, 0, at(9))) == 1


# Cancel: field cases 53, 55, 56, 58, 61.


@pytest.mark.parametrize(
    "task",
    [opened(), parked(), after(parked(), answers({"in-1": YES, "in-2": YES}))],
    ids=["waiting for a worker", "parked", "answered"],
)
def test_cancelling_a_task_that_nobody_runs_ends_it_at_once(task: Task) -> None:
    wanted, cancelled = decisions.request_cancel(task, at(9))
    assert isinstance(wanted, CancelRequested)
    assert isinstance(cancelled, TaskCancelled)
    after_it = after(task, (wanted, cancelled))
    assert (after_it.status, after_it.outstanding) == (TaskStatus.CANCELLED, ())
    assert decisions.receive_input(after_it, {"in-1": YES, "in-2": YES}, at(10)) == ()


def test_cancelling_a_running_task_leaves_the_outcome_to_its_attempt() -> None:
    task = after(running(), cancels())
    assert (task.status, task.is_running) == (TaskStatus.WORKING, True)
    assert after(task, stops()).status is TaskStatus.CANCELLED


def test_a_second_cancel_changes_nothing() -> None:
    assert decisions.request_cancel(after(running(), cancels()), at(9)) == ()


def test_a_result_that_comes_after_the_cancel_request_counts() -> None:
    assert after(running(), cancels(), completes()).result == RESULT


def test_an_error_after_the_cancel_request_stays_an_error() -> None:
    task = after(running(), cancels(), fails())
    assert (task.status, task.error) == (TaskStatus.FAILED, ERROR)


def test_a_body_that_nobody_asked_to_stop_cannot_be_called_cancelled() -> None:
    with pytest.raises(errors.TaskNotRunnable):
        decisions.stop(running(), 1, at(9))


def test_a_cancel_request_withdraws_what_was_asked() -> None:
    task = after(running(), holds(DEPLOY), cancels())
    assert (task.status, task.outstanding) == (TaskStatus.WORKING, ())
    assert decisions.receive_input(task, {"in-1": YES}, at(9)) == ()


def test_nothing_more_is_asked_after_a_cancel_request() -> None:
    with pytest.raises(errors.TaskNotRunnable):
        decisions.ask(after(running(), cancels()), 1, DEPLOY, 0, at(9))


@pytest.mark.parametrize("wanted", [(DEPLOY,), ()], ids=["questions", "state only"])
def test_a_leg_that_ends_after_a_cancel_request_ends_the_task(wanted: tuple[Ask, ...]) -> None:
    task = after(running(), cancels(), asks(*wanted))
    assert (task.status, task.outstanding) == (TaskStatus.CANCELLED, ())


def test_a_worker_lost_after_a_cancel_request_leaves_a_cancelled_task() -> None:
    assert after(running(rerun_is_safe=True), cancels(), loses()).status is TaskStatus.CANCELLED
