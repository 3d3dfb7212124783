"""What many callers want at once is done together: the first goes at once, the others gather."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

W = TypeVar("W")
R = TypeVar("R")

BATCH_MAX = 64
WAITING_MAX = 4_096


@dataclass(frozen=True)
class _Waiting(Generic[W, R]):
    wish: W
    outcome: "asyncio.Future[R]"


class Gathering(Generic[W, R]):
    """Serves wishes in batches, in the order in which they came, with no delay while all is quiet.

    `work` takes a batch and returns for each wish, in order, its result or the exception to raise.
    Up to `flights` batches are under way; of wishes with the same `key` one at a time, the others
    keep their places. Beyond `waiting_max` callers wait until there is room: a burst is slowed down
    and not remembered. A caller that is cancelled leaves its wish in line.
    """

    def __init__(
        self,
        work: Callable[[Sequence[W]], Awaitable[Sequence[R | Exception]]],
        *,
        key: Callable[[W], Hashable] | None = None,
        flights: int = 1,
        batch_max: int = BATCH_MAX,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._work, self._key = work, key
        self._flights, self._batch_max = flights, batch_max
        self._room = asyncio.Semaphore(waiting_max)
        self._waiting: deque[_Waiting[W, R]] = deque()
        self._busy: set[Hashable] = set()
        self._flying: set[asyncio.Task[None]] = set()

    async def do(self, wish: W) -> R:
        """The result of this wish. Raises what `work` says of it, or raised."""
        await self._room.acquire()
        outcome: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(wish, outcome))
        self._launch()
        return await asyncio.shield(outcome)

    async def drained(self) -> None:
        """Return once nothing is under way."""
        while self._flying:
            await asyncio.wait(self._flying)

    def _launch(self) -> None:
        if self._waiting and len(self._flying) < self._flights:
            flight = asyncio.create_task(self._fly())
            self._flying.add(flight)
            flight.add_done_callback(self._landed)

    def _landed(self, flight: "asyncio.Task[None]") -> None:
        self._flying.discard(flight)
        if not flight.cancelled():
            self._launch()

    async def _fly(self) -> None:
        # Taken here and not at the launch: what came in the same turn of the loop goes along.
        while batch := self._take():
            keys = {self._key(each.wish) for each in batch} if self._key else set[Hashable]()
            self._busy |= keys
            try:
                results = await self._work([each.wish for each in batch])
            except Exception as error:  # noqa: BLE001 - handed to those who wait for it
                results = [error] * len(batch)
            except BaseException:
                for each in batch:
                    each.outcome.cancel()
                raise
            finally:
                self._busy -= keys
            for each, result in zip(batch, results, strict=True):
                _tell(each.outcome, result)

    def _take(self) -> Sequence[_Waiting[W, R]]:
        batch: list[_Waiting[W, R]] = []
        held: list[_Waiting[W, R]] = []
        keys = set(self._busy)
        while self._waiting and len(batch) < self._batch_max:
            each = self._waiting.popleft()
            if self._key is not None:
                key = self._key(each.wish)
                if key in keys:
                    held.append(each)
                    continue
                keys.add(key)
            batch.append(each)
            self._room.release()
        self._waiting.extendleft(reversed(held))
        return batch


def _tell(outcome: "asyncio.Future[R]", result: "R | Exception") -> None:
    if outcome.done():
        return
    if isinstance(result, Exception):
        outcome.set_exception(result)
        outcome.exception()  # seen: its caller may have gone, and nobody else is to be told
    else:
        outcome.set_result(result)
