"""One request to one upstream, under the names that it has there: a tool's call, or what is passed
on. Not here: how it is sent."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from mcp.shared.inbound import MCP_NAME_HEADER, NAME_BEARING_METHODS, encode_header_value
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    LoggingLevel,
)

from ..domain.events import Json
from ..domain.passing import Forward
from ..domain.ports import ToolCall
from .upstream_facts import Facts, offers_tasks
from .upstream_wire import TRACE_KEYS, forwarded

TOOL_CALL = "tools/call"
TASK_GET = "tasks/get"
TASK_METHODS = frozenset({TASK_GET, "tasks/update", "tasks/cancel"})
CALLBACK_KEY = "dev.outlast/callback"
LEVELS: tuple[str, ...] = get_args(LoggingLevel)  # the least severe first

# Of the exchange with our client, which the one with the upstream has anew or not at all.
_OF_THE_EXCHANGE = frozenset(
    {
        PROTOCOL_VERSION_META_KEY,
        CLIENT_INFO_META_KEY,
        CLIENT_CAPABILITIES_META_KEY,
        LOG_LEVEL_META_KEY,
        "progressToken",
    }
)
_OURS = "dev.outlast/"
_OF_MODERN_LEGS = frozenset({"inputResponses", "requestState"})

Result = dict[str, Json]


@dataclass(frozen=True)
class Request:
    """`meta` is what goes along in `_meta`, but for the log level. `public` puts a result under
    public names, `public_data` the data of an error. `may_ask` is False for a method on which no
    server asks anything back. `takes_task` is True when a task of the upstream's own may be the
    answer."""

    upstream: str
    method: str
    params: Mapping[str, Json]
    client_capabilities: Mapping[str, Json]
    meta: Mapping[str, Json]
    log_level: str | None
    wants_progress: bool
    may_ask: bool
    public: Callable[[Result], Result]
    public_data: Callable[[Json], Json] = lambda data: data
    takes_task: bool = False

    @property
    def trace(self) -> dict[str, str]:
        """The trace context, as `_meta` and OpenTelemetry carry it."""
        return {key: self.meta[key] for key in TRACE_KEYS if isinstance(self.meta.get(key), str)}

    def wire(self, *, modern: bool) -> dict[str, Json]:
        """The parameters as they are sent. Answers, state and log level mean something to a modern
        server only."""
        sent = dict(self.params)
        meta = dict(self.meta)
        if not modern:
            sent = {key: value for key, value in sent.items() if key not in _OF_MODERN_LEGS}
        elif self.log_level is not None:
            meta[LOG_LEVEL_META_KEY] = self.log_level
        return {**sent, "_meta": meta} if meta else sent

    def headers(self) -> dict[str, str]:
        """What of the request a modern HTTP server is told beside it."""
        key = "taskId" if self.method in TASK_METHODS else NAME_BEARING_METHODS.get(self.method)
        name = None if key is None else self.params.get(key)
        return {MCP_NAME_HEADER: encode_header_value(name)} if isinstance(name, str) else {}

    def declared(self, facts: Facts) -> dict[str, Json]:
        """What this modern server is told of the client.

        That tasks are known: on a call only where its task would be followed, for the specification
        lets a server that was told so answer with one.
        """
        takes = self.takes_task and offers_tasks(facts)
        return forwarded(self.client_capabilities, with_tasks=takes or self.method in TASK_METHODS)

    def is_loud_enough(self, message: Mapping[str, Json]) -> bool:
        """Whether this log message is one that was asked for."""
        level = message.get("level")
        if self.log_level not in LEVELS or level not in LEVELS:
            return self.log_level is not None
        return LEVELS.index(level) >= LEVELS.index(self.log_level)


def of_tool(call: ToolCall, public: Callable[[Result], Result]) -> Request:
    """The request that this leg of a tool's call is."""
    params: Result = {**(call.more or {}), "name": call.tool, "arguments": dict(call.arguments)}
    if call.answers is not None:
        params["inputResponses"] = dict(call.answers)
    if call.request_state is not None:
        params["requestState"] = call.request_state
    meta = _passed_on(call.meta)
    meta |= {key: value for key, value in (call.trace or {}).items() if key in TRACE_KEYS}
    if call.callback is not None:
        meta[CALLBACK_KEY] = dict(call.callback)
    return Request(
        upstream=call.upstream,
        method=TOOL_CALL,
        params=params,
        client_capabilities=call.client_capabilities,
        meta=meta,
        log_level=_log_level(call.meta),
        wants_progress=True,
        may_ask=True,
        public=public,
        takes_task=call.takes_task,
    )


def of_forward(
    forward: Forward,
    upstream: str,
    params: Mapping[str, Json],
    public: Callable[[Result], Result],
    public_data: Callable[[Json], Json],
) -> Request:
    """The request that is passed on to this upstream, with the parameters that it knows."""
    given = params.get("_meta")
    meta: Mapping[str, Any] = cast(Result, given) if isinstance(given, dict) else {}
    return Request(
        upstream=upstream,
        method=forward.method,
        params={key: value for key, value in params.items() if key != "_meta"},
        client_capabilities=forward.client_capabilities,
        meta=_passed_on(meta),
        log_level=_log_level(meta),
        wants_progress="progressToken" in meta,
        may_ask=forward.method not in {"completion/complete", *TASK_METHODS},
        public=public,
        public_data=public_data,
    )


def _passed_on(meta: Mapping[str, Json] | None) -> Result:
    """Without a trace context that is none: some servers stumble over one that is no string."""
    return {
        key: value
        for key, value in (meta or {}).items()
        if key not in _OF_THE_EXCHANGE
        and not key.startswith(_OURS)
        and (key not in TRACE_KEYS or isinstance(value, str))
    }


def _log_level(meta: Mapping[str, Json] | None) -> str | None:
    level = (meta or {}).get(LOG_LEVEL_META_KEY)
    return level if isinstance(level, str) else None
