"""When a task stands in the run queue: a pure consequence of how it changed."""

from enum import StrEnum

from .task import Task


class Queueing(StrEnum):
    """What an append does to the task's row in the run queue."""

    PUT = "put"
    KEEP = "keep"
    DROP = "drop"


def queueing(before: Task | None, after: Task) -> Queueing:
    """PUT a task that has become runnable, DROP one that is parked or ended, KEEP every other.

    KEEP matters for a runnable task that stays so: putting it again would free the lease of a worker that has
    claimed it and is about to append `WorkStarted`.
    """
    if after.is_runnable:
        return Queueing.KEEP if before is not None and before.is_runnable else Queueing.PUT
    return Queueing.KEEP if after.is_running else Queueing.DROP
