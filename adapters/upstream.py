"""The upstream MCP servers on the official SDK's client, as one: what they list and offer together,
calls, and requests that are passed on. Not here: connections (`upstream_server.py`), public names
(`upstream_names.py`)."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Generic, Self, TypeVar, cast

from ..domain import errors
from ..domain.events import Json
from ..domain.passing import Forward, Kind, Listing, Offers
from ..domain.ports import Tool, ToolCall
from .bus import Bus
from .upstream_backoff import backoff_s
from .upstream_call import UpstreamCall
from .upstream_ear import OFFER_S_MAX, Ear
from .upstream_facts import offers_of
from .upstream_lists import Definitions, Part
from .upstream_names import Names
from .upstream_request import TOOL_CALL, Request, of_forward, of_tool
from .upstream_server import UpstreamServer
from .upstream_settings import UpstreamSettings
from .upstream_watch import LISTS

OTHERS_WAIT_S_MAX = 10.0  # for a connection, from its beginning: a list of several is then made
# without the one that is still being connected to

T = TypeVar("T")

__all__ = ["McpUpstreams", "UpstreamSettings", "backoff_s"]


class McpUpstreams:
    """`Upstreams` and `PassThrough` over stdio and Streamable HTTP, for one event loop."""

    def __init__(self, upstreams: Sequence[UpstreamSettings]) -> None:
        for settings in upstreams:
            _check(settings)
        self._names = Names([settings.name for settings in upstreams])
        self.heard = Bus()  # who waits for which announcement
        self._upstreams = {
            settings.name: UpstreamServer(settings, partial(self._told, settings.name))
            for settings in upstreams
        }
        self._within_s = OTHERS_WAIT_S_MAX if len(upstreams) > 1 else None
        self._tools = Merged(self._as_tools)
        self._definitions: tuple[Sequence[Tool], Sequence[Mapping[str, Json]]] = ((), ())
        self._lists: dict[Kind, Merged[dict[str, Json]]] = {}
        self._offers: tuple[object, Offers] | None = None
        self._calls: set[UpstreamCall] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def tools(self) -> Sequence[Tool]:
        """See Upstreams."""
        at_hand = {name: server.tools for name, server in self._upstreams.items()}
        if None not in at_hand.values():
            return self._tools.of(cast(Mapping[str, Definitions], at_hand))
        parts, _ = await self._parts("tools")
        return self._tools.of({name: part.entries for name, part in parts.items()})

    async def ready(self, upstream: str, capabilities: Mapping[str, Json] | None = None) -> None:
        """See Upstreams."""
        server = self._of(upstream)
        await server.listed("tools")
        server.refuse_crowd(capabilities or {})

    async def call(self, call: ToolCall) -> UpstreamCall:
        """See Upstreams."""
        public = partial(self._names.result, TOOL_CALL, call.upstream)
        return await self._begin(of_tool(call, public))

    async def forward(self, request: Forward) -> UpstreamCall:
        """See PassThrough."""
        upstream, params = request.upstream, request.params
        if upstream is None:
            upstream, params = self._names.of_params(request.method, request.params)
        public = partial(self._names.result, request.method, upstream)
        public_data = partial(self._names.error_data, upstream)
        return await self._begin(of_forward(request, upstream, params, public, public_data))

    async def listed(self, kind: Kind) -> Listing:
        """See PassThrough."""
        parts, down = await self._parts(kind)
        return Listing(
            entries=self._entries(kind, {name: part.entries for name, part in parts.items()}),
            is_offered=bool(parts),
            unavailable=down,
            ttl_ms=0 if down else min((part.ttl_ms for part in parts.values()), default=0),
            scope="public" if all(part.is_public for part in parts.values()) else "private",
        )

    async def offers(self) -> Offers:
        """See PassThrough."""
        seen = await asyncio.gather(*(_is_up(server) for server in self._upstreams.values()))
        down = [name for name, is_up in zip(self._upstreams, seen, strict=True) if not is_up]
        facts = {name: server.facts for name, server in self._upstreams.items()}
        if self._offers is None or self._offers[0] != (facts, down):
            self._offers = (facts, down), offers_of(facts, down)
        return self._offers[1]

    def upstream_of(self, name: str) -> str | None:
        """See PassThrough."""
        found = self._names.of_name(name)
        return None if found is None else found[0]

    async def close(self) -> None:
        """See Upstreams."""
        self._closed = True
        await asyncio.gather(*(call.cancel() for call in list(self._calls)))
        await asyncio.gather(*(server.close() for server in self._upstreams.values()))

    # --- announcements

    @property
    def ears(self) -> Sequence[Ear]:
        """What listens to each upstream."""
        return [server.ear for server in self._upstreams.values()]

    def ears_for(self, topics: frozenset[str]) -> Sequence[tuple[Ear, frozenset[str]]]:
        """What listens to those upstreams that could tell of these, and its resources among them,
        as the upstream calls them."""
        uris: dict[str, set[str]] = {name: set() for name in self._upstreams}
        for uri in topics - LISTS:
            found = self._names.of_uri(uri)
            if found is not None:
                uris[found[0]].add(found[1])
        return [
            (server.ear, frozenset(uris[name]))
            for name, server in self._upstreams.items()
            if uris[name] or topics & LISTS
        ]

    def _told(self, upstream: str, topic: str) -> None:
        """Wake who waits for this; what was subscribed to may be told of by what is below it."""
        public = topic if topic in LISTS else self._names.uri(upstream, topic)
        for name in self.heard.watched():
            if public == name or public.startswith(name.rstrip("/") + "/"):
                self.heard.moved(name, 0)

    # --- requests

    async def _begin(self, request: Request) -> UpstreamCall:
        running = UpstreamCall(self._of(request.upstream), request)
        self._calls.add(running)
        running.task.add_done_callback(lambda _: self._calls.discard(running))
        await running.begun()
        return running

    def _of(self, name: str) -> UpstreamServer:
        server = self._upstreams.get(name)
        if server is None or self._closed:
            reason = "it is not configured" if server is None else "Outlast is shutting down"
            raise errors.UpstreamUnavailable(name, reason)
        return server

    # --- lists

    async def _parts(self, kind: Kind) -> tuple[Mapping[str, Part], Sequence[str]]:
        """What each upstream lists that has the kind, and which are down; raises when all are."""
        asked = (server.listed(kind, self._within_s) for server in self._upstreams.values())
        found = await asyncio.gather(*asked, return_exceptions=True)
        parts: dict[str, Part] = {}
        down: dict[str, errors.UpstreamUnavailable] = {}
        for name, result in zip(self._upstreams, found, strict=True):
            if isinstance(result, errors.UpstreamUnavailable):
                down[name] = result
            elif isinstance(result, BaseException):
                raise result
            elif result is not None:
                parts[name] = result
        if down and len(down) == len(found):
            raise next(iter(down.values()))
        return parts, tuple(down)

    def _entries(
        self, kind: Kind, parts: Mapping[str, Definitions]
    ) -> Sequence[Mapping[str, Json]]:
        if kind != "tools":
            public = partial(self._names.entries, kind)
            return self._lists.setdefault(kind, Merged(public)).of(parts)
        tools = self._tools.of(parts)
        if tools is not self._definitions[0]:
            self._definitions = tools, tuple(tool.definition for tool in tools)
        return self._definitions[1]

    def _as_tools(self, upstream: str, definitions: Definitions) -> Iterable[Tool]:
        public = self._names.entries("tools", upstream, definitions)
        return (
            Tool(shown["name"], upstream, given["name"], shown)
            for given, shown in zip(definitions, public, strict=True)
        )


class Merged(Generic[T]):
    """What the lists of several upstreams make together: the same object until one of them is
    another, or another upstream's."""

    def __init__(self, make: Callable[[str, Definitions], Iterable[T]]) -> None:
        self._make = make
        self._of: Mapping[str, Definitions] = {}
        self._made: tuple[T, ...] = ()

    def of(self, parts: Mapping[str, Definitions]) -> tuple[T, ...]:
        """What these make."""
        before = self._of
        if len(before) != len(parts) or any(before.get(n) is not d for n, d in parts.items()):
            self._of = parts
            self._made = tuple(
                item for name, entries in parts.items() for item in self._make(name, entries)
            )
        return self._made


async def _is_up(server: UpstreamServer) -> bool:
    try:
        await server.open_shared(OFFER_S_MAX)
    except errors.UpstreamUnavailable:
        return False
    return True


def _check(settings: UpstreamSettings) -> None:
    if bool(settings.command) == bool(settings.url):
        raise errors.ConfigurationError(
            f"upstream {settings.name!r} needs either a command or a url"
        )
