"""The SDK's server for sessions, with the methods of this service behind it.

As a middleware: there the parameters are still what the client sent, and what it answers is sent as
it is. The SDK's typed handlers would drop every member that their models do not know.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, LoggingLevel, methods as wire

from ...domain import errors
from .. import problems
from ..jsonrpc import Rejection
from ..methods.discovery import INSTRUCTIONS
from . import shapes
from .asking import Context
from .calls import CALL, Calls, exchange_of
from .listening import SessionEars
from .tasks import OlderTasks
from .visit import HERE

PASSED = (
    "tools/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "prompts/list",
    "prompts/get",
    "completion/complete",
)
OF_TASKS = ("tasks/get", "tasks/result", "tasks/cancel", "tasks/list")

Serve = Callable[[Context], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class Methods:
    """What a session may ask for. `server_info` is the name and the version of this service."""

    calls: Calls
    tasks: OlderTasks
    ears: SessionEars
    server_info: Mapping[str, str]
    refused: Callable[[Exception], None]

    def server(self) -> "Server[Any]":
        """The SDK's server."""
        info = self.server_info
        given: Server[Any] = Server(info["name"], version=info["version"])
        given.middleware.append(self._serve)
        return given

    async def _serve(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.request_id is None:
            await self._notified(ctx)
            return await call_next(ctx)
        if ctx.method == "initialize":
            return await self._initialized(ctx, call_next)
        serve = self._method(ctx)
        if serve is None:
            return await call_next(ctx)
        try:
            result = await serve(ctx)
        except Exception as error:
            raise self._told(error) from error
        policies = self.calls.policies
        return shapes.older(ctx.method, ctx.protocol_version, result, policies)

    def _method(self, context: Context) -> Serve | None:
        """How it is served; None for what the SDK answers. Raises ValidationError, MCPError."""
        method, version = context.method, context.protocol_version
        if method in wire.SPEC_CLIENT_METHODS:
            try:
                wire.validate_client_request(method, version, context.params)
            except KeyError:
                raise MCPError(METHOD_NOT_FOUND, "Method not found", method) from None
        ours: dict[str, Serve] = {
            CALL: self.calls.call,
            "logging/setLevel": _set_level,
            "resources/subscribe": self.ears.subscribe,
            "resources/unsubscribe": self.ears.unsubscribe,
        }
        if shapes.has_tasks(version):
            tasks = self.tasks
            serving = (tasks.get, tasks.result, tasks.cancel, tasks.list)
            ours.update(zip(OF_TASKS, serving, strict=True))
        if method in PASSED and method in self.calls.waiting.methods:
            ours[method] = self.calls.serve
        return ours.get(method)

    async def _initialized(self, context: Context, call_next: CallNext) -> dict[str, Any]:
        """The SDK's own answer, with what this service and its upstreams offer."""
        result = cast(dict[str, Any], await call_next(context))
        discover = self.calls.waiting.methods["server/discover"]
        given = cast(dict[str, Any], await discover(exchange_of(context)))
        offered = cast(dict[str, Any], given["capabilities"])
        result["capabilities"] = shapes.capabilities(offered, result["protocolVersion"])
        # What ours say is for clients of this revision.
        said = str(given.get("instructions") or "").removesuffix(INSTRUCTIONS).strip()
        return {**result, "instructions": said} if said else result

    async def _notified(self, context: Context) -> None:
        if context.method == "notifications/initialized":
            await self.ears.begin(context)
        elif context.method == "notifications/cancelled":
            await self.calls.cancelled(context, (context.params or {}).get("requestId"))

    def _told(self, error: Exception) -> Exception:
        """The same failure as the SDK writes it."""
        if isinstance(error, MCPError):
            return error
        self.refused(error)
        told: Rejection = problems.rejection(error)
        return MCPError(told.code, told.message, told.data)


async def _set_level(context: Context) -> dict[str, Any]:
    level = (context.params or {}).get("level")
    if not isinstance(level, str) or level not in get_args(LoggingLevel):
        raise errors.InvalidCall("level must be one of the levels of a log")
    HERE.get().session.log_level = level
    return {}
