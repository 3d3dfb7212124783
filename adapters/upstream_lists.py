"""One list of one upstream: read page by page, kept for a while, as it came. Not here: names."""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from mcp import MCPError
from mcp_types import METHOD_NOT_FOUND

from ..domain import errors
from ..domain.events import Json
from ..domain.passing import Kind
from .upstream_http import FATE, Fate
from .upstream_link import Link
from .upstream_watch import PROMPTS, RESOURCES, TOOLS

FRESH_S = 60.0
LIST_S_MAX = 30.0  # for all pages together
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


class KnownList:
    """What was read last: the same tuple until it is read again.

    It is good for as long as the upstream said, and for FRESH_S where the upstream tells of its
    changes, which `outdated` notes. `kept_s` is how long it is good in any case.
    """

    def __init__(self, kind: Kind, kept_s: float = 0.0) -> None:
        self.shape = SHAPES[kind]
        self.entries: Definitions = ()
        self.outdated = False
        self.turn = asyncio.Lock()  # who reads it
        self._kept_s = kept_s
        self._ttl_ms, self._is_public = 0, False
        self._read_on: Link | None = None
        self._read_at = 0.0

    def is_fresh(self, link: Link, since: float | None = None) -> bool:
        """True when it need not be read again on this connection.

        What was read since somebody asked is good for them, whatever its time.
        """
        if self.outdated or link is not self._read_on:
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
        self._read_on = None

    async def read_on(self, link: Link) -> None:
        """Read all of it on this connection.

        Raises UpstreamUnavailable, or Stale when another connection may do better.
        """
        self.outdated = False  # first: a change that is told while we read asks for more
        began = time.monotonic()
        try:
            async with asyncio.timeout(LIST_S_MAX):
                pages = await self._pages(link)
        except BaseException as error:
            self.outdated = True
            if not isinstance(error, TimeoutError):
                raise
            reason = f"{self.shape.method} was not answered within {LIST_S_MAX:g} s"
            raise errors.UpstreamUnavailable(link.settings.name, reason) from None
        entries = [entry for page in pages for entry in _entries(page, self.shape.key)]
        if len(entries) > ENTRIES_MAX:
            logger.warning("upstream %s lists more than %d", link.settings.name, ENTRIES_MAX)
            entries = entries[:ENTRIES_MAX]
        self.entries = self.fitted(link, tuple(entries))
        self._ttl_ms = min((_ttl_ms(page) for page in pages), default=0)
        self._is_public = all(page.get("cacheScope") == "public" for page in pages)
        self._read_on, self._read_at = link, began

    def fitted(self, link: Link, entries: Definitions) -> Definitions:
        """What of the entries is used."""
        del link
        return entries

    def _good_s(self, link: Link) -> float:
        return FRESH_S if self._is_announced(link) else min(FRESH_S, self._ttl_ms / 1000)

    def _is_announced(self, link: Link) -> bool:
        return self.shape.topic in link.lists and link.hears.is_set()

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


def _entries(page: Mapping[str, Json], key: str) -> list[dict[str, Json]]:
    given = page.get(key)
    items = cast(list[Any], given) if isinstance(given, list) else []
    return [cast(dict[str, Json], item) for item in items if isinstance(item, dict)]


def _ttl_ms(page: Mapping[str, Json]) -> int:
    given = page.get("ttlMs")
    return max(0, given) if isinstance(given, int) else 0
