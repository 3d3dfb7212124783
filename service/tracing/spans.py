"""What spans are called and what they say of themselves: names and numbers, never a payload.

The names are those of OpenTelemetry's conventions for MCP; ours begin with `outlast.`.
"""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

CREATE, APPEND, RUN, DELIVER = "create", "append", "run", "deliver"
CALL = "tools/call"

METHOD, TOOL, OPERATION = "mcp.method.name", "gen_ai.tool.name", "gen_ai.operation.name"
PROTOCOL, REQUEST_ID = "mcp.protocol.version", "jsonrpc.request.id"
ERROR_TYPE, CODE = "error.type", "rpc.response.status_code"
TRANSPORT, NETWORK_PROTOCOL = "network.transport", "network.protocol.name"
SERVER, HTTP_STATUS = "server.address", "http.response.status_code"
TASK, VERSION, ATTEMPT = "outlast.task.id", "outlast.task.version", "outlast.task.attempt"
STATUS, UPSTREAM, EVENTS = "outlast.task.status", "outlast.upstream", "outlast.events"
SUBSCRIPTION, DELIVERY = "outlast.subscription.id", "outlast.delivery.attempt"

SPANS = (CALL, CREATE, APPEND, RUN, DELIVER)
ATTRIBUTES = (
    *(METHOD, TOOL, OPERATION, PROTOCOL, REQUEST_ID, ERROR_TYPE, CODE, TRANSPORT, NETWORK_PROTOCOL),
    *(SERVER, HTTP_STATUS, TASK, VERSION, ATTEMPT, STATUS, UPSTREAM, EVENTS),
    *(SUBSCRIPTION, DELIVERY),
)

EXECUTE_TOOL, TOOL_ERROR, CANCELLED = "execute_tool", "tool_error", "cancelled"

_KEYS = ("traceparent", "tracestate")
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")  # what the protocol lets tools be called
_ID_MAX = 64
_PROPAGATOR = TraceContextTextMapPropagator()


def context_of(carrier: Mapping[str, Any] | None) -> Context:
    """The place in a trace that this names; of nothing that was ours before."""
    given = {key: value for key in _KEYS if isinstance(value := (carrier or {}).get(key), str)}
    return _PROPAGATOR.extract(given, Context())


def carried_by(span: Span) -> dict[str, str]:
    """What names this span to others."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, Context()))
    return carrier


def links_to(carrier: Mapping[str, Any] | None) -> list[Link]:
    """A link to the span that this names, if it does."""
    there = trace.get_current_span(context_of(carrier)).get_span_context()
    return [Link(there)] if there.is_valid else []


def tool_name(given: object) -> str | None:
    """A tool's name that may be shown: one that breaks the protocol's rules may be anything."""
    return given if isinstance(given, str) and _NAME.fullmatch(given) else None


def shown_id(given: object) -> str:
    """The id of a request, within bounds."""
    return str(given)[:_ID_MAX]


def fail(span: Span, why: str, code: object = None) -> None:
    """Say that it failed, and of which kind the failure was: its words may be a payload."""
    span.set_attribute(ERROR_TYPE, why)
    if isinstance(code, int):
        span.set_attribute(CODE, str(code))
    span.set_status(Status(StatusCode.ERROR))


def note_failure(span: Span, error: BaseException) -> None:
    """The same of what was raised."""
    if not isinstance(error, Exception):
        fail(span, CANCELLED)
        return
    code: object = getattr(error, "code", None)
    fail(span, str(code) if isinstance(code, int) else type(error).__name__, code)


def note_result(span: Span, result: object) -> None:
    """What is to be known of a result of ours: the task that it is, or that a tool failed."""
    if not isinstance(result, dict):
        return
    given = cast(Mapping[str, Any], result)
    task_id = given.get("taskId")
    if given.get("resultType") == "task" and isinstance(task_id, str):
        span.set_attribute(TASK, task_id)
    note_tool_error(span, given)


def note_tool_error(span: Span, result: Mapping[str, Any]) -> None:
    """A tool's own error comes as a result."""
    if result.get("isError") is True:
        fail(span, TOOL_ERROR)


@contextmanager
def spanning(  # noqa: PLR0913 - keyword only; what not every span has
    tracer: Tracer,
    name: str,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    context: Context | None = None,
    attributes: Mapping[str, Any] | None = None,
    links: list[Link] | None = None,
) -> Generator[Span]:
    """The block as a span, which is the current one in it. What it raises is named, not told."""
    span = tracer.start_span(name, context, kind, attributes, links)
    with trace.use_span(
        span, end_on_exit=True, record_exception=False, set_status_on_exception=False
    ):
        try:
            yield span
        except BaseException as error:
            note_failure(span, error)
            raise
