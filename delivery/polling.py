"""Polling: `tasks/get`, by a client that keeps its own place. Both ends.

A poll tells the present state. A client that says which version it knows (`dev.outlast/after` in
`_meta`) is told in the answer's `_meta` the present version, and every change in between, oldest
first, so that slow polling misses none.
"""

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

from ..domain import errors
from ..domain.clienting import STATUSES, Backstop, Server, TaskExpired
from ..domain.ports import TaskView
from .feed import Feed
from .frames import TaskState, task_state
from .port import AFTER_META_KEY, VERSION_META_KEY, Change
from .source import Backoff, Place

CHANGES_META_KEY = "dev.outlast/changes"
MORE_META_KEY = "dev.outlast/more"
CHANGES_MAX = 100  # in one answer; `more` tells that others lie between them and the present state
INTERVAL_MS_MIN = 50
INTERVAL_MS_MAX = 60_000
INTERVAL_MS_DEFAULT = 1_000


class PollingMethod:
    """`Poller`: the server's end."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def owned(self, owner: str, task_id: str) -> TaskView | None:
        """See `Poller.owned`."""
        return await self._feed.owned(owner, task_id)

    async def answer(self, view: TaskView, after: int) -> dict[str, Any]:
        """See `Poller.answer`."""
        between = await self._feed.between(view.task_id, after, view.version)
        told = [_told(change) for change in between[:CHANGES_MAX]]
        meta: dict[str, Any] = {VERSION_META_KEY: view.version, CHANGES_META_KEY: told}
        if len(between) > CHANGES_MAX:
            meta[MORE_META_KEY] = True
        return {**_task(view.wire), "_meta": meta}


def _told(change: Change) -> dict[str, Any]:
    return {**_task(change.wire), "_meta": {VERSION_META_KEY: change.version}}


def _task(wire: bytes) -> dict[str, Any]:
    # Not by the faster reader, which makes floats of large integers and fails on lone surrogates.
    return json.loads(wire)


class PollingSource:
    """`StatusSource` by `tasks/get`, at the pace that the server suggests, within bounds.

    Also ends, with TaskExpired, when the task's time to live is over and nothing has come of it.
    """

    def __init__(self, remote: Server) -> None:
        self._remote = remote

    async def watch(self, task_id: str, after: int = 0) -> AsyncGenerator[TaskState]:
        """See `StatusSource.watch`."""
        place, backoff, backstop = Place(after), Backoff(), Backstop()
        while True:
            try:
                answer = await _poll(self._remote, task_id, place.version)
                states, has_more = _read(answer, task_id)
                news = [state for state in states if place.is_new(state)]
                backstop.told(answer, time.monotonic())
            except errors.OutlastError as error:
                _give_up_if(backstop)
                await backoff.pause(error)
                continue
            backoff.succeeded()
            for state in news:
                yield state
            if any(state.is_terminal for state in states):  # an old one: we began after the end
                return
            _give_up_if(backstop)
            if not has_more:
                await asyncio.sleep(interval_ms(answer) / 1000)


async def changes_since(server: Server, task_id: str, version: int) -> list[TaskState]:
    """Every state after the version, oldest first, and the present one in any case.

    Raises RemoteError.
    """
    told: list[TaskState] = []
    while True:
        states, has_more = _read(await _poll(server, task_id, version), task_id)
        told += states
        last = states[-1].version
        if not has_more or last is None:
            return told
        version = last


async def _poll(server: Server, task_id: str, version: int) -> Mapping[str, Any]:
    meta = {AFTER_META_KEY: {task_id: version}}
    return await server.request("tasks/get", {"taskId": task_id, "_meta": meta})


def _give_up_if(backstop: Backstop) -> None:
    if backstop.is_over(time.monotonic()):
        raise TaskExpired


def interval_ms(task: Mapping[str, Any]) -> float:
    """What the server suggests, if it is a sensible number, within our floor and ceiling."""
    suggested = task.get("pollIntervalMs")
    if not isinstance(suggested, int | float) or isinstance(suggested, bool):
        return INTERVAL_MS_DEFAULT
    if not 0 < suggested < math.inf:
        return INTERVAL_MS_DEFAULT
    return min(max(suggested, INTERVAL_MS_MIN), INTERVAL_MS_MAX)


def _read(answer: Mapping[str, Any], task_id: str) -> tuple[list[TaskState], bool]:
    """The states in an answer, oldest first, and whether the next poll brings more at once.

    Raises ConnectionLost for an answer that is no task, or another one.
    """
    meta = cast(Mapping[str, Any], answer.get("_meta") or {})
    between = cast(list[Mapping[str, Any]], meta.get(CHANGES_META_KEY) or [])
    states = [task_state(change) for change in between]
    has_more = meta.get(MORE_META_KEY) is True and bool(states)
    if not has_more:
        states.append(task_state(answer))
    for state in states:
        if state.task.get("taskId") != task_id or state.task.get("status") not in STATUSES:
            raise errors.ConnectionLost("the server answered with what is not this task")
    return states, has_more
