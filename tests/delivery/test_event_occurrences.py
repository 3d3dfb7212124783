"""Occurrences: each event as its client is told of it, from the row or from the stream."""

import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from outlast.adapters import codec
from outlast.delivery.events import occurrences, types
from outlast.delivery.events.occurrences import event_id
from outlast.domain.change import detailed_task
from outlast.domain.push import LoggedEvent
from outlast.domain.task import Task, evolve
from outlast.tests.contracts.stores import progresses
from outlast.tests.delivery.events_world import ALICE, World
from outlast.tests.domain.given import DEPLOY, OPENED, YES, answers, asks, completes, fails, starts

pytestmark = pytest.mark.anyio

HISTORY = (starts(), progresses(0.5), asks(DEPLOY), answers({"in-1": YES}), starts(), completes())
LARGE = "x" * 300_000


async def lived() -> tuple[World, list[Task], list[LoggedEvent]]:
    """A world with one task that has ended, the task after each of its events, and those."""
    world = World()
    await world.opened("t")
    await world.happens("t", *HISTORY)
    states: list[Task] = []
    task: Task | None = None
    for event in await world.store.read("t"):
        task = evolve(task, event)
        states.append(task)
    return world, states, world.store.of(ALICE)


def conforms(occurrence: dict[str, Any] | None) -> None:
    assert occurrence is not None
    schema = types.TYPES[occurrence["name"]].listed([])["payloadSchema"]
    checker = Draft202012Validator.FORMAT_CHECKER
    Draft202012Validator(schema, format_checker=checker).validate(occurrence["data"])


async def test_the_data_is_the_task_as_it_was_told_at_that_version():
    world, states, events = await lived()
    made = await world.occurrences.many("task.updated", events)
    for state, occurrence in zip(states, made, strict=True):
        assert occurrence == {
            "eventId": event_id("task.updated", "t", state.version),
            "name": "task.updated",
            "timestamp": state.updated_at,
            "data": {**detailed_task(state), "tool": OPENED.tool, "version": state.version},
        }
        conforms(occurrence)


async def test_one_by_one_from_the_row_or_the_stream_it_is_the_same():
    world, states, events = await lived()
    row = (states[-1].version, codec.wire_of(states[-1]))
    for name in ("task.updated", "task.progress"):
        many = await world.occurrences.many(name, events)
        alone = [(await world.occurrences.many(name, [event]))[0] for event in events]
        by_row = [
            await world.occurrences.one(name, "t", event.version, row, tool)
            for event in events
            for tool in (None, event.tool)
        ]
        assert alone == many
        assert by_row == [occurrence for occurrence in many for _ in range(2)]


async def test_the_newest_state_is_taken_from_the_row_and_nothing_is_read():
    world, states, _ = await lived()
    row = (states[-1].version, codec.wire_of(states[-1]))
    await world.store.forget(["t"])
    made = await world.occurrences.one("task.finished", "t", row[0], row, "run_ci_pipeline")
    assert made is not None
    assert made["data"]["result"] == states[-1].result
    assert await world.occurrences.one("task.finished", "t", row[0] - 1, row, "x") is None


async def test_progress_tells_the_numbers_and_leaves_out_what_was_not_said():
    world, _, events = await lived()
    [event] = [event for event in events if event.topic == "task.progress_reported"]
    made = await world.occurrences.one("task.progress", "t", event.version, None)
    assert made is not None
    assert made["data"] == {
        "taskId": "t",
        "tool": OPENED.tool,
        "version": event.version,
        "progress": 0.5,
    }
    conforms(made)


async def test_what_is_stored_no_more_or_was_never_so_far_has_no_occurrence():
    world, states, events = await lived()
    beyond = states[-1].version + 1
    assert await world.occurrences.one("task.updated", "t", beyond, None) is None
    assert await world.occurrences.one("task.progress", "t", 1, None) is None
    await world.store.forget(["t"])
    assert await world.occurrences.many("task.updated", events) == [None] * len(events)
    assert await world.occurrences.many("task.updated", events[-1:]) == [None]


@pytest.mark.parametrize(
    ("ends", "omitted"),
    [
        (completes({"content": [{"type": "text", "text": LARGE}]}), ["result"]),
        (fails({"code": -1, "message": "small", "data": LARGE}), ["error"]),
        (fails({"code": -1, "message": LARGE}), ["error", "statusMessage"]),
    ],
)
async def test_what_makes_the_data_too_large_is_left_out_and_named(ends: Any, omitted: list[str]):
    world = World()
    await world.opened("t")
    await world.happens("t", starts(), ends)
    [made] = await world.occurrences.many("task.finished", world.store.of(ALICE)[-1:])
    assert made is not None
    assert made["data"]["omitted"] == omitted
    assert not set(omitted) & set(made["data"])
    assert len(json.dumps(made)) < 256 * 1024
    conforms(made)


async def test_large_integers_and_lone_surrogates_stay_what_they_are():
    world = World()
    await world.opened("t")
    result = {"content": [], "structuredContent": {"n": 2**80, "s": "\ud800"}}
    await world.happens("t", starts(), completes(result))
    [made] = await world.occurrences.many("task.finished", world.store.of(ALICE)[-1:])
    assert made is not None
    assert made["data"]["result"] == result
    assert json.loads(occurrences.dumps(made)) == made


def test_an_event_id_is_fit_for_a_header_and_differs_for_another_event():
    names = ["task.updated", "task.finished"]
    ids = {
        event_id(name, task, version)
        for name in names
        for task in ("t", "t_1", "ü.\n", "\ud800")
        for version in (1, 11)
    }
    assert len(ids) == 16
    assert all(re.fullmatch(r"evt_[A-Za-z0-9_-]{22}_\d+", each) for each in ids)
