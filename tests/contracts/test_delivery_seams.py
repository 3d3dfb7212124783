"""The promise of delivery at its seams: between two steps, before and after, at the limits."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings

from outlast.delivery.frames import SUBSCRIPTION_META_KEY, TASK_CHANGED
from outlast.delivery.port import VERSION_META_KEY
from outlast.delivery.webhook import receiver, sender
from outlast.domain import decisions, errors
from outlast.service.waits import turns
from outlast.tests.contracts import delivery_pushing
from outlast.tests.contracts.delivery_histories import Example, Receiving, Refusal, examples, unroll
from outlast.tests.contracts.delivery_observers import (
    ALL_WAYS,
    PUSHED,
    WEBHOOK_WAY,
    WEBSOCKET_WAY,
    Json,
    Observer,
    Way,
    client,
)
from outlast.tests.contracts.delivery_telling import (
    Telling,
    few,
    judge,
    judge_posts,
    new_id,
    until_knows,
    watched,
)
from outlast.tests.contracts.delivery_world import (
    NEVER_S,
    OWNERS,
    REPLICAS,
    InMemory,
    Store,
    World,
    until_true,
    without_pauses,
)
from outlast.tests.domain.given import OPENED, START

pytestmark = pytest.mark.anyio

BOUND_S = 25.0  # before the signal looks for what it may have missed
STEPS = 36
RECEIVER_STEPS = 20
ANN, BOB = (owner.key for owner in OWNERS)
STARTS = PROGRESSES = (0, 0)  # the task's first possible wish, each time
ids_of_ways = [way.name for way in ALL_WAYS]
ids_of_pushed = [way.name for way in PUSHED]


@pytest.fixture(autouse=True, scope="module")
def at_once() -> Iterator[None]:
    with without_pauses():
        yield


@pytest.mark.promise("deliveries-keep-one-promise")
@pytest.mark.parametrize("harm", ["change", "crash", "failure"])
@pytest.mark.parametrize("way", ALL_WAYS, ids=ids_of_ways)
async def test_nothing_is_lost_between_any_two_steps(way: Way, harm: str, store: Store) -> None:
    """Broken on purpose: `follow` watches only after its first read; a poll that leaves out what
    lies between, or asks from 0 again. For webhooks: what a lease ran out on is not claimed again;
    settled before it is posted; a newer state told under an older version; a cursor ahead of what
    waits. Not caught, since it costs a repeat at most: a settling that looks at no fence.
    """
    for number in range(1, STEPS):
        task_id = new_id()
        history = unroll([task_id], [ANN], [STARTS, *[PROGRESSES] * 3])
        world = World(store)
        telling = Telling(world, history)
        world.steps.hooks = {number: getattr(telling, harm)}
        async with asyncio.timeout(BOUND_S), world.open():
            await telling.more(2)
            began_at = telling.version(task_id)
            async with watched(way, world, task_id) as (observer, theirs):
                await until_knows(observer, telling)
                while not telling.is_over:
                    await telling.more()
                    await until_knows(observer, telling)
            judge(history, observer, began_at)
            await judge_posts(history, observer, theirs, world)


@pytest.mark.promise("deliveries-keep-one-promise")
@pytest.mark.parametrize("way", [WEBHOOK_WAY], ids=["webhook"])
async def test_nothing_is_lost_when_the_process_that_is_posted_to_dies(
    way: Way, store: Store
) -> None:
    """Broken on purpose: an acknowledgement before the commit; a source that reads nothing once its
    subscription is granted. Not caught, since that reading mends it: a delivery that is done before
    it is handed on.
    """
    for number in range(1, RECEIVER_STEPS):
        task_id = new_id()
        history = unroll([task_id], [ANN], [STARTS, *[PROGRESSES] * 3])
        world, dies = World(store), Receiving(crashes=frozenset({number}))
        async with asyncio.timeout(BOUND_S), world.open():
            telling = Telling(world, history)
            await telling.more(2)
            async with watched(way, world, task_id, receiving=dies) as (observer, theirs):
                while not telling.is_over:
                    await until_knows(observer, telling)
                    await telling.more()
            judge(history, observer, 2)
            await judge_posts(history, observer, theirs, world)


@pytest.mark.promise("deliveries-keep-one-promise")
@pytest.mark.parametrize("is_stored", [False, True], ids=["not-stored", "stored"])
@pytest.mark.parametrize("status", [500, 503, 429])
@pytest.mark.parametrize("way", [WEBHOOK_WAY], ids=["webhook"])
async def test_what_an_endpoint_refuses_comes_again_and_no_cursor_passes_it(
    way: Way, status: int, is_stored: bool, store: Store
) -> None:
    """Broken on purpose: a refused post is given up; a cursor ahead of what still waits; a source
    that goes on over a gap.
    """
    refusal = Refusal(status, is_stored)
    # The first challenge; then, after another and the first state, every other post.
    refusals = (refusal, None, None, *[refusal, None] * 4)
    task_id = new_id()
    history = unroll([task_id], [ANN], [STARTS, *[PROGRESSES] * 6])
    async with asyncio.timeout(BOUND_S), World(store).open() as world:
        telling, receiving = Telling(world, history), Receiving(refusals=refusals)
        await telling.more(2)
        async with watched(way, world, task_id, receiving=receiving) as (observer, theirs):
            await until_knows(observer, telling)
            await telling.more(len(history.steps))
    judge(history, observer, 2)
    await judge_posts(history, observer, theirs, world)
    assert len(theirs.station.stored) > 1


@pytest.mark.promise("deliveries-keep-one-promise")
@pytest.mark.parametrize("way", [WEBHOOK_WAY], ids=["webhook"])
async def test_an_endpoint_that_is_well_is_posted_each_change_once_and_in_order(
    way: Way, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken on purpose: first attempts all at once; `terminated` before the last change; an end
    that is not queued; a newer state told under an older version; no signal for the sender. And
    found: what became free during a claim waited until the sender looked again by itself.
    """
    for pause in ("LEASE_S", "RECHECK_S", "QUIET_S"):  # nothing is found by looking again
        monkeypatch.setattr(sender, pause, NEVER_S)
    monkeypatch.setattr(delivery_pushing, "EXCHANGE_S_MAX", NEVER_S)  # nor posted again for time
    monkeypatch.setattr(receiver, "HOLD_S", NEVER_S)  # nor since the grant was slow to come
    task_id = new_id()
    history = unroll([task_id], [ANN], [STARTS, *[PROGRESSES] * 12])
    async with asyncio.timeout(BOUND_S), World(store).open() as world:
        telling = Telling(world, history)
        await telling.more(2)
        async with watched(way, world, task_id) as (observer, theirs):
            await until_knows(observer, telling)
            await telling.more(len(history.steps))
    judge(history, observer, 2)
    await judge_posts(history, observer, theirs, world)
    posted = [stored.version for stored in theirs.station.stored]
    assert posted == list(range(2, max(history.told(task_id)) + 1))


@pytest.mark.promise("deliveries-keep-one-promise")
@pytest.mark.parametrize("fate", ["lost", "late", "twice"])
@pytest.mark.parametrize("way", ALL_WAYS, ids=ids_of_ways)
async def test_a_signal_that_fails_costs_time_and_no_change(
    way: Way, fate: str, store: Store
) -> None:
    """Broken on purpose: `follow` looks at nothing when it has heard nothing."""
    task_id = new_id()
    history = unroll([task_id], [ANN], [STARTS, *[PROGRESSES] * 3])
    world = World(store, store.recheck_s if fate == "lost" else NEVER_S)
    async with asyncio.timeout(BOUND_S), world.open():
        telling = Telling(world, history)
        await telling.more(2)
        async with watched(way, world, task_id) as (observer, _):
            await until_knows(observer, telling)
            while not telling.is_over:
                await store.fate([fate] * REPLICAS)
                await telling.more()
                await store.settle()
                await until_knows(observer, telling)
    judge(history, observer, 2)


@pytest.mark.promise("deliveries-keep-one-promise")
@pytest.mark.parametrize("way", ALL_WAYS, ids=ids_of_ways)
async def test_a_watch_goes_on_elsewhere_when_its_server_leaves(way: Way, store: Store) -> None:
    """Broken on purpose: a source that takes the end of its stream for the end of the task, and one
    that stays on its socket after the watch there has ended.
    """
    task_id = new_id()
    history = unroll([task_id], [ANN], [STARTS, *[PROGRESSES] * 3])
    async with asyncio.timeout(BOUND_S), World(store).open() as world:
        telling = Telling(world, history)
        await telling.more(2)
        async with watched(way, world, task_id) as (observer, _):
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
@pytest.mark.parametrize("way", ALL_WAYS, ids=ids_of_ways)
async def test_a_watch_after_the_end_gets_the_rest_and_ends(way: Way, store: Store) -> None:
    """Broken on purpose: a final state that is not told again; a source that drops no repeats."""
    task_id = new_id()
    history = unroll([task_id], [ANN], [STARTS, *[PROGRESSES] * 3])
    told = history.told(task_id)
    last = max(told)
    async with asyncio.timeout(BOUND_S), World(store).open() as world:
        await Telling(world, history).more(len(history.steps))
        for known in range(last + 1):
            async with watched(way, world, task_id, known) as (observer, _):
                pass
            assert observer.versions == ([last] if not known else [*range(known + 1, last + 1)])
            assert [dict(state.task) for state in observer.seen] == [
                told[version] for version in observer.versions
            ]


@pytest.mark.parametrize("way", ALL_WAYS, ids=ids_of_ways)
async def test_who_claims_to_know_more_than_there_is_still_hears_of_the_end(
    way: Way, store: Store
) -> None:
    """Broken on purpose: a claimed version is taken as it is."""
    task_id = new_id()
    history = unroll([task_id], [ANN], [STARTS, PROGRESSES])
    async with asyncio.timeout(BOUND_S), World(store).open() as world:
        telling = Telling(world, history)
        await telling.more(2)
        async with watched(way, world, task_id, 99) as (observer, _):
            await until_true(lambda: world.steps.count > 0)  # it has asked
            await telling.more(len(history.steps))
        async with watched(way, world, task_id, 99) as (late, _):
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
@pytest.mark.parametrize("way", ALL_WAYS, ids=ids_of_ways)
async def test_a_strange_task_is_refused_like_one_that_never_was(way: Way, store: Store) -> None:
    """Broken on purpose: an expired task is told as long as it is stored; for webhooks: everybody's
    task is subscribed to.
    """
    refusals: list[tuple[Any, ...]] = []
    async with asyncio.timeout(BOUND_S), World(store).open() as world:
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
