"""The lines of a timeline: every kind of event, from its events and from the audit's history."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outlast.domain import events
from outlast.domain.audit import ERASED, Recorded
from outlast.domain.events import EVENT_TYPES, TaskEvent, TaskOpened
from outlast.domain.history import ERASED_PAYLOAD, Told, history_of
from outlast.domain.owner import Owner
from outlast.domain.task import Task, evolve
from outlast.service.console.redaction import Redactor
from outlast.service.console.timeline import (
    JOB,
    OWNER,
    SERVICE,
    WINDOW,
    WORKER,
    Entry,
    Teller,
    person,
    window,
)
from outlast.tests.domain.given import (
    DEPLOY,
    OPENED,
    YES,
    after,
    answers,
    asks,
    calls_back,
    calls_back_with,
    cancels,
    completes,
    delegates,
    fails,
    loses,
    opened,
    starts,
)

TELLER = Teller(Redactor(), names_workers=True)
DISCREET = Teller(Redactor(), names_workers=False)
SAFE = replace(OPENED, rerun_is_safe=True)

VALUES: Mapping[str, Any] = {
    "attempt": 1,
    "worker": "worker-a",
    "progress": 0.5,
    "until": None,
    "job": {"kind": "status_tool", "id": "job-7"},
    "look_at": "2026-07-28T12:00:09.000Z",
    "message": "halfway",
    "leg": 1,
    "held": False,
    "questions": {"q1": {"name": "n", "request": DEPLOY.request}},
    "answers": {"q1": YES},
    "why": "its lease ran out",
    "result": {"content": []},
    "error": {"code": -32000, "message": "The disk is full"},
    "ttl_ms": 60_000,
    "total": None,
    "request_state": None,
}


def event_of(kind: type[TaskEvent]) -> TaskEvent:
    """One event of this kind, as the second of its task."""
    if kind is TaskOpened:
        return OPENED
    given = {f.name: VALUES[f.name] for f in fields(kind) if f.name in VALUES}
    return kind(task_id="task-1", version=2, at="2026-07-28T12:00:03.500Z", **given)


def told(*wishes: Any, teller: Teller = TELLER) -> list[Entry]:
    """The lines of a task to which this has happened."""
    seen: list[TaskEvent] = [SAFE]
    task = opened(rerun_is_safe=True)
    for wish in wishes:
        for event in wish(task):
            seen.append(event)
            task = evolve(task, event)
    return lines(seen, teller)


def lines(seen: Sequence[TaskEvent], teller: Teller = TELLER) -> list[Entry]:
    moments: dict[int, tuple[TaskEvent, Task]] = {}
    task: Task | None = None
    for event in seen:
        task = evolve(task, event)
        moments[event.version] = event, task
    return teller.live(moments, window(len(moments)))


@pytest.mark.parametrize("kind", EVENT_TYPES, ids=lambda kind: kind.TOPIC)
def test_every_kind_of_event_has_a_sentence_with_and_without_its_payload(kind: type[TaskEvent]):
    event = event_of(kind)
    seen = [OPENED] if kind is TaskOpened else [OPENED, event]
    line = lines(seen)[-1]
    assert line.topic == kind.TOPIC
    assert line.text
    assert "task." not in line.text
    assert "_" not in line.text.replace("run_ci_pipeline", "")
    assert line.text[0].isupper()
    row = Recorded(1, "task-1", 1, kind.TOPIC, b"", 0, b"", is_erased=True)
    history = history_of([row], [ERASED_PAYLOAD])
    assert history is not None
    (gone,) = TELLER.past(history, window(1))
    assert "(erased)" in gone.text
    assert "task." not in gone.text


def test_each_event_says_when_who_and_which_attempt():
    seen = told(starts("worker-a", 1), loses(5), starts("worker-b", 7), completes(seconds=19.5))
    assert [line.version for line in seen] == [1, 2, 3, 4, 5]
    assert [line.who for line in seen] == [OWNER, "worker-a", SERVICE, "worker-b", "worker-b"]
    assert [line.attempt for line in seen] == [None, 1, 1, 2, 2]
    assert [line.worker for line in seen] == [None, "worker-a", "worker-a", "worker-b", "worker-b"]
    assert [line.after for line in seen] == [None, "1.0 s", "4.0 s", "2.0 s", "12.5 s"]
    assert [line.status for line in seen] == ["working"] * 4 + ["completed"]
    assert seen[0].text == "Called run_ci_pipeline on ci"
    assert seen[2].text == "Attempt 1 was lost: its lease ran out"


def test_who_may_not_know_the_workers_is_told_of_no_name():
    seen = told(starts("host-7:4711"), completes(), teller=DISCREET)
    assert [line.worker for line in seen] == [None, None, None]
    assert [line.who for line in seen] == [OWNER, WORKER, WORKER]
    assert [line.attempt for line in seen] == [None, 1, 1]
    assert "host-7" not in repr(seen)


def test_answers_and_cancellation_are_the_owners():
    task = after(opened(), starts(), asks(DEPLOY))
    key = task.outstanding[0].key
    seen = told(starts(), asks(DEPLOY), answers({key: YES}), cancels())
    assert [line.topic for line in seen[-2:]] == ["task.cancel_requested", "task.cancelled"]
    assert [line.who for line in seen[-3:]] == [OWNER, OWNER, SERVICE]
    assert [line.attempt for line in seen[-3:-1]] == [None, None]


def test_an_answer_says_who_gave_it():
    event = events.InputReceived("task-1", 2, OPENED.at, {})
    by = Owner("https://issuer.example", "carol", "default").key
    payload = {**vars(event), "by": by}
    row = Recorded(1, "task-1", 1, event.TOPIC, b"", 0, b"")
    history = history_of([row], [Told(payload, event)])
    assert history is not None
    (line,) = TELLER.past(history, window(1))
    assert line.who == "carol"


def test_what_a_job_calls_back_is_the_jobs():
    seen = told(starts(), delegates(), calls_back("evt-1"), calls_back_with())
    assert [line.who for line in seen[-2:]] == [JOB, JOB]


@pytest.mark.promise("console-hides-secrets")
def test_a_secret_in_a_message_is_hidden_in_the_sentence():
    error = {"code": 1, "message": "login failed: password=hunter2000"}
    (*_, line) = told(starts(), fails(error))
    assert "hunter2000" not in line.text
    assert "login failed" in line.text


def test_a_message_that_no_page_can_carry_is_escaped():
    (*_, line) = told(starts(), fails({"code": 1, "message": "\ud800"}))
    assert line.text.encode().endswith(b"\\ud800")


def test_the_past_and_the_present_tell_the_same_of_one_task():
    task, seen = opened(rerun_is_safe=True), list[TaskEvent]([SAFE])
    for wish in (starts("worker-a", 1), loses(5), starts("worker-b", 7), completes(seconds=9)):
        for event in wish(task):
            seen.append(event)
            task = evolve(task, event)
    rows: list[Recorded] = []
    status: Task | None = None
    for place, event in enumerate(seen, 1):
        status = evolve(status, event)
        since = datetime.fromisoformat(event.at) - datetime(1970, 1, 1, tzinfo=UTC)
        at = since // timedelta(microseconds=1)
        state = status.status.value
        rows.append(Recorded(place, "task-1", place, event.TOPIC, b"", at, b"", b"x", status=state))
    history = history_of(rows, [Told(vars(event), event) for event in seen])
    assert history is not None
    assert TELLER.past(history, window(len(seen))) == lines(seen)


def test_an_erasure_is_the_services_and_says_why():
    erased = events.TaskErased("task-1", 2, OPENED.at, "on request")
    rows = [
        Recorded(1, "task-1", 1, TaskOpened.TOPIC, b"", 0, b"", is_erased=True),
        Recorded(2, "task-1", 2, ERASED, b"", 1_000_000, b"", b"x"),
    ]
    history = history_of(rows, [ERASED_PAYLOAD, Told(vars(erased), erased)])
    assert history is not None
    first, last = TELLER.past(history, window(2))
    assert (first.text, first.who) == ("Opened (erased)", OWNER)
    assert (last.text, last.who) == ("All payloads were erased: on request", SERVICE)
    assert last.after == "1.0 s"


def test_a_window_is_bounded_and_its_pages_leave_nothing_out():
    newest, seen = 10_000, list[int]()
    page = window(newest)
    assert (page.first, page.last, page.newer) == (newest - WINDOW + 1, newest, None)
    while True:
        assert len(page.versions) <= WINDOW
        seen[:0] = page.versions
        if page.older is None:
            break
        page = window(newest, page.older)
    assert seen == list(range(1, newest + 1))


@pytest.mark.parametrize(("upto", "last"), [(1, 1), (7, 7), (9, 7), (10**8, 7)])
def test_a_window_ends_where_it_is_asked_to_within_the_task(upto: int, last: int):
    page = window(7, upto)
    assert (page.first, page.last) == (1, last)
    assert page.newer == (7 if last < page.newest else None)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (Owner("i", "alice", "default").key, "alice"),
        (Owner("i", "alice", "cli").key, "alice (cli)"),
        (Owner("local", "local", "local").key, "local"),
        ("not a key", "not a key"),
        ("\ud800", "\\ud800"),
    ],
)
def test_an_owner_is_named_as_people_know_it(key: str, name: str):
    assert person(key) == name
