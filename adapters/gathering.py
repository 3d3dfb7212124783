"""What many callers want at once is done together: the first goes at once, the others gather."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

W = TypeVar("W")
R = TypeVar("R")

BATCH_MAX = 64
WAITING_MAX = 4_096


class Gathering(Generic[W, R]):
    """Serves wishes in batches, with no delay while all is quiet.

    `work` takes a batch and returns for each wish, in order, its result or the exception to raise.
    Up to `flights` batches are under way, each of `batch_max` wishes at most, and of `size_max` in
    all where `size` tells what one takes (one that is larger flies alone). Of wishes with the same
    `key` one at a time is in line or under way; the others follow it in their order. Those in line
    are taken in turn of whom `turn` names, and in the order in which they came where it names one.

    Beyond `waiting_max` callers wait until there is room: a burst is slowed down and not
    remembered. A caller that is cancelled leaves its wish in line.
    """

    def __init__(  # noqa: PLR0913 - keyword only; what not every kind of wish has
        self,
        work: Callable[[Sequence[W]], Awaitable[Sequence[R | Exception]]],
        *,
        key: Callable[[W], Hashable] | None = None,
        turn: Callable[[W], Hashable] | None = None,
        size: Callable[[W], int] | None = None,
        flights: int = 1,
        batch_max: int = BATCH_MAX,
        size_max: int = 0,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._work, self._key, self._turn, self._size = work, key, turn, size
        self._flights, self._batch_max, self._size_max = flights, batch_max, size_max
        self._room = waiting_max
        self._door: deque[asyncio.Future[None]] = deque()
        self._lines: OrderedDict[Hashable, deque[_Waiting[W, R]]] = OrderedDict()
        self._behind: dict[Hashable, deque[_Waiting[W, R]]] = {}
        self._flying: set[asyncio.Task[None]] = set()
        self._boarding: asyncio.Task[None] | None = None

    async def do(self, wish: W, until: float) -> R:
        """The result of this wish. Raises what `work` says of it, or raised.

        TimeoutError at `until` on the loop's clock: nobody waits any more, the wish stays in line.
        """
        if self._room and not self._door:
            self._room -= 1
        else:
            async with asyncio.timeout_at(until):
                await self._admitted()
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[R] = loop.create_future()
        each = wish, outcome
        if self._key is None:
            self._put(each)
        elif (key := self._key(wish)) in self._behind:
            self._behind[key].append(each)
        else:
            self._behind[key] = deque()
            self._put(each)
        self._launch()
        # A timer and no `asyncio.timeout`: every request comes by here, and it costs a tenth.
        timer = loop.call_at(until, _give_up, outcome)
        try:
            return await outcome
        finally:
            timer.cancel()

    async def drained(self) -> None:
        """Return once nothing is under way."""
        while self._flying:
            await asyncio.wait(self._flying)

    # --- the door

    async def _admitted(self) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._door.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # it had been given its room
                self._make_room(1)
            raise

    def _make_room(self, count: int) -> None:
        self._room += count
        while self._room and self._door:
            place = self._door.popleft()
            if not place.done():
                self._room -= 1
                place.set_result(None)

    # --- the lines

    def _put(self, each: "_Waiting[W, R]") -> None:
        whose = self._turn(each[0]) if self._turn else None
        line = self._lines.get(whose)
        if line is None:
            self._lines[whose] = deque((each,))
        else:
            line.append(each)

    def _take(self) -> "Sequence[_Waiting[W, R]]":
        batch: list[_Waiting[W, R]] = []
        left = self._size_max
        while self._lines and len(batch) < self._batch_max:
            whose, line = self._lines.popitem(last=False)
            if self._size is not None:
                left -= self._size(line[0][0])
                if batch and left < 0:
                    self._lines[whose] = line
                    self._lines.move_to_end(whose, last=False)
                    break
            batch.append(line.popleft())
            if line:
                self._lines[whose] = line
        self._make_room(len(batch))
        return batch

    def _let_follow(self, batch: "Sequence[_Waiting[W, R]]") -> None:
        if self._key is None:
            return
        for wish, _ in batch:
            key = self._key(wish)
            if behind := self._behind[key]:
                self._put(behind.popleft())
            else:
                del self._behind[key]

    # --- the flights

    def _launch(self) -> None:
        if self._lines and self._boarding is None and len(self._flying) < self._flights:
            self._boarding = flight = asyncio.create_task(self._fly())
            self._flying.add(flight)
            flight.add_done_callback(self._landed)

    def _landed(self, flight: "asyncio.Task[None]") -> None:
        self._flying.discard(flight)
        if self._boarding is flight:
            self._boarding = None
        if not flight.cancelled():
            self._launch()

    async def _fly(self) -> None:
        # Taken here and not at the launch: what came in the same turn of the loop goes along.
        self._boarding = None
        while batch := self._take():
            self._launch()  # with those that found no place
            try:
                results = await self._work([wish for wish, _ in batch])
            except Exception as error:  # noqa: BLE001 - handed to those who wait for it
                results = [error] * len(batch)
            except BaseException:
                for _, outcome in batch:
                    outcome.cancel()
                raise
            finally:
                self._let_follow(batch)
            for (_, outcome), result in zip(batch, results, strict=True):
                _tell(outcome, result)


_Waiting = tuple[W, "asyncio.Future[R]"]


def _give_up(outcome: "asyncio.Future[R]") -> None:
    if not outcome.done():
        outcome.set_exception(TimeoutError())


def _tell(outcome: "asyncio.Future[R]", result: "R | Exception") -> None:
    if outcome.done():
        return
    if isinstance(result, Exception):
        outcome.set_exception(result)
        outcome.exception()  # seen: its caller may have gone, and nobody else is to be told
    else:
        outcome.set_result(result)
