"""`tasks/get`, `tasks/update`, `tasks/cancel`: the three methods of the tasks extension."""

from collections.abc import Mapping
from typing import Any, cast

from ...delivery.port import AFTER_META_KEY, Poller, places_of
from ...domain import decisions, errors
from ...domain.decisions import Events
from ...domain.extension import REQUIRED_CAPABILITIES
from ...domain.task import Task
from .. import answers
from ..commands import Commands, Wish
from ..exchange import Exchange
from ..retention import Retention
from ..throttle import Throttle

_ACKNOWLEDGED = b"{}"


class TaskMethods:
    """Another owner's task, an expired one and one that never was are answered alike."""

    def __init__(
        self,
        commands: Commands,
        poller: Poller,
        retention: Retention,
        throttle: Throttle | None = None,
    ) -> None:
        self._commands, self._poller, self._retention = commands, poller, retention
        self._throttle = throttle or Throttle()

    async def get(self, exchange: Exchange) -> bytes | dict[str, Any]:
        """The detailed task, as the bytes that were stored with its last event.

        A client that tells its place is told what it missed; see `delivery/polling.py`.
        """
        task_id = _task_id(exchange)
        self._throttle.polled(exchange.owner.key, task_id)
        view = await self._poller.owned(exchange.owner.key, task_id)
        if view is None:
            raise errors.TaskNotFound
        if AFTER_META_KEY not in exchange.meta:
            return view.wire
        after = places_of(exchange.params).get(task_id, 0)
        return await self._poller.answer(view, after)

    async def update(self, exchange: Exchange) -> bytes:
        """Answer outstanding questions. Acknowledged after the commit; unknown keys are ignored."""
        task_id = _task_id(exchange)
        given = exchange.params.get("inputResponses")
        if not isinstance(given, dict):
            raise errors.InvalidCall("inputResponses must be an object")
        responses = cast(Mapping[str, Any], given)

        def wish(task: Task) -> Events:
            answers.check(task, responses)
            return decisions.receive_input(task, responses, self._commands.now())

        await self._change(exchange.owner.key, task_id, wish)
        return _ACKNOWLEDGED

    async def cancel(self, exchange: Exchange) -> bytes:
        """Ask for the work to stop. Acknowledged, whatever comes of it."""
        await self.cancel_for(exchange.owner.key, _task_id(exchange))
        return _ACKNOWLEDGED

    async def cancel_for(self, owner: str, task_id: str) -> None:
        """The same, for whoever has asked as this owner. Raises TaskNotFound."""

        def wish(task: Task) -> Events:
            return decisions.request_cancel(task, self._commands.now())

        await self._change(owner, task_id, wish)

    async def _change(self, owner: str, task_id: str, wish: Wish) -> None:
        """Append what follows from an owner's wish; from the end of the task's time on, its end."""
        in_time = self._retention.in_time(wish)

        def decide(task: Task) -> Events:
            if task.owner != owner or self._retention.is_gone(task):
                raise errors.TaskNotFound
            return in_time(task)

        # By the view first: of a stranger's stream no row is read, so that none takes time either.
        if await self._poller.owned(owner, task_id) is None:
            raise errors.TaskNotFound
        await self._commands.change(task_id, decide)


def _task_id(exchange: Exchange) -> str:
    if not exchange.declares_tasks:
        raise errors.MissingCapability(REQUIRED_CAPABILITIES)
    task_id = exchange.params.get("taskId")
    if not isinstance(task_id, str):
        raise errors.InvalidCall("taskId must be a string")
    if "\0" in task_id:
        raise errors.TaskNotFound  # PostgreSQL text cannot hold it, so no task can have it
    return task_id
