"""Polling: `tasks/get`, by a client that keeps its own place. Both ends.

A poll tells the present state. A client that sends the version it knows (`dev.outlast/after` in
`_meta`) is also told every change in between, oldest first, so that slow polling misses none.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

from ..domain import errors
from .feed import Feed
from .frames import AFTER_META_KEY, TaskState, task_state
from .port import Change
from .remote import Remote
from .source import Backoff, Place

CHANGES_META_KEY = "dev.outlast/changes"
INTERVAL_MS_MIN = 50
INTERVAL_MS_MAX = 60_000
INTERVAL_MS_DEFAULT = 1_000


async def missed(feed: Feed, task_id: str, after: int) -> tuple[Change, ...]:
    """The changes after a version, the present one last; what a poll with a place answers from."""
    return tuple(await feed.after(task_id, after) or ())


class PollingSource:
    """`StatusSource` by `tasks/get`, at the pace that the server suggests, within bounds."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    async def watch(self, task_id: str, after: int = 0) -> AsyncIterator[TaskState]:
        """See `StatusSource.watch`."""
        place, backoff = Place(after), Backoff()
        while True:
            try:
                answer = await self._poll(task_id, place.version)
            except errors.OutlastError as error:
                await backoff.pause(error)
                continue
            backoff.succeeded()
            for state in _states(answer):
                if place.is_new(state):
                    yield state
                    if state.is_terminal:
                        return
            await asyncio.sleep(interval_ms(answer) / 1000)

    async def _poll(self, task_id: str, version: int) -> dict[str, Any]:
        meta = {AFTER_META_KEY: {task_id: version}} if version else {}
        return await self._remote.request("tasks/get", {"taskId": task_id, "_meta": meta})


def interval_ms(task: Mapping[str, Any]) -> int:
    """What the server suggests, if it is a sensible number, within our floor and ceiling."""
    suggested = task.get("pollIntervalMs")
    if not isinstance(suggested, int) or isinstance(suggested, bool) or suggested <= 0:
        return INTERVAL_MS_DEFAULT
    return min(max(suggested, INTERVAL_MS_MIN), INTERVAL_MS_MAX)


def _states(answer: Mapping[str, Any]) -> list[TaskState]:
    meta = cast(Mapping[str, Any], answer.get("_meta") or {})
    between = cast(list[Mapping[str, Any]], meta.get(CHANGES_META_KEY) or [])
    return [*(task_state(change) for change in between), task_state(answer)]
