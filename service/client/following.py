"""One watch of one task, however many wait for it: what it tells is handed to all of them."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import anyio

from ...domain import errors
from ...domain.clienting import (
    INVALID_PARAMS,
    TERMINAL,
    Backstop,
    Entry,
    Place,
    TaskExpired,
    TaskState,
)
from .inputs import FINAL, Desk, Handlers
from .reach import Page, Reach

News = TaskState | Exception | None  # None: nothing more follows


@dataclass(frozen=True)
class ReadState:
    """`TaskState` of a task that was read, by a server that was not asked for versions."""

    task: Mapping[str, Any]
    version: int | None = None

    @property
    def task_id(self) -> str:
        """See `TaskState.task_id`."""
        return str(self.task["taskId"])

    @property
    def is_terminal(self) -> bool:
        """See `TaskState.is_terminal`."""
        return self.task.get("status") in TERMINAL


class Following:
    """Watches while somebody waits, from where it was; asks while somebody wants that."""

    def __init__(
        self,
        reach: Reach,
        handlers: Handlers,
        task_id: str,
        entry: Entry | None = None,
        created: Mapping[str, Any] | None = None,
    ) -> None:
        self._reach, self.task_id = reach, task_id
        self.tool = None if entry is None else entry.tool
        self.page = Page(reach, task_id, entry)
        self.desk = Desk(reach, handlers, task_id, self.page, self._tell_askers)
        self.last: TaskState | None = None
        self._place, self._backstop = Place(), Backstop()
        self._waiting: dict[asyncio.Queue[News], bool] = {}  # and whether it asks
        self._pump: asyncio.Task[None] | None = None
        if created is not None:
            self._backstop.told(created, time.monotonic())

    async def states(self, *, asks: bool) -> AsyncGenerator[TaskState]:
        """The last state that was told, and each that follows, until the end.

        With `asks`, the handlers are asked meanwhile. Raises what the watch or a handler raised.
        """
        news: asyncio.Queue[News] = asyncio.Queue()
        if self.last is not None:
            news.put_nowait(self.last)
        self._waiting[news] = asks
        try:
            if self.last is not None and not self.last.is_terminal:
                await self.desk.see(self.last.task, asks=asks)
            self._go_on()
            while True:
                item = await news.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    return
                yield item
                if item.is_terminal:
                    return
        finally:
            del self._waiting[news]
            with anyio.CancelScope(shield=True):
                await self._let_go()

    async def _let_go(self) -> None:
        if not self._waiting:
            await self.close()
        elif not self._asks:
            await self.desk.ask_no_more()

    async def dismiss(self, reason: Exception) -> None:
        """Let whoever waits raise this, and close."""
        self._tell(reason)
        await self.close()

    async def close(self) -> None:
        """Watch and ask no more, until somebody waits again."""
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.cancel()
        # Before the pump is waited for: whoever comes meanwhile has a new one, and new questions.
        await self.desk.close()
        if pump is not None:
            await asyncio.gather(pump, return_exceptions=True)

    @property
    def _asks(self) -> bool:
        return any(self._waiting.values())

    def _go_on(self) -> None:
        is_over = self.last is not None and self.last.is_terminal
        if not is_over and (self._pump is None or self._pump.done()):
            self._pump = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            source = self._reach.source.watch(self.task_id, self._place.version)
            async with aclosing(self._bounded(source)) as states:
                async for state in states:
                    await self._see(state)
            if self.last is None or not self.last.is_terminal:
                await self._see(await self._read())  # it had ended before the watch began
            self._tell(None)
        except errors.RequestRefused as error:
            self._tell(await self._judged(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait raise it
            self._tell(error)

    async def _bounded(self, source: AsyncGenerator[TaskState]) -> AsyncGenerator[TaskState]:
        """The states of a source, while the task can still come to something."""
        coming = asyncio.create_task(_next(source))
        try:
            while True:
                left_s = self._backstop.left_s(time.monotonic())
                await asyncio.wait({coming}, timeout=left_s)
                if not coming.done():
                    yield await self._beyond_its_time()
                    continue
                state = coming.result()
                if state is None:
                    return
                coming = asyncio.create_task(_next(source))
                yield state
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
            await source.aclose()

    async def _beyond_its_time(self) -> TaskState:
        """The task, if it has moved or been given more time after all. Raises TaskExpired."""
        try:
            state = await self._read()
        except errors.ConnectionLost as error:
            raise TaskExpired from error
        self._backstop.told(state.task, time.monotonic())
        if self._backstop.is_over(time.monotonic()) and not state.is_terminal:
            raise TaskExpired
        return state

    async def _judged(self, error: errors.RequestRefused) -> Exception:
        """A refusal, as it is to be raised: each way says in its own code that there is no task."""
        if error.code not in FINAL:
            try:
                await self._read()
            except errors.RemoteError as judged:
                is_gone = getattr(judged, "code", None) == INVALID_PARAMS
                return TaskExpired() if is_gone else error
        return TaskExpired() if error.code == INVALID_PARAMS else error

    async def _read(self) -> TaskState:
        return ReadState(await self._reach.server.request("tasks/get", {"taskId": self.task_id}))

    async def _see(self, state: TaskState) -> None:
        self._backstop.told(state.task, time.monotonic())
        if not (self._place.is_new(state) or state.is_terminal):
            return
        self.last = state
        await self.desk.see(state.task, asks=self._asks)
        self._tell(state)

    def _tell(self, item: News) -> None:
        for news in self._waiting:
            news.put_nowait(item)

    def _tell_askers(self, error: Exception) -> None:
        for news, asks in self._waiting.items():
            if asks:
                news.put_nowait(error)


async def _next(states: AsyncGenerator[TaskState]) -> TaskState | None:
    return await anext(states, None)
