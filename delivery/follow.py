"""The one loop of every delivery: read what is new, else wait for the signal, else look again."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from ..domain import errors
from ..domain.ports import Signal, Wakeup
from .feed import Feed
from .port import Change

RECHECK_S = 300.0  # a last resort: the signal adapter itself looks for what it may have missed
RETRY_S = 1.0  # while the store is away
STORE_PATIENCE_S = 30.0  # then the watch ends, and its client comes back with its versions


async def follow(
    feed: Feed, signal: Signal, after: Mapping[str, int], recheck_s: float = RECHECK_S
) -> AsyncGenerator[Change]:
    """Every change after the versions given, in order per task, until every task has ended.

    A task that is stored no more has ended. Raises StoreUnavailable when the store stays away for
    STORE_PATIENCE_S.
    """
    places, loop = dict(after), asyncio.get_running_loop()
    # Watch before the first read: a change committed between the two must end the first wait.
    async with signal.watching(*places) as wakeup:
        looks, away_since = set(places), None
        while places:
            try:
                for task_id in sorted(looks):
                    async with aclosing(_advance(feed, places, task_id)) as news:
                        async for change in news:
                            yield change
                            del change  # while all is quiet, nothing is held
                    looks.discard(task_id)
                away_since = None
            except errors.StoreUnavailable:
                # By the clock, and not so many tries: each takes its time.
                away_since = loop.time() if away_since is None else away_since
                if loop.time() - away_since >= STORE_PATIENCE_S:
                    raise
            if places:
                looks |= await _moved(wakeup, places, RETRY_S if looks else recheck_s)


async def _advance(feed: Feed, places: dict[str, int], task_id: str) -> AsyncGenerator[Change]:
    """Yield what is new of one task; forget the task once it has ended."""
    changes = await feed.after(task_id, places[task_id])
    if changes is None:
        del places[task_id]
        return
    for change in changes:
        yield change
        places[task_id] = change.version
        if change.is_terminal:
            del places[task_id]


async def _moved(wakeup: Wakeup, places: Mapping[str, int], seconds: float) -> set[str]:
    """The tasks that are worth a look: moved past their places, or all when nothing was heard."""
    if not await wakeup.wait(seconds):
        return set(places)
    return {
        task_id
        for task_id, version in wakeup.take().items()
        if task_id in places and not 0 < version <= places[task_id]
    }
