"""The ports of those who look after what is derived from the log: views, queue rows, counters."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Difference(NamedTuple):
    """Something that is stored of a task and does not follow from its events.

    `column` says where, like `task_view.wire` or `task_events.status`; `version` and `position` at
    which event.
    What concerns no task has an empty `task_id`.
    """

    task_id: str
    column: str
    what: str
    version: int | None = None
    position: int | None = None

    def __str__(self) -> str:
        """A line for a report."""
        of_task = f"task {self.task_id}" if self.task_id else ""
        place = "" if self.version is None else f" at version {self.version}"
        return f"{of_task}{place}: {self.column} {self.what}" if of_task else self.text

    @property
    def text(self) -> str:
        """The column and what is wrong with it."""
        return f"{self.column} {self.what}"


@dataclass
class Checked:
    """How much was looked at."""

    events: int = 0
    tasks: int = 0


@dataclass
class Rebuilt:
    """What a rebuild has done so far. `differing` and `refused` count tasks.

    `removed` counts rows without a task, `owners` those whose use was counted anew, and `refused`
    tasks whose events could not be read, which stay as they are.
    """

    tasks: int = 0
    events: int = 0
    differing: int = 0
    removed: int = 0
    owners: int = 0
    refused: int = 0


class ViewAudit(Protocol):
    """Holds every derived row against the fold of its task's events, and changes nothing."""

    @property
    def checked(self) -> Checked:
        """How much was looked at so far."""
        ...

    def differences(self) -> AsyncIterator[Difference]:
        """All that differs, in the order of task ids. The service may run meanwhile.

        Raises StoreUnavailable.
        """
        ...


class Rebuilding(Protocol):
    """Makes every derived row what the fold of its task's events says."""

    @property
    def done(self) -> Rebuilt:
        """What was done so far."""
        ...

    def run(self) -> AsyncIterator[Difference]:
        """Mend all, and tell of each thing that differed or could not be read.

        The service may run meanwhile; whoever reads a task sees it as it was or as it should be.
        To be stopped at any moment does no harm. Raises StoreUnavailable, and ConfigurationError
        while another rebuild runs.
        """
        ...
