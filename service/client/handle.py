"""A task of a server, in the hands of whoever waits for it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any, cast

import anyio

from ...domain import errors
from ...domain.clienting import (
    INVALID_PARAMS,
    ClientTimeout,
    InvalidAnswer,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
    TaskState,
)
from .following import Following
from .inputs import ANSWER_S_MAX
from .reach import Reach

CANCEL_S_MAX = 5.0

_log = logging.getLogger("outlast.client")


class TaskHandle:
    """A task that goes on, whether anybody waits for it or not."""

    def __init__(self, reach: Reach, following: Following) -> None:
        self._reach, self._following = reach, following

    def __repr__(self) -> str:
        return f"TaskHandle({self.task_id!r}, tool={self.tool!r})"

    @property
    def task_id(self) -> str:
        """The id under which the server, and any other client of this owner, knows the task."""
        return self._following.task_id

    @property
    def tool(self) -> str | None:
        """The tool that was called, where that is known."""
        return self._following.tool

    @property
    def state(self) -> TaskState | None:
        """The newest state that was heard of; None before the first."""
        return self._following.last

    @property
    def answered(self) -> frozenset[str]:
        """The keys of questions that need no answer any more: they have one, sent or not.

        Complete once the first state was heard of.
        """
        return self._following.desk.answered

    async def result(
        self, timeout_s: float | None = None, *, cancel_on_exit: bool = False
    ) -> dict[str, Any]:
        """The task's result, as the call itself would have returned it; handlers are asked.

        `timeout_s` is one bound over polls, pauses and handlers. When it is over, or when whoever
        waits is cancelled, the task goes on; with `cancel_on_exit` the server is asked to stop it.

        Raises TaskFailed, TaskCancelled, TaskExpired, ClientTimeout; RequestRefused when the server
        refuses us; ConnectionLost when the client is closed; and whatever a handler raised.
        """
        try:
            return await self._result(timeout_s)
        except (asyncio.CancelledError, ClientTimeout):
            if cancel_on_exit:
                with anyio.move_on_after(CANCEL_S_MAX, shield=True), suppress(errors.RemoteError):
                    await self.cancel()
            raise

    async def updates(self) -> AsyncGenerator[TaskState]:
        """Each state from the present one to the last, in order; none twice, none that is older.

        Handlers are not asked here: whoever reads the states sees the questions in them, and
        answers by `answer`. Raises as `result` does, but a failed task's last state is a state.
        """
        async with aclosing(self._following.states(asks=False)) as states:
            try:
                async for state in states:
                    is_last = state.is_terminal
                    try:
                        yield state
                    finally:  # whoever was given the last state may stop right there
                        if is_last:
                            await self._mark(str(state.task["status"]))
            except TaskExpired:
                await self._mark("expired")
                raise

    async def answer(self, responses: Mapping[str, Mapping[str, Any]]) -> None:
        """Answer questions, some or all, by their keys; keys that were answered are left alone.

        The answers are written down, then sent. Raises RequestRefused when the server does not take
        one (it may then be given anew), or can take none for a minute, and ConnectionLost when it
        cannot be reached for so long: what is written down goes out while the task is followed, or
        when it is followed again.
        """
        await self._following.desk.give(responses, ANSWER_S_MAX)

    async def cancel(self) -> None:
        """Ask the server to stop the task. What becomes of it is told by `result` or `updates`.

        Raises TaskExpired, RequestRefused, ConnectionLost.
        """
        try:
            await self._reach.server.request("tasks/cancel", {"taskId": self.task_id})
        except errors.RequestRefused as error:
            if error.code == INVALID_PARAMS:
                raise TaskExpired from error
            raise

    async def _result(self, timeout_s: float | None) -> dict[str, Any]:
        scope = asyncio.timeout(timeout_s)
        try:
            async with scope:
                state = await self._end()
        except TimeoutError:
            if scope.expired():
                raise ClientTimeout from None
            raise
        return _outcome(state.task)

    async def _end(self) -> TaskState:
        try:
            async with aclosing(self._following.states(asks=True)) as states:
                async for state in states:
                    if state.is_terminal:
                        await self._mark(str(state.task["status"]))
                        return state
        except TaskExpired:
            await self._mark("expired")
            raise
        raise InvalidAnswer("the watch ended before the task did")

    async def _mark(self, how: str) -> None:
        """Nothing is owed any more. An outcome is not held back because that cannot be noted."""
        with anyio.CancelScope(shield=True):
            try:
                await self._following.page.end(how)
            except errors.StoreUnavailable:
                _log.exception("the end of task %s is not in the journal", self.task_id)


def _outcome(task: Mapping[str, Any]) -> dict[str, Any]:
    """The result in a task that has ended. Raises TaskFailed, TaskCancelled, InvalidAnswer."""
    if task["status"] == "cancelled":
        raise TaskCancelled(_text(task.get("statusMessage")))
    if task["status"] == "failed":
        given = task.get("error")
        error = cast(Mapping[str, Any], given if isinstance(given, dict) else {})
        message = _text(error.get("message")) or _text(task.get("statusMessage"))
        code = error.get("code")
        raise TaskFailed(
            code if isinstance(code, int) else 0, message or "The task failed.", error.get("data")
        )
    result = task.get("result")
    if not isinstance(result, dict):
        raise InvalidAnswer("the task is completed and has no result")
    # What a direct answer says of its own shape is no part of it.
    given = cast(Mapping[str, Any], result)
    return {name: value for name, value in given.items() if name != "resultType"}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
