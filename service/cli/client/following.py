"""Tasks followed to their ends: shown as they move, answered where they ask, let go on Ctrl-C."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, nullcontext, suppress
from functools import partial
from typing import Any, Protocol

import anyio
import anyio.abc

from ....domain import errors
from ....domain.clienting import TaskState
from . import codes, outcomes
from .asking import Asker
from .interrupts import Interrupted, Interrupts
from .outcomes import Outcome, Seen
from .screen import ReaderGone, Screen
from .text import line


class Handle(Protocol):
    """A task of a server: what is needed of it here."""

    @property
    def task_id(self) -> str:
        """The id of the task."""
        ...

    @property
    def tool(self) -> str | None:
        """What was called, where that is known."""
        ...

    def updates(self) -> AsyncGenerator[TaskState]:
        """Each state until the end."""
        ...

    async def cancel(self) -> None:
        """Ask for the end."""
        ...

    async def answer(self, responses: Mapping[str, Mapping[str, Any]]) -> None:
        """Answer questions by their keys."""
        ...

    @property
    def answered(self) -> frozenset[str]:
        """The keys that need no answer any more."""
        ...


class Follower:
    """Follows tasks at the same time. One deadline holds over all of it, questions included."""

    def __init__(self, screen: Screen, asker: Asker, interrupts: Interrupts) -> None:
        self._screen, self._asker, self._interrupts = screen, asker, interrupts

    async def follow(self, handles: Sequence[Handle], timeout_s: float | None) -> list[Outcome]:
        """How each went, as far as this command saw it."""
        ended: dict[str, Outcome] = {}
        with anyio.move_on_after(timeout_s):
            await self._until_left(handles, ended)
        for handle in handles:
            if handle.task_id not in ended:
                self._end(ended, self._left(handle))
        return [ended[handle.task_id] for handle in handles]

    async def _until_left(self, handles: Sequence[Handle], ended: dict[str, Outcome]) -> None:
        while remaining := [handle for handle in handles if handle.task_id not in ended]:
            try:
                await self._interrupts.breaking(partial(self._each, remaining, ended))
            except Interrupted:
                if not await self._goes_on(remaining):
                    return

    async def _goes_on(self, remaining: Sequence[Handle]) -> bool:
        """Ask what to do about an interrupt; another one while that is asked leaves."""
        try:
            said = await self._interrupts.breaking(self._asker.what_now)
            if said == "cancel":
                await self._interrupts.breaking(partial(self._cancel, remaining))
        except Interrupted:
            return False
        return said != "leave"

    async def _cancel(self, remaining: Sequence[Handle]) -> None:
        for handle in remaining:
            try:
                await handle.cancel()
            except errors.OutlastError as error:
                self._screen.note(f"not cancelled: {line(error)}")

    async def _each(self, handles: Sequence[Handle], ended: dict[str, Outcome]) -> None:
        async with anyio.create_task_group() as tasks:
            for handle in handles:
                tasks.start_soon(self._one, handle, ended)

    async def _one(self, handle: Handle, ended: dict[str, Outcome]) -> None:
        outcome = self._left(handle)
        async with anyio.create_task_group() as asking:
            questions = _Questions(handle, self._asker, self._screen, asking)
            outcome = await self._read(handle, questions)
            asking.cancel_scope.cancel()
        # Outside the group: a prompt has let go of the screen by now.
        self._end(ended, outcome)

    async def _read(self, handle: Handle, questions: "_Questions") -> Outcome:
        try:
            async with aclosing(handle.updates()) as states:
                async for state in states:
                    with suppress(ReaderGone) if state.is_terminal else nullcontext():
                        self._screen.state(Seen(state.task, state.version, handle.tool))
                    if state.is_terminal:
                        return outcomes.of_end(state.task, handle.tool)
                    if beyond_us := questions.see(state.task):
                        return waiting(beyond_us, handle.task_id, handle.tool)
        except errors.OutlastError as error:
            return unknown(error, handle.task_id, handle.tool)
        return self._left(handle)

    def _end(self, ended: dict[str, Outcome], outcome: Outcome) -> None:
        ended[str(outcome.task_id)] = outcome
        self._screen.ended(outcome)

    def _left(self, handle: Handle) -> Outcome:
        return Outcome("left_running", codes.LEFT_RUNNING, handle.task_id, handle.tool)


class _Questions:
    """What one task asks, each put to a person beside the watch: it may be withdrawn meanwhile."""

    def __init__(
        self, handle: Handle, asker: Asker, screen: Screen, tasks: anyio.abc.TaskGroup
    ) -> None:
        self._handle, self._asker, self._screen, self._tasks = handle, asker, screen, tasks
        self._open: dict[str, anyio.CancelScope] = {}

    def see(self, task: Mapping[str, Any]) -> outcomes.Requests:
        """Ask what is new, and drop what is no longer asked.

        Returns the questions, once all that are left are beyond whoever is here.
        """
        asked = outcomes.questions(task)
        for key in [key for key in self._open if key not in asked]:
            self._open.pop(key).cancel()
        left = {k: q for k, q in asked.items() if k not in self._handle.answered}
        if not any(self._asker.can_answer(request) for request in left.values()):
            return left
        for key, request in left.items():
            if key not in self._open and self._asker.can_answer(request):
                self._open[key] = anyio.CancelScope()
                self._tasks.start_soon(self._ask, key, request)
        return {}

    async def _ask(self, key: str, request: Mapping[str, Any]) -> None:
        """Each answer goes at once: the task may need no other."""
        with self._open[key] as scope:
            while True:
                try:
                    await self._handle.answer({key: await self._asker(request)})
                except errors.RequestRefused as error:
                    self._screen.note(f"the server does not take that: {line(error)}")
                except errors.RemoteError as error:
                    self._screen.note(f"not sent yet, and kept for later: {line(error)}")
                    return
                else:
                    return
        if scope.cancelled_caught:
            self._screen.note("that question is no longer asked")


def unknown(
    error: errors.OutlastError, task_id: str | None = None, tool: str | None = None
) -> Outcome:
    """The server could not be asked, or does not have the task."""
    told: dict[str, Any] = {"message": str(error)}
    told |= {n: v for n in ("code", "data") if (v := getattr(error, n, None)) is not None}
    return Outcome("unknown", codes.NO_ANSWER, task_id, tool, {"error": told})


def waiting(
    requests: outcomes.Requests, task_id: str | None = None, tool: str | None = None
) -> Outcome:
    """There are questions, and nobody here to answer them."""
    return Outcome("waiting", codes.WAITING, task_id, tool, {"inputRequests": requests})
