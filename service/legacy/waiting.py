"""Waiting for a task on behalf of a client that waits for a result."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, cast

from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR

from ...delivery.port import KEEP_ALIVE, VERSION_META_KEY, Listener, ListenRequest, OpenWatch
from ...domain import errors
from ...domain.clienting import TERMINAL
from ...domain.events import ProgressReported, TaskEvent
from ...domain.task import Task
from .. import jsonrpc
from ..exchange import Exchange
from . import shapes
from .asking import Context, NotAnswered, ask, tell
from .visit import to_its_end

Method = Callable[[Exchange], Awaitable[bytes | dict[str, Any]]]
Moments = Callable[[str, Collection[int]], Awaitable[Mapping[int, tuple[TaskEvent, Task]]]]
State = Mapping[str, Any]

_log = logging.getLogger("outlast.endpoint")


@dataclass(frozen=True)
class Waiting:
    """What waiting needs: `moments` are single events of a task, by their versions."""

    listener: Listener
    moments: Moments
    methods: Mapping[str, Method]

    async def result(
        self, context: Context, exchange: Exchange, task_id: str, *, marked: bool = False
    ) -> dict[str, Any]:
        """What the call would have answered, had it been answered at once. Raises MCPError.

        What the task asks, the client is asked; with `marked`, as belonging to the task.
        """
        state = await self._ended(context, exchange, task_id, marked=marked)
        if state["status"] == "completed":
            return cast(dict[str, Any], state["result"])
        if state["status"] == "cancelled":
            raise MCPError(INTERNAL_ERROR, "The call was cancelled")
        error = cast(dict[str, Any], state["error"])
        raise MCPError(int(error["code"]), str(error["message"]), error.get("data"))

    async def ended(self, exchange: Exchange, task_id: str) -> State | None:
        """The task once it has ended; None if that is not told. What it asks is left to others."""
        async with aclosing(self._states(exchange, task_id)) as states:
            async for state in states:
                if state["status"] in TERMINAL:
                    return state
        return None

    async def cancel(self, exchange: Exchange, task_id: str) -> None:
        """Ask for the task to stop. That reaches it though the client leaves with these words."""
        await self._done(_about(exchange, "tasks/cancel", {"taskId": task_id}))

    async def give_up(self, exchange: Exchange, task_id: str) -> None:
        """The same for a client that is told why already: of this it need not hear."""
        try:
            await self.cancel(exchange, task_id)
        except errors.OutlastError as error:
            _log.warning("a task was not cancelled: %s", error, extra={"task": task_id})

    async def _ended(
        self, context: Context, exchange: Exchange, task_id: str, *, marked: bool
    ) -> State:
        """The task once it has ended. A question that the client fails to answer ends the wait.

        The wait first, then the task: what the client hears is why, not what came of it.
        """
        asked: dict[str, asyncio.Task[None]] = {}
        told, ended = -1.0, None
        try:
            async with (
                asyncio.TaskGroup() as group,
                aclosing(self._states(exchange, task_id)) as states,
            ):
                async for state in states:
                    told = await self._tell(context, exchange, state, told)
                    wanted = cast(dict[str, Any], state.get("inputRequests") or {})
                    for key in asked.keys() - wanted.keys():
                        asked.pop(key).cancel()
                    for key in wanted.keys() - asked.keys():
                        request = shapes.marked(wanted[key], task_id) if marked else wanted[key]
                        work = self._ask(context, exchange, task_id, key, request)
                        asked[key] = group.create_task(work)
                    if state["status"] in TERMINAL:
                        ended = state
                        break
        except ExceptionGroup as failed:
            if ended is None:  # else nothing that came of its questions matters any more
                first = failed.exceptions[0]
                if isinstance(first, NotAnswered | errors.MalformedAnswer):
                    await self.give_up(exchange, task_id)
                raise first from None
        return ended or await self._unended(exchange, task_id)

    async def _unended(self, exchange: Exchange, task_id: str) -> State:
        """Raises TaskNotFound for a task that was removed: its watch ends without a last state."""
        with suppress(errors.TooManyWatches, errors.StoreUnavailable):  # then it is not known
            async with self._watching(exchange, task_id):
                pass
        raise MCPError(INTERNAL_ERROR, "This server is going away; the task goes on without it")

    async def _ask(
        self, context: Context, exchange: Exchange, task_id: str, key: str, request: Any
    ) -> None:
        try:
            answer = await ask(context, request)
        except NotAnswered:
            if await self._is_asked(exchange, task_id, key):
                raise
            return
        params = {"taskId": task_id, "inputResponses": {key: answer}}
        await self._done(_about(exchange, "tasks/update", params))

    async def _is_asked(self, exchange: Exchange, task_id: str, key: str) -> bool:
        """Whether a refusal still matters: somebody else may have answered before."""
        with suppress(errors.OutlastError):
            async with aclosing(self._states(exchange, task_id)) as states:
                async for state in states:
                    return key in (state.get("inputRequests") or {})
        return True

    async def _done(self, said: Exchange) -> None:
        """Do to the task what the client has said, whatever becomes of its request."""

        async def doing() -> None:
            await self.methods[said.method](said)

        await to_its_end(doing())

    async def _tell(self, context: Context, exchange: Exchange, state: State, told: float) -> float:
        """Tell of progress, if the client asked for it; how far it has been told."""
        version = cast(dict[str, Any], state.get("_meta") or {}).get(VERSION_META_KEY)
        if exchange.progress_token is None or not isinstance(version, int):
            return told
        try:
            moment = (await self.moments(str(state["taskId"]), [version])).get(version)
        except errors.OutlastError:
            return told  # it goes untold, as no wait ends for that
        event = None if moment is None else moment[0]
        if not isinstance(event, ProgressReported) or event.progress <= told:
            return told
        news: dict[str, Any] = {
            "progressToken": exchange.progress_token,
            "progress": event.progress,
            "total": event.total,
            "message": event.message,
        }
        given = {key: value for key, value in news.items() if value is not None}
        await tell(context, "notifications/progress", given, alone=False)
        return event.progress

    async def _states(self, exchange: Exchange, task_id: str) -> AsyncGenerator[State]:
        """The task as it is, and after each change. Raises TaskNotFound, and as `Listener` does."""
        async with (
            self._watching(exchange, task_id) as watch,
            aclosing(watch.frames()) as frames,
        ):
            async for frame in frames:
                message: dict[str, Any] = jsonrpc.loads(frame) if frame != KEEP_ALIVE else {}
                if message.get("method") == "notifications/tasks":
                    yield message["params"]

    @asynccontextmanager
    async def _watching(self, exchange: Exchange, task_id: str) -> AsyncGenerator[OpenWatch]:
        """A watch of the task. Raises TaskNotFound, and as `Listener` does."""
        wanted = {"notifications": {"taskIds": [task_id]}}
        owner = exchange.owner.key
        request = ListenRequest(owner, exchange.request_id, wanted, declares_tasks=True)
        watch = await self.listener.open(request)
        try:
            if task_id not in watch.receipt.task_ids:
                raise errors.TaskNotFound
            yield watch
        finally:
            await watch.close()


def _about(exchange: Exchange, method: str, params: Mapping[str, Any]) -> Exchange:
    """A request about a task by the same caller."""
    return replace(exchange, method=method, params=params)
