"""The client half of delivery: wait for a task, whichever way its status can come."""

import asyncio
import random
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from ..domain import errors
from ..domain.clienting import INVALID_PARAMS, Place, StatusSource

__all__ = ["INVALID_PARAMS", "Backoff", "Place", "StatusSource", "impatient", "is_final"]

BACKOFF_S_FIRST = 0.2
BACKOFF_S_MAX = 10.0

# Answers that a later attempt will not change: the task is not there (for us), or we may not ask.
_FINAL_CODES = frozenset({INVALID_PARAMS, 401, 403})

_is_impatient: ContextVar[bool] = ContextVar("outlast_is_impatient", default=False)


@contextmanager
def impatient() -> Generator[None]:
    """What is run in here does not pause and try again: its first failure is raised.

    For whoever has another way at hand, and would lose time by waiting for this one.
    """
    token = _is_impatient.set(True)
    try:
        yield
    finally:
        _is_impatient.reset(token)


class Backoff:
    """Growing pauses with full jitter between failures in a row; starts over after a success."""

    def __init__(self) -> None:
        self._failures = 0

    def succeeded(self) -> None:
        """The next failure is the first again."""
        self._failures = 0

    async def pause(self, error: errors.OutlastError) -> None:
        """Wait before the next attempt. Raises the error if no attempt can mend it."""
        if _is_impatient.get() or is_final(error):
            raise error
        ceiling_s = min(BACKOFF_S_MAX, BACKOFF_S_FIRST * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        pause_s = random.uniform(ceiling_s / 2, ceiling_s)  # noqa: S311 - not a secret
        if isinstance(error, errors.SlowDown):
            pause_s += error.after_s  # so that not all who are told the same come at once
        await asyncio.sleep(pause_s)


def is_final(error: errors.OutlastError) -> bool:
    """Whether the server has said what no later attempt will change."""
    return isinstance(error, errors.RequestRefused) and error.code in _FINAL_CODES
