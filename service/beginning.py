"""How a lease becomes an attempt. `WorkStarted` decides between two that hold one."""

import asyncio
import logging
import time

from ..domain import decisions, errors
from ..domain.decisions import Events
from ..domain.ports import Dispatcher
from ..domain.task import Task, evolve
from .waits import first, varied
from .workbench import Workbench

UPSTREAM_RETRY_S = 2.0  # a task whose upstream is away is tried again after this, or a bit less
COMES_SECOND_S = 3 * UPSTREAM_RETRY_S  # for so long after that, others may try before this worker
STORE_PAUSE_S = 0.5  # between two tries while the store is away

LOST = "its worker fell silent"

_log = logging.getLogger("outlast.worker")


class Beginning:
    """Begins attempts for the worker of this name, until it drains."""

    def __init__(
        self, name: str, bench: Workbench, dispatcher: Dispatcher, draining: asyncio.Event
    ) -> None:
        self._name, self._bench, self._dispatcher = name, bench, dispatcher
        self._draining = draining
        self._refused_at = float("-inf")

    @property
    def comes_second(self) -> bool:
        """Whether it lately took what it could not begin, which another might have begun."""
        return time.monotonic() - self._refused_at < COMES_SECOND_S

    async def attempt(self, task: Task) -> Task | None:
        """The task with the next attempt, which is ours; None where it is not to be run here now.

        Raises what decides against it: TaskError.
        """
        if not await self._upstream_is_ready(task):
            return None
        if self._draining.is_set():
            await self._dispatcher.release(self._name, [task.id], 0.0)
            return None
        seen, known = task.attempt, task
        while True:
            try:
                task = await self._bench.commands.change(
                    task.id, lambda newest: self._start_events(newest, seen), known
                )
                break
            except errors.StoreUnavailable:
                # It may be stored although nobody could tell us: to let go now would lose a call
                # that was never sent. The lease is kept meanwhile.
                known = None
                await asyncio.sleep(STORE_PAUSE_S)
        return task if self._is_ours(task, seen + 1) else None

    def _is_ours(self, task: Task, attempt: int) -> bool:
        return task.worker == self._name and task.attempt == attempt

    def _start_events(self, task: Task, seen: int) -> Events:
        if self._is_ours(task, seen + 1):
            return ()
        if task.attempt != seen:
            raise errors.TaskNotRunnable  # by this lease: another has begun an attempt since
        lost: Events = ()
        if task.is_running:
            lost = self._lost(task, seen)
            for event in lost:
                task = evolve(task, event)
            if not task.is_runnable:
                return lost
        return (*lost, *decisions.start_work(task, self._name, self._bench.commands.now()))

    def _lost(self, task: Task, attempt: int) -> Events:
        return decisions.lose_work(task, attempt, LOST, self._bench.commands.now())

    async def _upstream_is_ready(self, task: Task) -> bool:
        """Connect before the attempt begins: an upstream that takes no call costs no attempt."""
        upstream, capabilities = task.opened.upstream, task.opened.client_capabilities
        ready = self._bench.upstreams.ready(upstream, capabilities)
        try:
            await first(ready, self._draining.wait())
        except errors.UpstreamUnavailable as error:
            _log.warning("%s", error, extra={"task": task.id, "upstream": upstream})
            self._refused_at = time.monotonic()
            if task.is_running:
                await self._bench.commands.change(
                    task.id, lambda newest: self._lost(newest, task.attempt), task
                )
            await self._dispatcher.release(self._name, [task.id], varied(UPSTREAM_RETRY_S))
            return False
        return True
