"""Following a job at an upstream: one look at a time, each by whoever claims the task then.

A look begins with what the owner has for the job: that it should stop, or answers. Then it is seen
how the job is, and recorded if that is new; and whatever was seen, what the upstream says comes
before what time says: a job whose time is up is looked at once more.

Nothing is kept between looks but what the task knows. Two may look at once, after a lease ran out:
what one of them saw counts only if nothing else has happened to the task since that look began,
unless it is the end.

What is told to a job may come back as what is seen of it. Why it was told is known before, so that
a job that is stopped because its time is up has timed out, and was not cancelled by anybody.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from ...domain import decisions, errors, jobs
from ...domain.decisions import Events
from ...domain.jobs import Sight
from ...domain.task import Task
from ..commands import Commands
from .port import (
    Asks,
    Away,
    Bridge,
    Cancelled,
    Completed,
    Failed,
    Job,
    Pace,
    Seen,
    Unknown,
    Working,
)

AGE_PARTS = 10  # a job is looked at after this part of its age
EARLY_S_MIN = 0.1  # between two looks at a job whose time our clock does not call over yet
RECORD_PATIENCE_S = 600.0  # an end is kept in hand this long while the store is away
RECORD_PAUSE_S = 0.5  # between two tries while the store is away

_log = logging.getLogger("outlast.bridging")

# What a look must know beside what the bridge put into the job.
STOPPED, TOLD, UNKNOWN_SINCE, OVERDUE = "stopped", "told", "unknown_since", "overdue"


class Following:
    """All kinds of bridges. Without any, no answer is taken for a job."""

    def __init__(self, commands: Commands, bridges: Sequence[Bridge] = ()) -> None:
        self._commands = commands
        self._bridges = {bridge.kind: bridge for bridge in bridges}

    def job_in(self, task: Task, result: Mapping[str, Any]) -> Job | None:
        """The job that the first answer of the task's call speaks of; None for none."""
        found = (bridge.job_in(task, result) for bridge in self._bridges.values())
        return next((job for job in found if job is not None), None)

    def begun(self, task: Task, attempt: int, job: Job, until: datetime | None) -> Events:
        """What follows from a first answer that speaks of a job: a wish of this attempt.

        Nothing, where the job is followed already: that was stored although nobody could tell us.
        """
        if task.attempt == attempt and task.job is not None and task.job["id"] == job["id"]:
            return ()
        now, pace = self._commands.now(), self._bridges[job["kind"]].pace(replace(task, job=job))
        first_s = _in_time(pace.shortest_ms / 1000, now, pace, now)
        return jobs.follow(task, attempt, job, until, now + timedelta(seconds=first_s), now)

    async def disown(self, task: Task, job: Job | None) -> None:
        """Tell a job to stop that no task will follow, if that can be told."""
        if job is not None:
            await self._bridges[job["kind"]].cancel(replace(task, job=job))

    async def look(self, task: Task) -> float | None:
        """Look once; after how many seconds to look again, None when there is nothing to see."""
        try:
            return await self._looked(task)
        except (errors.TaskAlreadyEnded, errors.StaleAttempt, errors.TaskNotFound):
            return None

    async def _looked(self, task: Task) -> float | None:
        bridge = self._bridges.get(_job(task)["kind"])
        if bridge is None:
            _log.error("no bridge follows this job here", extra=_facts(task))
            task = await self._seen(task, Pace(), Away("This job cannot be looked at now"))
            return None if task.status.is_terminal else _pause_s(task, Pace(), self._now())
        pace = bridge.pace(task)
        task = await self._stop(bridge, await self._answer(bridge, task))
        if not task.status.is_terminal:
            seen = await bridge.look(task)
            pace = (seen.pace if isinstance(seen, Working) else None) or pace
            followed, task = task, await self._seen(task, pace, seen)
            if isinstance(seen, Failed) and seen.is_to_stop:  # told before, it would be "cancelled"
                await bridge.cancel(followed)
        if decisions.is_overdue(task, self._now()):
            task = await self._end_overdue(bridge, task)
        return None if task.status.is_terminal else _pause_s(task, pace, self._now())

    async def _end_overdue(self, bridge: Bridge, task: Task) -> Task:
        if task.cancel_requested:
            task = await self._stop(bridge, task)  # the wish may be younger than this look
            return task if task.status.is_terminal else await self._end_as_cancelled(task)
        if not (_job(task).get(OVERDUE) or decisions.is_full(task)):
            task = await self._note(task, {OVERDUE: True})
            if not (task.is_followed and _job(task).get(OVERDUE)):
                return task  # something came between: the next look sees to that first
        await bridge.cancel(task)
        return await self._change(task, lambda newest: jobs.end_overdue(newest, self._now()))

    async def _answer(self, bridge: Bridge, task: Task) -> Task:
        """Give the job the answers that it does not have yet."""
        answered = jobs.to_tell(task)
        answers = {question.name: question.answer or {} for question in answered}
        if not answers or not await bridge.answer(task, answers):
            return task
        told = [*_job(task).get(TOLD, ()), *(question.key for question in answered)]
        return await self._note(task, {TOLD: told})

    async def _stop(self, bridge: Bridge, task: Task) -> Task:
        """Tell the job to stop, once, if its owner wants that."""
        if not task.cancel_requested or _job(task).get(STOPPED):
            return task
        told = await bridge.cancel(task)
        if told is None:
            return await self._end_as_cancelled(task)
        return await self._note(task, {STOPPED: True}) if told else task

    async def _note(self, task: Task, more: Mapping[str, Any]) -> Task:
        """Remember for the next look, and show the owner what it was shown before."""
        known, sight = {**_job(task), **more}, Sight(task.status_message)
        return await self._change(
            task, lambda newest: jobs.see_job(newest, task.attempt, sight, known, self._now())
        )

    async def _seen(self, task: Task, pace: Pace, seen: Seen) -> Task:
        attempt, was_to_stop = task.attempt, task.cancel_requested
        match seen:
            case Completed(result):
                return await self._end(
                    task, lambda newest: decisions.complete(newest, attempt, result, self._now())
                )
            case Failed(error):
                return await self._end(
                    task, lambda newest: decisions.fail(newest, attempt, error, self._now())
                )
            case Cancelled():
                return await self._end_as_stopped(task)
            case Unknown(why):
                task = await self._missed(task, pace, why)
            case Away(why):
                task = await self._show(task, Sight(why), _job(task))
            case Working(sight):
                task = await self._show(task, sight, _without(_job(task), UNKNOWN_SINCE))
            case Asks(asks):
                task = await self._ask(task, asks)
        return await self._goes_on(task, pace, was_to_stop=was_to_stop)

    async def _goes_on(self, task: Task, pace: Pace, *, was_to_stop: bool) -> Task:
        """It has not ended by itself: give it time to live, or up if its owner waits for that.

        Not by a wish that came during this look: the next look tells the job of it first.
        """
        if task.status.is_terminal:
            return task
        stop_at = _stop_at(task, pace)
        if was_to_stop and stop_at is not None and self._now() >= stop_at:
            return await self._end_as_cancelled(task)
        return await self._change(
            task, lambda newest: jobs.prolong(newest, task.attempt, self._now())
        )

    async def _missed(self, task: Task, pace: Pace, why: str) -> Task:
        since, now = _job(task).get(UNKNOWN_SINCE), self._now()
        lost_after = timedelta(milliseconds=pace.lost_after_ms)
        if since is not None and now >= datetime.fromisoformat(since) + lost_after:
            error = decisions.failure("job_lost", f"The job cannot be found any more: {why}")

            def lost(newest: Task) -> Events:
                if _job(newest).get(UNKNOWN_SINCE) != since:
                    return ()  # another look has found it since
                return decisions.fail(newest, task.attempt, error, self._now())

            return await self._end(task, lost)
        known = {**_job(task), UNKNOWN_SINCE: since or decisions.instant(now)}
        return await self._show(task, Sight(why), known)

    async def _show(self, task: Task, sight: Sight, known: Job) -> Task:
        if known == task.job and jobs.is_too_soon(task, self._now()):
            return task
        return await self._change(
            task, lambda newest: jobs.see_job(newest, task.attempt, sight, known, self._now())
        )

    async def _ask(self, task: Task, asks: Sequence[decisions.Ask]) -> Task:
        known = _without(_job(task), UNKNOWN_SINCE)  # a job that asks was found
        return await self._change(
            task, lambda newest: jobs.ask_for_job(newest, task.attempt, asks, self._now(), known)
        )

    async def _end_as_stopped(self, task: Task) -> Task:
        """The job is cancelled: by us, if it was we who told it to stop as its time was up."""
        if _job(task).get(OVERDUE) and not task.cancel_requested:
            # Its time is up also where it was another process that knew so, whose clock is ahead.
            up = max(self._now(), task.due_at or self._now())
            task = await self._end(task, lambda newest: jobs.end_overdue(newest, up))
        return task if task.status.is_terminal else await self._end_as_cancelled(task)

    async def _end_as_cancelled(self, task: Task) -> Task:
        return await self._end(
            task, lambda newest: jobs.end_as_cancelled(newest, task.attempt, self._now())
        )

    async def _change(self, task: Task, wish: Callable[[Task], Events]) -> Task:
        """Record it, if the task is still as it was when that was seen."""
        return await self._commands.change(
            task.id, lambda newest: wish(newest) if newest.version == task.version else (), task
        )

    async def _end(self, task: Task, wish: Callable[[Task], Events]) -> Task:
        """Record an end. It stays one whatever happened to the task, and may be told only once."""
        give_up_at = time.monotonic() + RECORD_PATIENCE_S
        known: Task | None = task
        while True:
            try:
                return await self._commands.change(task.id, wish, known)
            except errors.StoreUnavailable:
                if time.monotonic() > give_up_at:
                    raise
            known = None
            await asyncio.sleep(RECORD_PAUSE_S)

    def _now(self) -> datetime:
        return self._commands.now()


def _job(task: Task) -> Job:
    if task.job is None:
        raise errors.TaskAlreadyEnded
    return task.job


def _without(job: Job, key: str) -> Job:
    return {name: value for name, value in job.items() if name != key}


def _stop_at(task: Task, pace: Pace) -> datetime | None:
    """Until when a job that its owner wants to stop may end by itself."""
    if task.cancel_requested_at is None:
        return None
    wanted = datetime.fromisoformat(task.cancel_requested_at)
    return wanted + timedelta(milliseconds=pace.cancel_ms)


def _pause_s(task: Task, pace: Pace, now: datetime) -> float:
    """Until the next look: a part of how long the job has run, or has been wanted to stop."""
    since = task.cancel_requested_at or task.followed_at or task.updated_at
    age_ms = (now - datetime.fromisoformat(since)) / timedelta(milliseconds=1)
    pause_s = min(max(age_ms / AGE_PARTS, pace.shortest_ms), pace.longest_ms) / 1000
    for end in (task.due_at, _stop_at(task, pace)):
        if end is not None:
            pause_s = min(pause_s, max((end - now).total_seconds(), EARLY_S_MIN))
    begun = now if task.followed_at is None else datetime.fromisoformat(task.followed_at)
    return _in_time(pause_s, begun, pace, now)


def _in_time(pause_s: float, begun: datetime, pace: Pace, now: datetime) -> float:
    """At most half of the time for which the job is still kept, so that its end is not missed."""
    if pace.kept_ms is None:
        return pause_s
    left_s = (begun + timedelta(milliseconds=pace.kept_ms) - now).total_seconds()
    return min(pause_s, max(left_s / 2, EARLY_S_MIN)) if left_s > 0 else pause_s


def _facts(task: Task) -> Mapping[str, Any]:
    return {"task": task.id, "upstream": task.opened.upstream, "tool": task.opened.tool}
