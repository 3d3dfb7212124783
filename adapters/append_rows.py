"""What an append brings to `outlast.append_events`, and how many of them become its arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from ..domain.queueing import LEASE_S
from ..domain.task import Task
from . import codec
from .sealing import DataKey

STATEMENT = (
    "SELECT outlast.append_events("
    "%b::text[], %b::bigint[], %b::text[], %b::bytea[], %b::uuid[], %b::text[],"
    " %b::text[], %b::bigint[], %b::bigint[], %b::text[], %b::text[], %b::text[],"
    " %b::timestamptz[], %b::timestamptz[], %b::text[], %b::text[], %b::bytea[],"
    " %b::text[], %b::text[], %b::timestamptz[], %b::float8,"
    " %b::text[], %b::bytea[], %b::text, %b::bigint[])"
)


class EventRow(Protocol):
    """One event as it is stored. By its id a lost reply is told from a conflict."""

    @property
    def originator_id(self) -> Any:
        """The task's id."""
        ...

    @property
    def originator_version(self) -> int:
        """The task's version with it."""
        ...

    @property
    def topic(self) -> str:
        """What kind of event."""
        ...

    @property
    def state(self) -> bytes:
        """What it says, maybe sealed."""
        ...

    @property
    def event_id(self) -> UUID:
        """Its own id."""
        ...


@dataclass(frozen=True)
class ViewRow:
    """What an append leaves of one task outside its stream. `statuses`: one after each event.

    `former` is the status before, None for a task that is opened; `data_key` is what seals one
    that is opened, `name` what is stored of its idempotency key.
    """

    task: Task
    expected: int
    queueing: str
    wire: bytes
    statuses: Sequence[str]
    former: str | None
    name: str | None = None
    data_key: DataKey | None = None


def arguments(
    events: Sequence[EventRow], rows: Sequence[ViewRow], most: Sequence[int | None] | None
) -> list[Any]:
    """All that `STATEMENT` asks for."""
    tasks = [row.task for row in rows]
    data_keys = [row.data_key for row in rows]
    return [
        [event.originator_id for event in events],
        [event.originator_version for event in events],
        [event.topic for event in events],
        [event.state for event in events],
        [event.event_id for event in events],
        [status for row in rows for status in row.statuses],
        [task.id for task in tasks],
        [row.expected for row in rows],
        [task.version for task in tasks],
        [task.owner for task in tasks],
        [codec.storable(task.opened.tool) for task in tasks],
        [task.status.value for task in tasks],
        [task.created_at for task in tasks],
        [task.expires_at for task in tasks],
        [row.name for row in rows],
        [None for _ in rows],  # a digest of the arguments would let one guess them
        [row.wire for row in rows],
        [row.queueing for row in rows],
        [task.worker for task in tasks],
        [task.waits_until for task in tasks],
        LEASE_S,
        [row.former for row in rows],
        [key.wrapped if key else None for key in data_keys],
        next((key.wrapped_by for key in data_keys if key), None),
        None if most is None else list(most),
    ]
