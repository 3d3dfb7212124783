"""Answers leave in one piece, whole and in order, over real sockets."""

import asyncio
import socket
import struct
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from outlast.service.cli.serving import prepared, started
from outlast.service.hosting import HttpServer, listener_on
from outlast.service.joined import JOINED_BYTES_MAX, OnePiece

pytestmark = [pytest.mark.anyio, pytest.mark.promise("an-answer-leaves-in-one-piece")]

BOUND_S = 60.0
GET = b"GET %s HTTP/1.1\r\nHost: here\r\n\r\n"
CHUNK, CHUNKS = b"0123456789abcdef" * 1_000, 64  # much more than is ever joined


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """`/small` answers a few bytes, `/large` a stream that never lets the loop take a turn."""
    assert scope["type"] == "http"
    await receive()
    chunks = [b"small"] if scope["path"] == "/small" else [CHUNK] * CHUNKS
    length = str(sum(map(len, chunks))).encode()
    head = [(b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    for chunk in chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def served() -> AsyncGenerator[socket.socket]:
    """A connection to the application above."""
    listener = listener_on("127.0.0.1", 0, 8)
    host, port = listener.getsockname()[:2]
    server = HttpServer(
        uvicorn.Config(app, log_config=None, http=OnePiece, ws="none", lifespan="off")
    )
    serving = asyncio.create_task(server.serve([prepared(listener)]))
    try:
        await started(server, serving)
        with socket.socket() as client:
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, (host, port))
            yield client
    finally:
        server.should_exit = True
        async with asyncio.timeout(BOUND_S):
            await serving


async def asked(client: socket.socket, path: bytes) -> bytes:
    """What the first read of the answer brings."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(BOUND_S):
        await loop.sock_sendall(client, GET % path)
        return await loop.sock_recv(client, 1_048_576)


def segments(client: socket.socket) -> int:
    """How many packets with data have come, as the kernel counts them (`tcpi_data_segs_in`)."""
    told = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
    return struct.unpack_from("I", told, 152)[0]


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how many packets have come")
async def test_head_and_body_of_an_answer_come_in_one_packet() -> None:
    async with served() as client:
        for before in range(50):
            assert segments(client) == before
            told = await asked(client, b"/small")
            assert told.startswith(b"HTTP/1.1 200")
            assert told.endswith(b"\r\n\r\nsmall")


async def test_a_large_answer_is_whole_and_the_next_one_follows_it() -> None:
    assert len(CHUNK) * CHUNKS > 4 * JOINED_BYTES_MAX
    async with served() as client:
        told = await asked(client, b"/large")
        async with asyncio.timeout(BOUND_S):
            while told.count(CHUNK) < CHUNKS:
                told += await asyncio.get_running_loop().sock_recv(client, 1_048_576)
        assert told.partition(b"\r\n\r\n")[2] == CHUNK * CHUNKS
        assert (await asked(client, b"/small")).endswith(b"\r\n\r\nsmall")
