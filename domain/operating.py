"""The service as who runs it sees it: who works on what, what waits, and who is behind by how much.

Each figure is as of the look, of all processes on one store; none is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True)
class Lease:
    """One task that a worker holds. `since` is when its attempt began, None between two of them.

    `left_s` is how long the lease still lasts; below zero it has run out, and the worker is lost.
    """

    worker: str
    task_id: str
    tool: str
    since: datetime | None
    left_s: float


@dataclass(frozen=True)
class Backlog:
    """Work that waits for its turn: due now, or due later; and since when the oldest is due."""

    due: int
    later: int
    oldest_s: float | None


@dataclass(frozen=True)
class Load:
    """The run queue and the outbox. `held` counts all leases, `workers` those who hold them."""

    queue: Backlog
    outbox: Backlog
    held: int
    workers: int


class Operations(Protocol):
    """What the store knows of its own work. Raises StoreUnavailable."""

    async def load(self) -> Load:
        """What waits and what is held, counted now."""
        ...

    async def leases(self, limit: int) -> Sequence[Lease]:
        """At most `limit` leases by worker, those first that have run out or end soonest."""
        ...
