"""What the delivery tests share: a history told bit by bit, and what of it was seen, judged."""

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, settings

from outlast.domain import errors
from outlast.domain.task import evolve
from outlast.tests.contracts.delivery_histories import History
from outlast.tests.contracts.delivery_observers import Client, Observer, Way, client
from outlast.tests.contracts.delivery_pushing import CURSORS
from outlast.tests.contracts.delivery_world import Replica, World

_numbers = itertools.count(1)

NOT_SHRUNK = (Phase.explicit, Phase.generate)  # an example that hangs takes all its time to fail

few = settings(
    phases=NOT_SHRUNK,
    derandomize=True,  # the same examples every time: a failure is a change of the code
    database=None,
    suppress_health_check=(HealthCheck.too_slow,),
)


class Telling:
    """Appends a history step by step, whoever asks for the next one."""

    def __init__(self, world: World, history: History) -> None:
        self._world, self._history, self.number = world, history, 0
        self._turn = asyncio.Lock()  # a hook may come while the test itself is telling

    async def more(self, steps: int = 1) -> None:
        """The next steps, if any are left."""
        async with self._turn:
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


def judge(history: History, observer: Observer, began_at: int) -> None:
    """Every version after the starting one, once, in order, as it was told then; and the end."""
    told = history.told(observer.task_id)
    last = max(told)
    if observer.after:
        assert observer.versions == list(range(observer.after + 1, last + 1))
    else:
        first = observer.versions[0]
        assert began_at <= first
        assert observer.versions == list(range(first, last + 1))
    assert [dict(state.task) for state in observer.seen] == [told[v] for v in observer.versions]
    assert observer.has_ended


async def judge_posts(history: History, observer: Observer, theirs: Client, world: World) -> None:
    """One id for each event, however often it came, and new once; no cursor ahead of what has come.

    The watch alone would not show it: it reads what it has missed, and drops what it knows.
    """
    stored, task_id = theirs.station.stored, observer.task_id
    places = await world.store.places(task_id)
    ids = {(one.version, one.webhook_id) for one in stored}
    assert len(ids) == len(dict(ids)) == len({webhook_id for _, webhook_id in ids})
    new = [one.webhook_id for one in stored if one.is_new]
    assert len(new) == len(set(new))
    for number, last in enumerate(stored, 1):
        assert last.cursor is not None
        position = CURSORS.open(history.owner(task_id), last.cursor)
        assert position is not None
        come = {one.version for one in stored[:number]}
        first = min(one.version for one in stored)
        assert {v for v, place in places.items() if v >= first and place <= position} <= come


def new_id() -> str:
    """A task id that no other world on this store has."""
    return f"task-of-one-{next(_numbers)}"


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
