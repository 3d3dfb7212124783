"""A reader of a call's news that is cut off while it lets go of the call."""

import asyncio
from collections.abc import AsyncIterator

import anyio
import pytest

from outlast.domain.ports import CallNews, Progress, RunningCall
from outlast.service.news import NewsReader
from outlast.service.waits import turns

pytestmark = pytest.mark.anyio

SOON_S = 20.0


class Stubborn(RunningCall):
    """A call that takes its time to stop; it says one thing, and whether it is being read."""

    def __init__(self) -> None:
        self.stopping, self.may_stop = asyncio.Event(), asyncio.Event()
        self.is_read = False

    async def news(self) -> AsyncIterator[CallNews]:
        self.is_read = True
        try:
            yield Progress(1.0, None, None)
            await asyncio.Event().wait()
        finally:
            self.is_read = False

    async def cancel(self) -> None:
        self.stopping.set()
        await self.may_stop.wait()


async def test_who_is_cut_off_while_the_call_stops_leaves_no_read_behind():
    """Found: the read that was pending stayed so, and was nobody's."""
    call = Stubborn()
    reader = NewsReader(call)
    with anyio.fail_after(SOON_S):
        await asyncio.wait({reader.pending()})
        reader.take()
        pending = reader.pending()
        leaving = asyncio.create_task(reader.abandon())
        await call.stopping.wait()
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
    assert pending.done()
    assert not call.is_read


async def test_who_is_cut_off_while_the_read_stops_leaves_the_news_closed():
    call = Stubborn()
    reader = NewsReader(call)
    with anyio.fail_after(SOON_S):
        await asyncio.wait({reader.pending()})  # there, and not taken
        closing = asyncio.create_task(reader.close())
        await asyncio.sleep(0)  # noqa: TID251 - one turn: it has begun to close, and no more
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await turns()
    assert not call.is_read
