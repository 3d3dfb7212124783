"""A task that cannot be opened here is a gap in its owner's events, and all else goes on."""

from collections.abc import Sequence
from typing import Any

import pytest

from outlast.domain import errors
from outlast.domain.events import TaskEvent
from outlast.domain.ports import TaskView
from outlast.domain.task import Task
from outlast.tests.delivery.events_world import ALICE, World, parsed, told
from outlast.tests.domain.given import starts

pytestmark = pytest.mark.anyio

FAULTS = {
    "sealed": errors.KeyMissing("lost", "old"),
    "damaged": errors.PayloadDamaged("lost"),
    "newer": LookupError("'task.frozen' was stored by a newer release"),
}


@pytest.fixture(params=list(FAULTS))
async def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    """Of three tasks the one in the middle does not open."""
    made, fault = World(), FAULTS[request.param]
    for task_id in ("before", "lost", "after"):
        await made.opened(task_id)
    await made.happens("lost", starts())
    get, tail = made.store.get, made.store.tail

    async def getting(task_id: str, owner: str | None = None) -> TaskView | None:
        if task_id == "lost" and isinstance(fault, errors.PayloadError):
            raise fault  # of what a newer release has written, the view row opens
        return await get(task_id, owner)

    async def reading(task_id: str, *more: Any) -> tuple[Task | None, Sequence[TaskEvent]]:
        if task_id == "lost":
            raise fault
        return await tail(task_id, *more)

    monkeypatch.setattr(made.store, "get", getting)
    monkeypatch.setattr(made.store, "tail", reading)
    return made


async def test_a_poll_tells_the_others_and_of_the_gap(
    world: World, caplog: pytest.LogCaptureFixture
):
    answer = await world.poll("task.updated", world.start())
    assert told(answer["events"]) == [("before", 1), ("after", 1)]
    assert answer["truncated"] is True
    again = await world.poll("task.updated", answer["cursor"])
    assert (again["events"], again["truncated"]) == ([], False)
    assert {record.__dict__.get("task") for record in caplog.records} == {"lost"}


async def test_one_event_alone_that_is_told_by_its_row_is_no_exception(world: World):
    """Of a task with one event in the batch the view row is asked first; that may well open."""
    await world.opened("later")
    cursor = world.cursors.seal(ALICE, 2)  # after the first of the lost one's two
    answer = await world.poll("task.progress", cursor)
    assert answer["events"] == []
    answer = await world.poll("task.updated", cursor)
    others = [each for each in told(answer["events"]) if each != ("lost", 2)]
    assert others == [("after", 1), ("later", 1)]
    assert answer["truncated"] is (len(answer["events"]) == len(others))


async def test_a_stream_tells_the_others_and_of_the_gap(world: World):
    watch = await world.stream("task.updated", world.start())
    frames = watch.frames()
    came = [parsed(await anext(frames)) for _ in range(5)]
    await frames.aclose()
    await watch.close()
    events = [frame["params"] for frame in came if frame["method"].endswith("event")]
    assert told(events) == [("before", 1), ("after", 1)]
    gaps = [frame["params"] for frame in came[1:] if frame["method"].endswith("active")]
    assert [gap["truncated"] for gap in gaps] == [True, True]
