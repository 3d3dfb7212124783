"""Events that are removed while a poll is answered are said to be missing."""

from collections.abc import Sequence

import pytest

from outlast.domain.push import Filter, Page
from outlast.tests.delivery.events_world import ALICE, World, told
from outlast.tests.domain.given import starts

pytestmark = pytest.mark.anyio


def sweeps(world: World, monkeypatch: pytest.MonkeyPatch, gone: Sequence[str]) -> None:
    """These are removed after it was looked where the poll begins, and before its read."""
    after = world.store.after

    async def reading(owner: str, wanted: Filter, position: int, limit: int) -> Page:
        await world.store.forget(gone)
        return await after(owner, wanted, position, limit)

    monkeypatch.setattr(world.store, "after", reading)


async def test_what_is_removed_before_the_read_is_a_gap(monkeypatch: pytest.MonkeyPatch):
    world = World()
    await world.opened("a1")
    cursor = world.cursors.seal(ALICE, await world.store.head(ALICE))
    await world.happens("a1", starts())
    await world.opened("a2")
    sweeps(world, monkeypatch, ["a1"])
    answer = await world.poll("task.updated", cursor)
    assert told(answer["events"]) == [("a2", 1)]
    assert answer["truncated"] is True
    again = await world.poll("task.updated", answer["cursor"])
    assert again["truncated"] is False


async def test_what_was_removed_before_the_cursor_is_none(monkeypatch: pytest.MonkeyPatch):
    world = World()
    await world.opened("a1")
    cursor = world.cursors.seal(ALICE, await world.store.head(ALICE))
    await world.opened("a2")
    sweeps(world, monkeypatch, ["a1"])
    answer = await world.poll("task.updated", cursor)
    assert told(answer["events"]) == [("a2", 1)]
    assert answer["truncated"] is False


async def test_named_tasks_know_of_no_others(monkeypatch: pytest.MonkeyPatch):
    world = World()
    for task_id in ("a1", "a2"):
        await world.opened(task_id)
    await world.happens("a1", starts())
    sweeps(world, monkeypatch, ["a1"])
    answer = await world.poll("task.updated", world.start(), arguments={"taskId": "a2"})
    assert told(answer["events"]) == [("a2", 1)]
    assert answer["truncated"] is False
