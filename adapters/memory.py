"""Every store port in memory, for tests and for reading: one contract, none of the machinery."""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ..domain import errors
from ..domain.decisions import Events
from ..domain.events import TaskEvent
from ..domain.ports import TaskView
from ..domain.queueing import LEASE_S, Queueing, queueing
from ..domain.quotas import Quotas
from ..domain.task import Task, evolve
from . import codec
from .bus import Bus, BusWakeup
from .memory_fair import Usage, in_turn


@dataclass
class _Queued:
    """Instants in seconds of one clock, the wall's: what is due is told in its time."""

    owner: str
    due: float
    worker: str | None = None
    lease_until: float = 0.0


@dataclass
class Past:
    """A task that was forgotten; see `memory_past.py`. Once erased, `owner` is a digest."""

    owner: str
    archived_at: datetime
    events: list[TaskEvent]
    is_erased: bool = False


class MemoryStore:
    """`EventLog`, `TaskViews` and `Dispatcher` in one, for they are one store."""

    def __init__(
        self, signal: Bus, quotas: Quotas | None = None, running_per_owner: int | None = None
    ) -> None:
        self._signal = signal
        self._usage = Usage(quotas or Quotas())
        self._running_per_owner, self._place = running_per_owner, ""
        self._events: dict[str, list[TaskEvent]] = {}
        self._views: dict[str, TaskView] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._queue: dict[str, _Queued] = {}
        self._looked_at: set[str] = set()
        self.past: dict[str, Past] = {}

    @property
    def owners(self) -> Mapping[str, str]:
        """Whose each task is that clients may ask for."""
        return {task_id: view.owner for task_id, view in self._views.items()}

    async def append(self, before: Task | None, events: Events) -> Task:
        """See `EventLog.append`."""
        await _turn()
        after, expected = before, before.version if before else 0
        for event in events:
            after = evolve(after, event)
        if after is None or not events:
            raise ValueError("nothing to append")
        self._refuse_conflicts(after, expected)
        if before is None:
            self._usage.check(after, events)
        self._usage.appended(after, events)
        if after.opened.idempotency_key is not None:
            self._keys[after.owner, after.opened.idempotency_key] = after.id
        self._events.setdefault(after.id, []).extend(events)
        self._views[after.id] = TaskView(
            after.id,
            after.version,
            after.owner,
            after.status.is_terminal,
            after.expires_at,
            codec.wire_of(after),
        )
        self._requeue(after, queueing(before, after))
        self._signal.moved(after.id, after.version)
        self._signal.owner_moved(codec.digest(after.owner))
        return after

    def _refuse_conflicts(self, after: Task, expected: int) -> None:
        view = self._views.get(after.id)
        if (view.version if view else 0) != expected:
            raise errors.StaleVersion(after.id, expected)
        if after.opened.idempotency_key is not None:
            key = (after.owner, after.opened.idempotency_key)
            if self._keys.get(key, after.id) != after.id:
                raise errors.DuplicateOpening

    def _requeue(self, after: Task, what: Queueing) -> None:
        now = time.time()
        if what is Queueing.PUT:
            self._queue[after.id] = _Queued(after.owner, now)
            self._signal.queue_moved()
        elif what is Queueing.LEASE:
            self._queue[after.id] = _Queued(after.owner, now, after.worker, now + LEASE_S)
        elif what is Queueing.WAIT and after.waits_until is not None:
            self._queue[after.id] = _Queued(after.owner, after.waits_until.timestamp())
        elif what is Queueing.DROP:
            self._queue.pop(after.id, None)
        if what in {Queueing.WAIT, Queueing.DROP}:
            self._tell_of_room(after.owner)
        if what is not Queueing.KEEP:
            (self._looked_at.add if after.is_followed else self._looked_at.discard)(after.id)

    async def read(self, task_id: str) -> Sequence[TaskEvent]:
        """See `EventLog.read`."""
        await _turn()
        return list(self._events.get(task_id, ()))

    async def tail(
        self,
        task_id: str,
        version: int | None = None,  # noqa: ARG002 - the whole is right for any
    ) -> tuple[Task | None, Sequence[TaskEvent]]:
        """See `EventLog.tail`."""
        return None, await self.read(task_id)

    async def get(self, task_id: str, owner: str | None = None) -> TaskView | None:
        """See `TaskViews.get`."""
        await _turn()
        view = self._views.get(task_id)
        return view if view is None or owner in {None, view.owner} else None

    async def opened_with(self, owner: str, idempotency_key: str) -> TaskView | None:
        """See `TaskViews.opened_with`."""
        await _turn()
        view = self._views.get(self._keys.get((owner, idempotency_key), ""))
        return view and replace(view, wire=b"")

    async def due(self, now: datetime, limit: int) -> Sequence[TaskView]:
        """See `TaskViews.due`."""
        await _turn()
        ended = [
            (v.expires_at, v) for v in self._views.values() if v.expires_at and v.expires_at <= now
        ]
        oldest = sorted(ended, key=lambda pair: pair[0])[:limit]
        return [replace(view, wire=b"") for _, view in oldest]

    async def next_end(self) -> datetime | None:
        """See `TaskViews.next_end`."""
        await _turn()
        return min((v.expires_at for v in self._views.values() if v.expires_at), default=None)

    async def forget(self, task_ids: Sequence[str]) -> None:
        """See `TaskViews.forget`."""
        await _turn()
        for task_id in task_ids:
            view = self._views.pop(task_id, None)
            events = self._events.pop(task_id, [])
            self._usage.forgot(task_id)
            self._queue.pop(task_id, None)
            if view is not None:
                self.past[task_id] = Past(view.owner, datetime.now(UTC), events)
        self._keys = {key: task_id for key, task_id in self._keys.items() if task_id in self._views}

    async def claim(self, worker: str, limit: int, lease_s: float) -> Sequence[str]:
        """See `Dispatcher.claim`."""
        await _turn()
        now = time.time()
        due = sorted(self._queue.items(), key=lambda item: item[1].due)
        waiting: dict[str, list[str]] = {}
        for task_id, queued in sorted(due, key=lambda item: item[1].worker is None):
            if queued.due <= now and queued.lease_until < now:
                waiting.setdefault(queued.owner, []).append(task_id)
        turns = in_turn(waiting, self._place, limit, self._room)
        for owner, task_id in turns:
            self._place = owner
            self._queue[task_id].worker = worker
            self._queue[task_id].lease_until = now + lease_s
        claimed = {task_id for _, task_id in turns}
        return [task_id for task_id, _ in due if task_id in claimed]

    async def claim_looks(self, worker: str, limit: int, lease_s: float) -> Sequence[str]:
        """See `Dispatcher.claim_looks`."""
        await _turn()
        now = time.time()
        due = sorted((queued.due, task_id) for task_id, queued in self._queue.items())
        found = [
            task_id
            for at, task_id in due
            if at <= now
            and task_id in self._looked_at
            and (self._queue[task_id].worker is None or self._queue[task_id].lease_until < now)
        ][:limit]
        for task_id in found:
            self._queue[task_id].worker = worker
            self._queue[task_id].lease_until = now + lease_s
        return found

    def _room(self, owner: str) -> int:
        """How many tasks of this owner may be leased now; those of lost workers come first."""
        if self._running_per_owner is None:
            return len(self._queue)
        held = [q for q in self._queue.values() if q.owner == owner and q.worker is not None]
        lapsed = sum(q.lease_until < time.time() for q in held)
        return lapsed + max(0, self._running_per_owner - len(held))

    async def renew(self, worker: str, task_ids: Sequence[str], lease_s: float) -> Sequence[str]:
        """See `Dispatcher.renew`."""
        await _turn()
        held = [task_id for task_id in task_ids if self._holds(worker, task_id)]
        for task_id in held:
            self._queue[task_id].lease_until = time.time() + lease_s
        return held

    async def release(self, worker: str, task_ids: Sequence[str], delay_s: float) -> None:
        """See `Dispatcher.release`."""
        await _turn()
        for task_id in task_ids:
            if self._holds(worker, task_id):
                owner = self._queue[task_id].owner
                self._queue[task_id] = _Queued(owner, time.time() + delay_s)
                self._tell_of_room(owner)

    async def quiet_s(self, worker: str) -> float:
        """See `Dispatcher.quiet_s`."""
        await _turn()
        now = time.time()
        held = [queued for queued in self._queue.values() if queued.worker is not None]
        if any(queued.worker != worker or queued.lease_until < now for queued in held):
            return 0.0
        waits = (queued.due - now for queued in self._queue.values() if queued.worker is None)
        return min((wait_s for wait_s in waits if wait_s > 0), default=math.inf)

    def _tell_of_room(self, owner: str) -> None:
        now = time.time()
        free = (queued for queued in self._queue.values() if queued.worker is None)
        if any(queued.owner == owner and queued.due <= now for queued in free):
            self._signal.queue_moved()

    async def depth(self) -> int:
        """See `Dispatcher.depth`."""
        await _turn()
        now = time.time()
        return sum(
            queued.due <= now and queued.lease_until < now for queued in self._queue.values()
        )

    def _holds(self, worker: str, task_id: str) -> bool:
        queued = self._queue.get(task_id)
        return queued is not None and queued.worker == worker


async def _turn() -> None:
    """The place where another caller may come first, as in PostgreSQL."""
    await asyncio.sleep(0)


class MemoryAnnouncements:
    """`Announcements` that somebody makes by hand."""

    def __init__(self, offered: frozenset[str] = frozenset()) -> None:
        self._offered, self._bus = offered, Bus()

    async def offered(self) -> frozenset[str]:
        """See `Announcements.offered`."""
        return self._offered

    def listening(self, topics: frozenset[str]) -> AbstractAsyncContextManager[BusWakeup]:
        """See `Announcements.listening`."""
        return self._bus.waiting_for(topics)

    def announce(self, topic: str) -> None:
        """Wake those who listen to this topic."""
        self._bus.moved(topic, 0)
