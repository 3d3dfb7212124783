"""The servers of tests lose no connection, whenever it comes."""

import asyncio
import gc
import socket

import pytest

from outlast.tests.support.listening import accepting

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_comes_as_the_server_stops_is_served_or_closed(turns: int):
    served = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        served += 1

    with socket.socket() as client:
        async with accepting(serve) as port:
            client.connect(("127.0.0.1", port))  # the kernel's part: nobody has accepted it yet
            for _ in range(turns):
                await asyncio.sleep(0)  # noqa: TID251 - a turn, no time
        gc.collect()  # what was lost is warned of here, and a warning is an error
        client.settimeout(30.0)
        try:
            assert client.recv(1) == b""
        except ConnectionResetError:
            assert not served
