"""The inbox in memory: see `memory.py`, whose store it reads."""

from collections.abc import Sequence
from datetime import datetime

from ..domain.inbox import OpenRequest, Place
from ..domain.task import Task, TaskStatus, evolve
from .memory import MemoryStore


class MemoryOpenRequests:
    """`OpenRequests` over the streams of a store in memory."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def waiting(
        self, owner: str | None = None, after: Place | None = None, limit: int = 20
    ) -> Sequence[OpenRequest]:
        """See `OpenRequests.waiting`."""
        owners = self._store.owners.items()
        told = [await self._of(task_id) for task_id, whose in owners if owner in {None, whose}]
        open_ones = sorted((each for each in told if each is not None), key=lambda one: one.place)
        return [each for each in open_ones if after is None or each.place > after][:limit]

    async def _of(self, task_id: str) -> OpenRequest | None:
        task: Task | None = None
        since = ""
        for event in await self._store.read(task_id):
            was_open = task is not None and task.status is TaskStatus.INPUT_REQUIRED
            task = evolve(task, event)
            if task.status is TaskStatus.INPUT_REQUIRED and not was_open:
                since = event.at
        if task is None or task.status is not TaskStatus.INPUT_REQUIRED:
            return None
        return OpenRequest(task_id, task.owner, task.opened.tool, datetime.fromisoformat(since))
