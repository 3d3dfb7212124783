"""`events/stream` in memory: what it tells, when it ends, and what an idle one costs."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest

from outlast.delivery.events import stream
from outlast.domain import errors
from outlast.domain.push import LoggedEvent
from outlast.tests.acceptance.waiting import until
from outlast.tests.contracts.stores import progresses
from outlast.tests.delivery.events_world import ALICE, BOB, World, parsed, told
from outlast.tests.domain.given import completes, starts

pytestmark = pytest.mark.anyio

SOON_S_MAX = 10.0
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
OVER = {
    "code": -32011,
    "message": "NotFound",
    "data": {"kind": "subscription", "reason": "task_terminal"},
}


class Reader:
    """Takes frames one by one."""

    def __init__(self, frames: AsyncGenerator[bytes]) -> None:
        self._frames = frames

    async def next(self) -> dict[str, Any]:
        with anyio.fail_after(SOON_S_MAX):
            return parsed(await anext(self._frames))

    async def events(self, count: int) -> list[dict[str, Any]]:
        """So many, all of them events."""
        frames = [await self.next() for _ in range(count)]
        assert {frame["method"] for frame in frames} <= {"notifications/events/event"}, frames
        return [frame["params"] for frame in frames]

    async def rest(self) -> list[dict[str, Any]]:
        with anyio.fail_after(SOON_S_MAX):
            return [parsed(frame) async for frame in self._frames]


@asynccontextmanager
async def streaming(
    world: World, name: str, cursor: str | None = None, **params: Any
) -> AsyncGenerator[Reader]:
    """An open stream; in the end, nothing of it is left."""
    watch = await world.stream(name, cursor, **params)
    frames = watch.frames()
    try:
        yield Reader(frames)
    finally:
        await frames.aclose()
        await watch.close()
    assert world.waited_for() == []
    assert world.limits.open_count == 0


def method(frame: dict[str, Any]) -> str:
    return frame["method"].removeprefix("notifications/events/")


async def test_it_says_where_it_stands_and_then_every_event_with_the_place_after_it():
    world = World()
    await world.opened("a1")
    async with streaming(world, "task.updated", request_id="seven") as reader:
        first = await reader.next()
        assert first == {
            "jsonrpc": "2.0",
            "method": "notifications/events/active",
            "params": {
                "cursor": (await world.poll("task.updated", None))["cursor"],
                "truncated": False,
                "_meta": {SUBSCRIPTION: "seven"},
            },
        }
        await world.happens("a1", starts())
        [event] = await reader.events(1)
        polled = await world.poll("task.updated", first["params"]["cursor"])
        assert event == {
            **polled["events"][0],
            "cursor": polled["cursor"],
            "_meta": {SUBSCRIPTION: "seven"},
        }


async def test_from_a_cursor_it_tells_what_was_missed_in_pages_and_goes_on():
    world = World()
    await world.opened("a1")
    steps = 3 * stream.PAGE
    await world.happens("a1", starts(), *(progresses(step) for step in range(steps)))
    async with streaming(world, "task.progress", world.start()) as reader:
        assert method(await reader.next()) == "active"
        found = await reader.events(steps)
        await world.happens("a1", progresses(99))
        found += await reader.events(1)
    assert told(found) == [("a1", version) for version in range(3, steps + 4)]
    for number in (0, stream.PAGE, steps - 1):
        async with streaming(world, "task.progress", found[number]["cursor"]) as reader:
            await reader.next()
            assert told(await reader.events(1)) == [("a1", number + 4)]


async def test_a_stream_of_all_tasks_hears_of_new_ones_and_not_of_another_owners():
    world = World()
    async with streaming(world, "task.updated") as reader:
        await reader.next()
        await world.opened("b1", BOB)
        await world.opened("a1")
        await world.happens("b1", starts())
        await world.happens("a1", starts())
        assert told(await reader.events(2)) == [("a1", 1), ("a1", 2)]


async def test_it_ends_once_every_named_task_has_ended_and_all_was_told():
    world = World()
    for task_id in ("a1", "a2"):
        await world.opened(task_id)
        await world.happens(task_id, starts())
    both = {"taskIds": ["a1", "a2"]}
    async with streaming(world, "task.finished", arguments=both, request_id=7) as reader:
        await reader.next()
        await world.happens("a1", completes())
        assert told(await reader.events(1)) == [("a1", 3)]
        await world.happens("a2", progresses(), completes())
        event, over, result = await reader.rest()
    assert told([event["params"]]) == [("a2", 4)]
    assert over["method"] == "notifications/events/terminated"
    assert over["params"] == {"error": OVER, "_meta": {SUBSCRIPTION: 7}}
    assert result == {
        "jsonrpc": "2.0",
        "id": 7,
        "result": {"resultType": "complete", "_meta": {}},
    }


@pytest.mark.parametrize("name", ["task.updated", "task.finished", "task.progress"])
async def test_it_ends_too_when_the_last_event_is_none_of_those_that_were_wanted(name: str):
    world = World()
    await world.opened("a1")
    arguments = {"taskId": "a1", "statuses": ["failed"]}
    async with streaming(world, name, arguments=arguments) as reader:
        await reader.next()
        await world.happens("a1", starts(), completes())
        over, result = await reader.rest()
    assert method(over) == "terminated"
    assert "result" in result


async def test_a_task_that_has_ended_is_told_to_its_end_from_a_cursor_and_refused_without():
    world = World()
    await world.opened("a1")
    await world.happens("a1", starts(), completes())
    one = {"taskId": "a1"}
    async with streaming(world, "task.updated", world.start(), arguments=one) as reader:
        active, *events, over, result = await reader.rest()
    assert (method(active), method(over)) == ("active", "terminated")
    assert [event["params"]["data"]["version"] for event in events] == [1, 2, 3]
    assert "result" in result
    with pytest.raises(errors.EventNotFound) as refused:
        await world.stream("task.updated", None, arguments=one)
    assert refused.value.data == OVER["data"]
    assert world.limits.open_count == 0


async def test_a_named_task_that_is_removed_ends_it():
    world = World()
    await world.opened("a1")
    async with streaming(world, "task.updated", arguments={"taskId": "a1"}) as reader:
        await reader.next()
        await world.store.forget(["a1"])
        world.bus.moved("a1", 0)
        assert [method(frame) for frame in (await reader.rest())[:-1]] == ["terminated"]


async def test_all_is_quiet_is_told_with_the_place():
    world = World(heartbeat_s=0.1)
    await world.opened("a1")
    async with streaming(world, "task.finished") as reader:
        first = await reader.next()
        frames = [await reader.next() for _ in range(3)]
        assert [frame["method"] for frame in frames] == ["notifications/events/heartbeat"] * 3
        expected = {"cursor": first["params"]["cursor"], "_meta": {SUBSCRIPTION: 1}}
        assert [frame["params"] for frame in frames] == [expected] * 3
        await world.happens("a1", starts())
        now = (await world.poll("task.finished", None))["cursor"]
        with anyio.fail_after(SOON_S_MAX):
            while (await reader.next())["params"]["cursor"] != now:
                pass


async def test_a_quiet_stream_reads_nothing(monkeypatch: pytest.MonkeyPatch):
    world = World(heartbeat_s=0.05)
    await world.opened("a1")
    async with streaming(world, "task.updated") as reader:
        for _ in range(2):
            await reader.next()
        world.store.is_away = True  # whoever reads now says so
        for _ in range(5):
            assert method(await reader.next()) == "heartbeat"


async def test_a_store_that_is_away_for_a_moment_is_told_of_once_and_nothing_is_missed(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(stream, "RETRY_S", 0.02)
    world = World()
    await world.opened("a1")
    async with streaming(world, "task.updated") as reader:
        await reader.next()
        for version in (2, 3):
            world.store.is_away = True
            await world.happens("a1", starts() if version == 2 else progresses())
            error = await reader.next()
            assert error["params"]["error"] == {
                "code": -32603,
                "message": "StoreUnavailable",
                "data": {"reason": "store_unavailable"},
            }
            reading, before = asyncio.ensure_future(reader.events(1)), world.store.refused
            await until(partial(has_tried, world, before + 3), SOON_S_MAX)
            assert not reading.done()
            world.store.is_away = False
            assert told(await reading) == [("a1", version)]


async def has_tried(world: World, times: int) -> bool:
    return world.store.refused >= times


async def test_it_does_not_end_before_the_store_is_back_and_all_was_told(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(stream, "RETRY_S", 0.02)
    world = World()
    await world.opened("a1")
    async with streaming(world, "task.finished", arguments={"taskId": "a1"}) as reader:
        await reader.next()
        world.store.is_away = True
        await world.happens("a1", starts(), completes())
        assert method(await reader.next()) == "error"
        world.store.is_away = False
        assert [method(frame) for frame in (await reader.rest())[:-1]] == ["event", "terminated"]


async def test_a_store_that_stays_away_breaks_it_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stream, "RETRY_S", 0.02)
    monkeypatch.setattr(stream, "STORE_PATIENCE_S", 0.1)
    world = World()
    await world.opened("a1")
    async with streaming(world, "task.updated") as reader:
        await reader.next()
        world.store.is_away = True
        await world.happens("a1", starts())
        with pytest.raises(errors.StoreUnavailable):
            await reader.rest()


async def test_closing_ends_it_with_a_result_and_a_close_without_one():
    world = World()
    async with streaming(world, "task.updated") as reader:
        await reader.next()
        world.streaming.closing.set()
        [result] = await reader.rest()
        assert result["result"] == {"resultType": "complete", "_meta": {}}
    world = World()
    watch = await world.stream("task.updated", None)
    frames = watch.frames()
    with anyio.fail_after(SOON_S_MAX):
        await anext(frames)
        reading = asyncio.ensure_future(anext(frames, None))
        await asyncio.wait({reading}, timeout=0)
        await watch.close()
        assert await reading is None
    assert (world.limits.open_count, world.waited_for()) == (0, [])


async def test_events_that_were_removed_unseen_are_a_gap_in_the_middle_of_the_stream():
    world = World()
    await world.opened("a1")
    async with streaming(world, "task.updated") as reader:
        first = await reader.next()
        await world.opened("a2")  # heard of, and read only when the next frame is asked for
        await world.store.forget(["a2"])
        await world.happens("a1", starts())
        gap = await reader.next()
        assert method(gap) == "active"
        assert gap["params"]["truncated"] is True
        assert gap["params"]["cursor"] == first["params"]["cursor"]
        assert told(await reader.events(1)) == [("a1", 2)]
        await world.happens("a1", progresses())
        assert told(await reader.events(1)) == [("a1", 3)]


async def test_after_a_gap_with_nothing_behind_it_the_place_is_behind_the_gap():
    world = World(heartbeat_s=0.2)
    await world.opened("a1")
    async with streaming(world, "task.updated") as reader:
        await reader.next()
        await world.opened("a2")
        await world.store.forget(["a2"])
        frames = [await reader.next() for _ in range(3)]
    assert sorted(method(frame) for frame in frames) == ["active", "heartbeat", "heartbeat"]
    now = (await world.poll("task.updated", None))["cursor"]
    assert frames[-1]["params"]["cursor"] == now


async def test_events_that_are_removed_under_its_hands_are_a_gap(
    monkeypatch: pytest.MonkeyPatch,
):
    world = World()
    many = world.occurrences.many

    async def with_a_hole(name: str, events: list[LoggedEvent]) -> Any:
        return [
            None if event.task_id == "a1" else made
            for event, made in zip(events, await many(name, events), strict=True)
        ]

    monkeypatch.setattr(world.occurrences, "many", with_a_hole)
    async with streaming(world, "task.updated") as reader:
        await reader.next()
        await world.opened("a1")
        gap = await reader.next()
        assert (method(gap), gap["params"]["truncated"]) == ("active", True)
        await world.opened("a2")
        assert told(await reader.events(1)) == [("a2", 1)]


async def test_seats_are_limited_and_given_back():
    world = World(seats=2)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            watch = await world.stream("task.updated", None)
            stack.push_async_callback(watch.close)
        with pytest.raises(errors.TooManySubscriptions) as refused:
            await world.stream("task.updated", None)
        assert refused.value.data == {"limit": "subscriptions", "max": 2}
    for bad in ({"name": "task.vanished"}, {"arguments": {"taskId": "never"}}, {"cursor": 7}):
        with pytest.raises(errors.OutlastError):
            await world.desk.stream(
                world.request(ALICE, **{"name": "task.updated", "cursor": None, **bad})
            )
    assert world.limits.open_count == 0


async def test_a_slow_reader_misses_nothing():
    world = World()
    await world.opened("a1")
    async with streaming(world, "task.updated") as reader:
        await reader.next()
        await world.happens("a1", starts())
        await reader.events(1)
        for step in range(4 * stream.PAGE):
            await world.happens("a1", progresses(step))
        assert told(await reader.events(1)) == [("a1", 3)]
        await world.happens("a1", completes())
        found = told(await reader.events(4 * stream.PAGE))
        assert found[-1] == ("a1", 4 * stream.PAGE + 3)
