"""What follows an attempt to deliver. Pure: instant and chance are handed in.

The schedule is data: the pause before each attempt. It speaks of one event; how its endpoint is
doing as a whole is the breaker's part.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum

# Before the first attempt, the second … ; about 76 hours from the first to the last.
DELAYS_S = (0.0, 5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
ATTEMPTS_MAX = len(DELAYS_S)
JITTER = 0.2  # of the pause, either way: what failed together does not come back together
DELAY_S_MAX = 86_400.0  # whatever jitter and the endpoint say
OVERLOAD_DELAY_S_MIN = 60.0  # for an endpoint that says, or shows, that it is overloaded

OK, REDIRECT, SERVER_FAULT = 200, 300, 500  # where classes of status begin
GONE, TOO_LARGE, TOO_MANY = 410, 413, 429

_DIGITS = re.compile(r"[0-9]{1,15}")


class Category(StrEnum):
    """All that is ever told of a failed delivery."""

    CONNECTION_REFUSED = "connection_refused"  # also no address, and an address that is not allowed
    TIMEOUT = "timeout"
    TLS_ERROR = "tls_error"
    HTTP_4XX = "http_4xx"  # also redirects, which are never followed
    HTTP_5XX = "http_5xx"
    CHALLENGE_FAILED = "challenge_failed"


@dataclass(frozen=True)
class Answered:
    """The endpoint answered. `retry_after_s` as `retry_after_s()` reads it."""

    status: int
    retry_after_s: float | None = None


@dataclass(frozen=True)
class Unanswered:
    """No answer came."""

    category: Category


Outcome = Answered | Unanswered


@dataclass(frozen=True)
class Delivered:
    """The endpoint has it."""


@dataclass(frozen=True)
class RetryIn:
    """Try again after so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Abandon:
    """This event is given up, and the watermark may pass it."""


@dataclass(frozen=True)
class Deactivate:
    """The endpoint is gone for good: suspend the subscription and drop what waits for it."""


Step = Delivered | RetryIn | Abandon | Deactivate


def next_step(attempts: int, outcome: Outcome, chance: float) -> Step:
    """What follows the last of `attempts` attempts. `chance` is a random number from 0 to 1."""
    if attempts < 1 or not 0 <= chance <= 1:
        raise ValueError("a step follows an attempt, and chance lies between 0 and 1")
    match outcome:
        case Answered(status) if is_success(status):
            return Delivered()
        case Answered(status) if status == GONE:
            return Deactivate()
        case Answered(status) if status == TOO_LARGE:
            return Abandon()
        case _ if attempts >= ATTEMPTS_MAX:
            return Abandon()
        case _:
            return RetryIn(_pause_s(attempts, outcome, chance))


def unsent(attempts: int, chance: float) -> Step:
    """What follows an attempt that had nothing to send: the same pauses, and nobody to blame."""
    if attempts >= ATTEMPTS_MAX:
        return Abandon()
    return RetryIn(min(_jittered_s(attempts, chance), DELAY_S_MAX))


def category(outcome: Outcome) -> Category | None:
    """The word for a failure; None for a success."""
    match outcome:
        case Unanswered(known):
            return known
        case Answered(status) if is_success(status):
            return None
        case Answered(status):
            return Category.HTTP_4XX if status < SERVER_FAULT else Category.HTTP_5XX


def retry_after_s(header: str | None, now: datetime) -> float | None:
    """Seconds from now that a `Retry-After` header asks for; None for none that can be read."""
    text = (header or "").strip()
    if _DIGITS.fullmatch(text):
        return float(text)
    try:
        wanted = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    # A date without a zone is in UTC, as the header's grammar says.
    wanted = wanted if wanted.tzinfo else wanted.replace(tzinfo=UTC)
    return max(0.0, (wanted - now).total_seconds())


def is_success(status: int) -> bool:
    """True for 2xx."""
    return OK <= status < REDIRECT


def is_overload(outcome: Outcome) -> bool:
    """Whether it says, or looks as if, the endpoint has too much to do."""
    match outcome:
        case Answered(429 | 502 | 504) | Unanswered(Category.TIMEOUT):
            return True
        case _:
            return False


def _pause_s(attempts: int, outcome: Outcome, chance: float) -> float:
    least_s = OVERLOAD_DELAY_S_MIN if is_overload(outcome) else 0.0
    base_s = max(DELAYS_S[attempts], least_s)
    pause_s = max(_jittered_s(attempts, chance), least_s)
    if isinstance(outcome, Answered) and outcome.retry_after_s is not None:
        # Heard, but not believed beyond measure: an endpoint cannot park its events for a year.
        pause_s = max(pause_s, min(outcome.retry_after_s, 2 * base_s))
    return min(pause_s, DELAY_S_MAX)


def _jittered_s(attempts: int, chance: float) -> float:
    return DELAYS_S[attempts] * (1 + JITTER * (2 * chance - 1))
