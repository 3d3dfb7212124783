"""How one endpoint is doing: tried, left in peace for a while, or given up. Pure: no clock."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from .schedule import TOO_LARGE, TOO_MANY, Answered, Outcome, is_overload, is_success

FAILURES_TO_OPEN = 5  # in a row
OVERLOADS_TO_OPEN = 2  # failures in a row, if the last looks like overload
OPEN_S_FIRST = 60.0  # the first pause; each probe that fails doubles it
OPEN_S_MAX = 3_600.0
PROBE_S = 30.0  # longer than an attempt may take: its sender has died, and another may probe

SUSPEND_FAILURES_MIN = 5  # in a row,
SUSPEND_AFTER_S = 86_400.0  # and over so long: an outage of a night suspends nobody

_DOUBLINGS_MAX = 16


class BreakerState(StrEnum):
    """Whether the endpoint is tried."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True)
class Breaker:
    """The failures of one endpoint since its last success.

    Closed: all is tried. Open: nothing is, until `open_until`. Then half-open: one probe at a time,
    whose success closes it and whose failure opens it again, for twice as long. What waits
    meanwhile uses up no attempt. Ask `may_try`, note `trying`, then note `after`.
    """

    failures: int = 0
    failing_since: datetime | None = None
    opened: int = 0
    open_until: datetime | None = None
    probing_until: datetime | None = None

    def state(self, now: datetime) -> BreakerState:
        """Closed, open or half-open."""
        if self.open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self.open_until else BreakerState.HALF_OPEN

    def may_try(self, now: datetime) -> bool:
        """Whether an attempt may begin."""
        if self.state(now) is BreakerState.HALF_OPEN:
            return self.probing_until is None or now >= self.probing_until
        return self.state(now) is BreakerState.CLOSED

    def trying(self, now: datetime) -> "Breaker":
        """An attempt begins; while half-open it is the probe, and no other may begin."""
        if self.state(now) is not BreakerState.HALF_OPEN:
            return self
        return replace(self, probing_until=now + timedelta(seconds=PROBE_S))

    def after(self, outcome: Outcome, now: datetime) -> "Breaker":
        """An attempt ended."""
        if _shows_life(outcome):
            return Breaker()
        since = self.failing_since or now
        failed = replace(self, failures=self.failures + 1, failing_since=since)
        match self.state(now):
            case BreakerState.OPEN:  # by an attempt that began before: no reason to wait longer
                return failed
            case BreakerState.HALF_OPEN:
                return failed._open(outcome, now)
            case BreakerState.CLOSED:
                return failed._open(outcome, now) if failed._is_enough(outcome) else failed

    def is_to_be_suspended(self, now: datetime) -> bool:
        """Whether it has failed so often and so long that only its client can revive it."""
        if self.failing_since is None or self.failures < SUSPEND_FAILURES_MIN:
            return False
        return now - self.failing_since >= timedelta(seconds=SUSPEND_AFTER_S)

    def _is_enough(self, outcome: Outcome) -> bool:
        if _asks_for_time(outcome) or self.failures >= FAILURES_TO_OPEN:
            return True
        return is_overload(outcome) and self.failures >= OVERLOADS_TO_OPEN

    def _open(self, outcome: Outcome, now: datetime) -> "Breaker":
        asked_s = outcome.retry_after_s if isinstance(outcome, Answered) else None
        doubled_s = OPEN_S_FIRST * 2.0 ** min(self.opened, _DOUBLINGS_MAX)
        pause = timedelta(seconds=min(max(doubled_s, asked_s or 0.0), OPEN_S_MAX))
        return replace(self, opened=self.opened + 1, open_until=now + pause, probing_until=None)


def _shows_life(outcome: Outcome) -> bool:
    """A success does, and so does 413: it refuses one event, not deliveries."""
    return isinstance(outcome, Answered) and (
        is_success(outcome.status) or outcome.status == TOO_LARGE
    )


def _asks_for_time(outcome: Outcome) -> bool:
    return isinstance(outcome, Answered) and (
        outcome.status == TOO_MANY or outcome.retry_after_s is not None
    )
