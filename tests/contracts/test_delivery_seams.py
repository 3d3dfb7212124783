"""The promise of delivery at its seams: between two steps, before and after, at the limits."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings

from outlast.delivery.frames import SUBSCRIPTION_META_KEY, TASK_CHANGED, VERSION_META_KEY
from outlast.domain import decisions, errors
from outlast.tests.contracts.delivery_histories import Example, examples, unroll
from outlast.tests.contracts.delivery_observers import (
    PUSHED,
    WAYS,
    WEBSOCKET_WAY,
    Json,
    Observer,
    Way,
    client,
)
from outlast.tests.contracts.delivery_telling import Telling, few, judge, until_knows, watched
from outlast.tests.contracts.delivery_wire import turns
from outlast.tests.contracts.delivery_world import (
    NEVER_S,
    OWNERS,
    REPLICAS,
    InMemory,
    World,
    until_true,
    without_pauses,
)
from outlast.tests.domain.given import OPENED, START

pytestmark = pytest.mark.anyio

BOUND_S = 10.0
STEPS = 36
ANN, BOB = (owner.key for owner in OWNERS)
STARTS = PROGRESSES = (0, 0)  # the task's first possible wish, each time
ids_of_ways = [way.name for way in WAYS]
ids_of_pushed = [way.name for way in PUSHED]


@pytest.fixture(autouse=True, scope="module")
def at_once() -> Iterator[None]:
    with without_pauses():
        yield


@pytest.mark.promise("deliveries-keep-one-promise")
@pytest.mark.parametrize("harm", ["change", "crash", "failure"])
@pytest.mark.parametrize("way", WAYS, ids=ids_of_ways)
async def test_nothing_is_lost_between_any_two_steps(way: Way, harm: str) -> None:
    """Broken on purpose: `follow` watches only after its first read; a poll that leaves out what
    lies between, or asks from 0 again.
    """
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
@pytest.mark.parametrize("fate", ["lost", "late", "twice"])
@pytest.mark.parametrize("way", WAYS, ids=ids_of_ways)
async def test_a_signal_that_fails_costs_time_and_no_change(way: Way, fate: str) -> None:
    """Broken on purpose: `follow` looks at nothing when it has heard nothing."""
    history = unroll(["task"], [ANN], [STARTS, *[PROGRESSES] * 3])
    store = InMemory()
    world = World(store, store.recheck_s if fate == "lost" else NEVER_S)
    async with asyncio.timeout(BOUND_S), world.open():
        telling = Telling(world, history)
        await telling.more(2)
        async with watched(way, world, "task") as (observer, _):
            await until_knows(observer, telling)
            while not telling.is_over:
                await store.fate([fate] * REPLICAS)
                await telling.more()
                await store.settle()
                await until_knows(observer, telling)
    judge(history, observer, 2)


@pytest.mark.promise("deliveries-keep-one-promise")
@pytest.mark.parametrize("way", WAYS, ids=ids_of_ways)
async def test_a_watch_goes_on_elsewhere_when_its_server_leaves(way: Way) -> None:
    """Broken on purpose: a source that takes the end of its stream for the end of the task, and one
    that stays on its socket after the watch there has ended.
    """
    history = unroll(["task"], [ANN], [STARTS, *[PROGRESSES] * 3])
    async with asyncio.timeout(BOUND_S), World(InMemory()).open() as world:
        telling = Telling(world, history)
        await telling.more(2)
        async with watched(way, world, "task") as (observer, _):
            await until_knows(observer, telling)
            world.led_to = 1
            if way is WEBSOCKET_WAY:  # an ended watch is enough: its connection may stay open
                world.replicas[0].listening.closing.set()
            else:
                await world.leave(world.replicas[0])
            while not telling.is_over:
                await telling.more()
                await until_knows(observer, telling)
    judge(history, observer, 2)


@pytest.mark.promise("deliveries-keep-one-promise")
@pytest.mark.parametrize("way", WAYS, ids=ids_of_ways)
async def test_a_watch_after_the_end_gets_the_rest_and_ends(way: Way) -> None:
    """Broken on purpose: a final state that is not told again; a source that drops no repeats."""
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
    """Broken on purpose: a claimed version is taken as it is."""
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
    """Broken on purpose: every owner's tasks are agreed to."""
    ids = [f"task-{number}" for number in range(len(example.owners))]
    history = unroll(ids, [OWNERS[owner].key for owner in example.owners], example.choices)
    mine = [task_id for task_id in ids if history.owner(task_id) == ANN]
    store = InMemory()
    async with asyncio.timeout(BOUND_S), World(store, store.recheck_s).open() as world:
        telling = Telling(world, history)
        await telling.more(len(ids) + example.joinings[0].step % 4)
        began_at = {task_id: telling.version(task_id) for task_id in mine}
        async with client(world, 0) as ours, asyncio.TaskGroup() as group:
            reading = group.create_task(ours.all_frames(way, *ids, "unknown"))
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
    """Broken on purpose: an expired task is told as long as it is stored."""
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
            first, change, end = await ours.all_frames(way, "foreign", "task", "expired", "unknown")
            alone = [await ours.all_frames(way, name) for name in ("foreign", "expired", "no")]
    assert first["params"]["notifications"] == {"taskIds": ["task"]}
    assert change["params"]["taskId"] == "task"
    assert end["result"]["resultType"] == "complete"
    assert [[_shape(message) for message in messages] for messages in alone] == [
        [{"taskIds": []}, {"resultType": "complete"}]
    ] * 3


def _shape(message: Json) -> Json:
    return message["params"]["notifications"] if "params" in message else _bare(message["result"])
