"""The worker: claims runnable tasks, keeps their leases, notices lost workers, sweeps what has expired.

Timing, in seconds: a lease of LEASE_S is renewed every BEAT_S, so three beats may fail before a task
counts as lost; every worker looks for expired leases each CLAIM_RECHECK_S. A killed worker's task is
therefore picked up again within LEASE_S + CLAIM_RECHECK_S.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from ..domain import decisions, errors
from ..domain.decisions import Events
from ..domain.ports import Dispatcher, TaskViews
from ..domain.queueing import LEASE_S
from ..domain.task import Task, evolve
from .news import NewsReader
from .run import Interrupt, Run, Workbench

BEAT_S = 1.5
CLAIM_RECHECK_S = 1.0
CLAIM_BATCH_MAX = 32
AFTER_OUTAGE_S = 2 * BEAT_S  # first let every living worker renew, then look for the dead
UPSTREAM_RETRY_S = 2.0  # a task whose upstream is away is tried again after this
SWEEP_S = 1.0
SWEEP_BATCH_MAX = 200
HAND_BACK_S_MAX = 5.0

_log = logging.getLogger("outlast.worker")


@dataclass(frozen=True)
class Stores:
    """Where a worker finds its work."""

    views: TaskViews
    dispatcher: Dispatcher


class Worker:
    """One process's worker. `claims=False` runs only what its own process adopts."""

    def __init__(
        self, name: str, bench: Workbench, stores: Stores, *, slots: int, claims: bool = True
    ) -> None:
        self.name = name
        self._bench, self._stores = bench, stores
        self._slots, self._claims = slots, claims
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._runs: dict[str, Run] = {}
        self._loops: list[asyncio.Task[None]] = []
        self._freed = asyncio.Event()
        self._is_draining = False

    def start(self) -> None:
        """Begin to work, in tasks of the running loop."""
        loops = [self._beat(), *([self._claim(), self._sweep()] if self._claims else [])]
        self._loops = [asyncio.create_task(self._for_ever(loop)) for loop in loops]

    def adopt(self, task: Task, reader: NewsReader) -> None:
        """Carry on a call that began before its task did. The task names this worker already."""
        self._spawn(task.id, self._carry(Run(self._bench, task, reader)))

    async def drain(self, grace_s: float) -> None:
        """Claim nothing more, let calls finish for `grace_s`, hand the rest back, and end."""
        self._is_draining = True
        self._freed.set()
        for run in self._runs.values():
            if run.is_waiting and run.task.opened.rerun_is_safe:
                run.interrupt(Interrupt.SHUTDOWN)
        await self._wait_for_jobs(grace_s)
        for run in self._runs.values():
            run.interrupt(Interrupt.SHUTDOWN)
        await self._wait_for_jobs(HAND_BACK_S_MAX)
        for job in [*self._jobs.values(), *self._loops]:
            job.cancel()
        await asyncio.gather(*self._jobs.values(), *self._loops, return_exceptions=True)

    async def _wait_for_jobs(self, seconds: float) -> None:
        if self._jobs:
            await asyncio.wait(set(self._jobs.values()), timeout=seconds)

    async def _for_ever(self, loop: Coroutine[Any, Any, None]) -> None:
        try:
            await loop
        except Exception:
            # A loop that ends is a worker that looks alive and is not: say so in one place.
            _log.critical("a worker loop failed", exc_info=True, extra={"worker": self.name})
            raise

    async def _claim(self) -> None:
        async with self._bench.signal.watching_queue() as wakeup:
            while not self._is_draining:
                self._freed.clear()
                try:
                    if await self._claim_once():
                        continue
                    pause_s = CLAIM_RECHECK_S
                except errors.StoreUnavailable:
                    await asyncio.sleep(AFTER_OUTAGE_S)
                    continue
                waits = [
                    asyncio.ensure_future(wakeup.wait(pause_s)),
                    asyncio.ensure_future(self._freed.wait()),
                ]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for wait in waits:
                    wait.cancel()
                await asyncio.gather(*waits, return_exceptions=True)

    async def _claim_once(self) -> bool:
        """Claim what fits; True when there may be more."""
        busy = len(self._jobs) - sum(run.is_waiting for run in self._runs.values())
        limit = min(self._slots - busy, CLAIM_BATCH_MAX)
        if limit <= 0:
            return False
        claimed = await self._stores.dispatcher.claim(self.name, limit, LEASE_S)
        for task_id in claimed:
            self._spawn(task_id, self._take(task_id))
        return len(claimed) == limit and self._slots > busy + limit

    def _spawn(self, task_id: str, job: Coroutine[Any, Any, None]) -> None:
        if task_id in self._jobs:
            # Our own lease ran out in an outage and came back to us: the job never stopped.
            job.close()
            return
        self._jobs[task_id] = asyncio.create_task(job, name=f"outlast-run-{task_id}")
        self._jobs[task_id].add_done_callback(lambda _: self._forget(task_id))

    def _forget(self, task_id: str) -> None:
        del self._jobs[task_id]
        self._runs.pop(task_id, None)
        self._freed.set()

    async def _take(self, task_id: str) -> None:
        """Turn a lease into an attempt. `WorkStarted` decides between two that hold one."""
        quiet = (errors.TaskError, errors.StoreUnavailable)
        with contextlib.suppress(*quiet):
            task = await self._bench.commands.load(task_id)
            if task.is_running and not await self._still_holds(task_id):
                return
            if not await self._upstream_is_ready(task):
                return
            seen = task.attempt
            task = await self._bench.commands.change(
                task_id, lambda newest: self._start_events(newest, seen), task
            )
            if task.worker == self.name and task.attempt == seen + 1:
                await self._carry(Run(self._bench, task))

    async def _still_holds(self, task_id: str) -> bool:
        """Whether the attempt just read is a lost one.

        Our lease may have run out between claim and read, and the attempt that was read be its
        next holder's. A lease that is still ours after the read says that it is not.
        """
        return bool(await self._stores.dispatcher.renew(self.name, [task_id], LEASE_S))

    def _start_events(self, task: Task, seen: int) -> Events:
        now = self._bench.commands.now()
        lost: Events = ()
        if task.is_running and task.attempt == seen:
            lost = decisions.lose_work(task, seen, "its worker fell silent", now)
            for event in lost:
                task = evolve(task, event)
            if not task.is_runnable:
                return lost
        return (*lost, *decisions.start_work(task, self.name, now))

    async def _upstream_is_ready(self, task: Task) -> bool:
        """Connect before the attempt begins, so that an upstream that is away costs no attempt."""
        try:
            await self._bench.upstreams.ready(task.opened.upstream)
        except errors.UpstreamUnavailable as error:
            _log.warning("%s", error, extra={"task": task.id, "upstream": task.opened.upstream})
            if task.is_running:
                await self._bench.commands.change(
                    task.id,
                    lambda newest: decisions.lose_work(
                        newest, task.attempt, "its worker fell silent", self._bench.commands.now()
                    ),
                    task,
                )
            await self._stores.dispatcher.release(self.name, [task.id], UPSTREAM_RETRY_S)
            return False
        return True

    async def _carry(self, run: Run) -> None:
        self._runs[run.task.id] = run
        facts = {"task": run.task.id, "attempt": run.task.attempt, "worker": self.name}
        try:
            await run.work()
        except errors.StoreUnavailable:
            _log.error("an outcome could not be recorded: the store stayed away", extra=facts)
        except Exception:
            _log.exception("an attempt failed for an unexpected reason", extra=facts)
            attempt = run.task.attempt
            await self._bench.commands.change(
                run.task.id,
                lambda task: decisions.lose_work(
                    task, attempt, "an internal error", self._bench.commands.now()
                ),
            )

    async def _beat(self) -> None:
        """Keep the leases, and the time to live of what runs."""
        while True:
            await asyncio.sleep(BEAT_S)
            held = list(self._jobs)
            if not held:
                continue
            with contextlib.suppress(errors.StoreUnavailable):
                kept = set(await self._stores.dispatcher.renew(self.name, held, LEASE_S))
                for task_id in held:
                    run = self._runs.get(task_id)
                    if run is None:
                        continue
                    if task_id not in kept:
                        run.interrupt(Interrupt.FENCED)
                    else:
                        await self._extend(run)

    async def _extend(self, run: Run) -> None:
        attempt, now = run.task.attempt, self._bench.commands.now()
        with contextlib.suppress(errors.TaskError):
            if decisions.extend_ttl(run.task, attempt, now):
                await self._bench.commands.change(
                    run.task.id, lambda task: decisions.extend_ttl(task, attempt, now)
                )

    async def _sweep(self) -> None:
        """The one routine that ends and removes what has outlived its time."""
        while True:
            await asyncio.sleep(SWEEP_S)
            with contextlib.suppress(errors.StoreUnavailable):
                now = self._bench.commands.now()
                due = await self._stores.views.due(now, SWEEP_BATCH_MAX)
                gone = [view.task_id for view in due if view.is_terminal]
                if gone:
                    await self._stores.views.forget(gone)
                for view in due:
                    if not view.is_terminal:
                        await self._expire(view.task_id)

    async def _expire(self, task_id: str) -> None:
        with contextlib.suppress(errors.TaskError):
            await self._bench.commands.change(
                task_id, lambda task: decisions.expire(task, self._bench.commands.now())
            )
