"""The port of the list of tasks: which there are, newest first, and how to find one of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from .task import TaskStatus

EVERY_STATUS = frozenset(TaskStatus)


class TaskPlace(NamedTuple):
    """Where a page of the list ends, and the next one begins."""

    created_at: datetime
    task_id: str


@dataclass(frozen=True)
class TaskFilter:
    """What is looked for; what is None does not matter.

    `owner` is the key of the owner. A task was created at `since` or later, and before `until`.
    `message` is a part of the last message, in any case. `key` is a whole idempotency key, which
    belongs to its owner: without `owner` nothing has it.
    """

    owner: str | None = None
    statuses: frozenset[TaskStatus] = EVERY_STATUS
    tool: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    id_prefix: str | None = None
    message: str | None = None
    key: str | None = None


@dataclass(frozen=True)
class ListedTask:
    """One row. `message` is None where there is none, or where it does not open."""

    task_id: str
    version: int
    owner: str
    tool: str
    status: TaskStatus
    created_at: datetime
    message: str | None

    @property
    def place(self) -> TaskPlace:
        """Where it stands."""
        return TaskPlace(self.created_at, self.task_id)


@dataclass(frozen=True)
class TaskPage:
    """Tasks, newest first, and where the list goes on to each side; None where it does not.

    With `is_cut` so much was looked at that the search stopped, maybe with few tasks or none: it
    goes on from there, or wants to be narrowed.
    """

    tasks: Sequence[ListedTask]
    newer: TaskPlace | None = None
    older: TaskPlace | None = None
    is_cut: bool = False


class TaskSearch(Protocol):
    """The tasks that clients may ask for, as of their last append."""

    async def page(
        self,
        wanted: TaskFilter,
        limit: int,
        *,
        before: TaskPlace | None = None,
        after: TaskPlace | None = None,
    ) -> TaskPage:
        """At most `limit` of them: the newest, or those next to a place on its older or newer side.

        `before` names the place that the page is older than, `after` the one that it is newer than.
        Of tasks made at once the one with the smaller id is older. Found by `id_prefix` or `key`
        they are all on one page, which is cut when there are more. What is sealed is not searched:
        no `message` and no `key` finds such a task. However many are stored, what one page looks at
        has a bound.
        """
        ...
