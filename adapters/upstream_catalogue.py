"""What tools one upstream has: read page by page, kept for a while, as they came. Not here:
names."""

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mcp import MCPError
from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from mcp_types import METHOD_NOT_FOUND

from ..domain import errors
from ..domain.events import Json
from .upstream_http import FATE, Fate
from .upstream_link import Link

FRESH_S = 60.0
LIST_S_MAX = 30.0  # for all pages together
PAGES_MAX = 200  # a paginator that never ends is cut off here

logger = logging.getLogger(__name__)


class Catalogue:
    """The tools of one upstream, as listed last."""

    def __init__(self) -> None:
        self.definitions: list[dict[str, Json]] = []
        self._listed_on: Link | None = None
        self._listed_at = 0.0
        self._header_maps: dict[str, dict[tuple[str, ...], str]] = {}

    def is_fresh(self, link: Link) -> bool:
        """True when it was listed on this very connection, not long ago."""
        return link is self._listed_on and time.monotonic() - self._listed_at <= FRESH_S

    def forget(self) -> None:
        """The server knows its tools otherwise: list them again before the next use."""
        self._listed_on = None

    def param_headers(self, tool: str, arguments: Mapping[str, Json]) -> Mapping[str, str]:
        """The headers that mirror arguments of this tool; none for a tool that was never listed."""
        header_map = self._header_maps.get(tool)
        return mcp_param_headers(header_map, arguments) if header_map else {}

    async def list_on(self, link: Link) -> None:
        """List all tools on this connection.

        Raises UpstreamUnavailable, or Stale when another connection may do better.
        """
        try:
            async with asyncio.timeout(LIST_S_MAX):
                found = await _listed(link)
        except TimeoutError:
            reason = f"its tools were not listed within {LIST_S_MAX:g} s"
            raise errors.UpstreamUnavailable(link.settings.name, reason) from None
        if link.is_modern and link.settings.url is not None:
            found = [definition for definition in found if _has_valid_headers(definition)]
        self._header_maps = {d["name"]: x_mcp_header_map(d.get("inputSchema")) for d in found}
        self.definitions, self._listed_on, self._listed_at = found, link, time.monotonic()


class Stale(errors.UpstreamUnavailable):
    """The connection that was to list the tools serves no more."""


async def _listed(link: Link) -> list[dict[str, Json]]:
    fate = Fate()
    token = FATE.set(fate)
    try:
        return await _all_pages(link)
    except MCPError as error:
        if fate.session_gone or fate.lost:
            reason = fate.lost or "the session has ended"
            raise Stale(link.settings.name, reason) from error
        if link.is_over:
            raise link.unavailable() from error
        if error.code != METHOD_NOT_FOUND:
            raise errors.UpstreamUnavailable(link.settings.name, error.message) from error
        return []  # a server without tools
    finally:
        FATE.reset(token)


async def _all_pages(link: Link) -> list[dict[str, Json]]:
    """Every entry with a name; of two with the same name the first."""
    found: dict[str, dict[str, Json]] = {}
    cursor: Json = None
    for _ in range(PAGES_MAX):
        page = await link.request("tools/list", {} if cursor is None else {"cursor": cursor}, {})
        entries: list[Any] = page.get("tools") or []
        for entry in entries:
            with suppress(KeyError, TypeError):
                found.setdefault(entry["name"], entry)
        cursor = page.get("nextCursor")
        if cursor is None:
            break
    else:
        logger.warning("upstream %s lists more than %d pages", link.settings.name, PAGES_MAX)
    return list(found.values())


def _has_valid_headers(definition: dict[str, Json]) -> bool:
    reason = find_invalid_x_mcp_header(definition.get("inputSchema"))
    if reason is not None:
        logger.warning("tool %r is left out: x-mcp-header %s", definition["name"], reason)
    return reason is None
