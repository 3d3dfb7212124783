"""The changes of tasks, read from the stores: what every way of delivery reads from."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from ..domain.events import TaskEvent
from ..domain.ports import Clock, EventLog, TaskView, TaskViews
from ..domain.task import Task, evolve
from .port import Change

Encode = Callable[[Task], bytes]
End = Callable[[str], Awaitable[object]]


async def leave(task_id: str) -> None:
    """Leave a task whose time is over to whoever sweeps."""


class Feed:
    """Reads by version. `encode` gives the wire form, the same that the view rows hold.

    `end` ends a task whose time to live is over, if it may be ended.
    """

    def __init__(
        self, views: TaskViews, log: EventLog, encode: Encode, clock: Clock, end: End = leave
    ) -> None:
        self._views, self._log, self._encode, self._now = views, log, encode, clock
        self._end = end

    async def owned(self, owner: str, task_id: str) -> TaskView | None:
        """The view of a task of this owner; None for another's, an expired one, or none at all.

        One that should have ended by now is ended first.
        """
        view = await self._views.get(task_id, owner)
        if view is None or view.expires_at is None or view.expires_at > self._now():
            return view
        if view.is_terminal:
            return None
        await self._end(task_id)
        return await self._views.get(task_id, owner)

    async def after(self, task_id: str, version: int) -> Sequence[Change] | None:
        """Every change with a higher version, oldest first; from 0 the present state alone.

        Empty when there is none, but an ended task's final state is told again: whoever asks for
        more has to learn that no more will come. None when the task is stored no more. Never
        blocks. Mostly one read of the view row: only a reader that is more than one change behind
        needs the stream.
        """
        view = await self._views.get(task_id)
        if view is None:
            return None
        present = Change(task_id, view.version, view.is_terminal, view.wire)
        if view.version <= version:
            return (present,) if view.is_terminal else ()
        return (*await self.between(task_id, version, view.version), present)

    async def between(self, task_id: str, after: int, before: int) -> Sequence[Change]:
        """The changes with versions strictly between two, oldest first; none from 0."""
        if after == 0 or before - after <= 1:
            return ()
        changes: list[Change] = []
        task, events = await self._log.tail(task_id, after)
        for event in events:
            task = evolve(task, event)
            if after < task.version < before:
                wire = self._encode(task)
                changes.append(Change(task.id, task.version, task.status.is_terminal, wire))
        return changes

    async def present(self, task_id: str) -> tuple[int, bytes] | None:
        """The task's newest version and its wire form, whoever owns it; None when not stored."""
        view = await self._views.get(task_id)
        return None if view is None else (view.version, view.wire)

    async def moments(
        self, task_id: str, versions: Collection[int]
    ) -> Mapping[int, tuple[TaskEvent, Task]]:
        """These events of a task, each with the task after it. What is not stored is absent."""
        moments: dict[int, tuple[TaskEvent, Task]] = {}
        task, events = await self._log.tail(task_id, min(versions, default=1) - 1)
        for event in events:
            task = evolve(task, event)
            if task.version in versions:
                moments[task.version] = (event, task)
        return moments

    def wire_of(self, task: Task) -> bytes:
        """The JSON text of its DetailedTask."""
        return self._encode(task)
