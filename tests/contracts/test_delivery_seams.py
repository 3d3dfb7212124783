"""The promise of delivery at its seams: between two steps, before and after, at the limits."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest
from hypothesis import given, settings

from outlast.adapters import codec
from outlast.adapters.bus import Bus
from outlast.adapters.memory import MemoryAnnouncements, MemoryStore
from outlast.delivery.feed import Feed
from outlast.delivery.frames import SUBSCRIPTION_META_KEY, TASK_CHANGED, VERSION_META_KEY
from outlast.delivery.limits import WatchLimits
from outlast.delivery.listen import Listening, ListenMethod, listen_params
from outlast.delivery.port import ListenRequest
from outlast.delivery.websocket import Switchboard
from outlast.domain import decisions, errors
from outlast.domain.task import evolve
from outlast.service import carriers
from outlast.tests.contracts.delivery_histories import Example, Fault, History, examples, unroll
from outlast.tests.contracts.delivery_observers import (
    PUSHED,
    WAYS,
    Client,
    Json,
    Observer,
    Way,
    client,
)
from outlast.tests.contracts.delivery_wire import turns
from outlast.tests.contracts.delivery_world import (
    OWNERS,
    InMemory,
    Replica,
    World,
    the_clock,
    until_true,
    without_pauses,
)
from outlast.tests.contracts.test_delivery import few, ids_of_ways, judge
from outlast.tests.domain.given import OPENED, START

pytestmark = pytest.mark.anyio

BOUND_S = 10.0
STEPS = 36
TAKE_S_MAX = 1.5
ANN, BOB = (owner.key for owner in OWNERS)
STARTS, PROGRESSES, SAYS_MUCH = (0, 0), (0, 0), (0, 1)
ids_of_pushed = [way.name for way in PUSHED]


@pytest.fixture(autouse=True, scope="module")
def at_once() -> Iterator[None]:
    with without_pauses():
        yield


class Telling:
    """Appends a history step by step, whoever asks for the next one."""

    def __init__(self, world: World, history: History) -> None:
        self._world, self._history, self.number = world, history, 0

    async def more(self, steps: int = 1) -> None:
        """The next steps, if any are left."""
        for step in self._history.steps[self.number : self.number + steps]:
            self.number += 1
            await self._world.store.log.append(step.before, step.events)

    async def change(self, _replica: Replica) -> None:
        """A hook: the next step happens between two of a server's."""
        await self.more()

    async def crash(self, replica: Replica) -> None:
        """The same, and the server goes no further."""
        await self.more()
        await self._world.dies_here(replica)

    async def failure(self, _replica: Replica) -> None:
        """The same, and the store is away for what the server was about to do."""
        await self.more()
        raise errors.StoreUnavailable

    @property
    def is_over(self) -> bool:
        return self.number == len(self._history.steps)

    def version(self, task_id: str) -> int:
        return self._history.version_before(self.number, task_id)


async def until_knows(observer: Observer, telling: Telling) -> None:
    """Return once it has seen all that was told so far, by whomever."""
    while observer.versions[-1:] != [telling.version(observer.task_id)]:
        observer.news.clear()
        await observer.news.wait()


@asynccontextmanager
async def watched(
    way: Way, world: World, task_id: str, after: int = 0, owner: int = 0, **wire: Any
) -> AsyncGenerator[tuple[Observer, Client]]:
    """An observer at work; its watch has ended when this is left."""
    async with client(world, owner, **wire) as ours, asyncio.TaskGroup() as group:
        observer = Observer(way.source(ours), task_id, after, asyncio.Event())
        group.create_task(observer.watch())
        yield observer, ours


@pytest.mark.promise("deliveries-keep-one-promise")
@pytest.mark.parametrize("harm", ["change", "crash", "failure"])
@pytest.mark.parametrize("way", WAYS, ids=ids_of_ways)
async def test_nothing_is_lost_between_any_two_steps(way: Way, harm: str) -> None:
    history = unroll(["task"], [ANN], [STARTS, *[PROGRESSES] * 3])
    for number in range(1, STEPS):
        world = World(InMemory())
        telling = Telling(world, history)
        world.steps.hooks = {number: getattr(telling, harm)}
        async with asyncio.timeout(BOUND_S), world.open():
            await telling.more(2)
            began_at = telling.version("task")
            async with watched(way, world, "task") as (observer, _):
                await until_knows(observer, telling)
                while not telling.is_over:
                    await telling.more()
                    await until_knows(observer, telling)
            judge(history, observer, began_at)


@pytest.mark.promise("deliveries-keep-one-promise")
@pytest.mark.parametrize("way", WAYS, ids=ids_of_ways)
async def test_a_watch_after_the_end_gets_the_rest_and_ends(way: Way) -> None:
    history = unroll(["task"], [ANN], [STARTS, *[PROGRESSES] * 3])
    told = history.told("task")
    last = max(told)
    async with asyncio.timeout(BOUND_S), World(InMemory()).open() as world:
        await Telling(world, history).more(len(history.steps))
        for known in range(last + 1):
            async with watched(way, world, "task", known) as (observer, _):
                pass
            assert observer.versions == ([last] if not known else [*range(known + 1, last + 1)])
            assert [dict(state.task) for state in observer.seen] == [
                told[version] for version in observer.versions
            ]


@pytest.mark.parametrize("way", WAYS, ids=ids_of_ways)
async def test_who_claims_to_know_more_than_there_is_still_hears_of_the_end(way: Way) -> None:
    history = unroll(["task"], [ANN], [STARTS, PROGRESSES])
    async with asyncio.timeout(BOUND_S), World(InMemory()).open() as world:
        telling = Telling(world, history)
        await telling.more(2)
        async with watched(way, world, "task", 99) as (observer, _):
            await until_true(lambda: world.steps.count > 0)  # it has asked
            await telling.more(len(history.steps))
        async with watched(way, world, "task", 99) as (late, _):
            pass
    assert observer.versions == late.versions == []


@pytest.mark.promise("deliveries-keep-one-promise")
@pytest.mark.promise("watchers-see-only-their-own")
@pytest.mark.parametrize("way", PUSHED, ids=ids_of_pushed)
@given(example=examples)
@settings(few, max_examples=15)
async def test_frames_say_what_was_agreed_first_and_that_it_is_over_last(
    way: Way, example: Example
) -> None:
    ids = [f"task-{number}" for number in range(len(example.owners))]
    history = unroll(ids, [OWNERS[owner].key for owner in example.owners], example.choices)
    mine = [task_id for task_id in ids if history.owner(task_id) == ANN]
    store = InMemory()
    async with asyncio.timeout(BOUND_S), World(store, store.recheck_s).open() as world:
        telling = Telling(world, history)
        await telling.more(len(ids) + example.joinings[0].step % 4)
        began_at = {task_id: telling.version(task_id) for task_id in mine}
        async with client(world, 0) as ours, asyncio.TaskGroup() as group:
            reading = group.create_task(all_frames(ours, way, *ids, "unknown"))
            while not telling.is_over:
                fates = example.signals[telling.number % len(example.signals)]
                await store.fate(fates)
                await telling.more()
                await turns()
            await store.settle()
        agreed, *changes, end = reading.result()
    assert agreed["method"] == "notifications/subscriptions/acknowledged"
    assert agreed["params"]["notifications"] == {"taskIds": mine}
    assert end["result"] == {"resultType": "complete", "_meta": {SUBSCRIPTION_META_KEY: end["id"]}}
    assert {change["method"] for change in changes} <= {TASK_CHANGED}
    for task_id in mine:
        told = history.told(task_id)
        seen = [c["params"] for c in changes if c["params"]["taskId"] == task_id]
        versions = [params["_meta"][VERSION_META_KEY] for params in seen]
        assert versions == list(range(max(versions[0], began_at[task_id]), max(told) + 1))
        assert [_bare(params) for params in seen] == [told[version] for version in versions]
    assert {change["params"]["taskId"] for change in changes} == set(mine)
    metas = [message["params"]["_meta"] for message in (agreed, *changes)]
    assert {meta[SUBSCRIPTION_META_KEY] for meta in metas} == {end["id"]}


def _bare(params: Json) -> Json:
    return {name: value for name, value in params.items() if name != "_meta"}


async def all_frames(ours: Client, way: Way, *task_ids: str) -> list[Json]:
    return [message async for message in ours.frames(way, *task_ids)]


async def open_strange_tasks(world: World) -> None:
    """One of somebody else, and one of ours that was kept long enough."""
    day_before = START - timedelta(days=1)
    foreign = replace(OPENED, task_id="foreign", owner=BOB)
    expired = replace(
        OPENED, task_id="expired", owner=ANN, at=decisions.instant(day_before), ttl_ms=1000
    )
    await world.store.log.append(None, decisions.open_task(foreign))
    task = await world.store.log.append(None, decisions.open_task(expired))
    await world.store.log.append(task, decisions.expire(task, day_before + timedelta(seconds=2)))


@pytest.mark.promise("watchers-see-only-their-own")
@pytest.mark.parametrize("way", WAYS, ids=ids_of_ways)
async def test_a_strange_task_is_refused_like_one_that_never_was(way: Way) -> None:
    refusals: list[tuple[Any, ...]] = []
    async with asyncio.timeout(BOUND_S), World(InMemory()).open() as world:
        await open_strange_tasks(world)
        for task_id in ("foreign", "expired", "unknown"):
            async with client(world, 0) as ours:
                observer = Observer(way.source(ours), task_id, 0, asyncio.Event())
                with pytest.raises(errors.RequestRefused) as refused:
                    await observer.watch()
                assert observer.seen == []
                refusals.append((refused.value.code, str(refused.value), refused.value.data))
    assert len(set(refusals)) == 1
    assert refusals[0][0] == -32602


@pytest.mark.promise("watchers-see-only-their-own")
@pytest.mark.parametrize("way", PUSHED, ids=ids_of_pushed)
async def test_strange_tasks_are_absent_from_what_was_agreed(way: Way) -> None:
    history = unroll(["task"], [ANN], [STARTS])
    async with asyncio.timeout(BOUND_S), World(InMemory()).open() as world:
        await open_strange_tasks(world)
        await Telling(world, history).more(len(history.steps))
        async with client(world, 0) as ours:
            first, change, end = await all_frames(
                ours, way, "foreign", "task", "expired", "unknown"
            )
            alone = [await all_frames(ours, way, name) for name in ("foreign", "expired", "no")]
    assert first["params"]["notifications"] == {"taskIds": ["task"]}
    assert change["params"]["taskId"] == "task"
    assert end["result"]["resultType"] == "complete"
    assert [[_shape(message) for message in messages] for messages in alone] == [
        [{"taskIds": []}, {"resultType": "complete"}]
    ] * 3


def _shape(message: Json) -> Json:
    return message["params"]["notifications"] if "params" in message else _bare(message["result"])


@pytest.mark.parametrize("way", PUSHED, ids=ids_of_pushed)
async def test_a_seat_that_is_taken_is_refused_and_a_cut_gives_it_back(way: Way) -> None:
    ids = ["of-ann", "of-bob"]
    history = unroll(ids, [ANN, BOB], [])
    world = World(InMemory(), watches=3, watches_per_owner=2)
    async with asyncio.timeout(BOUND_S), world.open(), AsyncExitStack() as stack:
        telling = Telling(world, history)
        await telling.more(2)
        limits = world.replicas[0].limits

        async def sit(owner: int) -> Client:
            ours = await stack.enter_async_context(client(world, owner))
            frames = await stack.enter_async_context(aclosing(ours.frames(way, ids[owner])))
            assert "method" in await anext(frames)
            return ours

        async def refusal(owner: int) -> str:
            async with client(world, owner) as ours:
                (answer,) = await all_frames(ours, way, ids[owner])
            return answer["error"]["message"]

        leaving = await sit(0)
        await sit(0)
        assert "2 watches of one owner" in await refusal(0)
        await sit(1)
        assert "3 watches of this process" in await refusal(1)
        leaving.wire.cut()
        await until_true(lambda: limits.open_count < 3)
        await sit(1)
        assert limits.open_count == 3


@pytest.mark.promise("slow-reader-is-cut-off-and-loses-nothing")
@pytest.mark.parametrize("way", PUSHED, ids=ids_of_pushed)
async def test_a_reader_that_stops_reading_is_cut_off_and_loses_nothing(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carriers, "TAKE_S_MAX", TAKE_S_MAX)
    history = lengthy(unroll(["task"], [ANN], [STARTS, *[SAYS_MUCH] * 12]))
    world = World(InMemory(), is_narrow=True)
    async with asyncio.timeout(BOUND_S), world.open():
        telling, limits = Telling(world, history), world.replicas[0].limits
        await telling.more(2)
        stalls = [Fault(after_bytes=1_000, upward=False, kind="stall")]
        async with (
            watched(way, world, "task", 1) as (fast, _),
            watched(way, world, "task", 1, faults=stalls, is_narrow=True) as (slow, theirs),
        ):
            for _ in range(12):
                await telling.more()
                await until_knows(fast, telling)
            assert limits.open_count == 2  # the slow one is still held up, and held up nobody
            assert slow.versions[-1:] < fast.versions[-1:]
            with anyio.fail_after(TAKE_S_MAX + 2):
                await until_true(lambda: limits.open_count < 2)
            theirs.wire.flowing.set()
            await telling.more(len(history.steps))
        judge(history, fast, 1)
        judge(history, slow, 1)


def lengthy(history: History) -> History:
    """The same history, with messages that no buffer on the way holds all of."""
    steps, noise = list(history.steps), random.Random(1)
    for number, step in enumerate(steps):
        events = tuple(
            replace(event, message=noise.randbytes(30_000).hex())  # a socket may compress
            if hasattr(event, "message")
            else event
            for event in step.events
        )
        before = steps[number - 1].after if number else None
        after = before
        for event in events:
            after = evolve(after, event)
        assert after is not None
        steps[number] = replace(step, before=before, events=events, after=after)
    return History(tuple(steps))


async def test_watches_on_one_socket_are_told_apart_by_their_requests() -> None:
    history = unroll(["one", "two"], [ANN, ANN], [(0, 0), (1, 0), (0, 0), (1, 0)])
    ids: dict[str | int, str] = {"a": "one", 7: "two", "7": "two"}
    async with asyncio.timeout(BOUND_S), World(InMemory()).open() as world:
        telling = Telling(world, history)
        await telling.more(2)
        async with client(world, 0) as ours, ours.socket() as socket:
            for request_id, task_id in ids.items():
                await socket.send(json.dumps({**ours.listen_request(task_id), "id": request_id}))
            messages = [json.loads(await socket.recv()) for _ in ids]  # who was agreed with
            await telling.more(len(history.steps))
            while [message.get("id") for message in messages].count(None) > len(messages) - 3:
                messages.append(json.loads(await socket.recv()))
    for request_id, task_id in ids.items():
        metas = [(m.get("params") or m["result"])["_meta"] for m in messages]
        own = [
            message
            for message, meta in zip(messages, metas, strict=True)
            if meta[SUBSCRIPTION_META_KEY] == request_id
            and type(meta[SUBSCRIPTION_META_KEY]) is type(request_id)
        ]
        agreed, *changes, end = own
        assert agreed["params"]["notifications"] == {"taskIds": [task_id]}
        versions = [change["params"]["_meta"][VERSION_META_KEY] for change in changes]
        assert versions == list(range(versions[0], max(history.told(task_id)) + 1))
        assert {change["params"]["taskId"] for change in changes} == {task_id}
        assert end["id"] == request_id


@pytest.mark.parametrize("end", ["cancelled", "close"])
async def test_a_watch_that_is_ended_before_it_began_gives_its_seat_back(end: str) -> None:
    bus, limits = Bus(), WatchLimits(1, 1)
    store = MemoryStore(bus)
    await store.append(None, decisions.open_task(replace(OPENED, owner=ANN)))
    feed = Feed(store, store, codec.wire_of, the_clock)
    sent: list[bytes] = []

    async def send(frame: bytes) -> None:
        sent.append(frame)

    listener = ListenMethod(Listening(feed, bus, MemoryAnnouncements(), limits))
    board = Switchboard(listener, send, lambda _id, error: str(error).encode())
    request = ListenRequest(ANN, "w-1", listen_params({OPENED.task_id: 0}), declares_tasks=True)
    for _ in range(2):  # the id and the seat can be had again
        await board.received(request)
        assert limits.open_count == 1
        await (board.cancelled("w-1") if end == "cancelled" else board.close())
        assert limits.open_count == 0
        assert board.is_idle
    assert sent == []
    assert bus.watched() == []
