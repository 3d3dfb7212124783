"""What an endpoint's reply means to the sender: a category, and a wish to be left alone. Pure."""

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

RETRY_AFTER_S_MAX = 24 * 3_600  # nobody may put a delivery off for longer
RETRY_AFTER_CHARS_MAX = 64

OK, REDIRECTION, SERVER_ERROR = 200, 300, 500

Category = Literal["connection_refused", "timeout", "tls_error", "http_4xx", "http_5xx"]

_SECONDS = re.compile(r"[0-9]+")


def category_of(status: int) -> Category | None:
    """None for an acknowledgement. What is no answer to a POST, a redirection too, is a 4xx."""
    if OK <= status < REDIRECTION:
        return None
    return "http_5xx" if status >= SERVER_ERROR else "http_4xx"


def retry_after_s(value: str, now: datetime) -> int | None:
    """The seconds that a Retry-After asks for, between 0 and the cap; None if it makes no sense."""
    text = value.strip()
    if len(text) > RETRY_AFTER_CHARS_MAX:
        return None
    if _SECONDS.fullmatch(text):
        return min(int(text), RETRY_AFTER_S_MAX)
    instant = _instant(text)
    if instant is None:
        return None
    return max(0, min(math.ceil((instant - now).total_seconds()), RETRY_AFTER_S_MAX))


def _instant(text: str) -> datetime | None:
    try:
        instant = parsedate_to_datetime(text)
        # An unknown zone is UTC; converting also finds the dates that only their zone breaks.
        return instant.replace(tzinfo=instant.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError, IndexError, TypeError):
        return None
