"""The follower: gives the events of the log their leaves, and signs the tree from time to time.

It runs in every process and works in one at a time. It costs the writers nothing: it reads what is
committed, and nobody waits for it. What it has not reached yet is not covered; `verify` says so.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ...domain import errors
from ...domain.audit import Notary, Standing, TreeFollowing, TreePen

LOOK_S = 5.0  # between two looks, each of one small statement
STOP_S_MAX = 5.0

_log = logging.getLogger("outlast.audit")


@dataclass(frozen=True)
class Pace:
    """A checkpoint follows so many events, or so many seconds if there is any event at all."""

    events: int
    seconds: float


class Loop:
    """Does something again and again until it is stopped; a failure is told and not the end."""

    def __init__(self, work: Callable[[], Awaitable[None]], name: str, pause_s: float) -> None:
        self._work, self._name, self._pause_s = work, name, pause_s
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failing: str | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._for_ever(), name=self._name)

    async def stop(self) -> None:
        """Let what is being done come to its end, within bounds."""
        self._stopping.set()
        if self._task is None:
            return
        await asyncio.wait([self._task], timeout=STOP_S_MAX)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _for_ever(self) -> None:
        while not self._stopping.is_set():
            await self._once()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s):
                    await self._stopping.wait()

    async def _once(self) -> None:
        try:
            await self._work()
        except errors.StoreUnavailable:
            return  # all others say so already
        except errors.OutlastError as error:
            if self._failing != str(error):  # once, and not at every look
                _log.error("%s: %s", self._name, error)
            self._failing = str(error)
        except Exception:  # noqa: BLE001 - it must outlive a defect, and says so
            _log.exception("%s: a defect; it goes on", self._name)
        else:
            self._failing = None


class Follower:
    """One process's follower."""

    def __init__(self, tree: TreeFollowing, notary: Notary, pace: Pace) -> None:
        self._tree, self._notary, self._pace = tree, notary, pace

    def loop(self) -> Loop:
        """The follower, to be started."""
        return Loop(self.follow, "outlast-audit", min(LOOK_S, self._pace.seconds))

    async def follow(self) -> None:
        """Bring the tree up to the log, if it is behind and no other process is at it."""
        standing = await self._tree.standing()
        if standing.head <= standing.position and not self._is_due(standing):
            return
        async with self._tree.alone() as pen:
            if pen is not None:
                while await self._step(pen):
                    pass

    async def _step(self, pen: TreePen) -> bool:
        """Some events more, or a checkpoint; whether there was anything to do."""
        standing = await pen.standing()
        room = self._pace.events - (standing.size - standing.checkpointed)
        taken = await pen.extend(room) if room > 0 else 0
        if self._is_due(await pen.standing()):
            await pen.checkpoint(self._notary)
            return True
        return taken > 0

    def _is_due(self, standing: Standing) -> bool:
        """Whether a checkpoint is."""
        unsigned = standing.size - standing.checkpointed
        if unsigned <= 0:
            return False
        is_old = standing.age_s is None or standing.age_s >= self._pace.seconds
        return is_old or unsigned >= self._pace.events
