"""The port of the inbox: which tasks wait for somebody's answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol


class Place(NamedTuple):
    """Where a page of the inbox ends, and the next one begins."""

    since: datetime
    task_id: str


@dataclass(frozen=True)
class OpenRequest:
    """A task that waits for an answer, and since when; what it asks is in its view."""

    task_id: str
    owner: str
    tool: str
    since: datetime

    @property
    def place(self) -> Place:
        """Where it stands."""
        return Place(self.since, self.task_id)


class OpenRequests(Protocol):
    """The tasks with the status `input_required`, as of their last append."""

    async def waiting(
        self, owner: str | None = None, after: Place | None = None, limit: int = 20
    ) -> Sequence[OpenRequest]:
        """Of this owner or of all, those that wait longest first; behind a place, at most `limit`.

        One that begins to wait later stands behind all that were told before. Costs as much as it
        returns, however many tasks are stored.
        """
        ...
