"""Wake-ups within one process: who waits for which task, and who waits for the run queue."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

_QUEUE = ""  # no task id is empty


class BusWakeup:
    """`Wakeup` on an event loop."""

    def __init__(self) -> None:
        self._moved = asyncio.Event()
        self.version = 0

    def set(self, version: int) -> None:
        """End the present wait, or else the next one."""
        self.version = max(self.version, version) if version else 0
        self._moved.set()

    async def wait(self, seconds: float) -> bool:
        """See `Wakeup.wait`."""
        try:
            async with asyncio.timeout(seconds):
                await self._moved.wait()
        except TimeoutError:
            return False
        self._moved.clear()
        return True


class Bus:
    """`Signal` for the waiters of one process; an adapter calls `task_moved` and `queue_moved`."""

    def __init__(self) -> None:
        self._waiters: dict[str, set[BusWakeup]] = {}

    def watching(self, task_id: str) -> AbstractAsyncContextManager[BusWakeup]:
        """See `Signal.watching`."""
        return self._waiting_for(task_id)

    def watching_queue(self) -> AbstractAsyncContextManager[BusWakeup]:
        """See `Signal.watching_queue`."""
        return self._waiting_for(_QUEUE)

    def task_moved(self, task_id: str, version: int) -> None:
        """Wake those who watch this task."""
        for waiter in self._waiters.get(task_id, ()):
            waiter.set(version)

    def queue_moved(self) -> None:
        """Wake those who watch the run queue."""
        self.task_moved(_QUEUE, 0)

    def all_moved(self) -> None:
        """Wake everybody: news may have been missed."""
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.set(0)

    @asynccontextmanager
    async def _waiting_for(self, name: str) -> AsyncGenerator[BusWakeup, None]:
        waiter = BusWakeup()
        self._waiters.setdefault(name, set()).add(waiter)
        try:
            yield waiter
        finally:
            waiters = self._waiters[name]
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[name]
