"""Task ids: nobody can guess one, and those that are made at the same time lie side by side.

Every index of tasks is in the order of ids. Were an id random from its first character on, each
creation would write to pages of its own all over a large store, and PostgreSQL writes a page out
whole when it is first touched after a checkpoint: with a million tasks stored, 11 kB for a creation
instead of 2, and twice the processor time. So the ids of one process share their beginning for some
seconds. It is random too, and changes by the clock and not by a count: it tells nothing but that.
"""

import secrets
import time
from collections.abc import Callable

from ..domain import base64url

SHARED_BYTES, OWN_BYTES = 3, 29  # the first 4 characters, and 232 bits
SHARED_S = 10.0


class TaskIds:
    """The ids that one process gives to new tasks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._until, self._shared = clock, float("-inf"), b""

    def new(self) -> str:
        """An id that was never given before: 43 URL-safe characters."""
        now = self._clock()
        if now >= self._until:
            self._shared, self._until = secrets.token_bytes(SHARED_BYTES), now + SHARED_S
        whole = self._shared + secrets.token_bytes(OWN_BYTES)
        return base64url.encoded(whole)
