"""A job that is looked at: what looks may record, in any order with everybody else's wishes."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from outlast.domain import decisions, errors, jobs
from outlast.domain.decisions import Ask
from outlast.domain.events import JobSeen, ProgressReported, TtlChanged, WorkFollowed
from outlast.domain.jobs import Sight
from outlast.domain.queueing import Queueing, queueing
from outlast.domain.task import Task, TaskStatus
from outlast.tests.domain.given import (
    DEPLOY,
    REGION,
    RESULT,
    YES,
    after,
    answers,
    at,
    cancels,
    completes,
    holds,
    opened,
    running,
)
from outlast.tests.domain.test_invariants import ASKS, BEHIND, LIMITS, AnyWishInAnyOrder

JOB = {"kind": "test", "id": "job-secret-1"}
UNTIL = at(100)
THE_JOB = -1  # among those who ask, beside the attempts


class LooksInAnyOrder(AnyWishInAnyOrder):
    """Everybody's wishes, and looks at a job that any attempt may have started."""

    @rule(
        behind=BEHIND,
        seconds=st.none() | st.sampled_from([-5, 30, 3_000]),
        first=st.sampled_from([0, 5, 90]),
    )
    def follow(self, behind: int, seconds: float | None, first: float) -> None:
        until = None if seconds is None else self.now + timedelta(seconds=seconds)
        look_at = self.now + timedelta(seconds=first)
        was_running = self.task.is_running
        new = self._work(jobs.follow, behind, JOB, until, look_at)
        if new:
            assert was_running
            assert self.task.is_followed
            assert self.task.waits_until is not None
            assert not self.task.cancel_requested or self.task.waits_until <= look_at
            assert jobs.to_tell(self.task) == []

    @rule(
        behind=BEHIND,
        sight=st.builds(
            Sight,
            st.none() | st.text(max_size=3),
            st.none() | st.floats(0, 1e9),
            st.none() | st.integers(1, 9),
        ),
        more=st.sampled_from([{}, {"stopped": True}, {"unknown_since": "x"}]),
    )
    def see(self, behind: int, sight: Sight, more: dict[str, Any]) -> None:
        """What was seen is recorded once: the same look tells nothing more."""
        known = {**(self.task.job or {}), **more}
        before = self.task
        if not before.is_followed:
            return
        if self._work(jobs.see_job, behind, sight, known):
            assert self.task.is_followed
            assert (self.task.progress or 0) >= (before.progress or 0)
            assert jobs.see_job(self.task, self.task.attempt, sight, known, self.now) == ()

    @rule(behind=BEHIND, wanted=st.lists(st.sampled_from(ASKS), min_size=1, max_size=3))
    def a_job_asks(self, behind: int, wanted: list[Ask]) -> None:
        """Each thing once, however often it is seen to ask; what is answered is to be told."""
        if not self.task.is_followed:
            return
        unique = list({ask.name: ask for ask in wanted}.values())
        is_late = decisions.is_overdue(self.task, self.now)
        new = self._work(jobs.ask_for_job, behind, unique)
        self._count_for_the_job()
        if new and not self.task.status.is_terminal:
            assert not is_late
            assert jobs.ask_for_job(self.task, self.task.attempt, unique, self.now) == ()
            assert self.task.outstanding

    @rule(seconds=st.sampled_from([0.0004, 20, 400]), is_cancelled=st.booleans())
    def a_job_waits_for_its_client(self, seconds: float, is_cancelled: bool) -> None:
        """However long it takes: what it had left before, it has left after."""
        end, asked_at = self.task.delegated_until, self.task.waiting_since
        if end is None or asked_at is None:
            return
        self.now += timedelta(seconds=seconds)
        assert not decisions.is_overdue(self.task, self.now)
        assert self._wish(jobs.end_overdue) == ()
        if is_cancelled:
            self._wish(decisions.request_cancel)
        else:
            self._wish(decisions.receive_input, {q.key: YES for q in self.task.outstanding})
        if not self.task.status.is_terminal:
            waited = datetime.fromisoformat(self.task.updated_at) - datetime.fromisoformat(asked_at)
            assert self.task.due_at == end + waited

    @rule(behind=BEHIND)
    def a_job_goes_on(self, behind: int) -> None:
        """Its task lives to its end, and is not told of more while it waits for its client."""
        new = self._work(jobs.prolong, behind) if self.task.is_followed else ()
        expires_at, due_at = self.task.expires_at, self.task.due_at
        assert not (new and self.task.outstanding)
        if self.task.is_followed and not behind and expires_at and due_at:
            assert expires_at >= due_at or decisions.is_full(self.task)

    def _count_for_the_job(self) -> None:
        """What it has asked stands for a call that asks the same, as another attempt's does."""
        for ask in ASKS:
            same = [q for q in self.task.questions if q.held and q.request == ask.request]
            count = sum(q.leg == self.task.leg for q in same)
            self.asked_by_attempt[(self.task.leg, THE_JOB, ask.name)] = count

    @precondition(lambda self: self.task.version > 8)
    @rule(behind=BEHIND)
    def a_job_was_cancelled(self, behind: int) -> None:
        if self.task.is_followed:
            self._work(jobs.end_as_cancelled, behind)


def test_random_histories_with_looks_keep_the_invariants() -> None:
    run_state_machine_as_test(LooksInAnyOrder, settings=LIMITS)


def followed(until: Any = UNTIL, **changes: Any) -> Task:
    """A task whose job is looked at, first five seconds after its call began."""
    task = running(**changes)
    return after(task, jobs.follow(task, 1, JOB, until, at(8), at(3)))


def sees(task: Task, sight: Sight, seconds: float = 9, **more: Any) -> decisions.Events:
    return jobs.see_job(task, 1, sight, {**(task.job or {}), **more}, at(seconds))


def test_a_followed_task_is_working_waits_for_its_first_look_and_holds_no_worker() -> None:
    task = followed()
    assert (task.status, task.is_running, task.is_runnable) == (TaskStatus.WORKING, False, False)
    assert (task.waits_until, task.delegated_until) == (at(8), UNTIL)
    assert queueing(running(), task) is Queueing.WAIT
    assert queueing(None, task) is Queueing.WAIT


def test_a_job_is_followed_only_by_the_attempt_that_runs() -> None:
    for task in (opened(), followed(), after(running(), completes())):
        with pytest.raises((errors.StaleAttempt, errors.TaskAlreadyEnded)):
            jobs.follow(task, 1, JOB, None, at(8), at(3))


def test_only_the_looks_at_this_attempts_job_are_heard() -> None:
    task = followed()
    with pytest.raises(errors.StaleAttempt):
        jobs.see_job(task, 2, Sight("new"), JOB, at(9))
    with pytest.raises(errors.TaskNotRunnable):
        decisions.start_work(task, "worker-b", at(9))
    ended = after(task, decisions.complete(task, 1, RESULT, at(9)))
    assert (ended.status, ended.is_followed) == (TaskStatus.COMPLETED, False)
    with pytest.raises(errors.TaskAlreadyEnded):
        sees(ended, Sight("new"))


def test_what_is_seen_again_is_not_recorded_again() -> None:
    task = followed()
    new = sees(task, Sight("linking", 40, 100))
    assert [type(event) for event in new] == [ProgressReported]
    task = after(task, new)
    assert task.status_message == "linking"
    assert sees(task, Sight("linking", 40, 100)) == ()
    assert sees(task, Sight("linking", 30, 100)) == ()  # one that runs backwards
    assert [type(event) for event in sees(task, Sight("testing", 40, 100))] == [JobSeen]
    assert [type(event) for event in sees(task, Sight("linking", 40, 100), stopped=True)] == [
        JobSeen
    ]


def test_a_message_that_is_gone_is_taken_back() -> None:
    task = after(followed(), sees(followed(), Sight("out of sight")))
    assert after(task, sees(task, Sight())).status_message is None


def test_a_cancelled_task_stays_followed_and_is_looked_at_now() -> None:
    before = followed()
    task = after(before, cancels())
    assert (task.status, task.is_followed) == (TaskStatus.WORKING, True)
    assert queueing(before, task) is Queueing.PUT
    assert decisions.request_cancel(task, at(9)) == ()
    task = after(task, sees(task, Sight("still there"), stopped=True))
    assert (task.status_message, task.job and task.job["stopped"]) == (
        "Cancellation requested",
        True,
    )
    assert sees(task, Sight("another thing")) == ()
    gone = after(task, jobs.end_as_cancelled(task, 1, at(10)))
    assert (gone.status, gone.status_message) == (TaskStatus.CANCELLED, "Cancelled on request")


def test_a_job_that_begins_after_the_cancel_request_is_looked_at_now() -> None:
    task = after(running(), cancels(4))
    task = after(task, jobs.follow(task, 1, JOB, None, at(60), at(5)))
    assert task.waits_until == at(5)


def test_a_job_that_its_upstream_cancelled_says_so() -> None:
    task = followed()
    gone = after(task, jobs.end_as_cancelled(task, 1, at(10)))
    assert gone.status_message == "The job was cancelled at its upstream"


def test_a_job_asks_each_thing_once_and_answers_are_told_once() -> None:
    task = after(running(), holds(REGION))
    task = after(task, jobs.follow(task, 1, JOB, None, at(8), at(3)))
    assert task.outstanding == ()  # of the tool itself, which has returned
    before = after(task, jobs.ask_for_job(task, 1, [DEPLOY], at(9)))
    assert before.status is TaskStatus.INPUT_REQUIRED
    assert (before.is_parked, before.is_followed) == (False, True)
    assert jobs.ask_for_job(before, 1, [DEPLOY], at(10)) == ()
    task = after(before, answers({"in-2": YES}))
    assert queueing(before, task) is Queueing.PUT
    assert [(q.name, q.answer) for q in jobs.to_tell(task)] == [(DEPLOY.name, YES)]
    assert jobs.ask_for_job(task, 1, [DEPLOY], at(11)) == ()
    told = [*(task.job or {})["told"], "in-2"]
    assert jobs.to_tell(after(task, sees(task, Sight(), told=told))) == []


def test_a_look_at_what_waits_for_its_client_leaves_the_row_alone() -> None:
    before = followed()
    asked = after(before, jobs.ask_for_job(before, 1, [DEPLOY], at(9)))
    assert queueing(before, asked) is Queueing.KEEP
    assert queueing(asked, after(asked, sees(asked, Sight(), more=1))) is Queueing.KEEP


def test_the_time_to_live_outlasts_the_job_and_grows_where_it_has_no_end() -> None:
    task = running(ttl_ms=50_000)
    given, longer = jobs.follow(task, 1, JOB, UNTIL, at(8), at(3))
    assert (type(given), type(longer)) == (WorkFollowed, TtlChanged)
    task = followed(None, ttl_ms=50_000)
    assert decisions.expire(task, at(9_999)) == ()
    assert [type(e) for e in decisions.extend_ttl(task, 1, at(40))] == [TtlChanged]


def test_a_job_that_waits_for_its_client_ends_with_its_time_to_live() -> None:
    task = followed(None)
    task = after(task, jobs.ask_for_job(task, 1, [DEPLOY], at(9)))
    assert after(task, decisions.expire(task, at(601))).status is TaskStatus.FAILED


def test_a_job_whose_time_is_up_is_given_up() -> None:
    task = followed()
    assert jobs.end_overdue(task, at(99)) == ()
    ended = after(task, jobs.end_overdue(task, UNTIL))
    assert ended.error == decisions.failure(
        "timeout", "The job did not finish within its time limit"
    )


def test_a_full_stream_takes_no_more_of_what_is_seen_but_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decisions, "STREAM_EVENTS_MAX", 3 + decisions.STREAM_EVENTS_RESERVED)
    task = followed()
    assert sees(task, Sight("new", 1)) == ()
    assert after(task, decisions.fail(task, 1, {"code": 1, "message": "no"}, at(9))).error
    asked = after(task, jobs.ask_for_job(task, 1, [DEPLOY], at(9)))
    assert asked.error is not None
    assert asked.error["data"] == {"reason": "too_many_events"}
