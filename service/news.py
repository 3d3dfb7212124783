"""Reading a running call's news one item at a time, without losing one when the reader changes."""

import asyncio
from collections import deque
from collections.abc import Callable

from ..domain.ports import CallNews, Logged, Progress, RunningCall

Tell = Callable[[Progress | Logged], None]


class NewsReader:
    """Holds the one pending read of a call, so that whoever waits may stop waiting at any time."""

    def __init__(self, call: RunningCall) -> None:
        self.call = call
        self._news = call.news()
        self._put_back: deque[CallNews] = deque()
        self._pending: asyncio.Future[CallNews | None] | None = None

    def pending(self) -> "asyncio.Future[CallNews | None]":
        """The next item, to be waited for and then taken; None once the news has ended."""
        if self._pending is None:
            self._pending = asyncio.ensure_future(self._next())
        return self._pending

    def take(self) -> CallNews | None:
        """The item of a finished `pending`. Raises UpstreamUnavailable when the call broke off."""
        done, self._pending = self.pending(), None
        return done.result()

    def put_back(self, item: CallNews) -> None:
        """Let the next reader see this item first. Only between `take` and the next `pending`."""
        self._put_back.append(item)

    async def next(self, tell: Tell, give_up_at: float | None = None) -> CallNews | None:
        """The next item that is not merely to be told; None at the end. Raises TimeoutError, and
        UpstreamUnavailable when the call broke off.
        """
        while True:
            async with asyncio.timeout_at(give_up_at):
                await asyncio.wait({self.pending()})
            item = self.take()
            if not isinstance(item, Progress | Logged):
                return item
            tell(item)

    async def abandon(self) -> None:
        """Cancel the call, if it is not over, and stop reading."""
        try:
            await self.call.cancel()
        finally:  # whoever waits for the end of the call may be cancelled meanwhile
            await self.close()

    async def close(self) -> None:
        """Stop reading."""
        try:
            if self._pending is not None:
                self._pending.cancel()
                await asyncio.gather(self._pending, return_exceptions=True)
        finally:
            close = getattr(self._news, "aclose", None)
            if close is not None:
                await close()

    async def _next(self) -> CallNews | None:
        if self._put_back:
            return self._put_back.popleft()
        return await anext(self._news, None)
