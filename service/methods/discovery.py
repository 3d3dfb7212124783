"""`server/discover` and `tools/list`: what this server is and what it offers."""

from collections.abc import Mapping
from typing import Any, cast

from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from ...domain.draft import EVENTS_EXTENSION
from ...domain.extension import TASKS_EXTENSION
from ...domain.passing import Offers, PassThrough
from ..catalogue import UNAVAILABLE_KEY, Lists
from ..exchange import Exchange

DISCOVER_TTL_MS = 60_000  # a new release of an upstream, with more to offer, is announced by nobody

INSTRUCTIONS = (
    "Slow tools run as durable tasks: declare the extension io.modelcontextprotocol/tasks on the "
    "call, keep the task id, and poll tasks/get until the task has ended."
)


class DiscoveryMethods:
    """What the upstreams say of themselves, and what Outlast adds. The same for every caller."""

    def __init__(self, passing: PassThrough, lists: Lists, *, has_events: bool = False) -> None:
        self._passing, self._lists, self._has_events = passing, lists, has_events
        self._told: tuple[Offers, dict[str, Any]] | None = None

    async def discover(self, exchange: Exchange) -> dict[str, Any]:
        """Versions, capabilities, identity. Answers while every upstream and the store are down.

        An upstream that hangs delays it by some seconds at most.
        """
        del exchange
        offers = await self._passing.offers()
        if self._told is None or self._told[0] is not offers:
            self._told = offers, self._result(offers)
        return self._told[1]

    async def tools(self, exchange: Exchange) -> dict[str, Any]:
        """One page of the merged catalogue, which is there however many tools are in it."""
        page = await self._lists.page("tools", exchange.params.get("cursor"))
        return page or {"tools": [], "ttlMs": 0, "cacheScope": "private"}

    def _result(self, offers: Offers) -> dict[str, Any]:
        given = offers.instructions
        result: dict[str, Any] = {
            "supportedVersions": list(MODERN_PROTOCOL_VERSIONS),
            "capabilities": self._capabilities(offers.capabilities),
            "instructions": f"{given}\n\n{INSTRUCTIONS}" if given else INSTRUCTIONS,
            "ttlMs": DISCOVER_TTL_MS,
            "cacheScope": "public",
        }
        if offers.unavailable:
            # What they offer may not be in: nobody shall keep it.
            result["ttlMs"] = 0
            result["_meta"] = {UNAVAILABLE_KEY: list(offers.unavailable)}
        return result

    def _capabilities(self, offered: Mapping[str, Any]) -> dict[str, Any]:
        extensions = cast(dict[str, Any], offered.get("extensions") or {})
        capabilities: dict[str, Any] = {
            "tools": {},
            **offered,
            "extensions": {**extensions, TASKS_EXTENSION: {}},
        }
        if self._has_events:
            # In both forms: the draft's own, and the one that other servers of this revision show.
            capabilities["events"] = {"listChanged": False}
            capabilities["extensions"][EVENTS_EXTENSION] = {}
        return capabilities
