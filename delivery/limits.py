"""How many watches there may be: in this process, and of one owner."""

from collections import Counter

from ..domain import errors

TASKS_PER_WATCH_MAX = 1_000


class WatchLimits:
    """Counts open watches. A seat is taken before anything is read for the watch."""

    def __init__(self, in_all: int, per_owner: int) -> None:
        self._in_all, self._per_owner = in_all, per_owner
        self._open: Counter[str] = Counter()

    @property
    def open_count(self) -> int:
        """How many watches are open."""
        return self._open.total()

    def take(self, owner: str) -> "Seat":
        """One seat. Raises TooManyWatches, naming the limit that was reached."""
        if self._open[owner] >= self._per_owner:
            raise errors.TooManyWatches("watches of one owner", self._per_owner)
        if self._open.total() >= self._in_all:
            raise errors.TooManyWatches("watches of this process", self._in_all)
        self._open[owner] += 1
        return Seat(self._open, owner)


class Seat:
    """A seat that was taken; given back once."""

    def __init__(self, counter: Counter[str], owner: str) -> None:
        self._counter, self._owner, self._taken = counter, owner, True

    def give_back(self) -> None:
        """Idempotent."""
        if self._taken:
            self._taken = False
            self._counter[self._owner] -= 1
            if not self._counter[self._owner]:
                del self._counter[self._owner]
