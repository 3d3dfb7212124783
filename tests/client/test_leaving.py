"""Whoever leaves takes nothing from those who stay: waiters, interrupts, the client itself."""

import asyncio
import select
import signal
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from starlette.applications import Starlette

from outlast.delivery.frames import TaskState
from outlast.domain import errors
from outlast.service.client import Handlers, SyncTaskClient, TaskHandle, hook, sync
from outlast.tests.acceptance.waiting import until
from outlast.tests.client.playing import SOON_S, Play, Told, all_of, asks, playing, state
from outlast.tests.client.world import PATIENCE_S

pytestmark = pytest.mark.anyio


class Lingering(Told):
    """Is not closed before it may go, as a stream whose end takes a while."""

    def __init__(self, *scripts: list[Any]) -> None:
        super().__init__(*scripts)
        self.is_left, self.may_go = asyncio.Event(), asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.has_gone = False

    async def watch(self, task_id: str, after: int = 0) -> AsyncGenerator[TaskState]:
        self.loop = asyncio.get_running_loop()
        async with aclosing(super().watch(task_id, after)) as states:
            try:
                async for told in states:
                    yield told
            finally:
                self.is_left.set()
                await self.may_go.wait()
                self.has_gone = True

    def let_go(self) -> None:
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.may_go.set)


@pytest.mark.promise("client-asks-once")
async def test_who_comes_while_the_last_one_leaves_is_told_the_question():
    shown, may_answer = asyncio.Event(), asyncio.Event()

    async def answers(request: Any) -> Any:
        shown.set()
        await may_answer.wait()
        return {"action": "decline"}

    play = Play()
    source = Lingering([asks("a"), asyncio.Event()], [asyncio.Event()])
    async with playing(play, Handlers(any=answers), source=source) as client:
        handle = client.task("t")
        leaving = asyncio.create_task(glances(handle))
        with anyio.fail_after(PATIENCE_S):
            await source.is_left.wait()
            coming = asyncio.create_task(handle.result())
            await shown.wait()
            source.may_go.set()
            await leaving
            may_answer.set()

        async def is_answered() -> bool:
            return bool(play.params_of("tasks/update"))

        await until(is_answered, SOON_S)
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


@pytest.mark.parametrize("reads", [False, True], ids=["result", "updates"])
async def test_who_waits_when_the_client_is_closed_is_told(reads: bool):
    source = Told([state("working", 1), asyncio.Event()])
    async with playing(Play(), source=source) as client:
        handle = client.task("t")
        waiting = asyncio.create_task(all_of(handle) if reads else handle.result())

        async def has_begun() -> bool:
            return handle.state is not None

        await until(has_begun, PATIENCE_S)
    with anyio.fail_after(SOON_S), pytest.raises(errors.ConnectionLost, match="was closed"):
        await waiting
    assert source.open_now == 0


def test_a_block_is_left_while_another_thread_waits():
    source = Told([state("working", 1), asyncio.Event()])
    raised: list[BaseException] = []

    def waits(client: SyncTaskClient) -> None:
        try:
            client.task("t").result(SOON_S)
        except errors.OutlastError as error:
            raised.append(error)

    with a_client(source) as client:
        waiting = threading.Thread(target=waits, args=[client])
        waiting.start()

        async def has_begun() -> bool:
            return bool(source.begun)

        asyncio.run(until(has_begun, PATIENCE_S))
    waiting.join(PATIENCE_S)
    assert [(type(error), str(error)) for error in raised] == [
        (errors.ConnectionLost, "the client was closed")
    ]


async def test_a_post_that_comes_as_an_endpoint_ends_leaves_no_connection_open(
    monkeypatch: pytest.MonkeyPatch,
):
    """Found: one that came while the process stood still was not told of the end, and stayed."""
    monkeypatch.setattr(hook, "DISCONNECT_S", 0.1)
    loop = asyncio.get_running_loop()
    with socket.socket() as sender:

        def stands_still(port: int | None) -> None:
            sender.connect(("127.0.0.1", port))
            select.select([], [], [], 0.3)  # more than the server sleeps between two looks

        async with hook.served(Starlette(), "127.0.0.1", 0) as url:
            async with httpx2.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
                assert (await http.get(url)).status_code == 404  # it serves by now
            loop.call_later(0.02, stands_still, urlsplit(url).port)
        sender.setblocking(False)
        with anyio.fail_after(PATIENCE_S):
            assert await loop.sock_recv(sender, 1) == b""


@pytest.fixture
def _interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupt_is_raised_as_it_came_once_the_watch_has_ended():
    source = Lingering([state("working", 1), asyncio.Event()])
    with a_client(source) as client:
        updates = client.task("t").updates()
        assert next(updates).version == 1
        with meanwhile(interrupt_at("result"), at("wait"), source.let_go):
            with pytest.raises(KeyboardInterrupt):
                next(updates)
            assert source.has_gone


@pytest.mark.usefixtures("_interruptible")
def test_a_second_interrupt_waits_for_nothing():
    source = Lingering([state("working", 1), asyncio.Event()])
    with a_client(source) as client:
        updates = client.task("t").updates()
        assert next(updates).version == 1
        try:
            with (
                meanwhile(interrupt_at("result"), interrupt_at("wait")),
                pytest.raises(KeyboardInterrupt),
            ):
                next(updates)
            assert not source.has_gone
        finally:
            source.let_go()


@contextmanager
def a_client(source: Told) -> Iterator[SyncTaskClient]:
    with sync.synchronous(lambda _: playing(Play(), source=source), "http://play/mcp", {}) as made:
        yield made


@contextmanager
def meanwhile(*steps: Callable[[], None]) -> Iterator[None]:
    """Another thread takes the steps, one after another."""

    def take() -> None:
        for step in steps:
            step()

    thread = threading.Thread(target=take)
    thread.start()
    yield
    thread.join(PATIENCE_S)


def at(name: str, then: Callable[[], None] = lambda: None) -> Callable[[], None]:
    """Once the main thread is in this function for `_carried`, do that."""

    async def is_there() -> bool:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame is not None and frame.f_back is not None:
            if (frame.f_code.co_name, frame.f_back.f_code) == (name, sync._carried.__code__):
                return True
            frame = frame.f_back
        return False

    def wait() -> None:
        try:
            asyncio.run(until(is_there, SOON_S))
        except TimeoutError:
            return  # the test says what is wrong then
        then()

    return wait


def interrupt_at(name: str) -> Callable[[], None]:
    ident = threading.main_thread().ident or 0
    return at(name, lambda: signal.pthread_kill(ident, signal.SIGINT))


async def glances(handle: TaskHandle) -> None:
    async with aclosing(handle.updates()) as states:
        await anext(states)
