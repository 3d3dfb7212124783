"""Every store port in memory, for tests and for reading: one contract, none of the machinery."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime

from ..domain import errors
from ..domain.decisions import Events
from ..domain.events import TaskEvent
from ..domain.ports import TaskView
from ..domain.queueing import LEASE_S, Queueing, queueing
from ..domain.task import Task, evolve
from . import codec
from .bus import Bus, BusWakeup


@dataclass
class _Queued:
    due: float
    worker: str | None = None
    lease_until: float = 0.0


class MemoryStore:
    """`EventLog`, `TaskViews` and `Dispatcher` in one, for they are one store."""

    def __init__(self, signal: Bus) -> None:
        self._signal = signal
        self._events: dict[str, list[TaskEvent]] = {}
        self._views: dict[str, TaskView] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._queue: dict[str, _Queued] = {}

    async def append(self, before: Task | None, events: Events) -> Task:
        """See `EventLog.append`."""
        await _turn()
        after, expected = before, before.version if before else 0
        for event in events:
            after = evolve(after, event)
        if after is None or not events:
            raise ValueError("nothing to append")
        self._refuse_conflicts(after, expected)
        self._events.setdefault(after.id, []).extend(events)
        self._views[after.id] = TaskView(
            after.id,
            after.version,
            after.owner,
            after.status.is_terminal,
            after.expires_at,
            after.opened.call_digest,
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
            if self._keys.setdefault(key, after.id) != after.id:
                raise errors.DuplicateOpening

    def _requeue(self, after: Task, what: Queueing) -> None:
        now = time.monotonic()
        if what is Queueing.PUT:
            self._queue[after.id] = _Queued(now)
            self._signal.queue_moved()
        elif what is Queueing.LEASE:
            self._queue[after.id] = _Queued(now, after.worker, now + LEASE_S)
        elif what is Queueing.WAIT and after.delegated_until is not None:
            wait_s = (after.delegated_until - datetime.now(UTC)).total_seconds()
            self._queue[after.id] = _Queued(now + wait_s)
        elif what is Queueing.DROP:
            self._queue.pop(after.id, None)

    async def read(self, task_id: str) -> Sequence[TaskEvent]:
        """See `EventLog.read`."""
        await _turn()
        return list(self._events.get(task_id, ()))

    async def get(self, task_id: str) -> TaskView | None:
        """See `TaskViews.get`."""
        await _turn()
        return self._views.get(task_id)

    async def opened_with(self, owner: str, idempotency_key: str) -> TaskView | None:
        """See `TaskViews.opened_with`."""
        await _turn()
        return self._views.get(self._keys.get((owner, idempotency_key), ""))

    async def due(self, now: datetime, limit: int) -> Sequence[TaskView]:
        """See `TaskViews.due`."""
        await _turn()
        ended = [
            (v.expires_at, v) for v in self._views.values() if v.expires_at and v.expires_at <= now
        ]
        return [view for _, view in sorted(ended, key=lambda pair: pair[0])[:limit]]

    async def forget(self, task_ids: Sequence[str]) -> None:
        """See `TaskViews.forget`."""
        await _turn()
        for task_id in task_ids:
            self._views.pop(task_id, None)
            self._events.pop(task_id, None)
            self._queue.pop(task_id, None)
        self._keys = {key: task_id for key, task_id in self._keys.items() if task_id in self._views}

    async def claim(self, worker: str, limit: int, lease_s: float) -> Sequence[str]:
        """See `Dispatcher.claim`."""
        await _turn()
        now = time.monotonic()
        free = [
            item for item in self._queue.items() if item[1].due <= now and item[1].lease_until < now
        ]
        claimed = sorted(free, key=lambda item: item[1].due)[:limit]
        for _, queued in claimed:
            queued.worker, queued.lease_until = worker, now + lease_s
        return [task_id for task_id, _ in claimed]

    async def renew(self, worker: str, task_ids: Sequence[str], lease_s: float) -> Sequence[str]:
        """See `Dispatcher.renew`."""
        await _turn()
        held = [task_id for task_id in task_ids if self._holds(worker, task_id)]
        for task_id in held:
            self._queue[task_id].lease_until = time.monotonic() + lease_s
        return held

    async def release(self, worker: str, task_ids: Sequence[str], delay_s: float) -> None:
        """See `Dispatcher.release`."""
        await _turn()
        for task_id in task_ids:
            if self._holds(worker, task_id):
                self._queue[task_id] = _Queued(time.monotonic() + delay_s)

    async def depth(self) -> int:
        """See `Dispatcher.depth`."""
        await _turn()
        now = time.monotonic()
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
