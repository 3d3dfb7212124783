"""A task's past told from its rows alone: who, how long, and what is known after an erasure."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from outlast.domain import jobs
from outlast.domain.audit import EPOCH, ERASED, Recorded
from outlast.domain.events import TaskEvent
from outlast.domain.history import ERASED_PAYLOAD, Doing, History, Told, history_of
from outlast.domain.task import Task, evolve
from outlast.tests.domain.given import (
    DEPLOY,
    OPENED,
    Wish,
    answers,
    asks,
    at,
    cancels,
    completes,
    delegates,
    holds,
    loses,
    starts,
    stops,
)

RERUN = replace(OPENED, rerun_is_safe=True)
YES = {"action": "accept", "content": {"ok": True}}
SECOND_US = 1_000_000


def told_of(*wishes: Wish) -> Sequence[tuple[TaskEvent, Task]]:
    """Each event with the task after it."""
    task = evolve(None, RERUN)
    told: list[tuple[TaskEvent, Task]] = [(RERUN, task)]
    for wish in wishes:
        for event in wish(task):
            task = evolve(task, event)
            told.append((event, task))
    return told


def row_of(event: TaskEvent, task: Task, position: int) -> Recorded:
    """Recorded by the second that the event itself names."""
    seconds = round((_instant(event) - _instant(OPENED)).total_seconds())
    return Recorded(
        position=position,
        task_id=event.task_id,
        version=event.version,
        topic=event.TOPIC,
        event_id=bytes(16),
        recorded_us=seconds * SECOND_US,
        digest=bytes(32),
        state=b"{}",
        owner=bytes(16),
        tool="run_ci_pipeline",
        status=task.status.value,
        is_past=False,
        is_erased=False,
        wrapped=None,
        wrapped_by=None,
    )


def _instant(event: TaskEvent) -> datetime:
    return datetime.fromisoformat(event.at)


def history(*wishes: Wish, erased: bool = False) -> History:
    told = told_of(*wishes)
    rows = [row_of(event, task, place) for place, (event, task) in enumerate(told, 1)]
    given = [ERASED_PAYLOAD if erased else Told({}, event) for event, _ in told]
    found = history_of(rows, given)
    assert found is not None
    return found


HISTORIES = {
    "completes": ((starts(seconds=2), completes(seconds=7)), (2, 5, 0)),
    "parks": (
        (
            starts(seconds=1),
            asks(DEPLOY, seconds=3),
            answers({"in-1": YES}, seconds=13),
            starts(seconds=14),
            completes(seconds=20),
        ),
        (2, 8, 10),
    ),
    "is held": (
        (
            starts(seconds=1),
            holds(DEPLOY, seconds=3),
            answers({"in-1": YES}, seconds=13),
            completes(seconds=20),
        ),
        (1, 9, 10),
    ),
    "is lost": (
        (starts(seconds=1), loses(seconds=5), starts(seconds=9), completes(seconds=10)),
        (5, 5, 0),
    ),
    "is delegated": ((starts(seconds=1), delegates(seconds=3)), (1, 2, 0)),
    "is followed": (
        (
            starts(seconds=1),
            asks(seconds=2, state="half of it"),
            holds(DEPLOY, seconds=3),
            lambda task: jobs.follow(task, 1, {}, None, at(9), at(5)),
            cancels(seconds=6),
            lambda task: jobs.end_as_cancelled(task, 1, at(8)),
        ),
        (1, 5, 2),
    ),
    "is cancelled": ((starts(seconds=1), cancels(seconds=4), stops(seconds=6)), (1, 5, 0)),
}


@pytest.mark.parametrize("erased", [False, True])
@pytest.mark.parametrize("name", HISTORIES)
def test_totals_are_the_same_with_payloads_and_without(name: str, erased: bool):
    wishes, (waiting, working, asking) = HISTORIES[name]
    assert history(*wishes, erased=erased).totals == {
        Doing.WAITING: timedelta(seconds=waiting),
        Doing.WORKING: timedelta(seconds=working),
        Doing.ASKING: timedelta(seconds=asking),
    }


def test_each_event_of_an_attempt_names_its_worker():
    steps = history(
        starts("worker-a", seconds=1),
        asks(DEPLOY),
        answers({"in-1": YES}),
        starts("worker-b", seconds=4),
        completes(),
    ).steps
    told = [(step.attempt, step.worker) for step in steps]
    first, second = (1, "worker-a"), (2, "worker-b")
    assert told == [(None, None), first, first, first, (None, None), second, second]


def test_an_erased_history_still_counts_attempts():
    steps = history(starts(), completes(), erased=True).steps
    assert [(step.attempt, step.worker) for step in steps] == [(None, None), (1, None), (1, None)]


def test_the_time_between_two_events_is_the_stores():
    steps = history(starts(seconds=2), completes(seconds=7)).steps
    assert [step.since for step in steps] == [None, timedelta(seconds=2), timedelta(seconds=5)]
    assert steps[0].row.recorded_at == EPOCH


def test_no_state_is_told_beyond_a_payload_that_is_gone():
    told = told_of(starts(), completes())
    rows = [row_of(event, task, place) for place, (event, task) in enumerate(told, 1)]
    given = [Told({}, told[0][0]), ERASED_PAYLOAD, Told({}, told[2][0])]
    found = history_of(rows, given)
    assert found is not None
    assert found.events_to(1) == [told[0][0]]
    assert found.events_to(2) is None
    assert found.events_to(3) is None


def test_an_erasure_ends_a_history_and_belongs_to_nobody():
    told = told_of(starts(), completes())
    rows = [row_of(event, task, place) for place, (event, task) in enumerate(told, 1)]
    last = rows[-1]._replace(version=4, topic=ERASED, status=None, owner=None, tool=None)
    found = history_of([*rows, last], [ERASED_PAYLOAD] * 3 + [Told({"why": "x"}, None)])
    assert found is not None
    assert found.is_erased
    assert (found.steps[-1].attempt, found.steps[-1].doing) == (None, Doing.OVER)
    assert (found.last("status"), found.last("tool")) == ("completed", "run_ci_pipeline")


def test_no_rows_are_no_history():
    assert history_of([], []) is None
