"""When a task stands in the run queue: a pure consequence of how it changed."""

from enum import StrEnum

from .task import Task

LEASE_S = 6.0  # a worker silent for so long has lost its tasks; `service/worker.py` has its beat


class Queueing(StrEnum):
    """What an append does to the task's row in the run queue; WAIT makes it free, due later."""

    PUT = "put"
    LEASE = "lease"
    WAIT = "wait"
    KEEP = "keep"
    DROP = "drop"


def queueing(before: Task | None, after: Task) -> Queueing:
    """PUT a task that has become runnable, DROP one that is parked or ended, KEEP every other.

    A job elsewhere needs no worker until its time is up: the row then WAITs, free and due at the
    task's `delegated_until`, and there is none for a job without an end. One that is followed WAITs
    for its first look; after that the row goes from look to look by itself, and is PUT when its
    owner has something for the job.

    A task that is opened by the very worker that already runs it is put with that worker's LEASE.

    KEEP matters for a runnable task that stays so: putting it again would free the lease of a
    worker that has claimed it and is about to append `WorkStarted`.
    """
    if after.is_runnable:
        return Queueing.KEEP if before is not None and before.is_runnable else Queueing.PUT
    if after.is_running:
        return Queueing.LEASE if before is None else Queueing.KEEP
    if after.is_delegated and after.delegated_until is not None:
        return Queueing.KEEP if before is not None and before.is_delegated else Queueing.WAIT
    if after.is_followed:
        if before is None or not before.is_followed:
            return Queueing.WAIT
        return Queueing.PUT if _is_called(before, after) else Queueing.KEEP
    return Queueing.DROP


def _is_called(before: Task, after: Task) -> bool:
    """Whether the owner wants the job stopped now, or has answered it."""
    wants_end = after.cancel_requested and not before.cancel_requested
    return wants_end or len(after.outstanding) < len(before.outstanding)
