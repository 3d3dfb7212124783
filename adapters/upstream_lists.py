"""One list of one upstream: read page by page, kept for a while, as it came. Not here: names.

A reading belongs to none of those who wait for it: each waits for as long as it likes, and what
becomes of the reading is every one's. So a server that never answers is asked once at a time, and
holds up nobody for longer than they said.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import orjson
from mcp import MCPError
from mcp_types import METHOD_NOT_FOUND

from ..domain import errors
from ..domain.events import Json
from ..domain.passing import Kind
from .upstream_backoff import backoff_s
from .upstream_http import FATE, Fate
from .upstream_link import Link
from .upstream_watch import PROMPTS, RESOURCES, TOOLS

FRESH_S = 60.0
LIST_S_MAX = 30.0  # for all pages together
# Who can do without a list waits no longer for one that failed last time. It is read all the same.
RETRIED_WAIT_S_MAX = 0.5
PAGES_MAX = 200  # a paginator that never ends is cut off here
ENTRIES_MAX = 20_000  # of one list; the rest is left out

Definitions = tuple[dict[str, Json], ...]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shape:
    """How a kind of list is asked for, and which announcement tells of its changes."""

    method: str
    key: str
    capability: str
    topic: str


SHAPES: Mapping[Kind, Shape] = {
    "tools": Shape("tools/list", "tools", "tools", TOOLS),
    "resources": Shape("resources/list", "resources", "resources", RESOURCES),
    "resource_templates": Shape(
        "resources/templates/list", "resourceTemplates", "resources", RESOURCES
    ),
    "prompts": Shape("prompts/list", "prompts", "prompts", PROMPTS),
}


class Stale(errors.UpstreamUnavailable):
    """The connection that was to list something serves no more."""


@dataclass(frozen=True)
class Part:
    """What one upstream lists, and what it says of how long and for whom that is good."""

    entries: Definitions
    ttl_ms: int
    is_public: bool


@dataclass(frozen=True)
class Wish:
    """Since when a list is wanted; `within_s` bounds the wait, also from the reading's beginning:
    who comes late waits for the rest of it."""

    since: float
    within_s: float | None = None

    def left_s(self, began: float) -> float | None:
        """How long a reading that began then is still waited for."""
        if self.within_s is None:
            return None
        return max(0.0, self.within_s - (time.monotonic() - min(began, self.since)))


@dataclass(frozen=True, eq=False)
class Reading:
    """One that is under way on a connection, and when it began."""

    link: Link
    began: float
    task: asyncio.Task[None]


@dataclass(frozen=True)
class Failure:
    """The last reading on this connection, and all before it in a row, came to nothing."""

    link: Link
    reason: str
    count: int
    not_before: float


class KnownList:
    """What was read last: the same tuple until something else is read.

    It is good for as long as the upstream said, and for FRESH_S where the upstream tells of its
    changes, which `outdated` notes: of those since it was read, and so could be told of them then.
    `kept_s` is how long it is good in any case.
    """

    def __init__(self, kind: Kind, kept_s: float = 0.0) -> None:
        self.shape = SHAPES[kind]
        self.entries: Definitions = ()
        self.outdated = False
        self._kept_s = kept_s
        self._ttl_ms, self._is_public = 0, False
        self._read_on: Link | None = None
        self._read_at = 0.0
        self._hearing: int | None = None  # in which of the link's hearings it was read
        self._reading: Reading | None = None
        self._failure: Failure | None = None

    def is_fresh(self, link: Link, since: float | None = None) -> bool:
        """True when it need not be read again on this connection.

        What was read since somebody asked is good for them, whatever its time.
        """
        if self._reading is not None or self.outdated or link is not self._read_on:
            return False
        if since is not None and self._read_at >= since:
            return True
        age_s = time.monotonic() - self._read_at
        return age_s <= self._kept_s or age_s <= self._good_s(link)

    def part(self, link: Link) -> Part:
        """What was read on this connection, for clients: what they are told of it ages as it
        does, unless they are told of its changes."""
        age_s = 0 if self._is_announced(link) else int(time.monotonic() - self._read_at)
        return Part(self.entries, max(0, self._ttl_ms - age_s * 1000), self._is_public)

    def forget(self) -> None:
        """The server knows it otherwise: read it again before the next use."""
        self.outdated = True

    async def read_on(self, link: Link, wish: Wish) -> None:
        """Return once it is known on this connection as well as was wished.

        Raises UpstreamUnavailable, or Stale when another connection may do better.
        """
        while not self.is_fresh(link, wish.since):
            reading = self._reading_on(link)
            await self._over(reading, wish)
            if reading.began >= wish.since:
                return  # whatever has been told since

    async def close(self) -> None:
        """Read no more."""
        if self._reading is not None:
            self._reading.task.cancel()
            await asyncio.wait({self._reading.task})

    def _reading_on(self, link: Link) -> Reading:
        """The one that is under way, or a new one. Raises UpstreamUnavailable while none is tried
        again."""
        reading, failure, now = self._reading, self._failure, time.monotonic()
        if reading is not None:
            if reading.link is link and not reading.task.done():
                return reading
            reading.task.cancel()
        if failure is not None and failure.link is link and now < failure.not_before:
            raise errors.UpstreamUnavailable(link.settings.name, failure.reason)
        self.outdated = False  # first: a change that is told while we read asks for more
        reading = Reading(link, now, asyncio.create_task(self._read(link, now)))
        self._reading = reading
        reading.task.add_done_callback(partial(self._settle, reading))
        return reading

    async def _over(self, reading: Reading, wish: Wish) -> None:
        """Wait for a reading, as long as it is wished, and share what becomes of it."""
        within_s, link = wish.within_s, reading.link
        if within_s is not None and self._failure is not None and self._failure.link is link:
            wish = replace(wish, within_s=min(within_s, RETRIED_WAIT_S_MAX))
        await asyncio.wait({reading.task}, timeout=wish.left_s(reading.began))
        if not reading.task.done():
            reason = f"{self.shape.method} has not been answered for {within_s:g} s"
            raise errors.UpstreamUnavailable(link.settings.name, reason)
        if reading.task.cancelled():
            raise Stale(link.settings.name, "the connection has been replaced")
        error = reading.task.exception()
        if isinstance(error, errors.UpstreamUnavailable):
            raise type(error)(error.upstream, error.reason) from error  # each has its own traceback
        if error is not None:
            raise error

    def _settle(self, reading: Reading, task: asyncio.Task[None]) -> None:
        """Keep what became of the reading. One that another has replaced says nothing."""
        error = None if task.cancelled() else task.exception()
        if self._reading is not reading:
            return
        self._reading = None
        if error is None and not task.cancelled():
            self._failure = None
            return
        self.outdated = True
        if isinstance(error, errors.UpstreamUnavailable):
            before, link = self._failure, reading.link
            count = 1 + (before.count if before is not None and before.link is link else 0)
            # One more than there were: to ask again at once has just cost others their wait.
            not_before = time.monotonic() + backoff_s(count + 1)
            self._failure = Failure(link, error.reason, count, not_before)

    async def _read(self, link: Link, began: float) -> None:
        hearing = link.hearings if link.hears.is_set() else None
        try:
            async with asyncio.timeout(LIST_S_MAX):
                pages = await self._pages(link)
        except TimeoutError:
            reason = f"{self.shape.method} was not answered within {LIST_S_MAX:g} s"
            raise errors.UpstreamUnavailable(link.settings.name, reason) from None
        entries = [entry for page in pages for entry in _entries(page, self.shape.key)]
        if len(entries) > ENTRIES_MAX:
            logger.warning("upstream %s lists more than %d", link.settings.name, ENTRIES_MAX)
            entries = entries[:ENTRIES_MAX]
        self.entries = _kept(self.entries, self.fitted(link, tuple(entries)))
        self._ttl_ms = min((_ttl_ms(page) for page in pages), default=0)
        self._is_public = all(page.get("cacheScope") == "public" for page in pages)
        self._read_on, self._read_at, self._hearing = link, began, hearing

    def fitted(self, link: Link, entries: Definitions) -> Definitions:
        """What of the entries is used."""
        del link
        return entries

    def _good_s(self, link: Link) -> float:
        return FRESH_S if self._is_announced(link) else min(FRESH_S, self._ttl_ms / 1000)

    def _is_announced(self, link: Link) -> bool:
        is_heard = link.hears.is_set() and link.hearings == self._hearing
        return is_heard and self.shape.topic in link.lists

    async def _pages(self, link: Link) -> list[dict[str, Json]]:
        fate = Fate()
        token = FATE.set(fate)
        try:
            return await _all_pages(link, self.shape)
        except MCPError as error:
            if fate.session_gone or fate.lost:
                reason = fate.lost or "the session has ended"
                raise Stale(link.settings.name, reason) from error
            if link.is_over:
                raise link.unavailable() from error
            if error.code != METHOD_NOT_FOUND:
                raise errors.UpstreamUnavailable(link.settings.name, error.message) from error
            return []  # a server without such a list
        finally:
            FATE.reset(token)


async def _all_pages(link: Link, shape: Shape) -> list[dict[str, Json]]:
    pages: list[dict[str, Json]] = []
    cursor: Json = None
    while len(pages) < PAGES_MAX:
        page = await link.request(shape.method, {} if cursor is None else {"cursor": cursor}, {})
        pages.append(page)
        cursor = page.get("nextCursor")
        if cursor is None:
            return pages
    logger.warning("upstream %s lists more than %d pages", link.settings.name, PAGES_MAX)
    return pages


def _kept(before: Definitions, now: Definitions) -> Definitions:
    """What was there before, if it is the same to the reader of its JSON (1 is not true)."""
    try:
        is_same = len(before) == len(now) and orjson.dumps(before) == orjson.dumps(now)
    except orjson.JSONEncodeError:  # an integer beyond 64 bits, say
        return now
    return before if is_same else now


def _entries(page: Mapping[str, Json], key: str) -> list[dict[str, Json]]:
    given = page.get(key)
    items = cast(list[Any], given) if isinstance(given, list) else []
    return [cast(dict[str, Json], item) for item in items if isinstance(item, dict)]


def _ttl_ms(page: Mapping[str, Json]) -> int:
    given = page.get("ttlMs")
    return max(0, given) if isinstance(given, int) else 0
