"""What goes over the wire to an upstream and what it means. Not here: connections, calls.

The SDK's session parses results and requests into its models, which drop what they do not know. So
lists, calls, what is passed on and what a server asks pass it by, on the dispatcher that it stands
on.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from types import TracebackType
from typing import Any, Self, cast

import anyio
import anyio.abc
from mcp.shared.dispatcher import DispatchContext, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp.shared.transport_context import TransportContext
from mcp_types import INTERNAL_ERROR

from ..domain.decisions import Ask
from ..domain.events import Json
from ..domain.extension import TASKS_EXTENSION
from ..domain.ports import CallNews, Faulted, LegEnded, Returned

LOG = "notifications/message"
ASKS = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})
TRACE_KEYS = ("traceparent", "tracestate", "baggage")


class Dispatcher(JSONRPCDispatcher[TransportContext]):
    """The SDK's dispatcher, with the requests that a client has to answer and the log messages
    handed on as they came, the latter in the context of their exchange."""

    def __init__(
        self,
        read: "WatchedRead",
        write: Any,
        on_ask: Callable[[str, Mapping[str, Json]], Awaitable[dict[str, Json]]],
        on_log: Callable[[Mapping[str, Json]], None],
    ) -> None:
        super().__init__(read, write)
        self._on_ask, self._on_log = on_ask, on_log

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """See JSONRPCDispatcher."""

        async def route(
            context: DispatchContext[TransportContext],
            method: str,
            params: Mapping[str, Any] | None,
        ) -> dict[str, Any]:
            if method in ASKS:
                return await self._on_ask(method, params or {})
            return await on_request(context, method, params)

        async def hear(
            context: DispatchContext[TransportContext],
            method: str,
            params: Mapping[str, Any] | None,
        ) -> None:
            if method == LOG:
                self._on_log(params or {})
            else:
                await on_notify(context, method, params)

        await super().run(route, hear, on_notify_intercept, task_status=task_status)


class WatchedRead:
    """The SDK's read stream. Its end is noted before any waiting request is told of it, so that
    a request can tell the end of the connection from an error of the server that has the same
    code. A reader that is cut off is an end too: the transport has failed, or is being closed."""

    def __init__(self, inner: Any, on_end: Callable[[], None]) -> None:
        self._inner, self._on_end = inner, on_end

    @property
    def last_context(self) -> Context | None:
        """The sender's context of the last item, where the transport keeps it."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """The next item."""
        try:
            return cast("SessionMessage | Exception", await self._inner.receive())
        except BaseException:
            self._on_end()
            raise

    async def aclose(self) -> None:
        """Close the stream."""
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.aclose()


def outcome_of(result: dict[str, Json], *, takes_task: bool = False) -> CallNews:
    """What a modern server's result means."""
    kind = result.get("resultType", "complete")
    if kind == "task":
        return _task_of(result, takes_task=takes_task)
    if kind != "input_required":
        return Returned(result)
    requests = cast("Mapping[str, Any]", result.get("inputRequests") or {})
    try:
        asks = [
            Ask(name, _question(request["method"], request.get("params")))
            for name, request in requests.items()
        ]
    except (AttributeError, KeyError, TypeError, ValueError):
        return Faulted(INTERNAL_ERROR, "The upstream asked for input in a shape that is not valid")
    return LegEnded(asks, result.get("requestState"))


def _task_of(result: dict[str, Json], *, takes_task: bool) -> CallNews:
    if not takes_task:
        return Faulted(INTERNAL_ERROR, "The upstream answered with a task that nobody asked for")
    task_id = result.get("taskId")
    if not isinstance(task_id, str) or not task_id:
        return Faulted(INTERNAL_ERROR, "The upstream answered with a task that has no id")
    return Returned(result)


def _question(method: str, params: Mapping[str, Json] | None) -> dict[str, Json]:
    """One request of a leg. What has no parameters is given none: it is passed on as it came."""
    return {"method": method} if params is None else {"method": method, "params": dict(params)}


def forwarded(capabilities: Mapping[str, Json], *, with_tasks: bool = False) -> dict[str, Json]:
    """What a modern upstream is told of the client: all but the tasks, which end at Outlast.

    `with_tasks` says that Outlast itself takes the upstream's.
    """
    told = dict(capabilities)
    extensions = {
        k: v for k, v in dict(told.pop("extensions", None) or {}).items() if k != TASKS_EXTENSION
    }
    if with_tasks:
        extensions[TASKS_EXTENSION] = {}
    return {**told, "extensions": extensions} if extensions else told


def askable(capabilities: Mapping[str, Json]) -> dict[str, Json]:
    """What a legacy upstream is told of the client: what it may ask, and nothing that needs a
    notification."""
    told = {
        kind: capabilities[kind] for kind in ("elicitation", "sampling") if kind in capabilities
    }
    return {**told, "roots": {}} if "roots" in capabilities else told


def declares(capabilities: Mapping[str, Json], method: str, params: Mapping[str, Json]) -> bool:
    """True when the client has declared that it can answer this request."""
    if method == "elicitation/create":
        modes = capabilities.get("elicitation")
        mode = params.get("mode", "form")
        return modes is not None and (mode in modes or (mode == "form" and not modes))
    if method == "sampling/createMessage":
        parts = capabilities.get("sampling")
        return parts is not None and ("tools" not in params or "tools" in parts)
    return "roots" in capabilities


def needed_for(method: str, params: Mapping[str, Json]) -> dict[str, Json]:
    """What a client has to declare to be asked this."""
    if method == "elicitation/create":
        return {"elicitation": {str(params.get("mode", "form")): {}}}
    if method == "sampling/createMessage":
        return {"sampling": {"tools": {}} if "tools" in params else {}}
    return {"roots": {}}


def without_transport_meta(params: Mapping[str, Json]) -> dict[str, Json]:
    """The request without what differs each time it is sent, so that asking again is seen as the
    same."""
    meta = {
        k: v
        for k, v in dict(params.get("_meta") or {}).items()
        if k not in (*TRACE_KEYS, "progressToken")
    }
    rest = {key: value for key, value in params.items() if key != "_meta"}
    return {**rest, "_meta": meta} if meta else rest
