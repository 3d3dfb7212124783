"""Wake-ups within one process: who waits for which name.

Names are task ids and topics; and, with a NUL in front that no task id can have, owners, the run
queue and the outbox.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from . import codec

_QUEUE = "\0queue"
_OUTBOX = "\0outbox"
_OWNER = "\0owner:"
_GONE = -1


class BusWakeup:
    """`Wakeup` on an event loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._moved: dict[str, int] = {}

    def set(self, name: str, version: int) -> None:
        """End the present wait, or else the next one. Version 0 stands for an unknown one."""
        known = self._moved.get(name, version)
        self._moved[name] = max(known, version) if known and version else 0
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """See `Wakeup.wait`."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True

    def take(self) -> Mapping[str, int]:
        """See `Wakeup.take`."""
        moved, self._moved = self._moved, {}
        return moved


class Bus:
    """`Signal` for the waiters of one process; an adapter calls `moved` and `all_moved`."""

    def __init__(self) -> None:
        self._waiters: dict[str, set[BusWakeup]] = {}
        self._heard: dict[str, int] = {}  # of names that somebody waits for

    def watching(self, *task_ids: str) -> AbstractAsyncContextManager[BusWakeup]:
        """See `Signal.watching`."""
        return self.waiting_for(task_ids)

    def watching_owner(self, owner: str) -> AbstractAsyncContextManager[BusWakeup]:
        """See `Signal.watching_owner`."""
        return self.waiting_for((_OWNER + codec.digest(owner),))

    def watching_queue(self) -> AbstractAsyncContextManager[BusWakeup]:
        """See `Signal.watching_queue`."""
        return self.waiting_for((_QUEUE,))

    def watching_outbox(self) -> AbstractAsyncContextManager[BusWakeup]:
        """See `Signal.watching_outbox`."""
        return self.waiting_for((_OUTBOX,))

    def moved(self, name: str, version: int) -> None:
        """Wake those who wait for this name."""
        waiters = self._waiters.get(name)
        if waiters:
            self._heard[name] = max(version, self._heard.get(name, 0))
            for waiter in waiters:
                waiter.set(name, version)

    def found(self, name: str, version: int) -> None:
        """A look showed this version, 0 for nothing: wake those who wait, unless they were told."""
        if name not in self._waiters:  # they left while the look was under way
            return
        told = self._heard.get(name, 0)
        if version > told or (version == 0 and told != _GONE):
            self.moved(name, version)
            self._heard[name] = version or _GONE

    def owner_moved(self, owner_digest: str) -> None:
        """Wake those who wait for any task of the owner of this digest."""
        self.moved(_OWNER + owner_digest, 0)

    def queue_moved(self) -> None:
        """Wake those who wait for the run queue."""
        self.moved(_QUEUE, 0)

    def outbox_moved(self) -> None:
        """Wake those who wait for deliveries."""
        self.moved(_OUTBOX, 0)

    def unseen_moved(self) -> None:
        """Wake all who wait for what has no version that a look could show: all but tasks."""
        for name in list(self._waiters):
            if not _is_task(name):
                self.moved(name, 0)

    def all_moved(self) -> None:
        """Wake everybody: news may have been missed."""
        for name in list(self._waiters):
            self.moved(name, 0)

    def watched(self) -> list[str]:
        """The task ids that anybody waits for."""
        return [name for name in self._waiters if _is_task(name)]

    @asynccontextmanager
    async def waiting_for(self, names: Collection[str]) -> AsyncGenerator[BusWakeup]:
        """From here on until the exit, moves of these names wake the yielded waiter."""
        waiter = BusWakeup()
        for name in names:
            self._waiters.setdefault(name, set()).add(waiter)
        try:
            yield waiter
        finally:
            for name in names:
                self._let_go(name, waiter)

    def _let_go(self, name: str, waiter: BusWakeup) -> None:
        waiters = self._waiters.get(name, set())
        waiters.discard(waiter)
        if not waiters:
            self._waiters.pop(name, None)
            self._heard.pop(name, None)


def _is_task(name: str) -> bool:
    return not name.startswith("\0")
