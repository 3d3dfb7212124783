"""How fast one owner may ask: calls a minute in all, and polls a minute of one task.

Each process counts for itself, and those of one `serve` tell each other what they let pass: who
keeps to a limit is never refused, and who does not is let through for a moment more. A bucket holds
one minute's worth and fills as time goes by, so what is asked now and then in a burst passes. One
that is full again is the same as none, and is dropped. Nothing is looked up before a bucket is
asked: an answer tells nothing of what there is.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from ..domain import errors

KEYS_MAX = 100_000  # buckets of one kind; beyond it, that which was used longest ago is dropped
SWEEP_AT_LEAST = 1_024

_MINUTE_S = 60.0


class Buckets:
    """One bucket a key, each kept as the one instant at which it will be full again."""

    def __init__(
        self, per_minute: int | None, clock: Callable[[], float], keys_max: int = KEYS_MAX
    ) -> None:
        self.per_minute, self._clock, self._keys_max = per_minute, clock, keys_max
        self._full_at: dict[bytes, float] = {}
        self.tell: Callable[[bytes], None] | None = None  # of each key that was taken
        self._sweep_at = min(SWEEP_AT_LEAST, keys_max)

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, *names: str) -> float:
        """0 when it was taken, else the seconds after which one more can be."""
        if self.per_minute is None:
            return 0.0
        # A digest: a name that a client made up may be as long as a body.
        key = hashlib.sha256("\0".join(names).encode("utf-8", "surrogatepass")).digest()[:16]
        now, step_s = self._clock(), _MINUTE_S / self.per_minute
        # Out and in again, refused or not: the first ones are those that were used longest ago.
        full_at = max(self._full_at.pop(key, now), now)
        early_s = full_at + step_s - now - _MINUTE_S
        if early_s > step_s / 1_000:  # not for what is lost in adding up
            self._full_at[key] = full_at
            return early_s
        self._full_at[key] = full_at + step_s
        if len(self._full_at) > self._sweep_at:
            self._sweep(now)
        if self.tell is not None:
            self.tell(key)
        return 0.0

    def taken_elsewhere(self, key: bytes, times: int) -> None:
        """Another process of this service has let this pass, so often."""
        if self.per_minute is not None:
            now = self._clock()
            full_at = max(self._full_at.pop(key, now), now)
            self._full_at[key] = full_at + times * _MINUTE_S / self.per_minute
            if len(self._full_at) > self._sweep_at:
                self._sweep(now)

    def _sweep(self, now: float) -> None:
        """Drop what is full; the next time when as many more are there, so it costs little."""
        self._full_at = {key: at for key, at in self._full_at.items() if at > now}
        while len(self._full_at) > self._keys_max:
            del self._full_at[next(iter(self._full_at))]
        self._sweep_at = min(max(SWEEP_AT_LEAST, 2 * len(self._full_at)), self._keys_max)


class Throttle:
    """The rates of this process; None for no limit. Counts every refusal that names a limit."""

    def __init__(
        self,
        calls_per_minute: int | None = None,
        polls_per_minute: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        calls_per_minute_in_all: int | None = None,
    ) -> None:
        self._calls = Buckets(calls_per_minute, clock)
        self._all_calls = Buckets(calls_per_minute_in_all, clock)
        self._polls = Buckets(polls_per_minute, clock)
        self._refusals: Counter[str] = Counter()

    @property
    def refusals(self) -> Mapping[str, int]:
        """How often each limit was met, since this process began."""
        return self._refusals

    def share(self, tell: Callable[[str, bytes], None]) -> None:
        """Tell other processes what is taken here; they hear it a moment later."""
        for kind, buckets in self._by_kind().items():
            buckets.tell = partial(tell, kind)

    def taken_elsewhere(self, kind: str, key: bytes, times: int) -> None:
        """What another one told."""
        if (buckets := self._by_kind().get(kind)) is not None:
            buckets.taken_elsewhere(key, times)

    def _by_kind(self) -> Mapping[str, Buckets]:
        return {"calls": self._calls, "calls_in_all": self._all_calls, "polls": self._polls}

    def called(self, owner: str) -> None:
        """One call of this owner. Raises TooManyRequests.

        What an owner may not ask takes nothing from the others.
        """
        self._take("calls_per_minute", self._calls, owner)
        self._take("calls_per_minute_in_all", self._all_calls)

    def polled(self, owner: str, task_id: str) -> None:
        """One look of this owner at this task, if there is one. Raises TooManyRequests."""
        self._take("polls_per_minute", self._polls, owner, task_id)

    def refused(self, error: Exception) -> None:
        """Count the limit that this refusal names, if it does."""
        if isinstance(error, errors.UpstreamFault):
            return  # what it names is none of ours
        data: Any = getattr(error, "data", None)
        named = cast(dict[str, Any], data) if isinstance(data, dict) else dict[str, Any]()
        limit: Any = getattr(error, "limit", None) or named.get("limit")
        if isinstance(limit, str):
            self._refusals[limit] += 1

    def _take(self, limit: str, buckets: Buckets, *names: str) -> None:
        wait_s = buckets.take(*names)
        if wait_s > 0:
            raise errors.TooManyRequests(limit, buckets.per_minute or 0, wait_s)
