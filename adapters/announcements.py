"""What upstreams announce, for the waiters of this process. Not here: how it is heard."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from .bus import BusWakeup
from .upstream import McpUpstreams

SETTLE_S_MAX = 2.0  # a listener waits this long for what it wants to be subscribed to


class UpstreamAnnouncements:
    """`Announcements` on the connections of `McpUpstreams`, which ends them all on its close.

    What could not be subscribed to in time is subscribed to later, and that wakes: from the first
    moment on a listener either hears a change, or is told that there may have been one.
    """

    def __init__(self, upstreams: McpUpstreams) -> None:
        self._upstreams = upstreams

    async def offered(self) -> frozenset[str]:
        """See Announcements."""
        offers = await asyncio.gather(*(ear.offers() for ear in self._upstreams.ears))
        return frozenset[str]().union(*offers)

    @asynccontextmanager
    async def listening(self, topics: frozenset[str]) -> AsyncGenerator[BusWakeup]:
        """See Announcements."""
        ears = self._upstreams.ears_for(topics)
        for ear, uris in ears:
            ear.begin(uris)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S_MAX):
                    await asyncio.gather(*(ear.settled() for ear, _ in ears))
            async with self._upstreams.heard.waiting_for(topics) as waiter:
                yield waiter
        finally:
            for ear, uris in ears:
                ear.end(uris)
