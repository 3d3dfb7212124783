"""Watches that are left in the middle of their own letting go, or closed while they open."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import anyio
import pytest

from outlast.delivery.auto import AutoSource
from outlast.delivery.port import ListenRequest, OpenWatch, Receipt
from outlast.delivery.remote import Remote
from outlast.delivery.websocket import Switchboard
from outlast.domain import errors
from outlast.service.waits import turns
from outlast.tests.client.playing import LOST, Play, Told, state

pytestmark = pytest.mark.anyio

SOON_S = 20.0
REQUEST = ListenRequest("ann", "w-1", {}, declares_tasks=True)


class Kept(Told):
    """Keeps what it has given out: it is ended by whoever has it, and not for being forgotten."""

    def __init__(self, *scripts: list[Any]) -> None:
        super().__init__(*scripts)
        self.given: list[AsyncGenerator[Any]] = []

    def watch(self, task_id: str, after: int = 0) -> AsyncGenerator[Any]:
        self.given.append(super().watch(task_id, after))
        return self.given[-1]


@pytest.mark.parametrize("way", ["stream", "polls"])
async def test_a_watch_that_is_cancelled_twice_leaves_no_source_open(way: str):
    """Found: cancelled again while it stopped, it left the stream that it had read from open."""
    source = Kept([state("working", 1), state("working", 2), asyncio.Event()])
    streams = [source] if way == "stream" else []
    server = cast(Remote, Play(tasks_get=[LOST]))
    states = AutoSource(server, source, streams).watch("t")
    with anyio.fail_after(SOON_S):
        assert (await anext(states)).version == 1
        await turns()  # the next state is there, and is not taken
        closing = asyncio.ensure_future(states.aclose())
        await asyncio.sleep(0)  # noqa: TID251 - one turn: it has begun to stop, and no more
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert source.open_now == 0


class Opening:
    """A listener whose one watch opens when the test lets it, and tells nothing."""

    receipt = Receipt(())

    def __init__(self) -> None:
        self.opening, self.may_open = asyncio.Event(), asyncio.Event()
        self.is_open = False

    async def open(self, request: ListenRequest) -> OpenWatch:
        self.opening.set()
        await self.may_open.wait()
        self.is_open = True
        return self

    async def frames(self) -> AsyncGenerator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def close(self) -> None:
        self.is_open = False


async def unheard(_frame: bytes) -> None:
    raise errors.ConnectionLost


async def test_a_watch_that_opens_after_the_connection_was_closed_is_let_go():
    """Found: it was pumped to nobody, and nobody could end it."""
    listener = Opening()
    board = Switchboard(listener, unheard, lambda _id, error: str(error).encode())
    with anyio.fail_after(SOON_S):
        coming = asyncio.create_task(board.received(REQUEST))
        await listener.opening.wait()
        await board.close()
        listener.may_open.set()
        await coming
        await turns()
    assert not listener.is_open
    assert board.is_idle
