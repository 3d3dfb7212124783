"""`events/poll` over any history: everything that is wanted, once, in order, and nothing else."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, strategies as st

from outlast.delivery.events import types
from outlast.domain import errors
from outlast.domain.push import Filter
from outlast.tests.contracts.stores import progresses
from outlast.tests.delivery.events_world import ALICE, BOB, World, drained, told, wanted_of
from outlast.tests.domain.given import (
    DEPLOY,
    Wish,
    asks,
    cancels,
    completes,
    fails,
    loses,
    starts,
)

TASKS = {ALICE: ("a1", "a2", "a3"), BOB: ("b1", "b2")}
TOOLS = ("build", "test")
WISHES: tuple[Wish, ...] = (
    starts(),
    progresses(),
    asks(DEPLOY),
    loses(),
    cancels(),
    completes(),
    fails(),
)

Step = Callable[[World], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Happening:
    """One step of a history, which may be nothing in the state that it meets."""

    owner: str
    task: int
    wish: int

    async def __call__(self, world: World) -> None:
        task_id = TASKS[self.owner][self.task % len(TASKS[self.owner])]
        if task_id in world.tasks:
            await world.may_happen(task_id, WISHES[self.wish])


def happenings(owner: str) -> st.SearchStrategy[Happening]:
    return st.builds(Happening, st.just(owner), st.integers(0, 2), st.integers(0, len(WISHES) - 1))


HISTORIES = st.lists(happenings(ALICE) | happenings(BOB), max_size=40)
SIZES = st.integers(1, 7)


@st.composite
def subscriptions(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A name and arguments that fit it."""
    name = draw(st.sampled_from(sorted(types.TYPES)))
    statuses = types.TYPES[name].input_schema["properties"]["statuses"]["items"]["enum"]
    several = st.lists(st.sampled_from(TASKS[ALICE]), min_size=1, max_size=3)
    tasks = st.fixed_dictionaries({"taskIds": several}) | st.just(dict[str, Any]())
    narrowed = st.fixed_dictionaries(
        {},
        optional={
            "tools": st.lists(st.sampled_from(TOOLS), min_size=1, max_size=2),
            "statuses": st.lists(st.sampled_from(statuses), min_size=1, max_size=3),
        },
    )
    return name, {**draw(tasks), **draw(narrowed)}


async def begun(world: World) -> None:
    for owner, task_ids in TASKS.items():
        for number, task_id in enumerate(task_ids):
            await world.opened(task_id, owner, tool=TOOLS[number % 2])


@pytest.mark.promise("events-are-told-once-and-in-order")
@given(
    history=HISTORIES, subscription=subscriptions(), size=SIZES, rests=st.sets(st.integers(0, 40))
)
def test_any_history_is_drained_once_in_order_whatever_the_pages_and_the_pauses(
    history: Sequence[Happening],
    subscription: tuple[str, dict[str, Any]],
    size: int,
    rests: set[int],
):
    name, arguments = subscription
    wanted = types.wanted(name, arguments)

    async def run() -> None:
        world = World()
        await begun(world)
        found, cursor = await drained(world, name, arguments, world.start(), size)
        for number, happening in enumerate(history):
            await happening(world)
            if number in rests:
                more, cursor = await drained(world, name, arguments, cursor, size)
                found += more
                assert told(found) == wanted_of(world.store.of(ALICE), wanted)
        more, _ = await drained(world, name, arguments, cursor, size)
        found += more
        assert told(found) == wanted_of(world.store.of(ALICE), wanted)
        ids = [event["eventId"] for event in found]
        assert len(set(ids)) == len(ids)

    asyncio.run(run())


@pytest.mark.promise("cursors-tell-nothing-of-others")
@given(
    before=HISTORIES,
    others=st.lists(happenings(BOB), min_size=1, max_size=20),
    subscription=subscriptions(),
    size=SIZES,
)
def test_what_another_owner_does_changes_neither_answers_nor_cursors(
    before: Sequence[Happening],
    others: Sequence[Happening],
    subscription: tuple[str, dict[str, Any]],
    size: int,
):
    name, arguments = subscription

    async def run() -> None:
        world = World()
        await begun(world)
        for happening in before:
            await happening(world)
        cursors = [world.start(), world.cursors.seal(ALICE, 3), None]
        asked = [(cursor, {"arguments": arguments, "maxEvents": size}) for cursor in cursors]
        first = [await answered(world, name, cursor, how) for cursor, how in asked]
        await world.opened("b3", BOB)
        for happening in others:
            await happening(world)
        await world.store.forget(["b1"])
        assert [await answered(world, name, cursor, how) for cursor, how in asked] == first

    asyncio.run(run())


async def answered(world: World, name: str, cursor: str | None, how: dict[str, Any]) -> Any:
    try:
        return await world.poll(name, cursor, **how)
    except errors.EventNotFound as error:
        return error.data


@given(
    history=HISTORIES,
    removed=st.lists(st.sampled_from(TASKS[ALICE]), unique=True, max_size=2),
    at_step=st.integers(0, 40),
    place=st.integers(0, 60),
)
def test_what_was_removed_unseen_is_told_as_a_gap_once_and_no_other_is(
    history: Sequence[Happening], removed: list[str], at_step: int, place: int
):
    async def run() -> None:
        world = World()
        await begun(world)
        for happening in history[:at_step]:
            await happening(world)
        own = [event.position for event in world.store.of(ALICE)]
        position = own[place % len(own)]
        gone = {event.position for event in world.store.of(ALICE) if event.task_id in removed}
        await world.store.forget(removed)
        answer = await world.poll(
            "task.updated", world.cursors.seal(ALICE, position), maxEvents=1000
        )
        assert answer["truncated"] == any(each > position for each in gone)
        later = [event for event in world.store.of(ALICE) if event.position > position]
        assert told(answer["events"]) == wanted_of(later, Filter("task.updated"))
        again = await world.poll("task.updated", answer["cursor"])
        assert again == {**answer, "events": [], "truncated": False}

    asyncio.run(run())
