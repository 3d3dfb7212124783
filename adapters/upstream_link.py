"""One connection to one upstream server: opening, era, requests, and what the server asks. Not
here: calls.

The SDK's task groups must be left by the task that entered them, so each connection is a task of
its own which opens it, waits for its end and closes it; requests are made by whatever task needs
one. The connection stands on the SDK's `ClientSession` for the handshake, notifications and
`subscriptions/listen`, and sends all else through the SDK's dispatcher: the session would parse the
results into its models and drop what it does not know.
"""

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack, suppress
from contextvars import Context
from typing import Any, Protocol, cast

import anyio
import anyio.abc
from mcp import ClientSession, MCPError, StdioServerParameters
from mcp.client.session import IncomingMessage
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.dispatcher import CallOptions, ProgressFnT as OnProgress
from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_PROTOCOL_VERSION_HEADER
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
    Implementation,
    InitializedNotification,
    InitializeResult,
)
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)
from pydantic import ValidationError

from ..domain import errors
from ..domain.events import Json
from .upstream_facts import Facts, facts_of
from .upstream_http import EVENT_BYTES_MAX, FATE, Fate, http_client
from .upstream_settings import UpstreamSettings
from .upstream_watch import LISTS, Stream, offered_by, topic_of
from .upstream_wire import Dispatcher, WatchedRead

OPEN_S_MAX = 30.0  # spawning or connecting, and the handshake; the connection has failed after it
LOG_LEVEL_S_MAX = 5.0  # to be told which log messages are wanted; after it, it was not
CLOSE_S_MAX = 10.0  # the SDK's own steps (close stdin, SIGTERM, SIGKILL) end sooner
CLIENT = Implementation(name="outlast", version="0.1.0")
CLIENT_WIRE = CLIENT.model_dump(by_alias=True, mode="json", exclude_none=True)

logger = logging.getLogger(__name__)


class Asked(Protocol):
    """Who answers what the server asks on this connection."""

    async def ask(self, method: str, params: Mapping[str, Json]) -> dict[str, Json]:
        """The client's result. Raises MCPError when the request is refused."""
        ...


class LinkOwner(Protocol):
    """Who is told what becomes of a connection."""

    def over(self, link: "Link") -> None:
        """It failed to open, or was lost."""
        ...

    def told(self, topic: str) -> None:
        """The server announces a change of one of its lists, or of a resource."""
        ...

    def doubted(self) -> None:
        """Changes of its lists may have been announced unheard."""
        ...

    def hearing_changed(self) -> None:
        """`hears` of a connection is set, or is set no more."""
        ...


class Link:
    """One connection, from its opening to its end. It never opens again: a new one takes its place.

    `capabilities` is what a legacy server is told in the handshake; a modern one is told in each
    request. What a legacy server asks goes to `holder`, the one call that holds this connection;
    without one, it is refused. `hears` is set while what the server announces can come, `hearings`
    counts how often that began where it is known. `log_to` takes the log messages of which nothing
    else tells what they belong to; see `lend`.
    """

    def __init__(
        self,
        settings: UpstreamSettings,
        capabilities: Mapping[str, Json],
        owner: LinkOwner,
    ) -> None:
        self.settings, self.capabilities = settings, capabilities
        self.key = json.dumps(capabilities, sort_keys=True)
        self.holder: Asked | None = None
        self.users = 0
        self.retired = False
        self.log_to: Callable[[Mapping[str, Json]], None] | None = None
        self.begun_at = time.monotonic()
        self.opened_at: float | None = None
        self.is_over = False
        self.facts: Facts  # from its opening on
        self.hears, self.hearings = asyncio.Event(), 0
        self._owner = owner
        self._closing = False
        self._end, self._settled = anyio.Event(), asyncio.Event()
        self._log_level: str | None = None
        self._reason: str | None = None
        # A fresh context: the connection outlives the request that happened to need it first.
        self._task = asyncio.create_task(self._run(), context=Context())

    async def opened(self, within_s: float | None = None) -> None:
        """Return once the connection can be used. Raises UpstreamUnavailable when it could not
        be opened, or not within so many seconds from its beginning."""
        left_s = None if within_s is None else self.begun_at + within_s - time.monotonic()
        try:
            async with asyncio.timeout(None if left_s is None else max(0.0, left_s)):
                await self._settled.wait()
        except TimeoutError:
            reason = f"it has not answered for {within_s:g} s"
            raise errors.UpstreamUnavailable(self.settings.name, reason) from None
        if self.is_over:
            raise self.unavailable()

    def unavailable(self) -> errors.UpstreamUnavailable:
        """The reason why this connection is over, to be raised."""
        return errors.UpstreamUnavailable(
            self.settings.name, self._reason or "the connection was lost"
        )

    @property
    def is_modern(self) -> bool:
        """True when the server speaks a protocol version without a handshake."""
        return self._session.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def is_exchanged(self) -> bool:
        """True when all that belongs to a request comes in the answer to it, and so is told from
        what belongs to another."""
        return self.is_modern and self.settings.url is not None

    @property
    def is_left(self) -> bool:
        """True once no other call shall begin on it."""
        return self.is_over or self.retired or self._closing

    @property
    def offers(self) -> frozenset[str]:
        """The lists that the server announces, and `resourceSubscriptions` if it does those."""
        return offered_by(self._session.server_capabilities)

    @property
    def lists(self) -> frozenset[str]:
        """Of these, the lists."""
        return self.offers & LISTS

    def stream(self, topics: Collection[str]) -> Stream:
        """What a modern server announces on these topics, once it is run."""
        return Stream(self._session, topics, self._tell)

    async def request(
        self,
        method: str,
        params: Mapping[str, Json],
        capabilities: Mapping[str, Json],
        headers: Mapping[str, str] | None = None,
        on_progress: OnProgress | None = None,
    ) -> dict[str, Json]:
        """Send one request and return its result as it came. Raises MCPError.

        To a modern server `capabilities` and `headers` go with it; a legacy one has been told
        before.
        """
        version = self._session.protocol_version or LATEST_HANDSHAKE_VERSION
        sent = {MCP_PROTOCOL_VERSION_HEADER: version}
        if self.is_modern:
            meta = {
                **params.get("_meta", {}),
                PROTOCOL_VERSION_META_KEY: version,
                CLIENT_INFO_META_KEY: CLIENT_WIRE,
                CLIENT_CAPABILITIES_META_KEY: dict(capabilities),
            }
            params = {**params, "_meta": meta}
            sent |= {MCP_METHOD_HEADER: method, **(headers or {})}
        options: CallOptions = {"headers": sent}
        if on_progress is not None:
            options["on_progress"] = on_progress
        return await self._dispatcher.send_raw_request(method, params, options)

    async def set_log_level(self, level: str) -> None:
        """Tell a legacy server which log messages are wanted on this connection, if it takes that.

        Many that log take it not, and send whatever they have.
        """
        if level == self._log_level or "logging" not in self.facts.capabilities:
            return
        FATE.set(Fate())  # what fails here is not the fate of the call that follows
        with suppress(MCPError, TimeoutError):
            async with asyncio.timeout(LOG_LEVEL_S_MAX):
                await self.request("logging/setLevel", {"level": level}, {})
            self._log_level = level

    async def caught_up(self, seconds: float) -> None:
        """Return once the server has answered, and so has read what was sent before; or when the
        time is up."""
        if self.is_over:
            return
        # An answer of any kind will do, also that of a server that knows no ping.
        with suppress(MCPError, TimeoutError):
            async with asyncio.timeout(seconds):
                await self.request("ping", {}, {})

    async def close(self) -> None:
        """End the connection and its child process, within CLOSE_S_MAX. Idempotent."""
        self._closing = True
        self._end.set()
        _, late = await asyncio.wait({self._task}, timeout=CLOSE_S_MAX)
        for task in late:
            task.cancel()
            await asyncio.wait({task}, timeout=CLOSE_S_MAX)

    async def _run(self) -> None:
        fate = Fate(on_hearing=self._note_hearing)
        FATE.set(fate)
        try:
            async with AsyncExitStack() as stack:
                await self._open_in_time(stack, fate)
                self.opened_at = time.monotonic()
                self._settled.set()
                await self._end.wait()
        except Exception as error:
            self._end_for(fate.lost or _plain(error))
            logger.debug("upstream %s: the connection failed", self.settings.name, exc_info=True)
        finally:
            self._end_for(None)

    def _end_for(self, reason: str | None) -> None:
        self._reason = self._reason or reason
        self._lose()
        self._settled.set()

    def _lose(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._end.set()
        self.hears.set()  # nobody need wait for it
        if not self._closing:
            logger.warning("upstream %s: %s", self.settings.name, self.unavailable().reason)
            self._owner.over(self)

    async def _open_in_time(self, stack: AsyncExitStack, fate: Fate) -> None:
        try:
            # Not `fail_after`: what the stack enters outlives this block, scopes may not.
            async with asyncio.timeout(OPEN_S_MAX):
                await self._open(stack)
        except Exception as error:
            # Here: to close what was half opened may take as long as the server likes.
            self._end_for(fate.lost or _plain(error))
            raise

    async def _open(self, stack: AsyncExitStack) -> None:
        read, write = await self._transport(stack)
        self._dispatcher = Dispatcher(WatchedRead(read, self._lose), write, self._ask, self._log)
        self._session = await stack.enter_async_context(
            ClientSession(
                dispatcher=self._dispatcher,
                read_timeout_seconds=OPEN_S_MAX,  # of what the session asks itself, no call does
                client_info=CLIENT,
                message_handler=self._hear,
            )
        )
        await self._negotiate()
        self.facts = facts_of(self._session)
        if self.is_modern:
            watching = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(watching.cancel_scope.cancel)
            self._watch_lists(watching)
        elif self.settings.command:
            self.hears.set()

    async def _transport(self, stack: AsyncExitStack) -> Any:
        settings = self.settings
        if settings.command:
            parameters = StdioServerParameters(
                command=settings.command[0],
                args=list(settings.command[1:]),
                env=dict(settings.env or {}),
                cwd=settings.cwd,
            )
            # To the error output of this process, whatever has replaced `sys.stderr`.
            transport = stdio_client(parameters, errlog=sys.__stderr__ or sys.stderr)
        else:
            client = await stack.enter_async_context(http_client(settings.headers))
            transport = streamable_http_client(
                settings.url or "", http_client=client, max_sse_event_size=EVENT_BYTES_MAX
            )
        return await stack.enter_async_context(transport)

    async def _negotiate(self) -> None:
        """Modern when the server says so, else the handshake, as the setting allows."""
        if self.settings.era == "legacy":
            return await self._initialize()
        try:
            await self._session.discover()
        except (MCPError, ValidationError, RuntimeError):
            if self.settings.era == "modern" or self.is_over:
                raise
            await self._initialize_or_discover()

    async def _initialize_or_discover(self) -> None:
        try:
            await self._initialize()
        except MCPError as error:
            # One that starts slowly may have taken the question we gave up on: it is modern.
            if error.code != UNSUPPORTED_PROTOCOL_VERSION:
                raise
            await self._session.discover()

    async def _initialize(self) -> None:
        """The handshake by hand: the session's own could only declare what its callbacks imply."""
        params = {
            "protocolVersion": LATEST_HANDSHAKE_VERSION,
            "capabilities": dict(self.capabilities),
            "clientInfo": CLIENT_WIRE,
        }
        raw = await self._dispatcher.send_raw_request(
            "initialize", params, {"cancel_on_abandon": False}
        )
        result = InitializeResult.model_validate(raw, by_name=False)
        if result.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
            raise RuntimeError(f"the server speaks the unknown version {result.protocol_version}")
        self._session.adopt(result)
        await self._session.send_notification(InitializedNotification())

    async def _ask(self, method: str, params: Mapping[str, Json]) -> dict[str, Json]:
        if self.holder is None or self.is_modern:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", method)
        return await self.holder.ask(method, params)

    def _log(self, params: Mapping[str, Json]) -> None:
        fate = FATE.get()  # over HTTP, the exchange in which it came
        tell = self.log_to if fate is None or fate.on_log is None else fate.on_log
        if tell is not None:
            tell(params)

    async def _hear(self, message: IncomingMessage) -> None:
        topic = topic_of(message)
        if topic and not self.is_modern:  # a modern one tells on streams alone
            self._tell(topic)

    def _watch_lists(self, tasks: anyio.abc.TaskGroup) -> None:
        if self.lists:
            stream = Stream(self._session, self.lists, self._tell, on_loss=self._owner.doubted)
            tasks.start_soon(stream.run)
            tasks.start_soon(self._note_tried, stream)
        else:
            self._note_hearing(True)

    async def _note_tried(self, stream: Stream) -> None:
        await stream.tried.wait()
        self._note_hearing(True)

    def _tell(self, topic: str) -> None:
        self._owner.told(topic)

    def _note_hearing(self, hears: bool) -> None:
        """Of a legacy HTTP server it is known from its stream, and the session ends unnoticed."""
        if hears:
            self.hearings += 1
            self.hears.set()
        elif not self.hearings:
            self.hears.set()  # it offers no stream: it is heard as well as it ever will be
        elif not self.is_over:
            self.hears.clear()
            self._owner.doubted()
        self._owner.hearing_changed()


def _plain(error: BaseException) -> str:
    """The first cause in a group of causes, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if isinstance(error, TimeoutError):
        return f"no answer within {OPEN_S_MAX:g} s"
    return f"{type(error).__name__}: {error}".splitlines()[0]
