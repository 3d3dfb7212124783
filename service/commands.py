"""Wishes into events: load, decide, append, and decide again when somebody else was first."""

from collections.abc import Callable

from ..domain import errors
from ..domain.decisions import Events
from ..domain.ports import Clock, EventLog
from ..domain.task import Task, fold

CONFLICTS_MAX = 30  # one task's wishes collide at most with its worker's and its owner's others

Wish = Callable[[Task], Events]


class Commands:
    """The only way to change a task."""

    def __init__(self, log: EventLog, clock: Clock) -> None:
        self._log = log
        self.now = clock

    async def open(self, events: Events) -> Task:
        """Record a new task. Raises DuplicateOpening."""
        return await self._log.append(None, events)

    async def load(self, task_id: str) -> Task:
        """The task as it is now. Raises TaskNotFound."""
        before, events = await self._log.tail(task_id)
        task = fold(events, before)
        if task is None:
            raise errors.TaskNotFound
        return task

    async def change(self, task_id: str, wish: Wish, known: Task | None = None) -> Task:
        """Append what follows from the wish, and return the task after it.

        `wish` is asked again with the newest task after each conflict: it must be a pure function.
        `known` saves the first read. Raises TaskNotFound, whatever `wish` raises, and
        StoreUnavailable when the conflicts do not end.
        """
        for _ in range(CONFLICTS_MAX):
            task = known or await self.load(task_id)
            events = wish(task)
            if not events:
                return task
            try:
                return await self._log.append(task, events)
            except errors.StaleVersion:
                known = None
        raise errors.StoreUnavailable
