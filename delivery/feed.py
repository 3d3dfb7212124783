"""The changes of tasks, read from the stores: what the one loop reads from, wherever it runs."""

from collections.abc import Callable, Sequence

from ..domain.events import TaskEvent
from ..domain.ports import EventLog, TaskViews
from ..domain.task import Task, evolve
from .port import Change

Encode = Callable[[Task], bytes]


class Feed:
    """Reads by version. `encode` gives the wire form, the same that the view rows hold."""

    def __init__(self, views: TaskViews, log: EventLog, encode: Encode) -> None:
        self._views, self._log, self._encode = views, log, encode

    async def owned(self, owner: str, task_ids: Sequence[str]) -> tuple[str, ...]:
        """Those of the tasks that exist and belong to this owner, in the order given."""
        found = [await self._views.get(task_id) for task_id in task_ids]
        return tuple(view.task_id for view in found if view and view.owner == owner)

    async def after(self, task_id: str, version: int) -> Sequence[Change] | None:
        """Every change with a higher version, oldest first; from 0 the present state alone.

        Empty when there is none; None when the task is stored no more. Never blocks. Mostly one
        read of the view row: only a reader that is more than one change behind needs the stream.
        """
        view = await self._views.get(task_id)
        if view is None:
            return None
        if view.version <= version:
            return ()
        if version in (0, view.version - 1):
            return (Change(task_id, view.version, view.is_terminal, view.wire),)
        return self._replayed(await self._log.read(task_id), version)

    def _replayed(self, history: Sequence[TaskEvent], version: int) -> Sequence[Change]:
        changes: list[Change] = []
        task: Task | None = None
        for event in history:
            task = evolve(task, event)
            if task.version > version:
                wire = self._encode(task)
                changes.append(Change(task.id, task.version, task.status.is_terminal, wire))
        return changes
