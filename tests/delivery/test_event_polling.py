"""`events/poll`: where it begins, where it ends, and what is refused."""

from typing import Any

import pytest

from outlast.delivery.events import begin, poll
from outlast.domain import decisions, errors
from outlast.tests.contracts.stores import progresses
from outlast.tests.delivery.events_world import ALICE, BOB, World, drained, told
from outlast.tests.domain.given import at, completes, starts

pytestmark = pytest.mark.anyio

# --- where it begins


async def test_without_a_cursor_it_begins_now():
    world = World()
    await world.opened("a1")
    answer = await world.poll("task.updated", None)
    assert answer == {
        "events": [],
        "cursor": answer["cursor"],
        "truncated": False,
        "hasMore": False,
        "nextPollMs": 5000,
    }
    await world.happens("a1", starts())
    assert told((await world.poll("task.updated", answer["cursor"]))["events"]) == [("a1", 2)]


async def test_who_has_no_task_yet_gets_a_cursor_too():
    world = World()
    first = await world.poll("task.updated", None)
    assert await world.poll("task.updated", first["cursor"]) == first
    await world.opened("a1")
    assert told((await world.poll("task.updated", first["cursor"]))["events"]) == [("a1", 1)]


@pytest.mark.parametrize("cursor", ["", "v1.x", "bob's"])
async def test_a_foreign_cursor_leads_to_the_oldest_event_with_a_gap(cursor: str):
    world = World()
    await world.opened("a1")
    text = world.cursors.seal(BOB, 1) if cursor == "bob's" else cursor
    answer = await world.poll("task.updated", text)
    assert (told(answer["events"]), answer["truncated"]) == ([("a1", 1)], True)
    assert not (await world.poll("task.updated", answer["cursor"]))["truncated"]


async def test_a_cursor_from_the_future_leads_to_now_with_a_gap():
    world = World()
    await world.opened("a1")
    answer = await world.poll("task.updated", world.cursors.seal(ALICE, 99))
    assert (answer["events"], answer["truncated"]) == ([], True)
    assert answer["cursor"] == (await world.poll("task.updated", None))["cursor"]


async def test_a_cursor_stays_good_when_all_that_came_before_it_is_removed():
    world = World()
    await world.opened("a1")
    cursor = (await world.poll("task.updated", None))["cursor"]
    await world.store.forget(["a1"])
    answer = await world.poll("task.updated", cursor)
    assert (answer["truncated"], answer["cursor"]) == (False, cursor)
    assert (await world.poll("task.updated", None))["cursor"] == cursor


async def test_named_tasks_know_no_gap_but_their_own():
    world = World()
    for task_id in ("a1", "a2"):
        await world.opened(task_id)
    await world.store.forget(["a2"])
    source = world.desk.source_of(ALICE, "a1")
    assert source["name"] == "task.progress"
    named = await world.poll("task.updated", source["initialCursor"], arguments=source["input"])
    assert (told(named["events"]), named["truncated"]) == ([("a1", 1)], False)
    assert (await world.poll("task.updated", source["initialCursor"]))["truncated"]


async def test_events_that_are_too_old_are_left_out_with_a_gap():
    world = World(seconds=100)
    await world.opened("a1")
    await world.happens("a1", starts(seconds=10), progresses(1, seconds=90))
    for max_age_ms, versions, truncated in (
        (200_000, [1, 2, 3], False),
        (95_000, [2, 3], True),
        (20_000, [3], True),
        (0, [], True),
        (10**15, [1, 2, 3], False),
    ):
        for arguments in ({}, {"taskId": "a1"}):
            answer = await world.poll(
                "task.updated", world.start(), arguments=arguments, maxAgeMs=max_age_ms
            )
            assert [version for _, version in told(answer["events"])] == versions
            assert answer["truncated"] == truncated


async def test_age_means_nothing_without_a_cursor_and_no_gap_where_nothing_was_wanted():
    world = World(seconds=100)
    await world.opened("a1")
    await world.happens("a1", starts(seconds=10))
    assert not (await world.poll("task.updated", None, maxAgeMs=0))["truncated"]
    answer = await world.poll("task.progress", world.start(), maxAgeMs=20_000)
    assert (answer["events"], answer["truncated"]) == ([], False)
    await world.happens("a1", progresses(1, seconds=90))
    answer = await world.poll("task.progress", world.start(), maxAgeMs=20_000)
    assert (told(answer["events"]), answer["truncated"]) == ([("a1", 3)], False)


async def test_a_replay_of_all_tasks_has_a_ceiling_and_one_of_named_tasks_has_none(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(begin, "REPLAY_MAX", 3)
    world = World()
    await world.opened("a1")
    await world.happens("a1", starts(), *(progresses(step) for step in range(4)))
    answer = await world.poll("task.updated", world.start())
    assert told(answer["events"]) == [("a1", version) for version in (4, 5, 6)]
    assert answer["truncated"]
    named = await world.poll("task.updated", world.start(), arguments={"taskId": "a1"})
    assert (len(named["events"]), named["truncated"]) == (6, False)


# --- where it ends


async def test_tasks_that_have_ended_are_polled_to_the_end_before_it_is_said():
    world = World()
    await world.opened("a1")
    await world.happens("a1", starts(), completes())
    answer: dict[str, Any] = {}
    cursor, found = world.start(), list[tuple[str, int]]()
    for _ in range(3):
        answer = await world.poll("task.updated", cursor, arguments={"taskId": "a1"}, maxEvents=1)
        found += told(answer["events"])
        cursor = answer["cursor"]
    assert (found, answer["hasMore"]) == ([("a1", 1), ("a1", 2), ("a1", 3)], False)
    for last in (cursor, None):
        with pytest.raises(errors.EventNotFound) as over:
            await world.poll("task.updated", last, arguments={"taskId": "a1"})
        assert over.value.data == {"kind": "subscription", "reason": "task_terminal"}
    assert (await world.poll("task.updated", cursor))["events"] == []


async def test_it_goes_on_while_one_of_several_tasks_runs():
    world = World()
    for task_id in ("a1", "a2"):
        await world.opened(task_id)
        await world.happens(task_id, starts())
    both = {"taskIds": ["a1", "a2"]}
    cursor = (await world.poll("task.finished", None, arguments=both))["cursor"]
    await world.happens("a1", completes())
    answer = await world.poll("task.finished", cursor, arguments=both)
    assert told(answer["events"]) == [("a1", 3)]
    assert (await world.poll("task.finished", answer["cursor"], arguments=both))["events"] == []


@pytest.mark.parametrize("task_id", ["b1", "never", "expired"])
async def test_tasks_of_others_expired_and_unknown_ones_are_told_apart_by_nobody(task_id: str):
    world = World(seconds=5000)
    await world.opened("b1", BOB)
    await world.opened("a1", ttl_ms=None)
    await world.opened("expired", ttl_ms=1000)
    await world.happens("expired", lambda task: decisions.expire(task, at(1)))
    for arguments in ({"taskId": task_id}, {"taskIds": ["a1", task_id]}):
        for cursor in (None, world.start(), "foreign"):
            with pytest.raises(errors.TaskNotFound):
                await world.poll("task.updated", cursor, arguments=arguments)


# --- what is refused, and what is bounded


@pytest.mark.parametrize(
    "params",
    [
        {"cursor": 7},
        {"cursor": ["v1"]},
        {"maxAgeMs": -1},
        {"maxAgeMs": 1.5},
        {"maxAgeMs": True},
        {"maxAgeMs": "1"},
        {"maxEvents": 0},
        {"maxEvents": -1},
        {"maxEvents": True},
        {"maxEvents": "3"},
        {"arguments": {"x": 1}},
        {"arguments": []},
        {"name": 3},
    ],
)
async def test_parameters_of_the_wrong_kind_are_refused(params: dict[str, Any]):
    world = World()
    request = world.request(**{"name": "task.updated", "cursor": None, **params})
    with pytest.raises(errors.InvalidCall):
        await world.desk.poll(request)


async def test_a_batch_is_bounded_in_number_and_in_size(monkeypatch: pytest.MonkeyPatch):
    world = World()
    await world.opened("a1")
    await world.happens("a1", starts(), *(progresses(step) for step in range(150)))
    first = await world.poll("task.updated", world.start())
    assert (len(first["events"]), first["hasMore"]) == (100, True)
    whole = await world.poll("task.updated", world.start(), maxEvents=10**6)
    assert (len(whole["events"]), whole["hasMore"]) == (152, False)
    monkeypatch.setattr(poll, "BATCH_BYTES_MAX", 2000)
    monkeypatch.setattr(poll, "SLICE", 3)
    small = await world.poll("task.updated", world.start())
    assert 0 < len(small["events"]) < 100
    found, _ = await drained(world, "task.updated", {}, world.start(), 1000)
    assert told(found) == told(whole["events"])


async def test_a_batch_that_a_task_was_removed_under_has_a_gap(monkeypatch: pytest.MonkeyPatch):
    world = World()
    await world.opened("a1")
    await world.opened("a2")
    read = world.store.after

    async def and_then_forget(*given: Any) -> Any:
        page = await read(*given)
        await world.store.forget(["a1"])
        return page

    monkeypatch.setattr(world.store, "after", and_then_forget)
    answer = await world.poll("task.updated", world.start())
    assert (told(answer["events"]), answer["truncated"]) == ([("a2", 1)], True)
