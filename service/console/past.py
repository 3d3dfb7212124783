"""Where a task's page reads its versions: the events of a present task, the history of a past one.

Both answer from what was loaded; nothing is read twice for one page.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...domain import errors
from ...domain.events import TaskEvent
from ...domain.history import History
from ...domain.task import Task, fold
from ..auditing.history import Historian, NoSuchVersion, Unreadable
from .timeline import Entry, Teller, Window


@dataclass(frozen=True)
class State:
    """The task as it was at one version, and what its client saw; else the `problem`, in words."""

    status: str | None
    task: Task | None = None
    wire: bytes | None = None
    problem: str | None = None


class Reading(Protocol):
    """What a present task is read from."""

    async def moments(
        self, task_id: str, versions: Collection[int]
    ) -> Mapping[int, tuple[TaskEvent, Task]]:
        """These events, each with the task after it."""
        ...

    def wire_of(self, task: Task) -> bytes:
        """The JSON text of its DetailedTask."""
        ...


class Stream(Protocol):
    """The versions of one task."""

    @property
    def newest(self) -> int:
        """The last version."""
        ...

    @property
    def tool(self) -> str | None:
        """What was called, as far as that is known without its events."""
        ...

    @property
    def is_past(self) -> bool:
        """Whether clients know of it no more."""
        ...

    async def load(self, versions: Collection[int]) -> None:
        """Have these versions at hand."""
        ...

    def state(self, version: int) -> State:
        """The task at a version that was loaded."""
        ...

    def entries(self, teller: Teller, shown: Window) -> Sequence[Entry]:
        """The lines of a window whose versions, and the one before, were loaded."""
        ...


class Live:
    """`Stream` of a task that clients still know."""

    tool: str | None = None
    is_past = False

    def __init__(self, reading: Reading, task_id: str, newest: int) -> None:
        self._reading, self._task_id, self.newest = reading, task_id, newest
        self._moments: Mapping[int, tuple[TaskEvent, Task]] = {}
        self._problem = "This version is not stored any more."

    async def load(self, versions: Collection[int]) -> None:
        """See `Stream.load`."""
        wanted = {version for version in versions if version > 0}
        try:
            self._moments = await self._reading.moments(self._task_id, wanted)
        except errors.PayloadError as error:
            self._problem = str(error)
        except LookupError:  # an event that a newer release stored
            self._problem = "This release cannot read what a newer one has stored of the task."

    def state(self, version: int) -> State:
        """See `Stream.state`."""
        moment = self._moments.get(version)
        if moment is None:
            return State(None, problem=self._problem)
        task = moment[1]
        return State(task.status.value, task, self._reading.wire_of(task))

    def entries(self, teller: Teller, shown: Window) -> Sequence[Entry]:
        """See `Stream.entries`."""
        return teller.live(self._moments, shown)


class Past:
    """`Stream` of a task that only the audit log still knows, or that does not open."""

    is_past = True

    def __init__(self, history: History, historian: Historian) -> None:
        self._history, self._historian = history, historian
        self.newest: int = history.steps[-1].row.version
        self.tool: str | None = history.last("tool")

    async def load(self, versions: Collection[int]) -> None:
        """Nothing: a history is read as a whole."""

    def state(self, version: int) -> State:
        """See `Stream.state`."""
        steps = [step for step in self._history.steps if step.row.version <= version]
        status = next((s.row.status for s in reversed(steps) if s.row.status is not None), None)
        try:
            wire = self._historian.state_at(self._history, version)
        except (Unreadable, NoSuchVersion) as error:
            return State(status, problem=str(error))
        return State(status, fold(self._history.events_to(version) or ()), wire)

    def entries(self, teller: Teller, shown: Window) -> Sequence[Entry]:
        """See `Stream.entries`."""
        return teller.past(self._history, shown)
