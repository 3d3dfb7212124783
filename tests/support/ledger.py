"""Callers of an event log who write down what they are told, and a follower of the log.

What is stored in the end is held against both. Each event bears a mark of its own, so that one that
is stored twice, or although it was refused, is found.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import anyio
import anyio.to_thread
import orjson
import psycopg

from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.postgres import Database
from outlast.adapters.task_view import PostgresTaskViews
from outlast.domain import decisions, errors
from outlast.domain.change import detailed_task
from outlast.domain.decisions import Events
from outlast.domain.events import ProgressReported, TaskEvent
from outlast.domain.ports import EventLog
from outlast.domain.task import Task, fold
from outlast.tests.acceptance.waiting import until
from outlast.tests.chaos.client import pause
from outlast.tests.domain.given import OPENED, at

R = TypeVar("R")
Place = tuple[str, int]
Row = tuple[int, str, int]

TRIES_MAX = 50
_NEWER = (
    "SELECT notification_id, originator_id, originator_version FROM outlast.task_events"
    " WHERE notification_id > %s ORDER BY notification_id"
)


def mark_of(event: TaskEvent) -> str:
    """What tells this event from every other one."""
    told = event.message if isinstance(event, ProgressReported) else None
    return told or f"{event.task_id}:{event.version}"


@dataclass
class Ledger:
    """What all callers were told. `doubted` counts the answers that left it open."""

    told: dict[Place, str] = field(default_factory=dict[Place, str])
    refused: set[str] = field(default_factory=set[str])
    doubted: int = 0
    is_over: bool = False

    def tell(self, events: Events) -> None:
        """These are acknowledged."""
        for event in events:
            place = (event.task_id, event.version)
            assert place not in self.told, f"{place} was given to two"
            self.told[place] = mark_of(event)

    async def until_told(self, more: int, seconds: float) -> None:
        """Return once so many more events are acknowledged."""
        wanted = len(self.told) + more

        async def reached() -> bool:
            return len(self.told) >= wanted

        await until(reached, seconds)

    def holds_against(self, stored: Sequence[TaskEvent]) -> None:
        """All that was acknowledged is there, nothing that was refused is, and nothing twice."""
        marks = {(event.task_id, event.version): mark_of(event) for event in stored}
        lost = {place: mark for place, mark in self.told.items() if marks.get(place) != mark}
        assert not lost, f"acknowledged and not stored: {lost}"
        assert not self.refused & set(marks.values()), "refused and stored"
        twice = [mark for mark, times in Counter(marks.values()).items() if times > 1]
        assert not twice, f"stored twice: {twice}"
        assert len(marks) == len(stored)


@dataclass(frozen=True)
class Caller:
    """One who appends, and asks what is stored whenever it is told that nobody knows."""

    log: EventLog
    ledger: Ledger
    name: str

    async def live(self, steps: int) -> None:
        """One task after the other, each opened and moved on, until the ledger is over."""
        number = 0
        while not self.ledger.is_over:
            number += 1
            task = await self.opens(f"{self.name}-{number}")
            for step in range(steps):
                if not self.ledger.is_over:
                    task = await self.moves(task, step)

    async def vies(self, task: Task) -> None:
        """Move a task that others move as well, until the ledger is over."""
        step = 0
        while not self.ledger.is_over:
            step += 1
            task = await self.moves(task, step, has_rivals=True)

    async def opens(self, task_id: str) -> Task:
        """A task that has begun: two events in one append."""
        opening = replace(OPENED, task_id=task_id)
        begun = decisions.start_work(_folded([opening]), self.name, at(1))
        return await self._surely(None, (opening, *begun), has_rivals=False)

    async def moves(self, task: Task, step: int, *, has_rivals: bool = False) -> Task:
        """One more event; the task as it then is, whoever was first."""
        mark = f"{self.name} {task.id} {step}"
        events = decisions.report_progress(task, task.attempt, step, None, mark, at(2))
        return await self._surely(task, events, has_rivals=has_rivals)

    async def _surely(self, before: Task | None, events: Events, *, has_rivals: bool) -> Task:
        task_id, place = events[0].task_id, events[0].version - 1
        is_doubtful = False
        for _ in range(TRIES_MAX):
            try:
                after = await self.log.append(before, events)
            except errors.StoreUnavailable:
                self.ledger.doubted += 1
                is_doubtful = True
                refused = False
            except errors.StaleVersion:
                refused = True
            else:
                self.ledger.tell(events)
                return after
            stored = await surely(lambda: self.log.read(task_id))
            if stored[place : place + len(events)] == list(events):
                assert is_doubtful, f"told as refused, and stored: {events}"
                self.ledger.tell(events)
                return _folded(stored)
            if refused:
                # One whose outcome was unknown may come late, and is then found above.
                assert has_rivals, f"refused, and nobody else was there: {events}"
                self.ledger.refused |= set(map(mark_of, events))
                return _folded(stored)
        raise AssertionError(f"no answer in {TRIES_MAX} tries: {events}")


def _folded(events: Sequence[TaskEvent]) -> Task:
    task = fold(events)
    assert task is not None
    return task


async def surely(request: Callable[[], Awaitable[R]]) -> R:
    """Repeat until the store is there."""
    for _ in range(TRIES_MAX):
        try:
            return await request()
        except errors.StoreUnavailable:
            await pause()
    raise AssertionError("the store stays away")


class Follower:
    """Reads the log from its own position, again and again, whatever happens to the server."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.seen: list[Row] = []
        self._is_over = False

    async def follow(self) -> None:
        """Until it is told to end, and has then looked once more."""
        while not self._is_over:
            await self._look(self._pass_on)
        while not await self._look(self._pass_on_once):
            await pause()

    def end(self) -> None:
        self._is_over = True

    async def _look(self, way: Callable[["psycopg.AsyncConnection"], Awaitable[None]]) -> bool:
        try:
            settings = {"autocommit": True, "connect_timeout": 3}
            async with await psycopg.AsyncConnection.connect(self._url, **settings) as connection:
                await way(connection)
        except psycopg.OperationalError:
            await pause()
            return False
        return True

    async def _pass_on(self, connection: "psycopg.AsyncConnection") -> None:
        while not self._is_over:
            await self._pass_on_once(connection)
            await pause(0.01)

    async def _pass_on_once(self, connection: "psycopg.AsyncConnection") -> None:
        cursor = await connection.execute(_NEWER, (self.seen[-1][0] if self.seen else 0,))
        self.seen += await cursor.fetchall()


@asynccontextmanager
async def following(url: str) -> AsyncGenerator[Follower]:
    """A follower that runs for as long as the block, and has seen all at its end."""
    follower = Follower(url)
    running = asyncio.create_task(follower.follow())
    try:
        yield follower
        follower.end()
        with anyio.fail_after(30):
            await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def store_on(url: str) -> AsyncGenerator[tuple[PostgresEventLog, PostgresTaskViews]]:
    """One process's event log and views."""
    database = Database(url)
    log = PostgresEventLog(database)
    await database.open()
    try:
        yield log, PostgresTaskViews(database)
    finally:
        # It waits for what is under way, which may need a wire of this very loop.
        await anyio.to_thread.run_sync(log.close)
        await database.close()


async def judge(url: str, ledger: Ledger, follower: Follower) -> None:
    """Hold what is stored now against what callers were told, and a follower saw."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        stored = await (await connection.execute(_NEWER, (0,))).fetchall()
        views = await (await connection.execute("SELECT task_id FROM outlast.task_view")).fetchall()
    assert follower.seen == stored, "the follower passed over an event, or saw one twice"
    in_order: dict[str, list[int]] = {task_id: [] for (task_id,) in views}
    for _, task_id, version in stored:
        in_order[task_id].append(version)
    for task_id, versions in in_order.items():
        assert versions == list(range(1, len(versions) + 1)), (task_id, versions)
        assert versions, task_id
    ledger.holds_against(await _read_whole(url, list(in_order)))


async def _read_whole(url: str, task_ids: Sequence[str]) -> list[TaskEvent]:
    """The events of all these tasks, each of which has the view of its fold."""
    found: list[TaskEvent] = []
    async with store_on(url) as (log, views):
        for task_id in task_ids:
            history, view = await log.read(task_id), await views.get(task_id)
            task = _folded(history)
            assert view is not None
            assert (view.version, view.owner) == (task.version, task.owner)
            assert orjson.loads(view.wire) == detailed_task(task)
            found += history
    return found
