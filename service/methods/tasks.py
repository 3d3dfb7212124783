"""`tasks/get`, `tasks/update`, `tasks/cancel`: the three methods of the tasks extension."""

from collections.abc import Mapping
from typing import Any, cast

from ...domain import decisions, errors
from ...domain.decisions import Events
from ...domain.ports import TaskViews
from ...domain.task import Task
from .. import answers
from ..commands import Commands
from ..exchange import REQUIRED_CAPABILITIES, Exchange

_ACKNOWLEDGED = b"{}"


class TaskMethods:
    """Another owner's task, an expired one and one that never was are answered alike."""

    def __init__(self, commands: Commands, views: TaskViews) -> None:
        self._commands, self._views = commands, views

    async def get(self, exchange: Exchange) -> bytes:
        """The detailed task, as the bytes that were stored with its last event."""
        view = await self._views.get(_task_id(exchange))
        if view is None or view.owner != exchange.owner.key:
            raise errors.TaskNotFound
        if view.is_terminal and view.expires_at and view.expires_at <= self._commands.now():
            raise errors.TaskNotFound
        return view.wire

    async def update(self, exchange: Exchange) -> bytes:
        """Answer outstanding questions. Acknowledged after the commit; unknown keys are ignored."""
        given = exchange.params.get("inputResponses")
        if not isinstance(given, dict):
            raise errors.InvalidCall("inputResponses must be an object")
        responses = cast(Mapping[str, Any], given)

        def wish(task: Task) -> Events:
            self._refuse_strangers(task, exchange)
            answers.check(task, responses)
            return decisions.receive_input(task, responses, self._commands.now())

        await self._commands.change(_task_id(exchange), wish)
        return _ACKNOWLEDGED

    async def cancel(self, exchange: Exchange) -> bytes:
        """Ask for the work to stop. Acknowledged, whatever comes of it."""

        def wish(task: Task) -> Events:
            self._refuse_strangers(task, exchange)
            return decisions.request_cancel(task, self._commands.now())

        await self._commands.change(_task_id(exchange), wish)
        return _ACKNOWLEDGED

    def _refuse_strangers(self, task: Task, exchange: Exchange) -> None:
        ended = task.status.is_terminal and decisions.is_expired(task, self._commands.now())
        if task.owner != exchange.owner.key or ended:
            raise errors.TaskNotFound


def _task_id(exchange: Exchange) -> str:
    if not exchange.declares_tasks:
        raise errors.MissingCapability(REQUIRED_CAPABILITIES)
    task_id = exchange.params.get("taskId")
    if not isinstance(task_id, str):
        raise errors.InvalidCall("taskId must be a string")
    if "\0" in task_id:
        raise errors.TaskNotFound  # PostgreSQL text cannot hold it, so no task can have it
    return task_id
