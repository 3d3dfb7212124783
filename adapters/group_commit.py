"""Appends of many tasks in one call, each with an outcome of its own.

A call is all or nothing. One that fails has acknowledged nobody: its appends are made again in two
halves, and so on, until what is wrong with one of them is told to that one alone. They are the very
same appends, under the same event ids, so one that has happened after all is found and not doubled.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol
from uuid import UUID

import psycopg

from ..domain import errors
from ..domain.quotas import Quotas
from ..domain.tallies import SECONDS, SIZES, Histogram
from . import failures, postgres
from .append_rows import EventRow, ViewRow
from .gathering import Gathering

BATCH_MAX = 64  # appends in one call: with more, each waits longer and costs hardly less
BATCH_BYTES_MAX = 1_048_576  # a larger append goes alone, so that the small ones do not wait for it
RETRY_PAUSE_S = 0.2
CLOSE_S_MAX = 3.0  # how long the end of the process waits for appends under way


class Line:
    """The connection that one batch uses just now, so that a silent one can be hung up on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None
        self._over = threading.Event()

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._over.is_set()

    @contextmanager
    def on(self, connection: psycopg.Connection[Any]) -> Generator[None, None, None]:
        """The block waits on this connection. Raises StoreUnavailable when the time is up."""
        with self._lock:
            if self.is_over:
                raise errors.StoreUnavailable
            self._connection = connection
        try:
            yield
        finally:
            with self._lock:
                self._connection = None

    def pause(self, seconds: float) -> None:
        """Return after so long, or when the time is up."""
        self._over.wait(seconds)

    def hang_up(self) -> None:
        """The time is up."""
        with self._lock:
            self._over.set()
            if self._connection is not None:
                postgres.hang_up(self._connection)


@dataclass(eq=False)
class Appending:
    """One append on its way, until `deadline` on the loop's clock: then its caller has given up."""

    row: ViewRow
    events: Sequence[EventRow]
    deadline: float
    is_given_up: bool = False

    def __post_init__(self) -> None:
        self.task_id, self.owner = self.row.task.id, self.row.task.owner
        self.size = len(self.row.wire) + sum(len(event.state) for event in self.events)


class Store(Protocol):
    """The two statements that are needed. Both block, and raise what the driver raises."""

    def insert(self, batch: Sequence[Appending], line: Line) -> None:
        """Make all of these appends, or none."""
        ...

    def ids_at(self, batch: Sequence[Appending], line: Line) -> set[UUID]:
        """The ids of the events that are stored in the places of the first ones of these."""
        ...


class GroupCommit:
    """Makes appends in batches: the first at once, the others while it commits.

    Up to `flights` calls are under way, of one task one append; owners take turns, so that a flood
    of one delays the others by no more than a batch.
    """

    def __init__(self, store: Store, quotas: Quotas, flights: int) -> None:
        self._store, self._most = store, quotas.most
        self._threads = ThreadPoolExecutor(flights, thread_name_prefix="outlast-append")
        self._under_way: dict[Future[Sequence[Exception | None]], Line] = {}
        self._is_closed = False
        self.sizes, self.times = Histogram(SIZES), Histogram(SECONDS)
        self.appends: Counter[tuple[str, ...]] = Counter()
        self._gathering: Gathering[Appending, None] = Gathering(
            self._commit,
            key=attrgetter("task_id"),
            turn=attrgetter("owner"),
            size=attrgetter("size"),
            flights=flights,
            batch_max=BATCH_MAX,
            size_max=BATCH_BYTES_MAX,
        )

    async def append(self, appending: Appending) -> None:
        """Return once it is committed. Raises as `EventLog.append` does.

        StoreUnavailable: it was not sent, or nobody knows; from then on it is not sent again. A
        caller that goes away leaves its append to happen or not.
        """
        try:
            await self._gathering.do(appending, appending.deadline)
        except TimeoutError:
            appending.is_given_up = True
            raise errors.StoreUnavailable from None

    def close(self) -> None:
        """Wait for what is under way, then hang up on it; what is in line gets StoreUnavailable."""
        self._is_closed = True
        wait(tuple(self._under_way), CLOSE_S_MAX)
        for line in tuple(self._under_way.values()):
            line.hang_up()
        self._threads.shutdown()

    async def _commit(self, batch: Sequence[Appending]) -> Sequence[Exception | None]:
        if self._is_closed:
            raise errors.StoreUnavailable
        line, loop = Line(), asyncio.get_running_loop()
        running = self._threads.submit(self._settle, batch, line)
        self._under_way[running] = line
        running.add_done_callback(self._under_way.pop)
        timer = loop.call_at(max(each.deadline for each in batch), line.hang_up)
        begun = loop.time()
        try:
            return await asyncio.wrap_future(running)
        finally:
            timer.cancel()
            self._note(batch, loop.time() - begun)

    def _note(self, batch: Sequence[Appending], seconds: float) -> None:
        self.sizes.observe(len(batch))
        self.times.observe(seconds)
        opened = sum(each.row.former is None for each in batch)
        self.appends[("create",)] += opened
        self.appends[("append",)] += len(batch) - opened

    # --- on a thread

    def _settle(self, batch: Sequence[Appending], line: Line) -> Sequence[Exception | None]:
        """The outcome of each: None for one that is stored."""
        refused: dict[Appending, Exception] = {}
        parts = [batch]
        while parts:
            part = self._still_wanted(parts.pop(), line, refused)
            if not part:
                continue
            try:
                self._store.insert(part, line)
            except Exception as error:  # noqa: BLE001 - told to the one append that it concerns
                parts += self._after(error, part, line, refused)
        return [refused.get(each) for each in batch]

    @staticmethod
    def _still_wanted(
        part: Sequence[Appending], line: Line, refused: dict[Appending, Exception]
    ) -> Sequence[Appending]:
        now = time.monotonic()
        wanted: list[Appending] = []
        for each in part:
            if line.is_over or each.is_given_up or each.deadline <= now:
                refused[each] = errors.StoreUnavailable()
            else:
                wanted.append(each)
        return wanted

    def _after(
        self,
        error: Exception,
        part: Sequence[Appending],
        line: Line,
        refused: dict[Appending, Exception],
    ) -> Sequence[Sequence[Appending]]:
        """What is to be made again, the last of it first, once `part` has failed."""
        if line.is_over or failures.is_passing(error):
            line.pause(RETRY_PAUSE_S)
            return [part]
        left = part
        if failures.is_conflict(error):
            # If our own events are what it met, an earlier try had happened after all.
            try:
                stored = self._store.ids_at(part, line)
            except Exception:  # noqa: BLE001 - who has not looked knows nothing
                line.pause(RETRY_PAUSE_S)
                return [part]
            left = [each for each in part if each.events[0].event_id not in stored]
        if len(left) < len(part):
            return [left]
        if len(left) == 1:
            refused[left[0]] = self._refusal(error, left[0].row)
            return []
        half = len(left) // 2
        return [left[half:], left[:half]]

    def _refusal(self, error: Exception, row: ViewRow) -> Exception:
        told: Exception = error
        if (reached := failures.quota_of(error)) is not None:
            told = errors.QuotaExceeded(Quotas.name_of(reached), self._most[reached - 1] or 0)
        elif failures.is_duplicate_opening(error):
            told = errors.DuplicateOpening()
        elif failures.is_conflict(error):
            told = errors.StaleVersion(row.task.id, row.expected)
        if told is not error:
            told.__cause__ = error
        return told
