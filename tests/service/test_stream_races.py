"""A WebSocket whose client leaves while it is being sent something: that is no failure of ours."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime

import anyio
import pytest
from starlette.types import Message, Scope
from starlette.websockets import WebSocket

from outlast.delivery.port import ListenRequest
from outlast.delivery.websocket import Switchboard
from outlast.domain.owner import LOCAL_CALLER, Caller
from outlast.service.socket import Socket
from outlast.service.wiring.identity import own_access
from outlast.tests.service.legacy_played import PATIENCE_S, Watched
from outlast.tests.support.mcp import envelope
from outlast.tests.support.streams import LISTEN

pytestmark = pytest.mark.anyio

SCOPE: Scope = {"type": "websocket", "path": "/ws", "headers": [(b"host", b"localhost")]}


class Client:
    """The client's end. `gone` is what a server says to a frame for one that has gone."""

    def __init__(self, gone: Exception) -> None:
        self._gone, self._said = gone, asyncio.Queue[Message]()
        self._said.put_nowait({"type": "websocket.connect"})
        self.is_gone = False

    def says(self, *messages: str) -> None:
        for text in messages:
            self._said.put_nowait({"type": "websocket.receive", "text": text})

    async def receive(self) -> Message:
        return await self._said.get()

    async def send(self, message: Message) -> None:
        if self.is_gone:
            raise self._gone


@pytest.fixture(autouse=True)
async def patience() -> AsyncIterator[None]:
    with anyio.fail_after(PATIENCE_S):
        yield


def listen(request_id: int) -> str:
    return json.dumps({**envelope(LISTEN, {"notifications": {}}), "id": request_id})


def unlogged(caplog: pytest.LogCaptureFixture) -> bool:
    return [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("gone", [OSError(), RuntimeError("after sending 'websocket.close'")])
async def test_a_client_with_many_watches_leaves_without_a_word_in_the_log(
    gone: Exception, caplog: pytest.LogCaptureFixture
):
    client, has_news, watching = Client(gone), asyncio.Event(), asyncio.Semaphore(0)

    async def frames(_request: ListenRequest) -> AsyncGenerator[bytes]:
        watching.release()
        await has_news.wait()
        yield b"{}"

    watched = Watched(frames)
    socket = Socket(lambda send, refuse: Switchboard(watched, send, refuse), own_access())
    serving = asyncio.create_task(socket.serve(WebSocket(SCOPE, client.receive, client.send)))
    client.says(listen(1), listen(2), listen(3))
    for _ in range(3):
        await watching.acquire()
    client.is_gone = True
    has_news.set()  # each has something to send to nobody
    await serving
    assert (watched.left_open, unlogged(caplog)) == (0, True)


async def test_a_client_that_leaves_as_its_token_expires_is_no_failure():
    client = Client(OSError())

    class Expiring(WebSocket):
        """Let in, and at once no more there."""

        async def accept(self, *_given: object, **_more: object) -> None:
            await super().accept()
            client.is_gone = True

    def visiting(_socket: WebSocket) -> Caller:
        return replace(LOCAL_CALLER, until=datetime.now(UTC))

    async def silent(_request: ListenRequest) -> AsyncGenerator[bytes]:
        yield b"{}"

    watched = Watched(silent)
    socket = Socket(
        lambda send, refuse: Switchboard(watched, send, refuse), own_access(), visiting=visiting
    )
    await socket.serve(Expiring(SCOPE, client.receive, client.send))
