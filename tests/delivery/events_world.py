"""The events of owners in memory, and the methods that are asked about them, in this process."""

import json
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from outlast.adapters import codec
from outlast.adapters.bus import Bus, BusWakeup
from outlast.adapters.memory import MemoryStore
from outlast.delivery.bells import Clock
from outlast.delivery.events.cursors import Cursors
from outlast.delivery.events.desk import Desk
from outlast.delivery.events.occurrences import Occurrences
from outlast.delivery.events.poll import PollMethod
from outlast.delivery.events.reading import Reading
from outlast.delivery.events.stream import Streaming, StreamMethod
from outlast.delivery.feed import Feed
from outlast.delivery.limits import WatchLimits
from outlast.delivery.port import EventsRequest, OpenWatch
from outlast.domain import decisions, draft, errors
from outlast.domain.decisions import Events
from outlast.domain.push import Filter, LoggedEvent, Page
from outlast.domain.task import Task, TaskStatus, evolve
from outlast.tests.domain.given import OPENED, Wish, at

KEY = "a key of at least thirty-two characters"
EPOCH = 4711
ALICE, BOB = "alice", "bob"


@dataclass(frozen=True)
class Stored:
    """One event of the log of all owners."""

    owner: str
    at: datetime
    event: LoggedEvent


def is_wanted(wanted: Filter, event: LoggedEvent) -> bool:
    """Whether the filter lets the event through, said once more."""
    by_name = {
        draft.TASK_UPDATED: True,
        draft.TASK_FINISHED: TaskStatus(event.status).is_terminal,
        draft.TASK_PROGRESS: event.topic == "task.progress_reported",
    }
    narrowed = (
        (wanted.task_ids, event.task_id),
        (wanted.tools, event.tool),
        (wanted.statuses, event.status),
    )
    return by_name[wanted.name] and all(one is None or what in one for one, what in narrowed)


class LoggedStore(MemoryStore):
    """The memory store, which is `OwnerEvents` too. `is_away` makes every read of events fail."""

    def __init__(self, signal: Bus) -> None:
        super().__init__(signal)
        self.log: list[Stored] = []
        self.is_away = False
        self.refused = 0
        self._positions = 0
        self._removed: dict[str, int] = {}

    async def append(self, before: Task | None, events: Events) -> Task:
        after = await super().append(before, events)
        task = before
        for event in events:
            task = evolve(task, event)
            self._positions += 1
            logged = LoggedEvent(
                self._positions,
                task.id,
                task.version,
                event.TOPIC,
                task.opened.tool,
                task.status.value,
            )
            self.log.append(Stored(task.owner, datetime.fromisoformat(event.at), logged))
        return after

    async def forget(self, task_ids: Sequence[str]) -> None:
        await super().forget(task_ids)
        for stored in self.log:
            if stored.event.task_id in task_ids:
                known = self._removed.get(stored.owner, 0)
                self._removed[stored.owner] = max(known, stored.event.position)
        self.log = [stored for stored in self.log if stored.event.task_id not in task_ids]

    def of(self, owner: str) -> list[LoggedEvent]:
        return [stored.event for stored in self.log if stored.owner == owner]

    async def epoch(self) -> int:
        return EPOCH

    async def head(self, owner: str) -> int:
        return max((event.position for event in self._read(owner)), default=0)

    async def after(self, owner: str, wanted: Filter, position: int, limit: int) -> Page:
        there = [event for event in self._read(owner) if event.position > position]
        found = [event for event in there if is_wanted(wanted, event)]
        if len(found) > limit:
            return Page(found[:limit], found[limit - 1].position, has_more=True)
        return Page(found, max([position, *(event.position for event in there)]), has_more=False)

    async def floor(
        self, owner: str, wanted: Filter, position: int, since: datetime | None, newest: int
    ) -> int:
        self._read(owner)
        ids = wanted.task_ids
        own = [
            stored
            for stored in self.log
            if stored.owner == owner and (ids is None or stored.event.task_id in ids)
        ]
        passed = own[:-newest] + [e for e in own if since is not None and e.at < since]
        return max([position, *(stored.event.position for stored in passed)])

    async def removed_to(self, owner: str) -> int:
        self._read(owner)
        return self._removed.get(owner, 0)

    async def place_of(self, task_id: str, version: int) -> int:
        return max(
            (
                stored.event.position
                for stored in self.log
                if (stored.event.task_id, stored.event.version) == (task_id, version)
            ),
            default=0,
        )

    def _read(self, owner: str) -> list[LoggedEvent]:
        if self.is_away:
            self.refused += 1
            raise errors.StoreUnavailable
        return self.of(owner)


class CountingBus(Bus):
    """Knows what is waited for, owners included."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_for: list[str] = []

    @asynccontextmanager
    async def waiting_for(self, names: Collection[str]) -> AsyncGenerator[BusWakeup]:
        async with super().waiting_for(names) as wakeup:
            self.waited_for += names
            try:
                yield wakeup
            finally:
                for name in names:
                    self.waited_for.remove(name)


@dataclass
class World:
    """A store, what is asked about it, and a clock that stands."""

    seconds: float = 100
    heartbeat_s: float = 60.0
    seats: int = 10
    bus: CountingBus = field(default_factory=CountingBus)
    tasks: dict[str, Task] = field(default_factory=dict[str, Task])

    def __post_init__(self) -> None:
        self.store = LoggedStore(self.bus)
        feed = Feed(self.store, self.store, codec.wire_of, self.now)
        self.cursors = Cursors(KEY, EPOCH)
        self.occurrences = Occurrences(feed)
        reading = Reading(self.store, feed, self.occurrences, self.cursors, self.now)
        self.limits = WatchLimits(self.seats, self.seats)
        self.streaming = Streaming(
            reading, self.bus, self.limits, recheck_s=3600, clock=Clock(self.heartbeat_s)
        )
        self.desk = Desk(PollMethod(reading), StreamMethod(self.streaming), self.cursors, None)

    def now(self) -> datetime:
        return at(self.seconds)

    async def opened(self, task_id: str, owner: str = ALICE, **changes: Any) -> str:
        opening = replace(OPENED, task_id=task_id, owner=owner, **changes)
        self.tasks[task_id] = await self.store.append(None, decisions.open_task(opening))
        return task_id

    async def happens(self, task_id: str, *wishes: Wish) -> None:
        for wish in wishes:
            task = self.tasks[task_id]
            self.tasks[task_id] = await self.store.append(task, wish(task))

    async def may_happen(self, task_id: str, wish: Wish) -> None:
        """As above, but for what cannot happen to this task now."""
        with suppress(errors.TaskError):
            events = wish(self.tasks[task_id])
            if events:
                self.tasks[task_id] = await self.store.append(self.tasks[task_id], events)

    def request(
        self, owner: str = ALICE, request_id: str | int = 1, **params: Any
    ) -> EventsRequest:
        return EventsRequest(owner, True, request_id, params)

    async def poll(
        self, name: str, cursor: str | None, owner: str = ALICE, **params: Any
    ) -> dict[str, Any]:
        return await self.desk.poll(self.request(owner, name=name, cursor=cursor, **params))

    async def stream(
        self, name: str, cursor: str | None, owner: str = ALICE, **params: Any
    ) -> OpenWatch:
        return await self.desk.stream(self.request(owner, name=name, cursor=cursor, **params))

    def waited_for(self) -> list[str]:
        """What anybody still waits for."""
        return list(self.bus.waited_for)

    def start(self, owner: str = ALICE) -> str:
        """The cursor of the beginning of the log."""
        return self.cursors.seal(owner, 0)


def told(events: Sequence[dict[str, Any]]) -> list[tuple[str, int]]:
    """Which events these occurrences are: task and version."""
    return [(event["data"]["taskId"], event["data"]["version"]) for event in events]


def wanted_of(events: Sequence[LoggedEvent], wanted: Filter) -> list[tuple[str, int]]:
    """Which of these a filter lets through."""
    return [(event.task_id, event.version) for event in events if is_wanted(wanted, event)]


def parsed(frame: bytes) -> dict[str, Any]:
    return json.loads(frame)


async def drained(
    world: World, name: str, arguments: Any, cursor: str, size: int
) -> tuple[list[dict[str, Any]], str]:
    """All that there is after the cursor, and the cursor after it."""
    found: list[dict[str, Any]] = []
    while True:
        try:
            answer = await world.poll(name, cursor, arguments=arguments, maxEvents=size)
        except errors.EventNotFound as error:
            return found, str(error.data["reason"] == "task_terminal" and cursor)
        assert sorted(answer) == ["cursor", "events", "hasMore", "nextPollMs", "truncated"]
        assert len(answer["events"]) <= size
        assert answer["events"] or not answer["hasMore"]
        assert not answer["truncated"]
        found += answer["events"]
        cursor = answer["cursor"]
        if not answer["hasMore"]:
            return found, cursor
