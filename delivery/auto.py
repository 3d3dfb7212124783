"""The best way that both sides support: a stream while there is one, polls while there is none.

A stream that breaks is followed by a poll at once. While the task is polled, the stream is tried
again after a pause that grows; it is then tried alone, so that there are never two hot loops. A
stream that is silent is not believed for ever (a proxy may hold it back): now and then the task is
read beside it, and a stream that did not bring what was read is left.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from contextvars import copy_context
from typing import TypeGuard

from ..domain import errors
from ..domain.clienting import Place, StatusSource, TaskState
from .polling import changes_since
from .remote import Remote
from .source import impatient, is_final

CLIMB_S_FIRST = 1.0
CLIMB_S_MAX = 60.0
UNSUPPORTED_S = 300.0  # until a server that refused a way is asked for it again
TRUTH_S_FIRST = 2.0  # after a stream was opened, and after it was found late
TRUTH_S = 30.0


class _Way:
    """A better way than polling, and when to try it."""

    def __init__(self, source: StatusSource) -> None:
        self.source = source
        self.due_at = 0.0
        self._failures = 0

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, error: errors.OutlastError) -> None:
        pause_s = min(CLIMB_S_MAX, CLIMB_S_FIRST * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        if isinstance(error, errors.RequestRefused):
            pause_s = UNSUPPORTED_S
        elif isinstance(error, errors.SlowDown):
            pause_s += error.after_s
        self.due_at = time.monotonic() + pause_s


class AutoSource:
    """`StatusSource` by the first of `better` that works, by `polling` while none does."""

    def __init__(
        self, remote: Remote, polling: StatusSource, better: Sequence[StatusSource]
    ) -> None:
        self._remote, self._polling = remote, polling
        self._ways = [_Way(source) for source in better]

    async def watch(self, task_id: str, after: int = 0) -> AsyncGenerator[TaskState]:
        """See `StatusSource.watch`."""
        place = _Standing(task_id, after)
        while not place.is_over:
            now = time.monotonic()
            way = next((way for way in self._ways if way.due_at <= now), None)
            if way is not None:
                told = self._by_stream(way, place)
            else:
                told = self._by_polls(place, min((way.due_at for way in self._ways), default=None))
            async with aclosing(told) as states:
                async for state in states:
                    yield state

    async def _by_polls(self, place: "_Standing", until: float | None) -> AsyncGenerator[TaskState]:
        """What polls tell until then."""
        polls = self._polling.watch(place.task_id, place.version)
        coming = asyncio.create_task(_next(polls))
        try:
            while not place.is_over:
                left_s = None if until is None else max(0.0, until - time.monotonic())
                await asyncio.wait({coming}, timeout=left_s)
                if not coming.done():
                    return
                state = coming.result()
                coming = asyncio.create_task(_next(polls))
                if place.moved_by(state):
                    yield state
        finally:
            await _stop(coming, polls)

    async def _by_stream(self, way: _Way, place: "_Standing") -> AsyncGenerator[TaskState]:
        """What one attempt tells until it fails, and what is read beside it."""
        stream = way.source.watch(place.task_id, place.version)
        coming = _impatiently(stream)
        truth_s, is_late = TRUTH_S_FIRST, False
        try:
            while not place.is_over:
                await asyncio.wait({coming}, timeout=truth_s)
                if coming.done():
                    state = coming.result()
                    truth_s, is_late = TRUTH_S, False
                    way.succeeded()
                    coming = _impatiently(stream)
                    if place.moved_by(state):
                        yield state
                elif is_late:
                    raise errors.ConnectionLost("the stream holds back what there is to tell")
                else:
                    news = await self._read(place)
                    truth_s, is_late = (TRUTH_S_FIRST, True) if news else (TRUTH_S, False)
                    for state in news:
                        yield state
        except errors.OutlastError as error:
            way.failed(error)
        finally:
            await _stop(coming, stream)

    async def _read(self, place: "_Standing") -> list[TaskState]:
        """What is news by a poll. Raises RequestRefused if no other poll will tell more."""
        try:
            states = await changes_since(self._remote, place.task_id, place.version)
        except errors.RemoteError as error:
            if is_final(error):
                raise
            return []
        return [state for state in states if place.moved_by(state)]


class _Standing(Place):
    """Where one watch is, whichever way it is told; `is_over` once the task has ended."""

    def __init__(self, task_id: str, version: int) -> None:
        super().__init__(version)
        self.task_id, self.is_over = task_id, False

    def moved_by(self, state: TaskState | None) -> TypeGuard[TaskState]:
        """Whether the state is news. None is the end that a source came to by itself."""
        self.is_over = self.is_over or state is None or state.is_terminal
        return state is not None and self.is_new(state)


async def _next(states: AsyncGenerator[TaskState]) -> TaskState | None:
    return await anext(states, None)


def _impatiently(stream: AsyncGenerator[TaskState]) -> "asyncio.Task[TaskState | None]":
    with impatient():
        return asyncio.create_task(_next(stream), context=copy_context())


async def _stop(
    coming: "asyncio.Task[TaskState | None]", states: AsyncGenerator[TaskState]
) -> None:
    coming.cancel()
    try:
        await asyncio.gather(coming, return_exceptions=True)
    finally:  # whoever is cut off may be cancelled once more, in the wait above
        await states.aclose()
