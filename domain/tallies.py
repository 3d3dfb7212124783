"""How often and how much: a histogram that costs its observer an addition or two."""

from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class Histogram:
    """Counts of what was observed, by upper bounds; the last count is of what is beyond them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """One more."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, int]]:
        """The same as Prometheus tells it: how many were within each bound."""
        within, found = 0, list[tuple[str, int]]()
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            within += count
            found.append((bound, within))
        return found
