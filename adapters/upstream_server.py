"""One upstream: its connections, and what is known of it. Not here: the others, public names.

Connections. A modern server has one, shared by all requests. A legacy server asks the client in
requests of its own, and over stdio nothing in such a request tells which call it belongs to. So
each call whose client could be asked holds a connection alone while it runs: what is asked there
is asked by that call, and the handshake declares just what this client can answer. Such
connections are kept for the next call with the same client capabilities. Calls whose client can
answer nothing share one, where every request is refused.

Log messages name no request either. A modern server sends them to who asked for them and nobody
else, over HTTP in the answer to the request itself. Over stdio they belong to the one request on a
connection that asked: a second one at the same time holds a connection alone. A legacy server has
one level for a whole connection and may log for anybody, so a request that wants its messages
holds a connection alone, with its own level, and is given those that are severe enough.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from ..domain import errors
from ..domain.events import Json
from ..domain.passing import Kind
from .upstream_backoff import backoff_s, failures_after
from .upstream_catalogue import Catalogue
from .upstream_ear import Ear
from .upstream_facts import Facts
from .upstream_link import Link
from .upstream_lists import Definitions, KnownList, Part, Stale, Wish
from .upstream_request import Request
from .upstream_settings import UpstreamSettings
from .upstream_wire import askable

HELD_LINKS_MAX = 32  # calls that hold a connection alone; a call beyond it is refused as not sent
IDLE_LINKS_MAX = 2  # such connections kept for the next call


class UpstreamServer:
    """`told` is called with every topic that it announces. All methods are for one event loop."""

    def __init__(self, settings: UpstreamSettings, told: Callable[[str], None]) -> None:
        self._settings, self._told = settings, told
        self.ear = Ear(self, told)
        self._tools = Catalogue()
        self.facts: Facts | None = None  # as last known
        self._lists: Mapping[Kind, KnownList] = {
            "tools": self._tools,
            "resources": KnownList("resources"),
            "resource_templates": KnownList("resource_templates"),
            "prompts": KnownList("prompts"),
        }
        self._shared: Link | None = None
        self._idle: list[Link] = []
        self._held: set[Link] = set()
        self._links: set[Link] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._legacy = True if settings.era == "legacy" else None
        self._closed = False
        self._failures = 0
        self._not_before = 0.0

    @property
    def tools(self) -> Definitions | None:
        """The tools, where nothing need be asked or waited for; else None."""
        link, known = self._shared, self._tools
        if link is None or link.is_over or not known.is_fresh(link):
            return None
        return known.entries

    async def listed(self, kind: Kind, within_s: float | None = None) -> Part | None:
        """The list; None when it does not offer the kind. Raises UpstreamUnavailable.

        `within_s` bounds the wait for a connection, from its beginning, and then for the list.
        """
        known, wish = self._lists[kind], Wish(time.monotonic(), within_s)
        link = await self.open_shared(within_s)
        # Tools have always been asked for, also of servers that forgot to say that they have.
        if kind != "tools" and known.shape.capability not in link.facts.capabilities:
            return None
        try:
            await self._read(known, link, wish)
        except Stale:
            if not link.retired:  # by another who waited
                self.retire(link)
            link = await self.open_shared(within_s)
            await self._read(known, link, wish)
        return known.part(link)

    async def _read(self, known: KnownList, link: Link, wish: Wish) -> None:
        link.users += 1  # a call that retires it shall not end it for who reads on it
        try:
            await known.read_on(link, wish)
        finally:
            self.give_back(link, reusable=False)

    async def lend(self, request: Request) -> Link:
        """See Lender."""
        may_ask = askable(request.client_capabilities) if request.may_ask else {}
        wants_logs = request.log_level is not None
        if not self._legacy or not (may_ask or wants_logs):
            link = await self.open_shared()
            alone = may_ask or wants_logs
            if link.is_modern:
                alone = wants_logs and not link.is_exchanged and link.log_to is not None
            if not alone:
                link.users += 1
                return link
        return await self._open_held(may_ask if self._legacy else {})

    def give_back(self, link: Link, *, reusable: bool) -> None:
        """See Lender."""
        link.users -= 1
        link.holder = None
        if link in self._held:
            self._held.discard(link)
            if reusable and not link.is_over and len(self._idle) < IDLE_LINKS_MAX:
                self._idle.append(link)
            else:
                self._let_go(link)
        elif link.retired and link.users == 0:
            self._let_go(link)

    def retire(self, link: Link) -> None:
        """See Lender. It is ended after its last call."""
        link.retired = True
        if link is self._shared:
            self._shared = None
            if link.users == 0:
                self._let_go(link)
        for idle in self._idle:  # what ended the one has most likely ended these
            self._let_go(idle)
        self._idle.clear()
        self.ear.nudge()

    def param_headers(self, tool: str, arguments: Mapping[str, Json]) -> Mapping[str, str]:
        """See Lender."""
        return self._tools.param_headers(tool, arguments)

    async def relist(self) -> None:
        """See Lender."""
        self._tools.forget()
        await self.listed("tools")

    async def close(self) -> None:
        """End every connection, and wait (bounded) until they are gone."""
        self._closed = True
        await self.ear.close()
        for link in list(self._links):
            self._let_go(link)
        if self._closing:
            await asyncio.wait(self._closing)
        await asyncio.gather(*(known.close() for known in self._lists.values()))

    async def open_shared(self, within_s: float | None = None) -> Link:
        """See Source."""
        link = self._shared
        if link is None or link.is_over:
            link = self._shared = self._new({})
            self.ear.nudge()
        await link.opened(within_s)
        self.facts, self._legacy = link.facts, not link.is_modern
        return link

    def pause_s(self) -> float:
        """See Source."""
        return max(0.0, self._not_before - time.monotonic())

    def refuse_crowd(self, capabilities: Mapping[str, Json]) -> None:
        """Raises UpstreamUnavailable where a call of such a client would find no connection."""
        if self._legacy and askable(capabilities):
            self._refuse_crowd()

    def _refuse_crowd(self) -> None:
        if len(self._held) >= HELD_LINKS_MAX:
            raise errors.UpstreamUnavailable(
                self._settings.name, f"{HELD_LINKS_MAX} calls hold connections"
            )

    async def _open_held(self, capabilities: Mapping[str, Json]) -> Link:
        self._refuse_crowd()
        key = json.dumps(capabilities, sort_keys=True)
        self._idle = [link for link in self._idle if not link.is_over]
        link = next((link for link in self._idle if link.key == key), None)
        if link is None:
            link = self._new(capabilities)
        else:
            self._idle.remove(link)
        self._held.add(link)
        link.users += 1
        try:
            await link.opened()
        except BaseException:
            self.give_back(link, reusable=False)
            raise
        return link

    def _new(self, capabilities: Mapping[str, Json]) -> Link:
        if self._closed:
            raise errors.UpstreamUnavailable(self._settings.name, "Outlast is shutting down")
        wait_s = self.pause_s()
        if wait_s > 0:
            raise errors.UpstreamUnavailable(
                self._settings.name, f"the next attempt is in {wait_s:.1f} s"
            )
        settings = replace(self._settings, era="legacy") if capabilities else self._settings
        link = Link(settings, capabilities, self)
        self._links.add(link)
        return link

    def told(self, topic: str) -> None:
        """See LinkOwner."""
        for known in self._lists.values():
            if known.shape.topic == topic:
                known.outdated = True
        self._told(topic)

    def doubted(self) -> None:
        """See LinkOwner."""
        for known in self._lists.values():
            known.outdated = True

    def hearing_changed(self) -> None:
        """See LinkOwner."""
        self.ear.nudge()

    def over(self, link: Link) -> None:
        """See LinkOwner."""
        lived_s = 0.0 if link.opened_at is None else time.monotonic() - link.opened_at
        self._failures = failures_after(self._failures, lived_s)
        self._not_before = time.monotonic() + backoff_s(self._failures)
        if self._settings.era == "auto":
            self._legacy = None  # what comes back may be a newer server
        self._let_go(link)
        self.ear.nudge()

    def _let_go(self, link: Link) -> None:
        if link in self._links:
            self._links.discard(link)
            closing = asyncio.create_task(link.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
