"""Every state that two workers, a client and three faults bring about; broken rules show."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import pytest

from outlast.domain import decisions, errors, jobs
from outlast.domain.decisions import (
    Ask,
    Events,
    ask,
    expire,
    finish_leg,
    lose_work,
    receive_input,
    request_cancel,
)
from outlast.domain.events import Json
from outlast.domain.queueing import Queueing, queueing
from outlast.domain.task import Task, TaskStatus
from outlast.tests.domain.given import NO
from outlast.tests.domain.model import Model, Violation
from outlast.tests.domain.model_states import Tool

FAULTS = 3
TOOLS = {
    "asks mid-call, safe": Tool(holds=True, is_safe=True),
    "asks mid-call, unsafe": Tool(holds=True, is_safe=False),
    "ends legs, safe": Tool(holds=False, is_safe=True),
    "ends legs, unsafe": Tool(holds=False, is_safe=False),
    "asks mid-call, unsafe, opened while it runs": Tool(True, False, opens_running=True),
    "starts jobs elsewhere, safe": Tool(False, True, delegates=True),
    "starts jobs without an end, unsafe": Tool(True, False, delegates=True, is_bounded=False),
}


@pytest.fixture(autouse=True)
def _give_up_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that three faults suffice to see a task given up."""
    monkeypatch.setattr(decisions, "LOSSES_MAX", 2)


@pytest.mark.promise("model-is-checked")
@pytest.mark.parametrize("name", TOOLS)
def test_no_order_of_steps_and_faults_breaks_a_rule_or_leaves_a_task_stuck(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Model(TOOLS[name], FAULTS).explore()
    with capsys.disabled():
        sys.stdout.write(
            f"\nmodel, a tool that {name}: {report.states} states,"
            f" {report.transitions} transitions, {report.tasks} tasks "
        )
    assert report.endings == {"completed", "failed", "cancelled"}
    assert report.states > 5_000


def _no_fence(task: Task, attempt: int) -> None:
    if task.status.is_terminal:
        raise errors.TaskAlreadyEnded


def _runs_everything_again(task: Task, attempt: int, why: str, now: datetime) -> Events:
    opening = replace(task.opened, rerun_is_safe=True)
    return lose_work(replace(task, opened=opening), attempt, why, now)


def _ignores_a_loss(task: Task, attempt: int, why: str, now: datetime) -> Events:
    return ()


def _asks_without_looking(
    task: Task, attempt: int, wanted: Ask, turn: int, now: datetime
) -> Events:
    return ask(replace(task, questions=()), attempt, wanted, turn, now)


def _only_notes_the_wish(task: Task, now: datetime) -> Events:
    return request_cancel(task, now)[:1]


def _parks_after_a_cancel(
    task: Task, attempt: int, wanted: Sequence[Ask], state: str | None, now: datetime
) -> Events:
    return finish_leg(replace(task, cancel_requested=False), attempt, wanted, state, now)


def _expires_whatever_it_finds(task: Task, now: datetime) -> Events:
    return expire(replace(task, worker=None, status=TaskStatus.WORKING), now)


def _takes_an_answer_twice(task: Task, answers: Mapping[str, Json], now: datetime) -> Events:
    if task.status.is_terminal:
        return ()
    again = tuple(replace(question, answer=None) for question in task.questions)
    answered = {question.key for question in task.questions if question.answer is not None}
    changed = {key: NO if key in answered else answer for key, answer in answers.items()}
    return receive_input(replace(task, questions=again), changed, now)


def _drops_on_loss(before: Task | None, after: Task) -> Queueing:
    was_running = before is not None and before.is_running
    return Queueing.DROP if was_running and after.is_runnable else queueing(before, after)


def _forgets_what_was_answered(before: Task | None, after: Task) -> Queueing:
    was_parked = before is not None and before.is_parked
    return Queueing.KEEP if was_parked and after.is_runnable else queueing(before, after)


def _hears_every_job(task: Task, attempt: int, callback_id: str | None) -> bool:
    if task.status.is_terminal:
        raise errors.TaskAlreadyEnded
    return False


def _leaves_the_job_without_an_end(task: Task, now: datetime) -> Events:
    return ()


def _drops_what_was_delegated(before: Task | None, after: Task) -> Queueing:
    return Queueing.DROP if after.is_delegated else queueing(before, after)


def _puts_what_was_delegated(before: Task | None, after: Task) -> Queueing:
    wanted = queueing(before, after)
    return Queueing.PUT if wanted is Queueing.WAIT else wanted


HOLDS, LEGS = TOOLS["asks mid-call, safe"], TOOLS["ends legs, safe"]
UNSAFE = TOOLS["ends legs, unsafe"]
JOBS = TOOLS["starts jobs elsewhere, safe"]
BROKEN_DECISIONS: dict[str, tuple[Tool, str, Callable[..., object], str]] = {
    "no fence": (LEGS, "refuse_stale", _no_fence, "a stale attempt brought"),
    "reruns what is unsafe": (UNSAFE, "lose_work", _runs_everything_again, "started twice"),
    "ignores a loss": (LEGS, "lose_work", _ignores_a_loss, "left alone it comes to no end"),
    "asks again": (HOLDS, "ask", _asks_without_looking, "is asked again"),
    "cancel is only a wish": (LEGS, "request_cancel", _only_notes_the_wish, "yet it waits"),
    "parks after a cancel": (LEGS, "finish_leg", _parks_after_a_cancel, "nothing_is_asked_once"),
    "expires what runs": (LEGS, "expire", _expires_whatever_it_finds, "a running attempt expired"),
    "hears every job": (JOBS, "_is_heard", _hears_every_job, ": counted"),
    "no end": (
        JOBS,
        "end_overdue",
        _leaves_the_job_without_an_end,
        "left alone it comes to no end",
    ),
    "answers twice": (HOLDS, "receive_input", _takes_an_answer_twice, "an answer was lost"),
}
BROKEN_QUEUEING = {
    "drops on loss": _drops_on_loss,
    "forgets what was answered": _forgets_what_was_answered,
}
BROKEN_WAITING: dict[str, tuple[Callable[[Task | None, Task], Queueing], str]] = {
    "drops what was delegated": (_drops_what_was_delegated, "does not say who wants a worker"),
    "puts what was delegated": (_puts_what_was_delegated, "a worker has nothing to do"),
}


@pytest.mark.parametrize("name", BROKEN_DECISIONS)
def test_a_broken_decision_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, function, broken, found = BROKEN_DECISIONS[name]
    monkeypatch.setattr(jobs if function == "end_overdue" else decisions, function, broken)
    with pytest.raises(Violation, match=found):
        Model(tool, faults=2).explore()


@pytest.mark.parametrize("name", BROKEN_QUEUEING)
def test_a_broken_queueing_rule_is_found_out(name: str) -> None:
    with pytest.raises(Violation, match="the run queue does not say who wants a worker"):
        Model(LEGS, faults=2, queueing_rule=BROKEN_QUEUEING[name]).explore()


@pytest.mark.parametrize("name", BROKEN_WAITING)
def test_a_row_that_does_not_wait_for_its_job_is_found_out(name: str) -> None:
    broken, found = BROKEN_WAITING[name]
    with pytest.raises(Violation, match=found):
        Model(JOBS, faults=2, queueing_rule=broken).explore()
