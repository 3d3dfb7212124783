"""The parts of a process, traced: each is wrapped where it is made, so that untraced none pays.

A task waits longer than a span should last. The request that creates it is one span, whose place in
the trace is stored with the task; each attempt, append and delivery is one of its own in the same
trace, with a link to that one.
"""

from collections import OrderedDict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Tracer

from ...domain import errors
from ...domain.decisions import Events
from ...domain.events import TaskEvent
from ...domain.ports import (
    CallNews,
    EventLog,
    Faulted,
    LegEnded,
    Returned,
    RunningCall,
    Tool,
    ToolCall,
    Upstreams,
)
from ...domain.push import DueDelivery
from ...domain.task import Task
from ..endpoint import Method, Result
from ..exchange import Exchange
from ..run import Run
from . import spans

PLACES_MAX = 1_000  # tasks whose place in a trace is kept for their next delivery

Carrier = Mapping[str, str] | None


class Outcome(Protocol):
    """What came of one attempt at a delivery."""

    @property
    def status(self) -> int | None:
        """The endpoint's."""
        ...

    @property
    def category(self) -> str | None:
        """None when it arrived."""
        ...


class Tracing:
    """Makes the spans. `close` lets those leave that have ended."""

    def __init__(self, tracer: Tracer, close: Callable[[], Awaitable[None]]) -> None:
        self.tracer, self.close = tracer, close

    def over(self, methods: Mapping[str, Method]) -> dict[str, Method]:
        """The same methods, each request of which is a span."""
        return {name: self._traced(name, method) for name, method in methods.items()}

    def _traced(self, name: str, method: Method) -> Method:
        async def serve(exchange: Exchange) -> Result:
            given = _attributes_of(name, exchange)
            tool = given.get(spans.TOOL)
            with spans.spanning(
                self.tracer,
                name if tool is None else f"{name} {tool}",
                kind=SpanKind.SERVER,
                context=spans.context_of(exchange.meta),
                attributes=given,
            ) as span:
                result = await method(exchange.within(spans.carried_by(span)))
                spans.note_result(span, result)
                return result

        return serve

    def run(self, run: Run) -> AbstractContextManager[None]:
        """What a worker does with a task, from its start to an end, a question or a loss."""
        return self._running(run)

    @contextmanager
    def _running(self, run: Run) -> Generator[None]:
        opened = run.task.opened
        with spans.spanning(
            self.tracer,
            f"{spans.RUN} {opened.tool}",
            kind=SpanKind.CONSUMER,
            context=spans.context_of(opened.trace),
            attributes={
                spans.TASK: run.task.id,
                spans.ATTEMPT: run.task.attempt,
                spans.UPSTREAM: opened.upstream,
                spans.TOOL: opened.tool,
                spans.OPERATION: spans.EXECUTE_TOOL,
            },
            links=spans.links_to(opened.trace),
        ) as span:
            try:
                yield
            finally:
                span.set_attribute(spans.STATUS, run.task.status.value)

    def delivering(self, place_of: Callable[[str], Awaitable[Carrier]]) -> "Deliveries":
        """What watches deliveries. `place_of` finds what was stored with a task."""
        return Deliveries(self.tracer, place_of)


def _attributes_of(method: str, exchange: Exchange) -> dict[str, Any]:
    given: dict[str, Any] = {
        spans.METHOD: method,
        spans.REQUEST_ID: spans.shown_id(exchange.request_id),
    }
    if method == spans.CALL:
        given[spans.OPERATION] = spans.EXECUTE_TOOL
        if (tool := spans.tool_name(exchange.params.get("name"))) is not None:
            given[spans.TOOL] = tool
    if exchange.headers is not None:
        given |= {spans.TRANSPORT: "tcp", spans.NETWORK_PROTOCOL: "http"}
        if (revision := exchange.headers.get("mcp-protocol-version")) is not None:
            given[spans.PROTOCOL] = spans.shown_id(revision)
    return given


class TracedLog(EventLog):
    """An event log whose appends are spans."""

    def __init__(self, log: EventLog, tracer: Tracer) -> None:
        self._log, self._tracer = log, tracer

    async def append(self, before: Task | None, events: Events) -> Task:
        """See `EventLog.append`."""
        place = getattr(events[0], "trace", None) if before is None else before.opened.trace
        is_here = trace.get_current_span().get_span_context().is_valid
        with spans.spanning(
            self._tracer,
            spans.CREATE if before is None else spans.APPEND,
            context=None if is_here else spans.context_of(place),
            attributes={
                spans.TASK: events[0].task_id,
                spans.EVENTS: [event.TOPIC for event in events],
            },
            links=[] if before is None else spans.links_to(place),
        ) as span:
            after = await self._log.append(before, events)
            span.set_attribute(spans.VERSION, after.version)
            return after

    async def read(self, task_id: str) -> Sequence[TaskEvent]:
        """See `EventLog.read`."""
        return await self._log.read(task_id)

    async def tail(
        self, task_id: str, version: int | None = None
    ) -> tuple[Task | None, Sequence[TaskEvent]]:
        """See `EventLog.tail`."""
        return await self._log.tail(task_id, version)


class TracedUpstreams(Upstreams):
    """Upstreams whose calls are spans, and are told of them."""

    def __init__(self, upstreams: Upstreams, tracer: Tracer) -> None:
        self._upstreams, self._tracer = upstreams, tracer

    async def tools(self) -> Sequence[Tool]:
        """See `Upstreams.tools`."""
        return await self._upstreams.tools()

    async def ready(self, upstream: str, capabilities: Mapping[str, Any] | None = None) -> None:
        """See `Upstreams.ready`."""
        await self._upstreams.ready(upstream, capabilities)

    async def call(self, call: ToolCall) -> RunningCall:
        """See `Upstreams.call`."""
        is_here = trace.get_current_span().get_span_context().is_valid
        span = self._tracer.start_span(
            f"{spans.CALL} {call.tool}",
            None if is_here else spans.context_of(call.trace),
            SpanKind.CLIENT,
            {
                spans.METHOD: spans.CALL,
                spans.TOOL: call.tool,
                spans.OPERATION: spans.EXECUTE_TOOL,
                spans.UPSTREAM: call.upstream,
            },
        )
        told = {**(call.trace or {}), **spans.carried_by(span)}
        try:
            running = await self._upstreams.call(replace(call, trace=told))
        except BaseException as error:
            spans.note_failure(span, error)
            span.end()
            raise
        return _TracedCall(running, span)

    async def close(self) -> None:
        """See `Upstreams.close`."""
        await self._upstreams.close()


class _TracedCall(RunningCall):
    """The span ends with the call: by its outcome, its loss, or whoever stops it."""

    def __init__(self, running: RunningCall, span: Span) -> None:
        self._running, self._span = running, span

    def news(self) -> AsyncIterator[CallNews]:
        """See `RunningCall.news`."""
        return _TracedNews(self._running.news(), self._span)

    async def cancel(self) -> None:
        """See `RunningCall.cancel`."""
        try:
            await self._running.cancel()
        finally:
            if self._span.is_recording():
                spans.fail(self._span, spans.CANCELLED)
                self._span.end()


class _TracedNews(AsyncIterator[CallNews]):
    """No generator: one that is cancelled while it waits would be over."""

    def __init__(self, news: AsyncIterator[CallNews], span: Span) -> None:
        self._news, self._span = news, span

    async def __anext__(self) -> CallNews:
        try:
            item = await anext(self._news)
        except StopAsyncIteration:
            self._span.end()
            raise
        except errors.UpstreamUnavailable as error:
            spans.note_failure(self._span, error)
            self._span.end()
            raise
        match item:
            case Returned(result):
                spans.note_tool_error(self._span, result)
                self._span.end()
            case Faulted(code):
                spans.fail(self._span, str(code), code)
                self._span.end()
            case LegEnded():
                self._span.end()
            case _:
                pass
        return item

    async def aclose(self) -> None:
        """Close what is beneath, if it has to be."""
        close = getattr(self._news, "aclose", None)
        if close is not None:
            await close()


class Deliveries:
    """Each attempt at a webhook delivery as a span. Nothing of it is told to the endpoint."""

    def __init__(self, tracer: Tracer, place_of: Callable[[str], Awaitable[Carrier]]) -> None:
        self._tracer, self._place_of = tracer, place_of
        self._places: OrderedDict[str, Carrier] = OrderedDict()

    @asynccontextmanager
    async def around(self, due: DueDelivery) -> AsyncGenerator[Callable[[Outcome], None]]:
        """One attempt."""
        place = await self._place(due.task_id)
        with spans.spanning(
            self._tracer,
            spans.DELIVER,
            kind=SpanKind.PRODUCER,
            context=spans.context_of(place),
            attributes={
                spans.SUBSCRIPTION: due.subscription_id,
                spans.TASK: due.task_id,
                spans.VERSION: due.version,
                spans.DELIVERY: due.attempts + 1,
                spans.SERVER: urlsplit(due.url).hostname or "",
            },
            links=spans.links_to(place),
        ) as span:
            yield lambda outcome: _note(span, outcome)

    async def _place(self, task_id: str) -> Carrier:
        if not task_id or task_id in self._places:
            return self._places.get(task_id)
        try:
            place = await self._place_of(task_id)
        except errors.OutlastError:
            return None  # it is stored no more, or not to be had just now
        self._places[task_id] = place
        if len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)
        return place


def _note(span: Span, outcome: Outcome) -> None:
    if outcome.status is not None:
        span.set_attribute(spans.HTTP_STATUS, outcome.status)
    if outcome.category is not None:
        spans.fail(span, str(outcome.category))
