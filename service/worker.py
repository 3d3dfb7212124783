"""The worker: claims runnable tasks, keeps leases, notices lost workers, sweeps the expired.

Timing, in seconds: a lease of LEASE_S is renewed every BEAT_S, so three beats may fail before a
task counts as lost; while any other worker holds a lease, every worker with a free slot looks for
expired ones each CLAIM_RECHECK_S. A killed worker's task is therefore picked up again within
LEASE_S + CLAIM_RECHECK_S, or a lease later by a worker that has just started, has just been without
the store, or has not heard of the lease before: that one first lets the living renew.

Nobody polls for what waits. The signal tells of what becomes claimable by what somebody does, and
the queue says when time alone will make it so; until then a worker looks each CLAIM_QUIET_S, in
case a loss of the signal has not been noticed. When it has, the signal itself wakes every second.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from ..domain import decisions, errors, jobs
from ..domain.decisions import Events
from ..domain.ports import Dispatcher, Wakeup
from ..domain.queueing import LEASE_S
from ..domain.task import Task
from .beginning import STORE_PAUSE_S, Beginning
from .news import NewsReader
from .retention import SWEEP_S, Retention
from .run import Interrupt, Run
from .waits import first, varied
from .workbench import Workbench

BEAT_S = 1.5
CLAIM_RECHECK_S = 1.0
CLAIM_QUIET_S = 5.0  # less than a lease: one that began unheard is known of before it ends
CLAIM_PAUSE_S_MIN = 0.05  # the store's clock and ours do not call over in the same moment
CLAIM_YIELD_S = 0.25  # all wake as a task is due: who could not begin it last time wakes after them
CLAIM_BATCH_MAX = 32
LOOKS_MAX = 32  # at jobs elsewhere, at once; what looks beyond that takes slots
LOOP_PAUSE_S = 1.0  # before a loop that failed begins anew
CLAIM_STOP_S_MAX = 3.0  # a claim that is under way when the drain begins
EARLY_S_MIN = 0.1  # between two looks at a job whose time our clock does not call over yet
HAND_BACK_S_MAX = 5.0

_log = logging.getLogger("outlast.worker")


@dataclass(frozen=True)
class Stores:
    """Where a worker finds its work, and what it looks after beside it."""

    dispatcher: Dispatcher
    retention: Retention


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
        self._claiming: asyncio.Task[None] | None = None
        self._freed = asyncio.Event()
        self._draining = asyncio.Event()
        self._beginning = Beginning(name, bench, stores.dispatcher, self._draining)
        self._is_handing_back = False
        self._looks: set[str] = set()  # of our jobs, those that only look and so need no slot
        self._recalled: set[str] = set()  # came back to us while they were in hand
        self._extending: dict[str, asyncio.Task[None]] = {}
        self._given_back = asyncio.Event()

    @property
    def bench(self) -> Workbench:
        """What its runs work with."""
        return self._bench

    @property
    def running_count(self) -> int:
        """How many calls run now, those that wait for their clients included."""
        return len(self._runs)

    def start(self) -> None:
        """Begin to work, in tasks of the running loop."""
        self._loops = [asyncio.create_task(self._for_ever(self._beat))]
        if self._claims:
            self._claiming = asyncio.create_task(self._for_ever(self._claim))
            self._loops += [self._claiming, asyncio.create_task(self._for_ever(self._sweep))]

    def adopt(self, task: Task, reader: NewsReader) -> bool:
        """Carry on a call that began before its task did. The task names this worker already.

        False where that is too late: this worker has the task in hand otherwise.
        """
        if task.id in self._jobs:
            return False
        self._spawn(task.id, self._adopted(task, reader))
        return True

    def stop_claiming(self) -> None:
        """Claim nothing more; what runs goes on."""
        self._draining.set()
        self._freed.set()

    async def drain(self, grace_s: float) -> None:
        """Claim nothing more, let calls finish for `grace_s`, hand the rest back, and end."""
        self.stop_claiming()
        if self._claiming is not None:
            # What a claim under way still brings is given back; cut off, it would stay leased.
            await asyncio.wait({self._claiming}, timeout=CLAIM_STOP_S_MAX)
        for run in self._runs.values():
            if run.is_waiting and run.task.opened.rerun_is_safe:
                run.interrupt(Interrupt.SHUTDOWN)
        await self._wait_for_jobs(grace_s)
        self._is_handing_back = True
        for run in self._runs.values():
            run.interrupt(Interrupt.SHUTDOWN)
        await self._wait_for_jobs(HAND_BACK_S_MAX)
        left = [*self._jobs.values(), *self._extending.values(), *self._loops]
        for job in left:
            job.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _wait_for_jobs(self, seconds: float) -> None:
        if self._jobs:
            await asyncio.wait(set(self._jobs.values()), timeout=seconds)

    async def _for_ever(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A loop that ended would be a worker that looks alive and is not: begin it anew."""
        while True:
            try:
                return await loop()
            except Exception:  # noqa: BLE001 - whatever it was, the loop goes on
                _log.critical("a worker loop failed", exc_info=True, extra={"worker": self.name})
            await asyncio.sleep(LOOP_PAUSE_S)

    async def _claim(self) -> None:
        async with self._bench.signal.watching_queue() as wakeup:
            is_called = True
            while not self._draining.is_set():
                self._freed.clear()
                self._given_back.clear()
                is_called |= bool(wakeup.take())
                try:
                    if self._free_slots <= 0:
                        await self._claim_looks()
                        # A call that begins to wait for its client frees its slot without a word.
                        await first(self._freed.wait(), asyncio.sleep(CLAIM_RECHECK_S))
                        continue
                    pause_s = await self._claim_once(is_called=is_called)
                except errors.StoreUnavailable:
                    await asyncio.sleep(STORE_PAUSE_S)
                    continue
                if pause_s > 0:
                    is_called = False
                    await first(
                        wakeup.wait(pause_s), self._draining.wait(), self._given_back.wait()
                    )

    @property
    def _free_slots(self) -> int:
        waiting = sum(run.is_waiting for run in self._runs.values())
        looks = min(len(self._looks), LOOKS_MAX)
        return self._slots - (len(self._jobs) - waiting - looks)

    async def _claim_looks(self) -> None:
        """Claim what needs no slot, as none is free."""
        limit = LOOKS_MAX - len(self._looks)
        if limit > 0 and self._slots > 0:
            for task_id in await self._stores.dispatcher.claim_looks(self.name, limit, LEASE_S):
                self._spawn(task_id, self._take(task_id))

    async def _claim_once(self, *, is_called: bool) -> float:
        """Claim what fits; for how long there is nothing more to claim, if nobody calls.

        Who was called looks once more a little later: another's claim or append may have had a
        lock on what was to be found.
        """
        limit = min(self._free_slots, CLAIM_BATCH_MAX)
        claimed = await self._stores.dispatcher.claim(self.name, limit, LEASE_S)
        for task_id in claimed:
            self._spawn(task_id, self._take(task_id))
        if len(claimed) == limit:
            return 0.0
        if is_called or claimed:
            return varied(CLAIM_RECHECK_S)
        quiet_s = await self._stores.dispatcher.quiet_s(self.name) or varied(CLAIM_RECHECK_S)
        pause_s = max(min(quiet_s, varied(CLAIM_QUIET_S)), CLAIM_PAUSE_S_MIN)
        return pause_s + (CLAIM_YIELD_S if self._beginning.comes_second else 0.0)

    def _spawn(self, task_id: str, job: Coroutine[Any, Any, None]) -> None:
        if task_id in self._jobs:
            # Our own lease ran out in an outage and came back to us: the job never stopped.
            self._recalled.add(task_id)
            job.close()
            return
        self._jobs[task_id] = asyncio.create_task(job, name=f"outlast-run-{task_id}")
        self._jobs[task_id].add_done_callback(lambda _: self._forget(task_id))

    def _forget(self, task_id: str) -> None:
        del self._jobs[task_id]
        self._runs.pop(task_id, None)
        self._looks.discard(task_id)
        if task_id in self._recalled and not self._draining.is_set():
            self._spawn(task_id, self._take(task_id, is_recalled=True))
        self._recalled.discard(task_id)
        self._freed.set()

    async def _take(self, task_id: str, *, is_recalled: bool = False) -> None:
        """Do what a lease is for: run an attempt, or look at a job elsewhere.

        `is_recalled`: it came while the task was in hand, and may have been given back with it.
        """
        try:
            if is_recalled and not await self._still_holds(task_id):
                return
            # Watched before it is read: whatever comes after the append is heard of.
            async with self._bench.signal.watching(task_id) as wakeup:
                task = await self._begin(task_id)
                if task is not None:
                    await self._carry(Run(self._bench, task), wakeup)
        except (errors.TaskError, errors.StoreUnavailable):
            return  # another was first, or the lease runs out and somebody tries again
        except Exception:  # noqa: BLE001 - its lease runs out, and somebody tries again
            _log.exception("a claimed task could not be begun", extra={"task": task_id})

    async def _begin(self, task_id: str) -> Task | None:
        """The task with a new attempt of ours; None when there is nothing to run here now."""
        task = await self._bench.commands.load(task_id)
        if task.is_running and not await self._still_holds(task_id):
            return None
        if task.is_delegated:
            await self._give_up(task)
            return None
        if task.is_followed:
            await self._follow(task)
            return None
        return await self._beginning.attempt(task)

    async def _give_up(self, task: Task) -> None:
        """End the task whose job elsewhere has had its time. It was due by the store's clock."""
        newest = await self._bench.commands.change(
            task.id, lambda newest: jobs.end_overdue(newest, self._bench.commands.now()), task
        )
        if newest.delegated_until is not None:
            early = newest.delegated_until - self._bench.commands.now()
            wait_s = max(early.total_seconds(), EARLY_S_MIN)
            await self._stores.dispatcher.release(self.name, [task.id], wait_s)

    async def _follow(self, task: Task) -> None:
        """Look at the task's job, and give the task back until the next look.

        Once more when it came back meanwhile: its owner has something for the job, and that may
        have been too late for this look.
        """
        self._looks.add(task.id)
        self._freed.set()
        while True:
            again_s = 0.0 if self._draining.is_set() else await self._bench.following.look(task)
            if again_s is None:
                return
            await self._stores.dispatcher.release(self.name, [task.id], again_s)
            self._given_back.set()
            if task.id not in self._recalled or self._draining.is_set():
                return
            self._recalled.discard(task.id)  # before the task is read: what comes later is news
            task = await self._bench.commands.load(task.id)

    async def _still_holds(self, task_id: str) -> bool:
        """Whether the attempt just read is a lost one.

        Our lease may have run out between claim and read, and the attempt that was read be its
        next holder's. A lease that is still ours after the read says that it is not.
        """
        return bool(await self._stores.dispatcher.renew(self.name, [task_id], LEASE_S))

    async def _adopted(self, task: Task, reader: NewsReader) -> None:
        async with self._bench.signal.watching(task.id) as wakeup:
            await self._carry(Run(self._bench, task, reader), wakeup)

    async def _carry(self, run: Run, wakeup: Wakeup) -> None:
        self._runs[run.task.id] = run
        if self._is_handing_back:
            run.interrupt(Interrupt.SHUTDOWN)
        facts = {"task": run.task.id, "attempt": run.task.attempt, "worker": self.name}
        try:
            with self._bench.around(run):
                await run.work(wakeup)
        except errors.StoreUnavailable:
            _log.error("an outcome could not be recorded: the store stayed away", extra=facts)
        except Exception:  # noqa: BLE001 - a defect must not leave the task without an end
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
            while self._jobs:
                try:
                    await self._renew(dict(self._jobs))
                    break
                except errors.StoreUnavailable:
                    await asyncio.sleep(STORE_PAUSE_S)

    async def _renew(self, held: Mapping[str, asyncio.Task[None]]) -> None:
        kept = set(await self._stores.dispatcher.renew(self.name, list(held), LEASE_S))
        for task_id, job in held.items():
            run = self._runs.get(task_id)
            # A task that was parked and claimed again meanwhile has another job under its id.
            if run is None or self._jobs.get(task_id) is not job:
                continue
            if task_id not in kept:
                run.interrupt(Interrupt.FENCED)
            elif task_id not in self._extending and self._more_time(run.task, run.task.attempt):
                # Beside the beat: one append that hangs must not cost all others their leases.
                self._extending[task_id] = asyncio.create_task(self._extend(run))

    def _more_time(self, task: Task, attempt: int) -> Events:
        try:
            return decisions.extend_ttl(task, attempt, self._bench.commands.now())
        except errors.TaskError:
            return ()  # it has ended, or is another's

    async def _extend(self, run: Run) -> None:
        task_id, attempt = run.task.id, run.task.attempt
        try:
            await self._bench.commands.change(task_id, lambda task: self._more_time(task, attempt))
        except (errors.TaskError, errors.StoreUnavailable):
            pass  # it is stored no more, or the next beat tries again
        except Exception:  # noqa: BLE001 - the next beat tries again
            _log.exception("a task got no more time", extra={"task": task_id})
        finally:
            del self._extending[task_id]

    async def _sweep(self) -> None:
        wait_s = 0.0
        while True:
            await asyncio.sleep(wait_s)
            wait_s = SWEEP_S
            with contextlib.suppress(errors.StoreUnavailable):
                wait_s = await self._stores.retention.sweep()
