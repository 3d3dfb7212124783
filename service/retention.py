"""The end of a task's time: one routine, for whoever asks and for the sweep.

A time to live counts from the creation and is extended while the work runs. What waits at its end,
for a worker or for an answer, fails (`TaskExpired`), which wakes all who watch it and stops the
call that holds it. What has ended stays readable for a while; then clients are told no more of it
than of a task that never was, and the sweep forgets it. What is forgotten is kept for the audit
alone, and erased when that time is over too.
"""

import logging
from datetime import timedelta

from ..domain import decisions, errors
from ..domain.decisions import Events
from ..domain.ports import TaskView, TaskViews
from ..domain.retaining import PastTasks
from ..domain.task import Task
from .commands import Commands, Wish

SWEEP_S = 5.0  # between two looks when nothing is known to end before
SWEEP_S_MIN = 0.2
SWEEP_BATCH_MAX = 200
ERASE_BATCH_MAX = 50  # a batch is one commit, and may hold many events
WHY = "its time in the audit log is over"

_log = logging.getLogger("outlast.retention")


class Retention:
    """See the module. `audit_period` is how long what was forgotten is kept."""

    def __init__(
        self, commands: Commands, views: TaskViews, past: PastTasks, audit_period: timedelta
    ) -> None:
        self._commands, self._views, self._past = commands, views, past
        self._audit_period = audit_period

    def in_time(self, wish: Wish) -> Wish:
        """The wish as long as the task has time; else its end is all that follows."""

        def decide(task: Task) -> Events:
            return decisions.expire(task, self._commands.now()) or wish(task)

        return decide

    def is_gone(self, task: Task) -> bool:
        """Whether clients may no longer be told of it."""
        return task.status.is_terminal and decisions.is_expired(task, self._commands.now())

    async def keeps(self, view: TaskView) -> bool:
        """Whether it is still there for its owner. One that is over is ended, or forgotten."""
        if view.expires_at is None or view.expires_at > self._commands.now():
            return True
        if view.is_terminal:
            await self._views.forget([view.task_id])
            return False
        await self.end(view.task_id)
        return True

    async def end(self, task_id: str) -> bool:
        """End the task if its time is over; True when this has ended it. Idempotent."""
        has_ended = False

        def decide(task: Task) -> Events:
            nonlocal has_ended
            follows = decisions.expire(task, self._commands.now())
            has_ended = bool(follows)
            return follows

        try:
            await self._commands.change(task_id, decide)
        except errors.TaskNotFound:
            return False
        return has_ended

    async def sweep(self) -> float:
        """End, forget and erase whatever it is time for; seconds until there may be more to do."""
        next_end = await self._views.next_end()
        if next_end is not None and next_end <= self._commands.now():
            while await self._sweep_batch():
                pass
            next_end = await self._views.next_end()
        while await self._erase_batch():
            pass
        now = self._commands.now()
        # One that is over and still there is at work, or was stored by a newer release.
        if next_end is None or next_end <= now:
            return SWEEP_S
        return min(max((next_end - now).total_seconds(), SWEEP_S_MIN), SWEEP_S)

    async def _sweep_batch(self) -> bool:
        """Whether it was a full one, and came to something: then there may be more."""
        due = await self._views.due(self._commands.now(), SWEEP_BATCH_MAX)
        gone = [view.task_id for view in due if view.is_terminal]
        if gone:
            await self._views.forget(gone)
        ended = [await self._end_if_known(view.task_id) for view in due if not view.is_terminal]
        return len(due) == SWEEP_BATCH_MAX and (bool(gone) or any(ended))

    async def _end_if_known(self, task_id: str) -> bool:
        try:
            return await self.end(task_id)
        except (errors.TaskError, errors.PayloadError, LookupError):
            # It cannot be read here (a newer release stored it, a key is missing) or moves all the
            # time: one such task must not stand in the way of the others.
            _log.exception("a task could not be expired", extra={"task": task_id})
            return False

    async def _erase_batch(self) -> bool:
        before = self._commands.now() - self._audit_period
        old = await self._past.to_erase(before, ERASE_BATCH_MAX)
        if old and await self._past.erase(old, WHY):
            _log.info("past tasks were erased", extra={"tasks": len(old)})
        return len(old) == ERASE_BATCH_MAX
