"""What tools one upstream has, and which arguments of them are mirrored in headers. Not here:
names."""

import logging
from collections.abc import Mapping

from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map

from ..domain.events import Json
from .upstream_link import Link
from .upstream_lists import FRESH_S, Definitions, KnownList

logger = logging.getLogger(__name__)


class Catalogue(KnownList):
    """The tools: of two of the same name the first. They are known before every call, so they are
    kept for FRESH_S whatever the upstream says."""

    def __init__(self) -> None:
        super().__init__("tools", kept_s=FRESH_S)
        self._header_maps: dict[str, dict[tuple[str, ...], str]] = {}

    def param_headers(self, tool: str, arguments: Mapping[str, Json]) -> Mapping[str, str]:
        """The headers that mirror arguments of this tool; none for a tool that was never listed."""
        header_map = self._header_maps.get(tool)
        return mcp_param_headers(header_map, arguments) if header_map else {}

    def fitted(self, link: Link, entries: Definitions) -> Definitions:
        """See KnownList."""
        found: dict[str, dict[str, Json]] = {}
        for entry in entries:
            if isinstance(name := entry.get("name"), str):
                found.setdefault(name, entry)
        if link.is_modern and link.settings.url is not None:
            found = {name: entry for name, entry in found.items() if _has_valid_headers(entry)}
        self._header_maps = {n: x_mcp_header_map(d.get("inputSchema")) for n, d in found.items()}
        return tuple(found.values())


def _has_valid_headers(definition: dict[str, Json]) -> bool:
    reason = find_invalid_x_mcp_header(definition.get("inputSchema"))
    if reason is not None:
        logger.warning("tool %r is left out: x-mcp-header %s", definition["name"], reason)
    return reason is None
