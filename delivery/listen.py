"""`subscriptions/listen`: a stream of frames for one request, whatever carries them.

First the acknowledgement, then the present state of each agreed task (so that no change can fall
between the subscription and the first read), then every change; and the result at the end. The
subscription's place in each task is kept by the stream, and by the client when it comes back.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from ..domain import errors
from ..domain.extension import REQUIRED_CAPABILITIES
from ..domain.ports import Announcements, Signal, Wakeup
from .bells import Bell, Clock, Closing
from .feed import Feed
from .follow import RECHECK_S, follow
from .frames import (
    ACKNOWLEDGED,
    LIST_CHANGES,
    LISTEN,
    RESOURCE_SUBSCRIPTIONS,
    RESOURCE_UPDATED,
    TASK_CHANGED,
    Frames,
    RequestId,
    TaskState,
    strings,
    task_state,
)
from .limits import TASKS_PER_WATCH_MAX, Seat, WatchLimits
from .port import (
    AFTER_META_KEY,
    KEEP_ALIVE,
    ListenRequest,
    OpenWatch,
    Receipt,
    Watch,
    places_of,
)
from .remote import Remote, result_of
from .source import INVALID_PARAMS, Backoff, Place

FOREVER_S = 3600.0

T = TypeVar("T")


@dataclass(frozen=True)
class Listening:
    """What the listeners of a process share. `closing` is set when the process shuts down."""

    feed: Feed
    signal: Signal
    announcements: Announcements
    limits: WatchLimits
    recheck_s: float = RECHECK_S
    closing: Closing = field(default_factory=Closing)
    clock: Clock = field(default_factory=Clock)


@dataclass(frozen=True)
class Wanted:
    """What a request asked to hear of beside its tasks, and whether it named tasks at all."""

    lists: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()
    names_tasks: bool = True


class ListenMethod:
    """`Listener`: what a request may ask for, and how it says so."""

    def __init__(self, listening: Listening) -> None:
        self._listening = listening

    async def open(self, request: ListenRequest) -> OpenWatch:
        """See `Listener.open`."""
        asked = request.params.get("notifications")
        if not isinstance(asked, dict):
            raise errors.InvalidCall("notifications must be an object: what to listen to")
        filters = cast(Mapping[str, Any], asked)
        task_ids = _names(filters, "taskIds")
        if task_ids is not None and not request.declares_tasks:
            raise errors.MissingCapability(REQUIRED_CAPABILITIES)
        wanted = Wanted(
            frozenset(name for name in LIST_CHANGES if filters.get(name) is True),
            frozenset(_names(filters, RESOURCE_SUBSCRIPTIONS) or ()),
            names_tasks=task_ids is not None,
        )
        places = places_of(request.params)
        after = {task_id: places.get(task_id, 0) for task_id in task_ids or ()}
        delivery = ListenDelivery(self._listening, request.request_id, wanted)
        return await delivery.open(Watch(request.owner, after))


def _names(filters: Mapping[str, Any], name: str) -> list[str] | None:
    if filters.get(name) is None:
        return None
    given = strings(filters[name])
    if given is None or len(given) > TASKS_PER_WATCH_MAX:
        raise errors.InvalidCall(f"{name} must be a list of at most {TASKS_PER_WATCH_MAX} strings")
    # PostgreSQL text cannot hold a NUL, so nothing of ours can have such a name.
    return [text for text in given if "\0" not in text]


class ListenDelivery:
    """`Delivery` for one `subscriptions/listen` request."""

    def __init__(self, listening: Listening, subscription: RequestId, wanted: Wanted) -> None:
        self._listening, self._wanted = listening, wanted
        self._frames = Frames(subscription)

    async def open(self, watch: Watch) -> "ListenWatch":
        """See `Delivery.open`."""
        seat = self._listening.limits.take(watch.owner)
        try:
            after: dict[str, int] = {}
            for task_id, known in watch.after.items():
                view = await self._listening.feed.owned(watch.owner, task_id)
                if view is not None:
                    # Who claims to know more than there is must still hear of the end.
                    after[task_id] = min(known, view.version)
            agreed = await self._agreed()
        except BaseException:
            seat.give_back()
            raise
        return ListenWatch(self._listening, self._frames, after, agreed, seat)

    async def _agreed(self) -> Wanted:
        """What was asked for and some upstream offers."""
        wanted = self._wanted
        if not (wanted.lists or wanted.resources):
            return wanted
        offered = await self._listening.announcements.offered()
        resources = wanted.resources if RESOURCE_SUBSCRIPTIONS in offered else frozenset[str]()
        return Wanted(wanted.lists & offered, resources, wanted.names_tasks)


class ListenWatch:
    """`OpenWatch` of a listener."""

    def __init__(
        self,
        listening: Listening,
        frames: Frames,
        after: Mapping[str, int],
        agreed: Wanted,
        seat: Seat,
    ) -> None:
        self._listening, self._frames, self._seat = listening, frames, seat
        self._after, self._agreed = after, agreed
        self._bell, self._is_closed = Bell(), False

    @property
    def receipt(self) -> Receipt:
        """See `OpenWatch.receipt`."""
        return Receipt(tuple(self._after))

    async def close(self) -> None:
        """See `OpenWatch.close`. The frames end, and without a result."""
        self._seat.give_back()
        self._is_closed = True
        self._bell.ring()

    async def frames(self) -> AsyncGenerator[bytes]:
        """See `OpenWatch.frames`. An empty frame says that all is quiet."""
        # Listen before the acknowledgement: what is announced after it must be heard.
        topics = self._agreed.lists | self._agreed.resources
        async with self._listening.announcements.listening(topics) as heard:
            yield self._frames.acknowledged(self._told())
            async with aclosing(self._until_closing(heard, forever=bool(topics))) as news:
                async for frame in news:
                    yield frame
                    del frame  # while all is quiet, nothing is held
        if not self._is_closed:
            yield self._frames.ended()

    def _told(self) -> dict[str, Any]:
        told: dict[str, Any] = dict.fromkeys(sorted(self._agreed.lists), True)
        if self._agreed.resources:
            told[RESOURCE_SUBSCRIPTIONS] = sorted(self._agreed.resources)
        if self._agreed.names_tasks:
            told["taskIds"] = list(self._after)
        return told

    async def _until_closing(self, heard: Wakeup, *, forever: bool) -> AsyncGenerator[bytes]:
        """Changes and announcements, until the tasks have ended (and nothing else is heard)."""
        shared, bell = self._listening, self._bell
        changes = follow(shared.feed, shared.signal, self._after, shared.recheck_s)
        change = _ringing(bell, anext(changes, None))
        news = _ringing(bell, heard.wait(FOREVER_S)) if forever else None
        try:
            with shared.closing.ringing(bell), shared.clock.ringing(bell):
                while not (shared.closing.is_set() or self._is_closed):
                    await bell.wait()
                    if bell.take_due():
                        yield KEEP_ALIVE
                    if news is not None and news.done():
                        for topic in heard.take():
                            yield self._announced(topic)
                        news = _ringing(bell, heard.wait(FOREVER_S))
                    if change is not None and change.done():
                        item = change.result()
                        change = _ringing(bell, anext(changes, None)) if item else None
                        if item is not None:
                            yield self._frames.changed(item)
                        del item
                    if change is None and not forever:
                        return
        finally:
            try:
                await _stop(*filter(None, (change, news)))
            finally:  # whoever is cut off may be cancelled once more, in the wait above
                await changes.aclose()

    def _announced(self, topic: str) -> bytes:
        if topic in LIST_CHANGES:
            return self._frames.announced(LIST_CHANGES[topic], {})
        return self._frames.announced(RESOURCE_UPDATED, {"uri": topic})


class ListenSource:
    """`StatusSource` by `subscriptions/listen`. The client keeps the version across connections."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    async def watch(self, task_id: str, after: int = 0) -> AsyncGenerator[TaskState]:
        """See `StatusSource.watch`."""
        place, backoff = Place(after), Backoff()
        while True:
            messages = self._remote.stream(LISTEN, listen_params({task_id: place.version}))
            try:
                async for message in messages:
                    state = told_state(message, task_id)
                    if state is None:
                        continue
                    if place.is_new(state):
                        backoff.succeeded()
                        yield state
                    if state.is_terminal:  # an old one too: the watch began after the end
                        return
                # A stream that ends well without a last state: the server is going, or has none.
                raise errors.ConnectionLost("the stream ended before the task did")
            except errors.OutlastError as error:
                await backoff.pause(error)
            finally:
                await messages.aclose()


def listen_params(after: Mapping[str, int]) -> dict[str, Any]:
    """The parameters of a request to listen to these tasks from these versions."""
    known = {task_id: version for task_id, version in after.items() if version}
    meta = {AFTER_META_KEY: known} if known else {}
    return {"notifications": {"taskIds": list(after)}, "_meta": meta}


def told_state(message: Mapping[str, Any], task_id: str) -> TaskState | None:
    """The state of this task in a message, if it tells one.

    Raises RequestRefused for an error, and when the task was not agreed to.
    """
    if "error" in message:
        result_of(dict(message))
    params = cast(Mapping[str, Any], message.get("params") or {})
    if message.get("method") == ACKNOWLEDGED:
        agreed = cast(Mapping[str, Any], params.get("notifications") or {})
        if task_id not in (agreed.get("taskIds") or ()):
            raise errors.RequestRefused(INVALID_PARAMS, "Task not found.")
    elif message.get("method") == TASK_CHANGED and params.get("taskId") == task_id:
        return task_state(params)
    return None


def _ringing(bell: Bell, work: Awaitable[T]) -> "asyncio.Future[T]":
    future = asyncio.ensure_future(work)
    future.add_done_callback(bell.ring)
    return future


async def _stop(*waits: "asyncio.Future[Any]") -> None:
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
