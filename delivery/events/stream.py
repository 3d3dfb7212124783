"""`events/stream`: the events from a cursor on, as frames of one long answer.

First where it stands; then every event with the place after it; a heartbeat with the place while
all is quiet. It reads when the signal names its owner or one of its tasks, and is idle otherwise.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from typing import TypeVar

from ...domain import decisions, draft, errors
from ...domain.ports import Signal, Wakeup
from ...domain.push import LoggedEvent
from ..bells import Bell, Clock, Closing
from ..follow import RECHECK_S, RETRY_S, STORE_PATIENCE_S
from ..limits import Seat, WatchLimits
from ..port import EventsRequest, Receipt
from .frames import EventFrames
from .reading import Reading, Subscription, ended

PAGE = 16  # events that are made at a time: a slow reader holds no more than these

T = TypeVar("T")


@dataclass(frozen=True)
class Streaming:
    """What the event streams of a process share. `closing` is set when the process shuts down."""

    reading: Reading
    signal: Signal
    limits: WatchLimits
    recheck_s: float = RECHECK_S
    closing: Closing = field(default_factory=Closing)
    clock: Clock = field(default_factory=lambda: Clock(draft.HEARTBEAT_S))


class StreamMethod:
    """Judges a request, and opens its stream."""

    def __init__(self, streaming: Streaming) -> None:
        self._streaming = streaming

    async def open(self, request: EventsRequest) -> "EventStream":
        """See `EventsDesk.stream`."""
        try:
            seat = self._streaming.limits.take(request.owner)
        except errors.TooManyWatches as error:
            raise errors.TooManySubscriptions(error.most) from error
        try:
            subscription = await self._streaming.reading.judge(request)
        except BaseException:
            seat.give_back()
            raise
        return EventStream(self._streaming, subscription, EventFrames(request.request_id), seat)


class EventStream:
    """`OpenWatch` of one event stream."""

    def __init__(
        self, streaming: Streaming, subscription: Subscription, frames: EventFrames, seat: Seat
    ) -> None:
        self._streaming, self._reading = streaming, streaming.reading
        self._owner, self._wanted = subscription.owner, subscription.wanted
        self._begun, self._frames, self._seat = subscription.begun, frames, seat
        self._position, self._newest = self._begun.position, self._begun.newest
        self._removed_to = self._begun.removed_to  # of what was removed up to here was told
        named = subscription.running
        self._running = None if named is None else set(named)
        self._unsure = set(named or ())  # may have ended since they were looked at
        self._away_since: float | None = None
        self._bell, self._is_closed = Bell(), False

    @property
    def receipt(self) -> Receipt:
        """See `OpenWatch.receipt`."""
        return Receipt(self._wanted.task_ids or ())

    async def close(self) -> None:
        """See `OpenWatch.close`. The frames end, and without a result."""
        self._seat.give_back()
        self._is_closed = True
        self._bell.ring()

    async def frames(self) -> AsyncGenerator[bytes]:
        """See `OpenWatch.frames`. Never an empty frame: its signs of life carry the place."""
        # Watch before the first read: what is committed between the two must end the first wait.
        async with self._watching() as wakeup:
            yield self._frames.active(self._cursor(), truncated=self._begun.is_truncated)
            async with aclosing(self._until_closing(wakeup)) as news:
                async for frame in news:
                    yield frame
                    del frame  # while all is quiet, nothing is held
        if not self._is_closed:
            yield self._frames.ended()

    def _watching(self) -> AbstractAsyncContextManager[Wakeup]:
        if self._running is None:
            return self._streaming.signal.watching_owner(self._owner)
        return self._streaming.signal.watching(*self._running)

    async def _until_closing(self, wakeup: Wakeup) -> AsyncGenerator[bytes]:
        """Events and heartbeats, until the tasks have ended."""
        shared, bell = self._streaming, self._bell
        wait: asyncio.Future[bool] | None = None
        try:
            with shared.closing.ringing(bell), shared.clock.ringing(bell):
                while not self._must_end():
                    if wait is None or wait.done():
                        self._note_moves(wakeup, wait)
                        async with aclosing(self._look()) as news:
                            async for frame in news:
                                yield frame
                                del frame
                        if self._is_over():
                            yield self._frames.terminated(_told(ended()))
                            return
                        pause_s = shared.recheck_s if self._away_since is None else RETRY_S
                        wait = _ringing(bell, wakeup.wait(pause_s))
                    await bell.wait()
                    if bell.take_due():
                        yield self._frames.heartbeat(self._cursor())
        finally:
            if wait is not None:
                wait.cancel()
                await asyncio.gather(wait, return_exceptions=True)

    def _note_moves(self, wakeup: Wakeup, wait: "asyncio.Future[bool] | None") -> None:
        """Those that moved may have ended; all may have when nothing was heard for long."""
        was_heard = wait is None or wait.result()
        if self._running is not None:
            self._unsure |= self._running & set(wakeup.take()) if was_heard else self._running

    async def _look(self) -> AsyncGenerator[bytes]:
        """All that is new. A store that is away for a moment is told of once, and tried again."""
        try:
            await self._find_ended()
            async with aclosing(self._drain()) as news:
                async for frame in news:
                    yield frame
                    del frame
            self._away_since = None
        except errors.StoreUnavailable:
            now = asyncio.get_running_loop().time()  # and not so many tries: each takes its time
            if self._away_since is None:
                self._away_since = now
                yield self._frames.error(_AWAY)
            elif now - self._away_since >= STORE_PATIENCE_S:
                raise

    async def _find_ended(self) -> None:
        """Before the events are read: all those of a task that has ended are committed."""
        for task_id in sorted(self._unsure):
            view = await self._reading.feed.owned(self._owner, task_id)
            if self._running is not None and (view is None or view.is_terminal):
                self._running.discard(task_id)
            self._unsure.discard(task_id)

    async def _drain(self) -> AsyncGenerator[bytes]:
        """Every event that is stored by now."""
        has_more = True
        while has_more and not self._must_end():
            page = await self._reading.events.after(self._owner, self._wanted, self._position, PAGE)
            newest = self._newest
            has_gap = await self._has_gap()
            if has_gap:
                yield self._frames.active(self._cursor(), truncated=True)
            async with aclosing(self._tell(page.events)) as news:
                async for frame in news:
                    yield frame
                    del frame
            self._position = page.read_to if page.has_more else max(page.read_to, newest)
            has_more = page.has_more or has_gap  # once more, to stand behind what is gone

    async def _has_gap(self) -> bool:
        """Whether events that were not told have been removed. Named tasks are stored whole."""
        if self._wanted.task_ids is not None:
            return False
        removed_to = await self._reading.events.removed_to(self._owner)
        has_gap = removed_to > max(self._position, self._removed_to)
        self._removed_to, self._newest = removed_to, max(self._newest, removed_to)
        return has_gap

    async def _tell(self, events: Sequence[LoggedEvent]) -> AsyncGenerator[bytes]:
        occurrences = list(await self._reading.occurrences.many(self._wanted.name, events))
        for place, event in enumerate(events):
            occurrence, occurrences[place] = occurrences[place], None
            self._position = event.position
            if occurrence is None:
                yield self._frames.active(self._cursor(), truncated=True)
            else:
                yield self._frames.event(occurrence, self._cursor())

    def _cursor(self) -> str:
        return self._reading.cursors.seal(self._owner, self._position)

    def _must_end(self) -> bool:
        return self._streaming.closing.is_set() or self._is_closed

    def _is_over(self) -> bool:
        """Every named task has ended, and all of its events were told."""
        has_ended = self._running is not None and not self._running
        return has_ended and self._away_since is None and not self._must_end()


_AWAY = {
    "code": decisions.INTERNAL_ERROR,
    "message": "StoreUnavailable",
    "data": {"reason": "store_unavailable"},
}


def _told(error: errors.EventNotFound) -> dict[str, object]:
    return {"code": draft.NOT_FOUND, "message": "NotFound", "data": error.data}


def _ringing(bell: Bell, work: Awaitable[T]) -> "asyncio.Future[T]":
    future = asyncio.ensure_future(work)
    future.add_done_callback(bell.ring)
    return future
