"""The client half of delivery: wait for a task, whichever way its status can come."""

import asyncio
import random
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Protocol

from ..domain import errors
from .frames import TaskState

BACKOFF_S_FIRST = 0.2
BACKOFF_S_MAX = 10.0
INVALID_PARAMS = -32602

# Answers that a later attempt will not change: the task is not there (for us), or we may not ask.
_FINAL_CODES = frozenset({INVALID_PARAMS, -32021, -32022, 401, 403})


class StatusSource(Protocol):
    """One way to learn of a task's changes."""

    def watch(self, task_id: str, after: int = 0) -> AsyncGenerator[TaskState]:
        """Every state after the version, in order, none older than one already given; then the end.

        Reconnects by itself, for ever, with a capped back-off, and reads the present state after
        each reconnect. Close it (`aclosing`) to stop earlier. Raises RequestRefused when the server
        says that there is no such task, or that we may not ask.
        """
        ...


class Backoff:
    """Growing pauses with full jitter between failures in a row; starts over after a success."""

    def __init__(self) -> None:
        self._failures = 0

    def succeeded(self) -> None:
        """The next failure is the first again."""
        self._failures = 0

    async def pause(self, error: errors.OutlastError) -> None:
        """Wait before the next attempt. Raises the error if no attempt can mend it."""
        if isinstance(error, errors.RequestRefused) and error.code in _FINAL_CODES:
            raise error
        ceiling_s = min(BACKOFF_S_MAX, BACKOFF_S_FIRST * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        await asyncio.sleep(random.uniform(ceiling_s / 2, ceiling_s))  # noqa: S311 - not a secret


class Place:
    """Where a watcher is in a task: drops what is repeated, and what is older than what it saw."""

    def __init__(self, version: int) -> None:
        self.version = version
        self._updated_at: datetime | None = None

    def is_new(self, state: TaskState) -> bool:
        """Whether the state moves the watcher on; if so, it is there now."""
        if state.version is not None:
            if state.version <= self.version:
                return False
            self.version = state.version
            return True
        # A server that tells no versions: a state is as old as its stamp. Instants are compared,
        # not their spelling, which two replicas need not share.
        updated_at = datetime.fromisoformat(str(state.task["lastUpdatedAt"]))
        if self._updated_at is not None and updated_at < self._updated_at:
            return False
        self._updated_at = updated_at
        return True
