"""A followed job that waits for its client: that time is not the job's, whoever ends the wait."""

from dataclasses import replace
from datetime import timedelta

import pytest

from outlast.adapters import codec, snapshots
from outlast.domain import decisions, events, jobs
from outlast.domain.decisions import Ask
from outlast.domain.events import TaskEvent, TtlChanged
from outlast.domain.task import Task, TaskStatus, fold
from outlast.tests.domain import invariants
from outlast.tests.domain.given import DEPLOY, REGION, TTL_MS, YES, Wish, after, answers, at
from outlast.tests.domain.test_following import UNTIL, followed


def asks(*wanted: Ask, seconds: float) -> Wish:
    return lambda task: jobs.ask_for_job(task, 1, wanted, at(seconds))


def prolongs(seconds: float) -> Wish:
    return lambda task: jobs.prolong(task, 1, at(seconds))


def times_out(task: Task, seconds: float) -> bool:
    """Whether it does then, and not a moment before."""
    ended = after(task, jobs.end_overdue(task, at(seconds)))
    early = jobs.end_overdue(task, at(seconds) - timedelta(milliseconds=1))
    return (ended.error or {}).get("data") == {"reason": "timeout"} and early == ()


@pytest.mark.parametrize(
    "withdraws",
    [
        answers({"in-1": YES}, seconds=90),
        lambda task: decisions.request_cancel(task, at(90)),
    ],
    ids=["answered", "withdrawn"],
)
def test_the_time_that_a_job_waits_for_its_client_is_not_its_own(withdraws: Wish) -> None:
    asked = after(followed(), asks(DEPLOY, seconds=20))
    assert (asked.due_at, asked.delegated_until) == (None, UNTIL)
    assert not decisions.is_overdue(asked, at(500))
    assert jobs.end_overdue(asked, at(500)) == ()
    task = after(asked, withdraws)
    assert (task.status, task.waiting_since) == (TaskStatus.WORKING, None)
    assert task.due_at == UNTIL + timedelta(seconds=70)
    assert times_out(task, 170)


def test_several_questions_are_one_wait_and_the_next_one_is_another() -> None:
    task = after(followed(), asks(DEPLOY, seconds=20), asks(DEPLOY, REGION, seconds=30))
    task = after(task, answers({"in-1": YES}, seconds=40))
    assert (task.due_at, len(task.outstanding)) == (None, 1)
    task = after(task, answers({"in-2": YES}, seconds=50))
    assert task.due_at == UNTIL + timedelta(seconds=30)
    third = Ask("upstream-third", {"method": "elicitation/create", "params": {}})
    task = after(task, asks(third, seconds=60), answers({"in-3": YES}, seconds=65))
    assert times_out(task, 135)


def test_a_job_without_an_end_has_none_after_a_wait_either() -> None:
    task = after(followed(None), asks(DEPLOY, seconds=20), answers({"in-1": YES}, seconds=40))
    assert (task.due_at, task.waiting_since) == (None, None)


def test_a_job_that_has_had_its_time_asks_nothing_more() -> None:
    """Else somebody would answer for nothing: the time is as much up after the answer."""
    task = followed()
    assert asks(DEPLOY, seconds=100)(task) == ()
    assert len(asks(DEPLOY, seconds=99.999)(task)) == 1
    waits = after(task, asks(DEPLOY, seconds=99))
    assert len(asks(DEPLOY, REGION, seconds=200)(waits)) == 1


# What it has of time to live.


def test_a_job_that_waits_has_as_long_as_its_client_was_told() -> None:
    task = after(followed(), asks(DEPLOY, seconds=20))
    assert prolongs(TTL_MS / 1000 - 1)(task) == ()
    assert decisions.expire(task, at(TTL_MS / 1000 - 0.001)) == ()
    ended = after(task, decisions.expire(task, at(TTL_MS / 1000)))
    assert (ended.error or {})["data"] == {"reason": "expired"}
    assert (ended.waiting_since, ended.delegated_until) == (None, None)


def test_the_time_to_live_follows_the_end_that_a_wait_has_moved() -> None:
    task = followed(at(550))
    assert prolongs(20)(task) == ()
    task = after(task, asks(DEPLOY, seconds=20), answers({"in-1": YES}, seconds=120))
    (longer,) = prolongs(121)(task)
    assert isinstance(longer, TtlChanged)
    task = after(task, (longer,))
    assert task.expires_at == at(650) + timedelta(milliseconds=decisions.EXTENSION_MS_MIN)
    assert prolongs(500)(task) == ()


def test_a_job_without_an_end_is_given_more_time_to_live_as_before() -> None:
    task = followed(None)
    assert prolongs(20)(task) == ()
    assert [type(event) for event in prolongs(400)(task)] == [TtlChanged]


def test_only_who_looks_at_the_job_prolongs_it() -> None:
    with pytest.raises(decisions.errors.StaleAttempt):
        jobs.prolong(followed(), 2, at(20))


# The history says all of it.


def _history(*wishes: Wish) -> list[TaskEvent]:
    """A job with time until second 100, and what comes of the wishes."""
    task = followed()
    given = events.WorkFollowed("task-1", 3, _told(3), 1, task.job or {}, _told(100), _told(8))
    start = events.WorkStarted("task-1", 2, _told(1), 1, "worker-a")
    history: list[TaskEvent] = [task.opened, start, given]
    for wish in wishes:
        new = wish(task)
        history += new
        task = after(task, new)
    return history


def _told(seconds: float) -> str:
    return decisions.instant(at(seconds))


WAITED = (asks(DEPLOY, seconds=20), answers({"in-1": YES}, seconds=90))


def test_a_snapshot_in_the_middle_of_a_wait_ends_it_as_the_history_does() -> None:
    history = _history(*WAITED)
    for place in range(1, len(history) + 1):
        then = fold(history[:place])
        assert then is not None
        kept = snapshots.decoded(snapshots.encoded(then))
        assert list(vars(kept)) == list(vars(then))
        assert fold(history[place:], kept) == fold(history)


def test_a_task_that_was_kept_before_waits_were_known_is_read() -> None:
    task = after(followed(), *WAITED)
    facts = codec.decode(snapshots.encoded(task))
    del facts["waiting_since"]
    assert snapshots.decoded(codec.encode(facts)) == task


def _fails_at(seconds: float) -> Wish:
    error = decisions.failure("timeout", "The job did not finish within its time limit")
    return lambda task: (decisions.failed(task, error, at(seconds)),)


@pytest.mark.parametrize(
    "wishes",
    [
        (asks(DEPLOY, seconds=20), _fails_at(101)),
        (*WAITED, _fails_at(169)),
        (_fails_at(99),),
    ],
    ids=["while it waits", "as if it had not waited", "before its time"],
)
def test_the_invariant_knows_a_job_that_was_given_up_too_soon(wishes: tuple[Wish, ...]) -> None:
    history = _history(*wishes)
    task = fold(history)
    assert task is not None
    with pytest.raises(AssertionError):
        invariants.a_job_has_its_time(history, task)


def test_the_invariant_counts_the_time_by_itself() -> None:
    history = _history(*WAITED)
    task = fold(history)
    assert task is not None
    invariants.a_job_has_its_time(history, task)
    *_, end = invariants.ends_of_the_job(history)
    assert end == at(170)


def test_the_invariant_knows_an_end_that_was_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    history = _history(*WAITED)
    before = list(invariants.states(history))
    unmoved = [*before[:-1], replace(before[-1], delegated_until=UNTIL)]
    monkeypatch.setattr(invariants, "states", lambda _history: iter(unmoved))
    with pytest.raises(AssertionError):
        invariants.a_job_has_its_time(history, unmoved[-1])
