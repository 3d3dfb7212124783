"""Random wishes in any order, from current and stale attempts, break no invariant."""

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from outlast.domain import decisions, errors, events, jobs
from outlast.domain.decisions import Ask, Events
from outlast.domain.events import TaskEvent
from outlast.domain.queueing import Queueing, queueing
from outlast.domain.task import Task, evolve, fold
from outlast.tests.domain import invariants
from outlast.tests.domain.given import ERROR, OPENED, RESULT, START, asks, completes, opened, starts

ASKS = [
    Ask(f"upstream-key-{name}", {"method": "elicitation/create", "params": {"message": name}})
    for name in ("one", "two", "three")
]
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
JSON_OBJECTS = st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=3)
KEYS = st.integers(0, 8).map(lambda number: f"in-{number}") | st.just("upstream-key-one")
WORKERS = st.sampled_from(["worker-secret-a", "worker-secret-b"])
CALLBACKS = st.integers(1, 6).map(lambda number: f"callback-secret-{number}")
STATES = st.none() | st.sampled_from(["state-secret-1", "state-secret-2"])
# Mostly the running attempt, often an earlier one, now and then one that never was.
BEHIND = st.sampled_from([0, 0, 0, 1, 2, -1])


class AnyWishInAnyOrder(RuleBasedStateMachine):
    """One task, any number of replicas with clocks of their own, and everybody's wishes."""

    history: list[TaskEvent]
    task: Task
    now: datetime

    @initialize(
        ttl_ms=st.none() | st.sampled_from([1, 50_000, 600_000]),
        safe=st.booleans(),
        carried=st.none() | st.just({"upstream-key-one": {"action": "accept"}}),
        at_once=st.booleans(),
    )
    def open(
        self, ttl_ms: int | None, safe: bool, carried: dict[str, Any] | None, at_once: bool
    ) -> None:
        opening = replace(OPENED, ttl_ms=ttl_ms, rerun_is_safe=safe, carried_answers=carried)
        self.now, self.history, self.queued = START, [], False
        self.asked_by_attempt: Counter[tuple[int, int, str]] = Counter()
        born = decisions.open_task(opening)
        first = fold(born)
        assert first is not None
        if at_once:
            born += decisions.start_work(first, "worker-secret-a", START)
        self._record(None, born)

    def _record(self, before: Task | None, new: Events) -> None:
        """What the event log does with a decision: append, fold, and keep the run queue in step."""
        if not new:
            return
        after = before
        for event in new:
            after = evolve(after, event)
        assert after is not None
        self.task = after
        self.history.extend(new)
        wanted = queueing(before, after)
        if wanted is not Queueing.KEEP:
            self.queued = wanted is not Queueing.DROP

    def _call_back(self, decide: Any, callback_id: str, behind: int, *arguments: Any) -> Events:
        attempt, task = self.task.attempt - behind, self.task
        new = self._wish(partial(decide, callback_id=callback_id), attempt, *arguments)
        if behind or not task.is_delegated or callback_id in task.heard:
            assert new == (), "a callback counted that must not"
        return new

    def _has_told(self) -> bool:
        own = [event for event in self.history if getattr(event, "attempt", 0) == self.task.attempt]
        return len(own) > 1

    def _wish(self, decide: Any, *arguments: Any) -> Events:
        task = self.task
        try:
            new = decide(task, *arguments, self.now)
        except errors.TaskAlreadyEnded:
            assert task.status.is_terminal
            return ()
        except (errors.StaleAttempt, errors.TaskNotRunnable, errors.StreamFull):
            return ()
        self._record(task, new)
        return new

    def _work(self, decide: Any, behind: int, *arguments: Any) -> Events:
        attempt, task = self.task.attempt - behind, self.task
        new = self._wish(decide, attempt, *arguments)
        if behind or not (task.is_running or task.is_followed):
            assert new == (), "a stale attempt changed the task"
        return new

    @rule(seconds=st.sampled_from([-3600, -1, 0, 0.0004, 1, 20, 400, 4_000]))
    def clock_jumps(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(worker=WORKERS)
    def start(self, worker: str) -> None:
        self._wish(decisions.start_work, worker)

    @rule(
        behind=BEHIND, amount=st.floats(0, 1e9), total=st.none() | st.integers(1, 9), text=st.text()
    )
    def report_progress(self, behind: int, amount: float, total: int | None, text: str) -> None:
        self._work(decisions.report_progress, behind, amount, total, text)

    @rule(
        behind=BEHIND,
        wanted=st.lists(st.sampled_from(ASKS), max_size=3, unique_by=lambda ask: ask.name),
        state=STATES,
    )
    def finish_leg(self, behind: int, wanted: list[Ask], state: str | None) -> None:
        self._work(decisions.finish_leg, behind, wanted, state)

    @rule(behind=BEHIND, wanted=st.sampled_from(ASKS))
    def hold_a_question(self, behind: int, wanted: Ask) -> None:
        """The asker counts how often it asked this in its leg; what stood before is replayed."""
        asker = (self.task.leg, self.task.attempt - behind, wanted.name)
        occurrence = self.asked_by_attempt[asker]
        stood = decisions.asked(self.task, wanted, occurrence) is not None
        others = [
            n
            for (leg, _, name), n in self.asked_by_attempt.items()
            if (leg, name) == (asker[0], asker[2])
        ]
        new = self._work(decisions.ask, behind, wanted, occurrence)
        if new or stood:
            assert stood == (occurrence < max(others, default=0)), "asked twice, or never"
            assert stood == (new == ())
            if not behind and self.task.is_running:
                self.asked_by_attempt[asker] += 1

    @rule(answers=st.dictionaries(KEYS, JSON_OBJECTS, max_size=4))
    def receive_input(self, answers: dict[str, Any]) -> None:
        self._wish(decisions.receive_input, answers)

    @precondition(lambda self: self.task.outstanding)
    @rule(answer=JSON_OBJECTS, everything=st.booleans())
    def answer_what_is_asked(self, answer: dict[str, Any], everything: bool) -> None:
        waiting = self.task.outstanding if everything else self.task.outstanding[:1]
        new = self._wish(decisions.receive_input, {question.key: answer for question in waiting})
        assert len(new) == 1

    @rule()
    def request_cancel(self) -> None:
        self._wish(decisions.request_cancel)
        assert self.task.status.is_terminal or self.task.cancel_requested

    @rule(behind=BEHIND)
    def lose(self, behind: int) -> None:
        self._work(decisions.lose_work, behind, "it is gone")

    @precondition(lambda self: not self._has_told())
    @rule(behind=BEHIND)
    def withdraw(self, behind: int) -> None:
        """A worker may say so only of an attempt that has told nothing yet."""
        self._work(decisions.withdraw_work, behind, "no connection")

    @rule(behind=BEHIND)
    def extend(self, behind: int) -> None:
        self._work(decisions.extend_ttl, behind)

    @rule()
    def sweep(self) -> None:
        self._wish(decisions.expire)
        held = self.task.is_running or self.task.is_followed
        held = held or self.task.delegated_until is not None
        waits = not (self.task.status.is_terminal or held)
        assert not (waits and decisions.is_expired(self.task, self.now))

    @rule(behind=st.sampled_from([1, 2]), result=JSON_OBJECTS)
    def complete_too_late(self, behind: int, result: dict[str, Any]) -> None:
        self._work(decisions.complete, behind, result)

    @rule(behind=BEHIND, seconds=st.none() | st.sampled_from([-5, 0, 30, 3_000]))
    def delegate(self, behind: int, seconds: float | None) -> None:
        until = None if seconds is None else self.now + timedelta(seconds=seconds)
        new = self._work(decisions.delegate, behind, until)
        if new:
            assert self.task.status.is_terminal or self.task.is_delegated
            full = (
                self.task.version > decisions.STREAM_EVENTS_MAX - decisions.STREAM_EVENTS_RESERVED
            )
            expires_at = self.task.expires_at
            has_ended = self.task.status.is_terminal
            assert has_ended or full or not (expires_at and until) or expires_at >= until

    @rule(behind=BEHIND, amount=st.floats(0, 1e9), callback_id=CALLBACKS)
    def call_back_with_progress(self, behind: int, amount: float, callback_id: str) -> None:
        new = self._call_back(
            decisions.report_progress, callback_id, behind, amount, None, "elsewhere"
        )
        assert (
            not new
            or jobs.is_too_soon(self.task, self.now)
            or self.now < _instant(self.task.updated_at)
        )

    @precondition(lambda self: self.task.version > 6)
    @rule(behind=BEHIND, callback_id=CALLBACKS, result=JSON_OBJECTS)
    def call_back_with_a_result(self, behind: int, callback_id: str, result: Any) -> None:
        self._call_back(decisions.complete, callback_id, behind, result)

    @precondition(lambda self: self.task.version > 6)
    @rule(behind=BEHIND, callback_id=CALLBACKS)
    def call_back_with_an_error(self, behind: int, callback_id: str) -> None:
        self._call_back(decisions.fail, callback_id, behind, ERROR)

    @precondition(lambda self: self.task.version > 6)
    @rule()
    def give_an_overdue_job_up(self) -> None:
        """Exactly when it is due, by what its history says: a wait for answers does not count."""
        *_, end = invariants.ends_of_the_job(self.history)
        due = end is not None and not self.task.outstanding and self.now >= end
        assert bool(self._wish(jobs.end_overdue)) == due

    @precondition(lambda self: self.task.version > 6)
    @rule(result=JSON_OBJECTS)
    def complete(self, result: dict[str, Any]) -> None:
        self._work(decisions.complete, 0, result)

    @precondition(lambda self: self.task.version > 6)
    @rule(behind=BEHIND)
    def fail(self, behind: int) -> None:
        self._work(decisions.fail, behind, ERROR)

    @rule(behind=BEHIND)
    def stop(self, behind: int) -> None:
        self._work(decisions.stop, behind)

    @invariant()
    def every_invariant_holds(self) -> None:
        if self.history:
            assert invariants.check(self.history) == self.task
            assert self.queued == invariants.wants_a_row(self.task)


LIMITS = settings(
    max_examples=150,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.promise("invariants-hold-for-any-wishes")
def test_any_wish_in_any_order_breaks_no_invariant() -> None:
    run_state_machine_as_test(AnyWishInAnyOrder, settings=LIMITS)


def test_a_stream_near_its_cap_breaks_no_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "STREAM_EVENTS_MAX", 16)
    run_state_machine_as_test(AnyWishInAnyOrder, settings=LIMITS)


_TASK = opened(rerun_is_safe=False)
_BORN: Events = (_TASK.opened,)
_START = starts()(_TASK)
_RUNNING = evolve(_TASK, _START[0])
_DONE = completes()(_RUNNING)
_ASKED = asks(ASKS[0])(_RUNNING)


def _next(kind: type[TaskEvent], *fields: Any) -> Events:
    """An event that no decider would have let happen there."""
    return (kind(_TASK.id, 2, _RUNNING.updated_at, *fields),)


_LOST = _next(events.WorkLost, 1, "gone")
_CANCEL = _next(events.CancelRequested)
_REPLY = _next(events.InputReceived, {"in-1": RESULT})
_CASES: list[tuple[str, invariants.Invariant, tuple[Events, ...]]] = [
    ("a gap", invariants.versions_count_from_one, (_BORN, _DONE)),
    (
        "more after the end",
        invariants.a_terminal_event_is_the_only_one_and_the_last,
        (_BORN, _START, _DONE, _START),
    ),
    (
        "two ends",
        invariants.a_terminal_event_is_the_only_one_and_the_last,
        (_BORN, _START, _DONE, _DONE),
    ),
    (
        "two attempts at once",
        invariants.one_attempt_runs_at_a_time_and_attempts_count_up,
        (_BORN, _START, _START),
    ),
    ("a stale report", invariants.only_the_running_attempt_reports, (_BORN, _START, _LOST, _ASKED)),
    ("a result of nobody", invariants.only_the_running_attempt_reports, (_BORN, _DONE)),
    (
        "a running task that expired",
        invariants.only_the_running_attempt_reports,
        (_BORN, _START, _next(events.TaskExpired, 1, ERROR)),
    ),
    ("a key used twice", invariants.keys_are_minted_once, (_BORN, _START, _ASKED, _ASKED)),
    (
        "two answers",
        invariants.a_key_is_answered_once_and_only_while_it_waits,
        (_BORN, _START, _ASKED, _REPLY, _REPLY),
    ),
    ("a clock that ran back", invariants.time_does_not_run_backwards, (_START, _BORN)),
    (
        "a shorter time to live",
        invariants.the_time_to_live_only_grows,
        (_BORN, _next(events.TtlChanged, 1)),
    ),
    (
        "a question after a cancel",
        invariants.nothing_is_asked_once_a_stop_is_wanted,
        (_BORN, _START, _CANCEL, _ASKED),
    ),
    (
        "a cancelled task that waits",
        invariants.nothing_is_asked_once_a_stop_is_wanted,
        (_BORN, _CANCEL),
    ),
    (
        "an unsafe second start",
        invariants.an_unsafe_tool_starts_once_without_a_checkpoint,
        (_BORN, _START, _LOST, _next(events.WorkStarted, 2, "worker-a")),
    ),
    (
        "a secret on the wire",
        invariants.the_wire_form_keeps_our_secrets,
        (_BORN, _next(events.WorkStarted, 1, "working")),
    ),
    (
        "a value that JSON changes",
        invariants.a_stored_history_is_the_same_history,
        ((replace(_TASK.opened, arguments={"pair": (1, 2)}),),),
    ),
]


@pytest.mark.parametrize(
    ("broken", "steps"), [case[1:] for case in _CASES], ids=[case[0] for case in _CASES]
)
def test_an_invariant_names_the_history_that_breaks_it(
    broken: invariants.Invariant, steps: tuple[Events, ...]
) -> None:
    history = [event for some in steps for event in some]
    with pytest.raises(AssertionError):
        broken(history, _folded(history))


def _folded(history: list[TaskEvent]) -> Task:
    """The task, even after a history that does not begin at its beginning."""
    task = fold(history) if isinstance(history[0], events.TaskOpened) else _TASK
    assert task is not None
    return task


def _instant(at: str) -> datetime:
    return datetime.fromisoformat(at)
