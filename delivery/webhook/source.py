"""`StatusSource` by webhook: a client that can be posted to, and has an inbox of its own.

Each watched task has one subscription, however many watches share it. What is delivered may come
late, twice, in another order, or, when it is too large, without its outcome. So a delivery says
that there is news, and mostly what; where it does not fit what is known, the task is read
(`tasks/get`), which tells every change since.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from contextvars import Context
from typing import Any, Protocol, cast

import anyio

from ...domain import draft, errors
from ..frames import TaskState
from ..polling import changes_since
from ..source import Backoff, Place
from .receiver import Received
from .subscriber import Grant, Subscriber, Subscribing, Wish

TTL_MS = 15 * 60_000  # of what a client that has died leaves behind
UNSUBSCRIBE_S_MAX = 5.0
MAIL_MAX = 256  # beyond, a slow watch forgets them and reads the task instead
_NEEDED = frozenset({"status", "lastUpdatedAt"})
OMITTED = "omitted"  # in an event's data: the members that made it too large


class Deliveries(Protocol):
    """The part of a receiver that is read here. Its inbox holds nothing that anyone else wants."""

    def received(self) -> AsyncGenerator[Received]:
        """See `Receiver.received`."""
        ...


class _Mail:
    """What has come for one watch, and whether there may be more than that."""

    def __init__(self) -> None:
        self._states: deque[TaskState] = deque()
        self._must_read = False
        self._failure: Exception | None = None
        self._bell = asyncio.Event()

    def put(self, state: TaskState) -> None:
        if len(self._states) >= MAIL_MAX:
            self._states.clear()
            self._must_read = True
        self._states.append(state)
        self._bell.set()

    def read_again(self) -> None:
        self._must_read = True
        self._bell.set()

    def fail(self, error: Exception) -> None:
        self._failure = error
        self._bell.set()

    async def take(self) -> tuple[list[TaskState], bool]:
        """What has come, by version, and whether to read. Raises what it failed with, at last."""
        await self._bell.wait()
        self._bell.clear()
        states, must_read = sorted(self._states, key=_version), self._must_read
        self._states.clear()
        self._must_read = False
        if self._failure is not None:
            if not (states or must_read):
                raise self._failure
            self._bell.set()
        return states, must_read


class _Line:
    """The subscription to one task, and the mail of the watches that share it."""

    def __init__(self, task_id: str, subscriber: Subscriber) -> None:
        self.task_id, self.subscriber = task_id, subscriber
        self.closed = asyncio.Event()
        self.is_closing = False
        self._mails: set[_Mail] = set()
        self._is_granted = False
        self._failure: Exception | None = None

    @property
    def is_idle(self) -> bool:
        return not self._mails

    def join(self, mail: _Mail) -> None:
        self._mails.add(mail)
        if self._failure is not None:
            self._fail(mail, self._failure)
        elif self._is_granted:
            mail.read_again()

    def leave(self, mail: _Mail) -> None:
        self._mails.discard(mail)

    def granted(self, grant: Grant) -> None:
        """A refresh that went well changes nothing; else something may have passed us by."""
        # A server that replays nothing has told nothing of the time before the grant.
        is_sure = not grant.truncated and not grant.is_failing and grant.cursor is not None
        if not (self._is_granted and is_sure):
            self._read_again()
        self._is_granted = True

    def failed(self, error: Exception) -> None:
        """No more will be delivered. If that is because the task has ended, its end is read."""
        self._failure = error
        for mail in self._mails:
            self._fail(mail, error)

    def received(self, received: Received) -> None:
        if received.envelope == draft.ENDED:
            self._is_granted = False
            self.subscriber.ended()
        state = None if received.envelope else _told(received.content, self.task_id)
        if state is None:
            self._read_again()
            return
        for mail in self._mails:
            mail.put(state)

    def _fail(self, mail: _Mail, error: Exception) -> None:
        mail.fail(error)
        if _is_over(error):
            mail.read_again()

    def _read_again(self) -> None:
        for mail in self._mails:
            mail.read_again()


class WebhookSource:
    """`StatusSource` at one URL of ours. The receiver behind it is served by somebody else.

    A server that cannot deliver to it refuses: the watch raises RequestRefused, and another way
    may be tried.
    """

    def __init__(self, shared: Subscribing, deliveries: Deliveries, url: str) -> None:
        self._shared, self._deliveries, self._url = shared, deliveries, url
        self._lines: dict[str, _Line] = {}
        self._by_subscription: dict[str, _Line] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._reader: asyncio.Task[None] | None = None

    async def watch(self, task_id: str, after: int = 0) -> AsyncGenerator[TaskState]:
        """See `StatusSource.watch`."""
        place, backoff = Place(after), Backoff()
        async with self._joined(task_id, after) as mail:
            while True:
                states, must_read = await mail.take()
                if must_read or _is_beyond(states, place.version):
                    try:
                        states = await changes_since(self._shared.remote, task_id, place.version)
                    except errors.RemoteError as error:
                        await backoff.pause(error)
                        mail.read_again()
                    else:
                        backoff.succeeded()
                for state in states:
                    if place.is_new(state):
                        yield state
                    if state.is_terminal:  # an old one too: the watch began after the end
                        return

    @asynccontextmanager
    async def _joined(self, task_id: str, after: int) -> AsyncGenerator[_Mail]:
        line = self._lines.get(task_id)
        while line is not None and line.is_closing:
            # Its unsubscribe call names the same subscription as the call that would follow here.
            await line.closed.wait()
            line = self._lines.get(task_id)
        if line is None:
            line = self._opened(task_id, after)
        mail = _Mail()
        line.join(mail)
        try:
            yield mail
        finally:
            line.leave(mail)
            if line.is_idle:
                with anyio.CancelScope(shield=True):
                    await self._close(line)

    def _opened(self, task_id: str, after: int) -> _Line:
        arguments = {"taskIds": [task_id]}
        wish = Wish(self._url, draft.TASK_UPDATED, arguments, TTL_MS, {task_id: after})
        line = self._lines[task_id] = _Line(task_id, Subscriber(self._shared, wish))
        # In fresh contexts: others share them, who may be more patient than this watch.
        self._keepers[task_id] = asyncio.create_task(self._keep(line), context=Context())
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._hand_on(), context=Context())
        return line

    async def _close(self, line: _Line) -> None:
        line.is_closing = True
        keeper = self._keepers.pop(line.task_id)
        keeper.cancel()
        try:
            await asyncio.wait([keeper])
        finally:  # also when cancelled once more, against which the shield does not help
            # Then the keeper goes on letting go, and whoever comes for the task waits for that.
            keeper.add_done_callback(lambda _: self._closed(line))
            await self._stop_reading()

    async def _stop_reading(self) -> None:
        """End the reader, unless there is a line that it reads for."""
        if self._reader is not None and all(line.is_closing for line in self._lines.values()):
            reader, self._reader = self._reader, None
            reader.cancel()
            await asyncio.wait([reader])

    def _closed(self, line: _Line) -> None:
        del self._lines[line.task_id]
        line.closed.set()

    async def _keep(self, line: _Line) -> None:
        """Hold the subscription of a line until it is cancelled, and then let go of it."""
        try:
            async with aclosing(line.subscriber.kept()) as grants:
                async for grant in grants:
                    self._by_subscription[grant.subscription_id] = line
                    line.granted(grant)
        except Exception as error:  # noqa: BLE001 - whatever it is, the watches raise it
            line.failed(error)
        finally:
            with anyio.move_on_after(UNSUBSCRIBE_S_MAX, shield=True), suppress(errors.RemoteError):
                await line.subscriber.unsubscribe()
            for subscription_id, other in list(self._by_subscription.items()):
                if other is line:
                    del self._by_subscription[subscription_id]

    async def _hand_on(self) -> None:
        """Bring each delivery to its line; what belongs to none is of a watch that has ended."""
        backoff = Backoff()
        while True:
            try:
                async with aclosing(self._deliveries.received()) as deliveries:
                    async for received in deliveries:
                        backoff.succeeded()
                        line = self._by_subscription.get(received.subscription_id)
                        if line is not None:
                            line.received(received)
            except errors.StoreUnavailable as error:
                await backoff.pause(error)
            except Exception as error:  # noqa: BLE001 - whatever it is, the watches raise it
                for line in self._lines.values():
                    line.failed(error)
                return


def _told(content: Mapping[str, Any], task_id: str) -> TaskState | None:
    """The state in an event; None where it has to be read."""
    data = content.get("data")
    if content.get("name") != draft.TASK_UPDATED or not isinstance(data, dict):
        return None
    told = cast(dict[str, Any], data)
    version = told.get("version")
    if told.get("taskId") != task_id or told.get(OMITTED) or not told.keys() >= _NEEDED:
        return None
    task = {name: value for name, value in told.items() if name not in {"tool", "version"}}
    return TaskState(task, version if isinstance(version, int) else None)


def _is_over(error: Exception) -> bool:
    """Whether the server says that there is nothing left to subscribe to."""
    if not isinstance(error, errors.RequestRefused) or error.code != draft.NOT_FOUND:
        return False
    data = cast(object, error.data)
    return isinstance(data, dict) and cast(dict[str, Any], data).get("kind") == "subscription"


def _version(state: TaskState) -> int:
    return state.version or 0


def _is_beyond(states: list[TaskState], version: int) -> bool:
    """Whether something lies between what is known and what has come: it may come later, or not."""
    for state in states:
        if version and state.version is not None and state.version > version + 1:
            return True
        version = max(version, _version(state))
    return False
