"""One attempt of one task: from its first leg to an outcome, a parked question, or a loss.

A run holds no truth. What it sees it records through `Commands` under its attempt number; once that
number is stale, every wish is refused and the run ends without a trace.
"""

import asyncio
import contextlib
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from ..domain import decisions, errors
from ..domain.decisions import Events
from ..domain.ports import (
    Faulted,
    HeldAsk,
    LegEnded,
    Logged,
    Progress,
    Returned,
    Wakeup,
)
from ..domain.task import Task
from .bridging.port import Job
from .budget import Budget
from .legs import error_of, is_pending, merged_result, tool_call
from .news import NewsReader
from .workbench import Workbench

RECHECK_S = 300.0  # a last resort: the signal adapter itself looks for what it may have missed
PROGRESS_EVERY_S = 1.0  # at most one progress event a second a task; the last one wins
RECORD_PATIENCE_S = 3600.0  # an outcome is kept in hand this long while the store is away
RECORD_PAUSE_S = 0.5  # between two tries while the store is away
UNSENT_PAUSE_S = 2.0  # before a task whose call could not be sent goes back to the queue

_log = logging.getLogger("outlast.worker")


class Interrupt(Enum):
    """Why a run stops its call."""

    CANCEL = "the owner asked for it"
    TIMEOUT = "the tool's time is up"
    SHUTDOWN = "the worker shut down"
    FENCED = "another attempt or an end has come first"


class Run:
    """See the module. `task` is the newest state that this run knows."""

    def __init__(self, bench: Workbench, task: Task, reader: NewsReader | None = None) -> None:
        self.task = task
        self._attempt = task.attempt
        self._bench, self._reader = bench, reader
        self._budget = Budget(task.opened.timeout_ms)
        self._callback: Mapping[str, str] | None = None
        self._waiting: dict[str, HeldAsk] = {}
        self._asked: Counter[str] = Counter()
        self._progress: Progress | None = None
        self._progress_at = 0.0
        self._interrupted: Interrupt | None = None
        self._stopped = asyncio.Event()
        self._cancelling: asyncio.Task[None] | None = None
        self._over = False
        self._is_behind = reader is not None  # others may have moved the task since it was read

    @property
    def is_waiting(self) -> bool:
        """True while the tool waits for the client, and so needs no slot."""
        return bool(self._waiting)

    def interrupt(self, why: Interrupt) -> None:
        """Stop the call, once; what comes of it depends on what the call still has to say."""
        if self._interrupted is None or why is Interrupt.FENCED:
            self._interrupted = why
        self._stopped.set()
        self._stop_call()

    def _stop_call(self) -> None:
        if self._reader is not None and self._cancelling is None:
            self._cancelling = asyncio.create_task(self._reader.call.cancel())

    async def work(self, wakeup: Wakeup) -> None:
        """Carry the attempt to its end. Errors of the task's state end the run quietly.

        `wakeup` watches the task: since before its attempt began, or the run came with its call.
        """
        try:
            if self._is_behind:
                await self._look()
            self._heed_owner()  # it may have wanted something before anybody watched
            while not self._over and await self._begin_leg(wakeup):
                await self._follow(wakeup)
        except (errors.TaskAlreadyEnded, errors.StaleAttempt, errors.TaskNotFound):
            _log.info("the attempt was overtaken", extra=self._facts())
        finally:
            await self._close()

    async def _begin_leg(self, wakeup: Wakeup) -> bool:
        """Send the call of the next leg; False when it was not sent and the run is over."""
        self._asked.clear()
        if self._reader is not None:
            return True
        if self._interrupted is Interrupt.SHUTDOWN:
            await self._withdraw(Interrupt.SHUTDOWN.value)
            return False
        if self._interrupted is None:
            try:
                await self._heed(wakeup, self._send())
            except errors.UpstreamUnavailable as error:
                # An upstream that takes no call now would else cost an attempt a moment.
                await self._heed(wakeup, asyncio.sleep(UNSENT_PAUSE_S))
                await self._withdraw(str(error))
                return False
        if self._reader is None:
            await self._end_without_outcome()
            return False
        if self._interrupted is not None:  # while it was sent, when there was nothing to stop yet
            self._stop_call()
        return True

    async def _send(self) -> None:
        self._callback = self._bench.offer(self.task)
        takes = self._bench.takes_task(self.task.opened.upstream, self.task.opened.tool)
        call = tool_call(self.task, self._callback, takes_task=takes)
        # Kept here, and not by who waits for it: whatever happens there, it is stopped at the end.
        self._reader = NewsReader(await self._bench.upstreams.call(call))

    async def _heed(self, wakeup: Wakeup, doing: Coroutine[Any, Any, None]) -> None:
        """Do it, and heed the task meanwhile; it is cancelled when the run is to stop first.

        To begin a call may take as long as its upstream takes to start.
        """
        done, moved = asyncio.ensure_future(doing), self._move(wakeup)
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            while not (done.done() or stopped.done()):
                await asyncio.wait(
                    {done, stopped, moved},
                    timeout=self._patience_s(),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                moved = await self._heard(wakeup, moved)
                await self._tick()
        finally:
            self._is_behind |= moved.done()
            for waiting in (done, stopped, moved):
                waiting.cancel()
            await asyncio.gather(done, stopped, moved, return_exceptions=True)
        if not done.cancelled():
            done.result()

    async def _withdraw(self, why: str) -> None:
        await self._finish(
            lambda task: decisions.withdraw_work(task, self._attempt, why, self._now())
        )

    async def _follow(self, wakeup: Wakeup) -> None:
        """One leg: handle news and moves of the task until the call is over."""
        reader, moved = self._reader, self._move(wakeup)
        try:
            while reader is not None and self._reader is reader and not self._over:
                await asyncio.wait(
                    {reader.pending(), moved},
                    timeout=self._patience_s(),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                moved = await self._heard(wakeup, moved)
                if reader.pending().done():
                    await self._handle(reader)
                await self._tick()
        finally:
            self._is_behind |= moved.done()  # a move that came as the leg ended
            moved.cancel()
            await asyncio.gather(moved, return_exceptions=True)

    def _move(self, wakeup: Wakeup) -> "asyncio.Future[bool]":
        return asyncio.ensure_future(wakeup.wait(RECORD_PAUSE_S if self._is_behind else RECHECK_S))

    async def _heard(self, wakeup: Wakeup, moved: "asyncio.Future[bool]") -> "asyncio.Future[bool]":
        """Act on a move of the task; the wait for the next one."""
        if not moved.done():
            return moved
        if self._has_moved(wakeup, heard=moved.result()):
            await self._look()
        return self._move(wakeup)

    def _patience_s(self) -> float | None:
        until_progress = float("inf")
        if self._progress is not None:
            until_progress = self._progress_at + PROGRESS_EVERY_S - time.monotonic()
        patience = min(self._budget.left_s, until_progress)
        if self._interrupted is not None:
            patience = until_progress
        return None if patience == float("inf") else max(patience, 0.0)

    async def _tick(self) -> None:
        if self._over:
            return
        due = time.monotonic() - self._progress_at >= PROGRESS_EVERY_S
        if self._progress is not None and due and self._interrupted is None:
            news, self._progress, self._progress_at = self._progress, None, time.monotonic()
            with contextlib.suppress(errors.StoreUnavailable):  # the next progress will tell
                await self._change(
                    lambda task: decisions.report_progress(
                        task, self._attempt, news.progress, news.total, news.message, self._now()
                    )
                )
        if self._interrupted is not None:
            self._progress = None
        elif self._budget.left_s <= 0:
            self.interrupt(Interrupt.TIMEOUT)

    def _has_moved(self, wakeup: Wakeup, *, heard: bool) -> bool:
        """Whether the task is worth a look: nothing heard for long, or news of a new version."""
        version = wakeup.take().get(self.task.id, 0)
        return self._is_behind or not (heard and 0 < version <= self.task.version)

    async def _look(self) -> None:
        """Read the task anew, and act on what others did to it."""
        if self._over:
            return
        self._is_behind = True
        try:
            self.task = await self._bench.commands.load(self.task.id)
        except errors.StoreUnavailable:
            return
        self._is_behind = False
        if not self.task.is_running or self.task.attempt != self._attempt:
            self.interrupt(Interrupt.FENCED)
        self._heed_owner()

    def _heed_owner(self) -> None:
        """Act on what the owner wants of the task as it is known now."""
        if self.task.is_running and self.task.cancel_requested:
            self.interrupt(Interrupt.CANCEL)
        self._deliver_answers()

    def _deliver_answers(self) -> None:
        for question in self.task.questions:
            if question.is_outstanding or question.key not in self._waiting:
                continue
            held = self._waiting.pop(question.key)
            if question.answer is not None:
                held.reply(question.answer)
            else:
                held.refuse(decisions.INTERNAL_ERROR, "The request was withdrawn")
        self._budget.stand(still=self.is_waiting)

    async def _handle(self, reader: NewsReader) -> None:
        try:
            item = reader.take()
        except errors.UpstreamUnavailable as error:
            await self._lose(str(error))
            return
        match item:
            case Progress():
                self._progress = item
            case Logged():
                pass  # of a task nobody asks for them
            case HeldAsk():
                await self._hold(item)
            case LegEnded():
                await self._leg_ended(item)
            case Returned():
                await self._returned(item.result)
            case Faulted():
                await self._fail(error_of(item))
            case _:
                await self._end_without_outcome()

    async def _hold(self, held: HeldAsk) -> None:
        """Put a legacy upstream's question to the client, or give the answer recorded before."""
        request = json.dumps(held.ask.request, sort_keys=True)
        occurrence = self._asked[request]
        self._asked[request] += 1
        try:
            await self._record(
                lambda task: decisions.ask(task, self._attempt, held.ask, occurrence, self._now())
            )
        except (errors.StreamFull, errors.TaskNotRunnable) as error:
            held.refuse(decisions.INTERNAL_ERROR, str(error))
            return
        question = decisions.asked(self.task, held.ask, occurrence)
        if question is not None:
            self._waiting[question.key] = held
        self._deliver_answers()

    async def _leg_ended(self, leg: LegEnded) -> None:
        await self._record(
            lambda task: decisions.finish_leg(
                task, self._attempt, leg.asks, leg.request_state, self._now()
            )
        )
        await self._close()
        self._reader = None
        self._over = not self.task.is_running

    async def _returned(self, result: Mapping[str, Any]) -> None:
        if self._callback is not None and is_pending(result):
            until = self._until()
            await self._finish(
                lambda task: decisions.delegate(task, self._attempt, until, self._now())
            )
            return
        job = self._bench.following.job_in(self.task, result)
        if job is not None:
            await self._follow_job(job)
            return
        await self._finish(
            lambda task: decisions.complete(task, self._attempt, merged_result(result), self._now())
        )

    async def _follow_job(self, job: Job) -> None:
        until, attempt, following = self._until(), self._attempt, self._bench.following
        try:
            await self._finish(lambda task: following.begun(task, attempt, job, until))
        except errors.TaskError:  # the task is another's, or over: nobody would look
            await following.disown(self.task, job)
            raise

    def _until(self) -> datetime | None:
        """The job that the tool started has the rest of the tool's time; nobody waits for it."""
        self._budget.stand(still=False)  # what it has asked meanwhile is withdrawn
        left_s = self._budget.left_s
        return self._now() + timedelta(seconds=left_s) if math.isfinite(left_s) else None

    async def _end_without_outcome(self) -> None:
        """The call is over and said nothing: what stopped it decides."""
        if self._interrupted is Interrupt.CANCEL:
            await self._finish(lambda task: decisions.stop(task, self._attempt, self._now()))
        elif self._interrupted is Interrupt.TIMEOUT:
            why = "The tool did not finish within its time limit"
            await self._fail(decisions.failure("timeout", why))
        elif self._interrupted is Interrupt.FENCED:
            self._over = True
        elif self._interrupted is Interrupt.SHUTDOWN:
            await self._lose(Interrupt.SHUTDOWN.value)
        else:
            await self._lose("the call ended without an outcome")

    async def _fail(self, error: Mapping[str, Any]) -> None:
        await self._finish(lambda task: decisions.fail(task, self._attempt, error, self._now()))

    async def _lose(self, why: str) -> None:
        if self._interrupted in {Interrupt.CANCEL, Interrupt.TIMEOUT}:
            await self._end_without_outcome()
            return
        told = self._interrupted is Interrupt.SHUTDOWN
        await self._finish(
            lambda task: decisions.lose_work(task, self._attempt, why, self._now(), was_told=told)
        )

    async def _finish(self, wish: Callable[[Task], Events]) -> None:
        await self._record(wish)
        self._over = True

    async def _record(self, wish: Callable[[Task], Events]) -> None:
        """Record what must not be lost: while the store is away, keep it and try again."""
        give_up_at = time.monotonic() + RECORD_PATIENCE_S
        while True:
            try:
                await self._change(wish)
                return
            except errors.StoreUnavailable:
                if self._interrupted is Interrupt.FENCED or time.monotonic() > give_up_at:
                    raise
            await asyncio.sleep(RECORD_PAUSE_S)

    async def _change(self, wish: Callable[[Task], Events]) -> None:
        self.task = await self._bench.commands.change(self.task.id, wish, self.task)
        self._heed_owner()  # it may have come before; of a version that we know no move is heeded

    async def _close(self) -> None:
        """Leave nothing running behind: a call whose outcome nobody waits for is told to stop."""
        if self._reader is None:
            return
        try:
            await self._reader.call.cancel()
            if self._cancelling is not None:
                await asyncio.gather(self._cancelling, return_exceptions=True)
        finally:  # the worker may end meanwhile
            await self._reader.close()

    def _now(self) -> datetime:
        return self._bench.commands.now()

    def _facts(self) -> dict[str, object]:
        return {"task": self.task.id, "attempt": self._attempt}
