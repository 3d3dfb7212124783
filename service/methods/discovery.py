"""`server/discover` and `tools/list`: what this server is and what it offers."""

from typing import Any

from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from ...domain.draft import EVENTS_EXTENSION
from ...domain.extension import TASKS_EXTENSION
from ..catalogue import Catalogue
from ..exchange import Exchange
from ..jsonrpc import dumps

DISCOVER_TTL_MS = 3_600_000
TOOLS_TTL_MS = 60_000  # as long as the catalogue itself may be old

INSTRUCTIONS = (
    "Slow tools run as durable tasks: declare the extension io.modelcontextprotocol/tasks on the "
    "call, keep the task id, and poll tasks/get until the task has ended."
)


class DiscoveryMethods:
    """Both answers are the same for every caller, and say so in `cacheScope`."""

    def __init__(self, catalogue: Catalogue, *, has_events: bool = False) -> None:
        self._catalogue = catalogue
        self._discover = dumps(
            {
                "supportedVersions": list(MODERN_PROTOCOL_VERSIONS),
                "capabilities": _capabilities(has_events=has_events),
                "instructions": INSTRUCTIONS,
                "ttlMs": DISCOVER_TTL_MS,
                "cacheScope": "public",
            }
        )

    async def discover(self, exchange: Exchange) -> bytes:
        """Versions, capabilities, identity. Answers while every upstream and the store are down."""
        del exchange
        return self._discover

    async def tools(self, exchange: Exchange) -> bytes:
        """One page of the merged catalogue."""
        definitions, cursor = await self._catalogue.page(exchange.params.get("cursor"))
        page = {"tools": definitions, "ttlMs": TOOLS_TTL_MS, "cacheScope": "public"}
        return dumps(page if cursor is None else {**page, "nextCursor": cursor})


def _capabilities(*, has_events: bool) -> dict[str, Any]:
    capabilities: dict[str, Any] = {
        "tools": {"listChanged": True},
        "extensions": {TASKS_EXTENSION: {}},
    }
    if has_events:
        # In both forms: the draft's own, and the one that other servers of this revision show.
        capabilities["events"] = {"listChanged": False}
        capabilities["extensions"][EVENTS_EXTENSION] = {}
    return capabilities
