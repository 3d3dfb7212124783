"""What wakes an open stream beside its tasks: one clock for all keep-alives, and the closing.

A timer and a task for each of ten thousand idle streams would cost a good part of a processor, and
ten kilobytes each; a clock that they share costs next to nothing.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

KEEP_ALIVE_S = 25.0  # under the 30 to 60 s after which proxies drop a quiet connection
SLOTS = 50  # all keep-alives at once would hold up every change for as long as they take


class Bell:
    """Wakes the one task that waits for it. Rung while nobody waits, it ends the next wait."""

    __slots__ = ("_is_due", "_is_rung", "_waiter")

    def __init__(self) -> None:
        self._is_rung = self._is_due = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self, *_: object) -> None:
        """May be given to a future as its callback."""
        self._is_rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Return once it has been rung since the last wait."""
        if not self._is_rung:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._is_rung = False

    def beat(self) -> None:
        """Ring, for a sign of life is due."""
        self._is_due = True
        self.ring()

    def take_due(self) -> bool:
        """Whether a sign of life is due; then it is not any more."""
        is_due, self._is_due = self._is_due, False
        return is_due


class Clock:
    """Beats each bell once a period, which is KEEP_ALIVE_S if no other is given."""

    def __init__(self, period_s: float | None = None) -> None:
        self._tick_s = (KEEP_ALIVE_S if period_s is None else period_s) / SLOTS
        self._slots: list[set[Bell]] = [set() for _ in range(SLOTS)]
        self._now = self._next = self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def ringing(self, bell: Bell) -> Generator[None]:
        """From here on until the exit; each next bell has another place in the period."""
        slot = self._slots[self._next]
        slot.add(bell)
        self._next = (self._next + 1) % SLOTS
        self._count += 1
        if self._timer is None:
            self._wind()
        try:
            yield
        finally:
            slot.discard(bell)
            self._count -= 1
            if not self._count and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _wind(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        self._wind()
        self._now = (self._now + 1) % SLOTS
        for bell in self._slots[self._now]:
            bell.beat()


class Closing:
    """Set once, when the process shuts down: rings every bell."""

    def __init__(self) -> None:
        self._is_set = False
        self._bells: set[Bell] = set()

    def is_set(self) -> bool:
        """True once the process shuts down."""
        return self._is_set

    def set(self) -> None:
        """The process shuts down."""
        self._is_set = True
        for bell in self._bells:
            bell.ring()

    @contextmanager
    def ringing(self, bell: Bell) -> Generator[None]:
        """From here on until the exit."""
        self._bells.add(bell)
        try:
            yield
        finally:
            self._bells.discard(bell)
