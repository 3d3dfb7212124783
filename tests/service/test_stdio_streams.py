"""Lines out of `outlast stdio` once nobody takes them: whoever waits for one is told."""

import asyncio
import os

import anyio
import anyio.lowlevel
import pytest

from outlast.domain import errors
from outlast.service.streams import Streams

pytestmark = pytest.mark.anyio

PATIENCE_S = 20.0
MORE_THAN_A_PIPE_HOLDS = 1 << 20


async def test_every_line_that_waits_to_go_out_fails_once_the_reader_has_gone() -> None:
    (given, giving), (taking, taken) = os.pipe(), os.pipe()
    streams = Streams(given, taken, 1000)
    # The first one is under way until there is room, and so the others wait behind it.
    lines = [b"x" * MORE_THAN_A_PIPE_HOLDS, b"second", b"third"]
    sent = asyncio.gather(*map(streams.send, lines), return_exceptions=True)
    await anyio.lowlevel.checkpoint()
    os.close(taking)
    try:
        with anyio.fail_after(PATIENCE_S):
            outcomes = await sent
        assert [type(outcome) for outcome in outcomes] == [errors.ConnectionLost] * 3
        assert streams.broken.is_set()
        with pytest.raises(errors.ConnectionLost):
            await streams.send(b"fourth")
    finally:
        os.close(giving)
        os.close(taken)
