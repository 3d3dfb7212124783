"""What was ever stored can be read for ever: lines of every event type and class version.

A line holds the row as it was stored and the wire form of its task after it. Lines are added, never
changed: a new `class_version` gets lines of its own beside the old ones.
"""

import json
import uuid
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from eventsourcing.persistence import StoredEvent
from eventsourcing.utils import register_topic

from outlast.adapters.event_log import StoredTaskEvent, TaskEventMapper
from outlast.domain.change import detailed_task
from outlast.domain.events import EVENT_TYPES, TaskEvent
from outlast.domain.task import Task, evolve
from outlast.tests.domain import invariants
from outlast.tests.domain.golden import GOLDEN, Line

MAPPER = TaskEventMapper()


def _row(topic: str, state: dict[str, Any], class_version: int = 1) -> StoredTaskEvent:
    """The row as any writer may have put it down, byte for byte or not."""
    if class_version > 1:
        state = {**state, "class_version": class_version}
    return StoredTaskEvent("golden", 1, topic, json.dumps(state).encode(), uuid.uuid4())


def _event(line: Line) -> TaskEvent:
    row = _row(line["topic"], line["state"], line["class_version"])
    return MAPPER.to_domain_event(
        StoredEvent(line["task_id"], line["version"], row.topic, row.state)
    )


def _histories() -> dict[str, list[Line]]:
    histories: dict[str, list[Line]] = defaultdict(list)
    for line in GOLDEN:
        histories[line["task_id"]].append(line)
    return histories


@pytest.mark.promise("old-events-replay")
@pytest.mark.parametrize("lines", _histories().values(), ids=_histories())
def test_a_stored_history_still_means_what_it_meant(lines: list[Line]) -> None:
    task: Task | None = None
    for line in lines:
        task = evolve(task, _event(line))
        assert detailed_task(task) == line["wire"], line["topic"]


@pytest.mark.parametrize("lines", _histories().values(), ids=_histories())
def test_a_stored_history_keeps_the_invariants(lines: list[Line]) -> None:
    invariants.check([_event(line) for line in lines])


@pytest.mark.parametrize("event_type", EVENT_TYPES, ids=lambda kind: kind.TOPIC)
def test_every_version_of_every_event_has_a_line(event_type: type[TaskEvent]) -> None:
    written = {line["class_version"] for line in GOLDEN if line["topic"] == event_type.TOPIC}
    assert written == set(range(1, event_type.class_version + 1))


@pytest.mark.parametrize("event_type", EVENT_TYPES, ids=lambda kind: kind.TOPIC)
def test_an_event_is_still_written_as_its_lines_say(event_type: type[TaskEvent]) -> None:
    """A field that was added, renamed or dropped without a new class version would show here."""
    for line in GOLDEN:
        if (line["topic"], line["class_version"]) == (event_type.TOPIC, event_type.class_version):
            stored = MAPPER.to_stored_event(_event(line))
            state = json.loads(stored.state)
            assert state.pop("class_version", 1) == line["class_version"]
            assert state == line["state"]
            assert (stored.topic, stored.originator_id, stored.originator_version) == (
                line["topic"],
                line["task_id"],
                line["version"],
            )


def test_no_two_events_share_a_stored_name() -> None:
    assert len({event_type.TOPIC for event_type in EVENT_TYPES}) == len(EVENT_TYPES)


@dataclass(frozen=True)
class BridgeCrossed(TaskEvent):
    """An event of these tests alone: at its third shape, with both ways up from the first."""

    TOPIC: ClassVar[str] = "test.bridge_crossed"
    class_version: ClassVar[int] = 3

    toll_cents: int
    name: str

    @staticmethod
    def upcast_v1_v2(state: dict[str, Any]) -> None:
        state["toll_cents"] = state.pop("toll") * 100

    @staticmethod
    def upcast_v2_v3(state: dict[str, Any]) -> None:
        state.setdefault("name", "unnamed")


register_topic(BridgeCrossed.TOPIC, BridgeCrossed)


@pytest.mark.parametrize(
    ("class_version", "state"),
    [
        (1, {"at": "2026-07-28T12:00:00.000Z", "toll": 3}),
        (2, {"at": "2026-07-28T12:00:00.000Z", "toll_cents": 300}),
        (3, {"at": "2026-07-28T12:00:00.000Z", "toll_cents": 300, "name": "unnamed"}),
    ],
)
def test_an_old_shape_is_lifted_to_todays(class_version: int, state: dict[str, Any]) -> None:
    event = MAPPER.to_domain_event(_row(BridgeCrossed.TOPIC, state, class_version))
    assert event == BridgeCrossed("golden", 1, "2026-07-28T12:00:00.000Z", 300, "unnamed")


def test_todays_shape_is_stored_under_its_class_version() -> None:
    event = BridgeCrossed("golden", 1, "2026-07-28T12:00:00.000Z", 300, "London")
    stored = MAPPER.to_stored_event(event)
    assert json.loads(stored.state)["class_version"] == 3
    assert MAPPER.to_domain_event(stored) == event


def test_a_shape_of_a_newer_release_is_refused_and_not_guessed_at() -> None:
    with pytest.raises(LookupError):
        MAPPER.to_domain_event(_row(BridgeCrossed.TOPIC, {"at": "", "fee": {}}, 4))


@pytest.mark.parametrize("topic", ["task.unheard_of", "json:JSONDecoder"])
def test_a_name_that_is_no_event_is_refused(topic: str) -> None:
    with pytest.raises(LookupError):
        MAPPER.to_domain_event(_row(topic, {"at": ""}))
