"""One request in flight on an upstream: begun, told of, answered, cancelled. Not here: what it
asks, connections."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextvars import Context
from dataclasses import replace
from typing import Protocol, cast

from mcp import MCPError
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
)
from opentelemetry import context as otel_context
from opentelemetry.propagate import extract

from ..domain import errors
from ..domain.decisions import Ask
from ..domain.events import Json
from ..domain.ports import CallNews, Faulted, HeldAsk, LegEnded, Logged, Progress, Returned
from .upstream_http import FATE, Fate
from .upstream_link import Link
from .upstream_request import TASK_GET, TOOL_CALL, Request
from .upstream_wire import declares, needed_for, outcome_of, without_transport_meta

CANCEL_HEARD_S_MAX = 2.0  # a server that answers nothing for so long is not waited for
CANCEL_WAIT_S_MAX = 8.0  # `cancel` returns after this even if the upstream cannot be told
NEWS_BACKLOG_MAX = 64  # the oldest progress or log is dropped beyond it; nothing else ever is
HELD_ASKS_MAX = 32  # unanswered requests of one call; further ones are refused

logger = logging.getLogger(__name__)


class Lender(Protocol):
    """The upstream of a call, as the call sees it: the connections and what is known of the
    tools."""

    async def lend(self, request: Request) -> Link:
        """A connection for this request. Raises UpstreamUnavailable.

        One whose client wants log messages has it so that they can be told from those of others:
        by their exchange, or since no other request on it has asked for any.
        """
        ...

    def give_back(self, link: Link, *, reusable: bool) -> None:
        """The call is done with this connection."""
        ...

    def retire(self, link: Link) -> None:
        """The connection failed the call: no other call shall begin on it."""
        ...

    def param_headers(self, tool: str, arguments: Mapping[str, Json]) -> Mapping[str, str]:
        """The headers that mirror arguments, as the last listing of the tool has them."""
        ...

    async def relist(self) -> None:
        """List the tools anew, since the server knows a tool otherwise. Raises
        UpstreamUnavailable."""
        ...


class UpstreamCall:
    """A call in flight, in a task of its own that belongs to no request and ends by itself.

    Once it is over, `news` gives its outcome (or raises) to every reader that comes; after a
    cancel that came before any outcome, `news` ends without one.
    """

    def __init__(self, lender: Lender, request: Request) -> None:
        self._lender, self._request = lender, request
        self._queue: deque[CallNews] = deque()
        self._outcome: CallNews | errors.UpstreamUnavailable | None = None
        self._wake = asyncio.Event()
        self._sent = asyncio.Event()
        self._cancelling = False
        self._asks: set[asyncio.Future[dict[str, Json]]] = set()
        self._asked = 0
        # A fresh context: no cancellation and no values of the request that began it.
        self.task = asyncio.create_task(self._run(), context=Context())
        self.task.add_done_callback(lambda _: self._wake.set())

    async def begun(self) -> None:
        """Return once the call may have been sent. Raises UpstreamUnavailable when it certainly
        was not."""
        sent = asyncio.create_task(self._sent.wait())
        try:
            await asyncio.wait({sent, self.task}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.task.cancel()
            raise
        finally:
            sent.cancel()
        if self._sent.is_set():
            return
        if isinstance(self._outcome, errors.UpstreamUnavailable):
            raise self._outcome
        raise errors.UpstreamUnavailable(
            self._request.upstream, "the call was cancelled before it was sent"
        )

    async def news(self) -> AsyncIterator[CallNews]:
        """See RunningCall."""
        while self._queue or not self.task.done():
            while self._queue:
                yield self._queue.popleft()
            if not self.task.done():
                self._wake.clear()
                await self._wake.wait()
        if isinstance(self._outcome, errors.UpstreamUnavailable):
            raise self._outcome
        if self._outcome is not None:
            yield self._outcome

    async def cancel(self) -> None:
        """See RunningCall. An outcome that came first stays the outcome."""
        if not self._cancelling:
            # Once: a second one would cut off the word to the upstream that the first began.
            self._cancelling = True
            self.task.cancel()
        await asyncio.wait({self.task}, timeout=CANCEL_WAIT_S_MAX)

    async def ask(self, method: str, params: Mapping[str, Json]) -> dict[str, Json]:
        """The server asks on the connection that this call holds; returns what the client
        answers."""
        if not declares(self._request.client_capabilities, method, params):
            raise MCPError(METHOD_NOT_FOUND, f"The client does not support this {method}")
        if len(self._asks) >= HELD_ASKS_MAX:
            raise MCPError(INTERNAL_ERROR, "Too many requests wait for an answer")
        answer: asyncio.Future[dict[str, Json]] = asyncio.get_running_loop().create_future()
        self._asked += 1
        request = {"method": method, "params": without_transport_meta(params)}
        self._asks.add(answer)
        self._put(_held(Ask(f"ask-{self._asked}", request), answer))
        try:
            return await answer
        finally:
            self._asks.discard(answer)

    def _put(self, news: CallNews) -> None:
        if isinstance(news, Progress | Logged) and len(self._queue) >= NEWS_BACKLOG_MAX:
            stale = next((n for n in self._queue if isinstance(n, Progress | Logged)), None)
            if stale is not None:
                self._queue.remove(stale)
        self._queue.append(news)
        self._wake.set()

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        self._put(Progress(progress, total, message))

    def _log(self, message: Mapping[str, Json]) -> None:
        if self._request.is_loud_enough(message):
            self._put(Logged(message))

    async def _run(self) -> None:
        try:
            self._outcome = await self._converse()
        except errors.UpstreamUnavailable as error:
            self._outcome = error
        except Exception as error:
            upstream = self._request.upstream
            logger.exception("upstream %s: the call failed within Outlast", upstream)
            self._outcome = errors.UpstreamUnavailable(upstream, type(error).__name__)
        finally:
            for answer in self._asks:
                _settle(answer, MCPError(INTERNAL_ERROR, "The call is over"))

    async def _converse(self) -> CallNews:
        """Send the call, once more when the connection turns out stale or the tool is listed
        otherwise."""
        try:
            return await self._on_one_link()
        except _NotServed:
            pass
        except _ListedOtherwise as error:
            if self._request.method != TOOL_CALL:
                return error.fault
            await self._lender.relist()
        try:
            return await self._on_one_link()
        except _NotServed as error:
            raise errors.UpstreamUnavailable(self._request.upstream, error.reason) from error
        except _ListedOtherwise as error:
            return error.fault

    async def _on_one_link(self) -> CallNews:
        link = await self._lender.lend(self._request)
        reusable = False
        if link.capabilities:
            link.holder = self
        if self._request.log_level is not None and not link.is_exchanged:
            link.log_to = self._log
        try:
            outcome = await self._send(link)
            reusable = True
            return outcome
        except (_NotServed, errors.UpstreamUnavailable):
            self._lender.retire(link)
            raise
        finally:
            if link.log_to == self._log:
                link.log_to = None
            # A cancelled legacy tool may run on and ask: no other call may have its connection.
            self._lender.give_back(link, reusable=reusable)

    async def _send(self, link: Link) -> CallNews:
        request = self._request
        if request.log_level is not None and not (link.is_over or link.is_modern):
            await link.set_log_level(request.log_level)
        if link.is_over:  # only now: it may have been lost while it was told that
            raise _NotServed(link.unavailable().reason)
        fate = Fate(self._sent.set)
        if request.log_level is not None:
            fate.on_log = self._log
        if link.settings.url is None:
            fate.sent = True
            self._sent.set()
        FATE.set(fate)
        otel_context.attach(extract(request.trace))
        try:
            raw = await link.request(
                request.method,
                request.wire(modern=link.is_modern),
                request.declared(link.facts),
                self._headers() if link.is_modern else None,
                self._progress if request.wants_progress else None,
            )
        except asyncio.CancelledError:
            # Whoever is told that the call was cancelled shall not see it act afterwards.
            await link.caught_up(CANCEL_HEARD_S_MAX)
            raise
        except MCPError as error:
            fault = _verdict(error, link, fate)
            return replace(fault, data=request.public_data(fault.data))
        outcome = self._judged(raw) if link.is_modern else Returned(raw)
        return Returned(request.public(raw)) if isinstance(outcome, Returned) else outcome

    def _judged(self, raw: dict[str, Json]) -> CallNews:
        """What a modern server's result means. A task that asks does so as a leg does that ended.

        What asks for something that the client did not declare can be answered by nobody.
        """
        if self._request.method == TASK_GET and raw.get("status") == "input_required":
            raw = {**raw, "resultType": "input_required"}
        outcome = outcome_of(raw, takes_task=self._request.takes_task)
        if not isinstance(outcome, LegEnded):
            return outcome
        for wanted in outcome.asks:
            method = str(wanted.request["method"])
            params = cast(Mapping[str, Json], wanted.request.get("params") or {})
            if not declares(self._request.client_capabilities, method, params):
                message = f"The server asked for {method}, which the client does not support"
                data = {"requiredCapabilities": needed_for(method, params)}
                return Faulted(MISSING_REQUIRED_CLIENT_CAPABILITY, message, data)
        return outcome

    def _headers(self) -> dict[str, str]:
        headers, params = self._request.headers(), self._request.params
        if self._request.method != TOOL_CALL:
            return headers
        return headers | dict(self._lender.param_headers(params["name"], params["arguments"]))


class _NotServed(Exception):
    """The server has certainly not begun the call: another connection may be tried."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _ListedOtherwise(Exception):
    """The server refused the call since the mirrored headers are not what its tool wants."""

    def __init__(self, fault: Faulted) -> None:
        super().__init__()
        self.fault = fault


def _verdict(error: MCPError, link: Link, fate: Fate) -> Faulted:
    """The server's own error, unless the connection is what failed."""
    if fate.was_not_served:
        raise _NotServed(fate.lost or "the session has ended") from error
    if fate.lost is not None:
        raise errors.UpstreamUnavailable(link.settings.name, fate.lost) from error
    if link.is_over:
        raise link.unavailable() from error
    fault = Faulted(error.code, error.message, error.data)
    if error.code == HEADER_MISMATCH and link.is_modern:
        raise _ListedOtherwise(fault) from error
    return fault


def _held(ask: Ask, answer: asyncio.Future[dict[str, Json]]) -> HeldAsk:
    return HeldAsk(
        ask,
        reply=lambda result: _settle(answer, dict(result)),
        refuse=lambda code, message: _settle(answer, MCPError(code, message)),
    )


def _settle(answer: asyncio.Future[dict[str, Json]], outcome: dict[str, Json] | MCPError) -> None:
    """Answer once, from any thread; whatever comes later changes nothing."""
    answer.get_loop().call_soon_threadsafe(_settle_now, answer, outcome)


def _settle_now(
    answer: asyncio.Future[dict[str, Json]], outcome: dict[str, Json] | MCPError
) -> None:
    if answer.done():
        return
    if isinstance(outcome, MCPError):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
