"""The upstream MCP servers on the official SDK's client: catalogue, connections at need, calls.

Names. With one upstream a tool keeps its name. With several, the public name is
`<upstream>_<tool>`, and the name of an upstream is then limited to letters, digits and hyphens: the
first underscore ends it, so no two pairs meet in one name, and no character is used that a client
could refuse in a tool name (a dot would be, by some).

Connections. A modern server has one, shared by all calls. A legacy server asks the client in
requests of its own, and over stdio nothing in such a request tells which call it belongs to. So
each call whose client could be asked holds a connection alone while it runs: what is asked there
is asked by that call, and the handshake declares just what this client can answer. Such
connections are kept for the next call with the same client capabilities. Calls whose client can
answer nothing share one, where every request is refused.
"""

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Self

from ..domain import errors
from ..domain.events import Json
from ..domain.ports import Tool, ToolCall
from .bus import Bus
from .upstream_backoff import backoff_s, failures_after
from .upstream_call import UpstreamCall
from .upstream_catalogue import Catalogue, Stale
from .upstream_ear import Ear
from .upstream_link import Link, UpstreamSettings
from .upstream_wire import askable

HELD_LINKS_MAX = (
    32  # calls that hold a legacy connection alone; a call beyond it is refused as not sent
)
IDLE_LINKS_MAX = 2  # legacy connections kept for the next call

_PREFIX = re.compile(r"[A-Za-z0-9-]{1,32}")

logger = logging.getLogger(__name__)

__all__ = ["McpUpstreams", "UpstreamSettings", "backoff_s"]


class McpUpstreams:
    """`Upstreams` over stdio and Streamable HTTP. All of its methods are for one event loop."""

    def __init__(self, upstreams: Sequence[UpstreamSettings]) -> None:
        for settings in upstreams:
            _check(settings, alone=len(upstreams) == 1)
        self.heard = Bus()  # who waits for which announcement
        self._upstreams = {settings.name: _Upstream(settings, self._told) for settings in upstreams}
        if len(self._upstreams) < len(upstreams):
            raise errors.ConfigurationError("two upstreams have the same name")
        self._calls: set[UpstreamCall] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def tools(self) -> Sequence[Tool]:
        """See Upstreams."""
        found = await asyncio.gather(
            *(upstream.tools() for upstream in self._upstreams.values()), return_exceptions=True
        )
        tools: list[Tool] = []
        down: list[errors.UpstreamUnavailable] = []
        for name, result in zip(self._upstreams, found, strict=True):
            if isinstance(result, errors.UpstreamUnavailable):
                down.append(result)
            elif isinstance(result, BaseException):
                raise result
            else:
                tools += [self._tool(name, definition) for definition in result]
        if down and len(down) == len(found):
            raise down[0]
        return tools

    @property
    def ears(self) -> Sequence[Ear]:
        """What listens to each upstream."""
        return [upstream.ear for upstream in self._upstreams.values()]

    async def ready(self, upstream: str) -> None:
        """See Upstreams."""
        await self._of(upstream).tools()

    async def call(self, call: ToolCall) -> UpstreamCall:
        """See Upstreams."""
        upstream = self._of(call.upstream)
        running = UpstreamCall(upstream, call)
        self._calls.add(running)
        running.task.add_done_callback(lambda _: self._calls.discard(running))
        await running.begun()
        return running

    async def close(self) -> None:
        """See Upstreams."""
        self._closed = True
        await asyncio.gather(*(call.cancel() for call in list(self._calls)))
        await asyncio.gather(*(upstream.close() for upstream in self._upstreams.values()))

    def _told(self, topic: str) -> None:
        """Wake who waits for this; what was subscribed to may be told of by what is below it."""
        for name in self.heard.watched():
            if topic == name or topic.startswith(name.rstrip("/") + "/"):
                self.heard.moved(name, 0)

    def _of(self, name: str) -> "_Upstream":
        upstream = self._upstreams.get(name)
        if upstream is None or self._closed:
            reason = "it is not configured" if upstream is None else "Outlast is shutting down"
            raise errors.UpstreamUnavailable(name, reason)
        return upstream

    def _tool(self, upstream: str, definition: dict[str, Json]) -> Tool:
        name = definition["name"]
        public = name if len(self._upstreams) == 1 else f"{upstream}_{name}"
        return Tool(public, upstream, name, {**definition, "name": public})


class _Upstream:
    """One upstream: its shared connection, the held ones, and its catalogue."""

    def __init__(self, settings: UpstreamSettings, told: Callable[[str], None]) -> None:
        self._settings, self._told = settings, told
        self.ear = Ear(self, told)
        self._shared: Link | None = None
        self._idle: list[Link] = []
        self._held: set[Link] = set()
        self._links: set[Link] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._legacy = True if settings.era == "legacy" else None
        self._closed = False
        self._failures = 0
        self._not_before = 0.0
        self._listing = asyncio.Lock()
        self._catalogue = Catalogue()

    async def tools(self) -> list[dict[str, Json]]:
        """The definitions as they came. Raises UpstreamUnavailable."""
        async with self._listing:
            link = await self.open_shared()
            changed = any(known.tools_changed for known in self._links)
            if changed or not self._catalogue.is_fresh(link):
                try:
                    await self._list_on(link)
                except Stale:
                    self.retire(link)
                    await self._list_on(await self.open_shared())
            return self._catalogue.definitions

    async def lend(self, call: ToolCall) -> Link:
        """See Lender."""
        may_ask = askable(call.client_capabilities)
        if not self._legacy or not may_ask:
            link = await self.open_shared()
            self._legacy = not link.is_modern
            if link.is_modern or not may_ask:
                link.users += 1
                return link
        return await self._open_held(may_ask)

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
        return self._catalogue.param_headers(tool, arguments)

    async def relist(self) -> None:
        """See Lender."""
        self._catalogue.forget()
        await self.tools()

    async def close(self) -> None:
        """End every connection, and wait (bounded) until they are gone."""
        self._closed = True
        await self.ear.close()
        for link in list(self._links):
            self._let_go(link)
        if self._closing:
            await asyncio.wait(self._closing)

    async def open_shared(self) -> Link:
        """See Source."""
        link = self._shared
        if link is None or link.is_over:
            link = self._shared = self._new({})
            self.ear.nudge()
        await link.opened()
        return link

    def pause_s(self) -> float:
        """See Source."""
        return max(0.0, self._not_before - time.monotonic())

    async def _open_held(self, capabilities: Mapping[str, Json]) -> Link:
        if len(self._held) >= HELD_LINKS_MAX:
            raise errors.UpstreamUnavailable(
                self._settings.name, f"{HELD_LINKS_MAX} calls hold connections"
            )
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
        self._told(topic)

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

    async def _list_on(self, link: Link) -> None:
        for known in self._links:  # first: a change that is told while we list asks for more
            known.tools_changed = False
        await self._catalogue.list_on(link)


def _check(settings: UpstreamSettings, *, alone: bool) -> None:
    if bool(settings.command) == bool(settings.url):
        raise errors.ConfigurationError(
            f"upstream {settings.name!r} needs either a command or a url"
        )
    if not alone and not _PREFIX.fullmatch(settings.name):
        raise errors.ConfigurationError(
            f"upstream {settings.name!r}: a name may have letters, digits and hyphens, 1 to 32, "
            "since it becomes the prefix of tool names"
        )
