"""A call that runs already becomes the work of a task. None is left running for nobody."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

from ...domain import errors
from ...domain.decisions import Events
from ...domain.ports import HeldAsk, Returned
from ...domain.task import Task, fold
from ..commands import Commands
from ..news import NewsReader
from ..waits import outlasting
from ..worker import Worker

LEAVE_S_MAX = 30.0  # to stop a call that nobody is there for, and what came of it
FIND_S_MAX = 15.0  # to find out whether a task was stored; a lock may hold an append up
LOOK_PAUSE_S = 0.2  # between two looks for it

_log = logging.getLogger("outlast.worker")


class Adoptions:
    """Of one process's worker. What is begun here goes on when the request ends."""

    def __init__(self, commands: Commands, worker: Worker) -> None:
        self._commands, self._worker = commands, worker
        self._going_on: set[asyncio.Task[Any]] = set()

    async def adopt(self, history: Events, reader: NewsReader) -> Task | None:
        """The stored task, whose work the call is now; None when its key had one already.

        Whoever asks may go away: once it is stored, the task is, and keeps the call. Raises
        QuotaExceeded, and leaves the call to the caller then. After anything else that is raised it
        is stopped, unless the task turns out to be stored.
        """
        opening = self._begin(self._open(history, reader))
        try:
            return await asyncio.shield(opening)
        except errors.QuotaExceeded:
            raise
        except BaseException:
            self._begin(self._settle(opening, history, reader))
            raise

    async def disown(self, history: Events, result: Any) -> None:
        """Tell the upstream's job that this result speaks of to stop: no task will follow it.

        It is told, whether or not whoever asks stays for that.
        """
        disowning = self._begin(self._disowned(history, result))
        await outlasting(disowning, _log, "a job without a task was not told to stop")

    def leave(self, history: Events, reader: NewsReader) -> None:
        """Stop a call whose task would have had this history, and what came of it meanwhile."""
        self._begin(self._left(history, reader))

    async def _disowned(self, history: Events, result: Any) -> None:
        task, following = fold(history), self._worker.bench.following
        if task is not None:
            await following.disown(task, following.job_in(task, result))

    async def _open(self, history: Events, reader: NewsReader) -> Task | None:
        created: Task | None = None
        with contextlib.suppress(errors.DuplicateOpening):
            created = await self._commands.open(history)
        self._hand_over(created, history, reader)
        return created

    async def _settle(
        self, opening: "asyncio.Task[Task | None]", history: Events, reader: NewsReader
    ) -> None:
        """See to a call whose request is gone, or is told that there is no task."""
        try:
            await opening
            return  # it has seen to the call itself
        except errors.StoreUnavailable:
            task = await self._found(history[0].task_id)
        except Exception:  # noqa: BLE001 - told to whoever asked, if anybody is left
            task = None
        self._hand_over(task, history, reader)

    def _hand_over(self, task: Task | None, history: Events, reader: NewsReader) -> None:
        """Let the task have its call; stop it where there is none, or it is another's by now."""
        is_adopted = (
            task is not None
            and (task.worker, task.attempt) == (self._worker.name, 1)
            and self._worker.adopt(task, reader)
        )
        if not is_adopted:
            self.leave(history, reader)

    async def _found(self, task_id: str) -> Task | None:
        """The task, if it is stored although nobody could tell us; that may still be coming."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIND_S_MAX):
                while True:
                    with contextlib.suppress(errors.StoreUnavailable, errors.TaskNotFound):
                        return await self._commands.load(task_id)
                    await asyncio.sleep(LOOK_PAUSE_S)
        return None

    async def _left(self, history: Events, reader: NewsReader) -> None:
        """Stop a call that no task is kept for.

        An answer that came first stays one: what it speaks of would be followed by nobody.
        """
        try:
            async with asyncio.timeout(LEAVE_S_MAX):
                await reader.call.cancel()
                while isinstance(item := await reader.next(lambda _: None), HeldAsk):
                    pass  # nobody waits for its answer any more
                if isinstance(item, Returned):
                    await self._disowned(history, item.result)
        except Exception:  # noqa: BLE001 - the client has been told why there is no task
            _log.warning("a call without a task was left as it was", exc_info=True)
        finally:
            await reader.close()

    def _begin(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.create_task(work)
        self._going_on.add(task)
        task.add_done_callback(self._going_on.discard)
        return task
