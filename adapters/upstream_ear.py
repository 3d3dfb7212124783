"""One upstream, listened to for as long as somebody wants to know: connected, and subscribed to
just the resources that are wanted. Not here: who is woken."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextvars import Context
from typing import Protocol

from mcp import MCPError

from ..domain import errors
from .upstream_backoff import backoff_s, failures_after
from .upstream_http import FATE, Fate
from .upstream_link import Link
from .upstream_watch import SUBSCRIPTIONS

OFFER_S_MAX = 5.0  # an upstream that takes longer to connect offers nothing until it has
ANSWER_S_MAX = 10.0  # of one subscription
ASKS_AT_ONCE_MAX = 16
DEAF_S_MAX = 5.0  # an HTTP session whose stream is gone for longer is given up
RETRY_S_MIN = 0.5

logger = logging.getLogger(__name__)


class Source(Protocol):
    """The upstream, as its ear sees it."""

    async def open_shared(self) -> Link:
        """The connection that all may use. Raises UpstreamUnavailable."""
        ...

    def retire(self, link: Link) -> None:
        """This connection is of no more use."""
        ...

    def pause_s(self) -> float:
        """How long no attempt to connect will be made."""
        ...


class Ear:
    """Listens to one upstream. `tell` is called with every topic that may have moved."""

    def __init__(self, source: Source, tell: Callable[[str], None]) -> None:
        self._source, self._tell = source, tell
        self._listeners = 0
        self._wanted: Counter[str] = Counter()
        self._hearing = 0  # of the connection's hearings the one that is known of
        self._nudged, self._settled = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def offers(self) -> frozenset[str]:
        """What the upstream announces; nothing while it cannot be reached."""
        with contextlib.suppress(errors.UpstreamUnavailable, TimeoutError):
            async with asyncio.timeout(OFFER_S_MAX):
                return (await self._source.open_shared()).offers
        return frozenset()

    def begin(self, uris: Collection[str]) -> None:
        """One more listener, and the resources that it wants to know of. `end` undoes it."""
        self._listeners += 1
        self._wanted.update(uris)
        self._settled.clear()
        self._nudged.set()
        if self._closed:
            self._settled.set()
        elif self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), context=Context())

    def end(self, uris: Collection[str]) -> None:
        """One listener less. What nobody wants any more is unsubscribed, soon after."""
        self._listeners -= 1
        self._wanted.subtract(uris)
        self._wanted = +self._wanted
        self._nudged.set()

    async def settled(self) -> None:
        """Return once all that is wanted is heard, or the upstream has turned out to be down."""
        await self._settled.wait()

    def nudge(self) -> None:
        """Something about the connection is different: look at it."""
        self._nudged.set()

    async def close(self) -> None:
        """Stop at once; the connection is about to end anyway."""
        self._closed = True
        self._settled.set()
        await _ended(self._task)

    async def _run(self) -> None:
        # What fails over HTTP shall fail alone and not end the connection.
        FATE.set(Fate())
        failures = 0
        while self._listeners:
            self._nudged.clear()
            began, is_lost = time.monotonic(), True
            try:
                link = await self._source.open_shared()
            except errors.UpstreamUnavailable:
                self._settled.set()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(RETRY_S_MIN, self._source.pause_s())):
                        await self._nudged.wait()
                continue
            try:
                await self._listen_on(link)
                is_lost = link.is_left  # else nobody listened for a moment: that is no failure
            except Exception:
                logger.exception("upstream %s: listening failed", link.settings.name)
            if self._listeners:
                lived_s = time.monotonic() - began
                failures = failures_after(failures, lived_s) if is_lost else 0
                await asyncio.sleep(backoff_s(failures))  # noqa: TID251 - before the next try

    async def _listen_on(self, link: Link) -> None:
        """Until the connection has had its day, or nobody listens."""
        cover = _Streamed(link) if link.is_modern else _Requested(link, self._source)
        try:
            # What was announced before this connection was there is not known.
            self._hearing = link.hearings
            self._tell_all(link.lists)
            while self._listeners and not link.is_left and await self._is_heard(link):
                self._nudged.clear()
                if SUBSCRIPTIONS in link.offers:
                    self._tell_all(await cover.cover(frozenset(self._wanted)))
                if not self._nudged.is_set():
                    self._settled.set()
                await self._nudged.wait()
            if not link.is_left:
                await cover.cover(frozenset())
        finally:
            await cover.close()

    async def _is_heard(self, link: Link) -> bool:
        """False once another connection is needed."""
        was_deaf = not link.hears.is_set()
        if was_deaf:
            try:
                async with asyncio.timeout(DEAF_S_MAX):
                    await link.hears.wait()
            except TimeoutError:
                if link.hearings:
                    self._source.retire(link)
                link.hears.set()  # without a session nothing is told: wait no more
                was_deaf = False
        # It may have been deaf also while we waited for something else.
        if was_deaf or self._hearing != link.hearings:
            self._hearing = link.hearings
            self._tell_all(link.lists | frozenset(self._wanted))
        return not link.is_left

    def _tell_all(self, topics: Collection[str]) -> None:
        for topic in topics:
            self._tell(topic)


class _Streamed:
    """The wanted resources of a modern server: one stream names them all."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._uris: frozenset[str] = frozenset()
        self._task: asyncio.Task[None] | None = None

    async def cover(self, uris: frozenset[str]) -> frozenset[str]:
        """Subscribe to just these; returns those that were not subscribed to before."""
        if uris == self._uris:
            return frozenset()
        before, self._task = self._task, None
        added, self._uris = uris - self._uris, uris
        try:
            if uris:
                stream = self._link.stream(uris)
                self._task = asyncio.create_task(stream.run())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ANSWER_S_MAX):
                        await stream.tried.wait()
        finally:  # only now, so that nothing falls between the two
            await _ended(before)
        return added

    async def close(self) -> None:
        await _ended(self._task)


class _Requested:
    """The wanted resources of a legacy server: one request for each."""

    def __init__(self, link: Link, source: Source) -> None:
        self._link, self._source = link, source
        self._granted: dict[str, bool] = {}
        self._turn = asyncio.Semaphore(ASKS_AT_ONCE_MAX)

    async def cover(self, uris: frozenset[str]) -> frozenset[str]:
        """As `_Streamed.cover`. What was refused is asked for again once all have let go of it."""
        dropped = [uri for uri in self._granted if uri not in uris]
        added = [uri for uri in uris if uri not in self._granted]
        let_go = [uri for uri in dropped if self._granted.pop(uri)]
        answers = await asyncio.gather(
            *(self._ask("resources/subscribe", uri) for uri in added),
            *(self._ask("resources/unsubscribe", uri) for uri in let_go),
        )
        self._granted.update(zip(added, answers, strict=False))
        return frozenset(uri for uri in added if self._granted[uri])

    async def close(self) -> None:
        """There is nothing to end: the server forgets with the connection."""

    async def _ask(self, method: str, uri: str) -> bool:
        fate = Fate()
        FATE.set(fate)
        async with self._turn:
            try:
                async with asyncio.timeout(ANSWER_S_MAX):
                    await self._link.request(method, {"uri": uri}, {})
            except TimeoutError:
                return True  # it may have been granted
            except MCPError:
                if fate.session_gone or fate.lost:
                    self._source.retire(self._link)
                return False
            return True


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
