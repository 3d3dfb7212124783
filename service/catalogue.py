"""What clients see of the upstreams' lists, and whether a call's arguments fit a tool's schema."""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jsonschema_rs import Validator
from mcp.shared.inbound import x_mcp_header_map

from ..domain import errors
from ..domain.passing import Kind, Listing, PassThrough
from ..domain.ports import Tool, Upstreams
from . import schemas

PAGE_SIZE = 100
SCHEMAS_MAX = 1_000
UNAVAILABLE_KEY = "dev.outlast/unavailable"  # in `_meta`: the upstreams that an answer is without

# What the result of each list calls its entries, and what tells one entry from the next.
_MEMBERS: Mapping[Kind, tuple[str, str]] = {
    "tools": ("tools", "name"),
    "resources": ("resources", "uri"),
    "resource_templates": ("resourceTemplates", "uriTemplate"),
    "prompts": ("prompts", "name"),
}


class Lists:
    """The merged lists in pages. The adapter caches; nothing is kept here."""

    def __init__(
        self, passing: PassThrough, is_bridged: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._passing, self._is_bridged = passing, is_bridged

    async def page(self, kind: Kind, cursor: Any) -> dict[str, Any] | None:
        """One page as a result; None for a list that no upstream offers.

        While upstreams are down, the others' entries, and which ones are missing. The cursor holds
        the place and the name of the last entry of its page. Raises InvalidCall for one that we did
        not make and for one whose entry is gone: the client lists again from the start.
        """
        listing = await self._passing.listed(kind)
        if not (listing.is_offered or listing.unavailable):
            return None
        member, key = _MEMBERS[kind]
        first = _place_after(cursor, kind, [str(entry.get(key)) for entry in listing.entries])
        entries = listing.entries[first : first + PAGE_SIZE]
        if kind == "tools":
            entries = [self._shown(entry) for entry in entries]
        page = {member: entries, **_hints(listing)}
        if first + len(entries) < len(listing.entries):
            page["nextCursor"] = _cursor(kind, first + len(entries), str(entries[-1].get(key)))
        return page

    def _shown(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        """The tool's definition. What a bridged one's task ends with is another tool's result, and
        a client would hold it against the schema of the answer that names the job."""
        if "outputSchema" not in tool or not self._is_bridged(str(tool.get("name"))):
            return tool
        return {key: value for key, value in tool.items() if key != "outputSchema"}


class Catalogue:
    """The merged tools of all upstreams. The adapter caches; here each schema is compiled once."""

    def __init__(
        self, upstreams: Upstreams, upstream_of: Callable[[str], str | None] = lambda _: None
    ) -> None:
        self._upstreams, self._upstream_of = upstreams, upstream_of
        self._listed: Sequence[Tool] = ()
        self._by_name: Mapping[str, Tool] = {}
        self._schemas: dict[str, Schema] = {}

    async def find(self, name: str) -> Tool:
        """The tool of this name. Raises InvalidCall, and UpstreamUnavailable for one of an upstream
        that is down."""
        found = await self._found(name)
        if found is None:
            upstream = self._upstream_of(name)
            if upstream is not None:
                await self._upstreams.ready(upstream)
                found = await self._found(name)  # it may be there only now
        if found is None:
            raise errors.InvalidCall(f"Unknown tool: {name}")
        return found

    def accepts(self, tool: Tool, arguments: Mapping[str, Any]) -> bool:
        """True when they fit `inputSchema`; False also for a schema that cannot be used."""
        return schemas.fits(self._schema(tool).validator, arguments)

    def is_mirrored(self, tool: Tool) -> bool:
        """True when a call repeats arguments of this tool in headers, against which they are held.

        To find that out is to walk the whole schema, which most calls are so spared.
        """
        return self._schema(tool).is_mirrored

    async def _found(self, name: str) -> Tool | None:
        tools = await self._upstreams.tools()
        if tools is not self._listed:
            self._listed, self._by_name = tools, {tool.name: tool for tool in tools}
        return self._by_name.get(name)

    def _schema(self, tool: Tool) -> "Schema":
        given = tool.definition.get("inputSchema")
        known = self._schemas.get(tool.name)
        if known is not None and (known.given is given or known.given == given):
            return known
        if len(self._schemas) >= SCHEMAS_MAX:
            self._schemas.clear()
        known = self._schemas[tool.name] = Schema(given)
        return known


@dataclass(frozen=True)
class Schema:
    """The `inputSchema` of a tool as it was given, and what is found out of it once."""

    given: Any

    @cached_property
    def validator(self) -> Validator | None:
        """None for a schema that cannot be used."""
        return schemas.compiled(self.given or {})

    @cached_property
    def is_mirrored(self) -> bool:
        """See `Catalogue.is_mirrored`."""
        return bool(x_mcp_header_map(self.given))


def _hints(listing: Listing) -> dict[str, Any]:
    hints: dict[str, Any] = {"ttlMs": listing.ttl_ms, "cacheScope": listing.scope}
    if listing.unavailable:
        hints["_meta"] = {UNAVAILABLE_KEY: list(listing.unavailable)}
    return hints


def _cursor(kind: Kind, place: int, name: str) -> str:
    text = f"{kind}:{place}:{name}"
    return base64.urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).decode()


def _place_after(cursor: Any, kind: Kind, names: Sequence[str]) -> int:
    if cursor is None:
        return 0
    try:
        text = base64.b64decode(cursor, altchars=b"-_", validate=True)
        of, place, name = text.decode("utf-8", "surrogatepass").split(":", 2)
        if of != kind:
            raise ValueError(of)
        if int(place) < 1:
            raise ValueError(place)
        # By its place, as long as it is there: some servers list a name twice.
        known, last = int(place), int(place) - 1
        return known if names[last : last + 1] == [name] else names.index(name) + 1
    except (TypeError, ValueError):  # not a string, not base64, not UTF-8, or no such entry
        raise errors.InvalidCall("The cursor is not valid") from None
