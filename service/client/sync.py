"""The client for code without an event loop: the same calls, carried by a thread with a loop."""

import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import anyio.to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from ...domain.clienting import Entry, TaskState
from .handle import TaskHandle
from .inputs import Handler, Handlers

if TYPE_CHECKING:
    from .client import TaskClient

T = TypeVar("T")

TIDYING_S_MAX = 10.0  # how long an interrupt waits for what it has cancelled; then that is left


class SyncTaskHandle:
    """`TaskHandle` for code without an event loop."""

    def __init__(self, portal: BlockingPortal, handle: TaskHandle) -> None:
        self._portal, self._handle = portal, handle

    @property
    def task_id(self) -> str:
        """See `TaskHandle.task_id`."""
        return self._handle.task_id

    @property
    def tool(self) -> str | None:
        """See `TaskHandle.tool`."""
        return self._handle.tool

    def result(
        self, timeout_s: float | None = None, *, cancel_on_exit: bool = False
    ) -> dict[str, Any]:
        """See `TaskHandle.result`. A KeyboardInterrupt leaves the task running, too."""
        waiting = functools.partial(self._handle.result, timeout_s, cancel_on_exit=cancel_on_exit)
        return _carried(self._portal, waiting)

    def updates(self) -> Iterator[TaskState]:
        """See `TaskHandle.updates`."""
        states = self._handle.updates()
        try:
            while True:
                state = _carried(self._portal, functools.partial(_next, states))
                if state is None:
                    return
                yield state
        finally:
            _carried(self._portal, functools.partial(_closed, states))

    def answer(self, responses: Mapping[str, Mapping[str, Any]]) -> None:
        """See `TaskHandle.answer`."""
        _carried(self._portal, functools.partial(self._handle.answer, responses))

    def cancel(self) -> None:
        """See `TaskHandle.cancel`."""
        _carried(self._portal, self._handle.cancel)


class SyncTaskClient:
    """`TaskClient` for code without an event loop. Made by `TaskClient.sync`:

    with TaskClient.sync("http://127.0.0.1:8000/mcp") as client:
        outcome = client.call_tool("run_ci_pipeline", {"branch": "main"})
    """

    def __init__(self, portal: BlockingPortal, client: "TaskClient") -> None:
        self._portal, self._client = portal, client

    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        ask: bool = True,
        *,
        timeout_s: float | None = None,
    ) -> dict[str, Any] | SyncTaskHandle:
        """See `TaskClient.call_tool`."""
        call = functools.partial(
            self._client.call_tool, name, arguments, idempotency_key, ask, timeout_s=timeout_s
        )
        outcome = _carried(self._portal, call)
        return self._handle(outcome) if isinstance(outcome, TaskHandle) else outcome

    def task(self, task_id: str) -> SyncTaskHandle:
        """See `TaskClient.task`."""
        return self._handle(self._portal.call(self._client.task, task_id))

    def resume(self) -> list[SyncTaskHandle]:
        """The handles of `TaskClient.resume`."""
        return [self._handle(handle) for handle in _carried(self._portal, self._client.resume)]

    def journal_entries(self) -> list[Entry]:
        """See `TaskClient.journal_entries`."""

        async def entries() -> list[Entry]:
            return [entry async for entry in self._client.journal_entries()]

        return _carried(self._portal, entries)

    def _handle(self, handle: TaskHandle) -> SyncTaskHandle:
        return SyncTaskHandle(self._portal, handle)


@contextmanager
def synchronous(
    connect: Callable[..., AbstractAsyncContextManager["TaskClient"]],
    url: str,
    options: Mapping[str, Any],
) -> Generator[SyncTaskClient]:
    """A thread with a loop, and a client in it. Plain functions among the handlers may block."""
    given = dict(options)
    if isinstance(given.get("input"), Handlers):
        given["input"] = _off_the_loop(given["input"])
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(portal.call(lambda: connect(url, **given))) as client,
    ):
        yield SyncTaskClient(portal, client)


def _off_the_loop(handlers: Handlers) -> Handlers:
    names = ("elicitation", "sampling", "roots", "any")
    moved = {name: _threaded(getattr(handlers, name)) for name in names}
    return replace(handlers, **moved)


def _threaded(handler: Handler | None) -> Handler | None:
    if handler is None or inspect.iscoroutinefunction(handler):
        return handler

    async def threaded(request: Mapping[str, Any]) -> Mapping[str, Any]:
        response: Any = await anyio.to_thread.run_sync(handler, request, abandon_on_cancel=True)
        return await response if inspect.isawaitable(response) else response

    return threaded


def _carried(portal: BlockingPortal, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What the work returns. An interrupt of the waiting thread ends the work as well, first."""
    ended = threading.Event()

    async def carried() -> T:
        try:
            return await work()
        finally:
            ended.set()

    future = portal.start_task_soon(carried)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        ended.wait(TIDYING_S_MAX)
        raise


async def _next(states: Any) -> TaskState | None:
    return await anext(states, None)


async def _closed(states: Any) -> None:
    if not states.ag_running:  # otherwise it was cancelled, and still comes to its end by itself
        await states.aclose()
