"""Polling: `tasks/get`, by a client that keeps its own place. Both ends.

A poll tells the present state. A client that says which version it knows (`dev.outlast/after` in
`_meta`) is told in the answer's `_meta` the present version, and every change in between, oldest
first, so that slow polling misses none.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

from ..domain import errors
from ..domain.ports import TaskView
from .feed import Feed
from .frames import VERSION_META_KEY, TaskState, task_state
from .port import AFTER_META_KEY, Change
from .remote import Remote
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
    """`StatusSource` by `tasks/get`, at the pace that the server suggests, within bounds."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    async def watch(self, task_id: str, after: int = 0) -> AsyncGenerator[TaskState]:
        """See `StatusSource.watch`."""
        place, backoff = Place(after), Backoff()
        while True:
            try:
                answer = await self._poll(task_id, place.version)
            except errors.OutlastError as error:
                await backoff.pause(error)
                continue
            backoff.succeeded()
            states, has_more = _read(answer)
            for state in states:
                if place.is_new(state):
                    yield state
                if state.is_terminal:  # an old one too: the watch began after the end
                    return
            if not has_more:
                await asyncio.sleep(interval_ms(answer) / 1000)

    async def _poll(self, task_id: str, version: int) -> dict[str, Any]:
        meta = {AFTER_META_KEY: {task_id: version}}
        return await self._remote.request("tasks/get", {"taskId": task_id, "_meta": meta})


def interval_ms(task: Mapping[str, Any]) -> int:
    """What the server suggests, if it is a sensible number, within our floor and ceiling."""
    suggested = task.get("pollIntervalMs")
    if not isinstance(suggested, int) or isinstance(suggested, bool) or suggested <= 0:
        return INTERVAL_MS_DEFAULT
    return min(max(suggested, INTERVAL_MS_MIN), INTERVAL_MS_MAX)


def _read(answer: Mapping[str, Any]) -> tuple[list[TaskState], bool]:
    """The states in an answer, oldest first, and whether the next poll brings more at once."""
    meta = cast(Mapping[str, Any], answer.get("_meta") or {})
    between = cast(list[Mapping[str, Any]], meta.get(CHANGES_META_KEY) or [])
    states = [task_state(change) for change in between]
    if meta.get(MORE_META_KEY) is True:
        return states, True
    return [*states, task_state(answer)], False
