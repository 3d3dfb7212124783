"""`tools/call`: the plain result or a task, by the tool's policy and what this request declares."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

from mcp.shared.inbound import validate_mcp_param_headers

from ...delivery.port import CallWebhook
from ...domain import decisions, draft, errors, events
from ...domain.change import created_task
from ...domain.decisions import Events
from ...domain.extension import REQUIRED_CAPABILITIES
from ...domain.ports import (
    CallNews,
    Faulted,
    HeldAsk,
    LegEnded,
    Returned,
    TaskViews,
    Tool,
    ToolCall,
    Upstreams,
)
from ...domain.task import Task, evolve
from ..catalogue import Catalogue
from ..commands import Commands
from ..exchange import IDEMPOTENCY_META_KEY, Exchange
from ..ids import TaskIds
from ..jsonrpc import Rejection
from ..legs import error_of, is_task, merged_result
from ..news import NewsReader
from ..policy import Ask, Policies, Policy, Run
from ..retention import Retention
from ..sealing import StateSeal, call_digest
from ..worker import Worker
from .adopting import Adoptions
from .events import EventMethods

IDEMPOTENCY_KEY_LENGTH_MAX = 256
INPUT_CAPABILITIES = ("elicitation", "sampling", "roots")
# What is read here. `task` is of the revision before, and says nothing in this one.
PARAMETERS = frozenset({"name", "arguments", "inputResponses", "requestState", "_meta", "task"})
TRACE_KEYS = ("traceparent", "tracestate", "baggage")


@dataclass(frozen=True)
class Call:
    """A `tools/call` that has been read and judged: what to run, and how."""

    exchange: Exchange
    tool: Tool
    policy: Policy
    arguments: Mapping[str, Any]
    answers: Mapping[str, Any] | None
    state: str | None
    webhook: CallWebhook | None = None

    @cached_property
    def digest(self) -> str:
        """What this call is told from others by; few calls are ever asked for it."""
        return call_digest(self.tool.name, self.arguments)

    @property
    def idempotency_key(self) -> str | None:
        """The client's own key for this call, if it sent one."""
        return self.exchange.meta.get(IDEMPOTENCY_META_KEY)

    @property
    def trace(self) -> dict[str, str]:
        """The caller's trace context."""
        meta = self.exchange.meta
        return {key: meta[key] for key in TRACE_KEYS if isinstance(meta.get(key), str)}

    @property
    def input_capabilities(self) -> dict[str, Any]:
        """What the client can be asked for."""
        declared = self.exchange.capabilities
        return {key: declared[key] for key in INPUT_CAPABILITIES if key in declared}


@dataclass(frozen=True)
class Bench:
    """What calls are served with. Without `push` there are no events here."""

    commands: Commands
    views: TaskViews
    retention: Retention
    upstreams: Upstreams
    worker: Worker
    push: EventMethods | None = None


class ToolMethods:
    """See the module."""

    def __init__(
        self, bench: Bench, catalogue: Catalogue, policies: Policies, seal: StateSeal
    ) -> None:
        self._bench, self._catalogue, self._ids = bench, catalogue, TaskIds()
        self._policies, self._seal = policies, seal
        self._adoptions = Adoptions(bench.commands, bench.worker)

    async def call(self, exchange: Exchange) -> dict[str, Any]:
        """Serve one call. Nothing is created before everything that can be refused has been.

        A call beyond a quota is refused before it runs. One that began on the request, because it
        might have been quick, is answered there in the end.
        """
        call = await self._read(exchange)
        if call.policy.run is Run.DIRECT or not self._may_become_a_task(call):
            return await self._plain(call)
        known = await self._opened_before(call)
        if known is None and not self._catalogue.accepts(call.tool, call.arguments):
            return await self._plain(call)
        call = await self._with_webhook(call)
        if known is not None:
            return await self._known_task(known, call)
        if self._begins_plain(call):
            return await self._begin_plain(call)
        return await self._create(call, (self._opening(call),))

    async def _read(self, exchange: Exchange) -> Call:
        params = exchange.params
        name = params.get("name")
        if not isinstance(name, str):
            raise errors.InvalidCall("name must be a string")
        arguments = _object_or_none(params, "arguments") or {}
        answers = _object_or_none(params, "inputResponses")
        tool = await self._catalogue.find(name)
        self._check_headers(exchange, tool, arguments)
        state = None
        if params.get("requestState") is not None:
            digest = call_digest(tool.name, arguments)
            state = self._seal.open(params["requestState"], exchange.owner.key, digest)
        _check_key(exchange.meta.get(IDEMPOTENCY_META_KEY))
        policy = self._policies.of(tool.name)
        return Call(exchange, tool, policy, arguments, answers, state)

    def _check_headers(self, exchange: Exchange, tool: Tool, arguments: Mapping[str, Any]) -> None:
        if exchange.headers is None or not self._catalogue.is_mirrored(tool):
            return
        schema = tool.definition.get("inputSchema")
        refused = validate_mcp_param_headers(schema, arguments, exchange.headers)
        if refused is not None:
            raise Rejection(refused.code, refused.message, data=refused.data)

    def _may_become_a_task(self, call: Call) -> bool:
        if not call.exchange.declares_tasks and call.policy.run is Run.TASK_ONLY:
            raise errors.MissingCapability(REQUIRED_CAPABILITIES)
        return call.exchange.declares_tasks

    def _begins_plain(self, call: Call) -> bool:
        """A keyed call is recorded before it is sent, so that sent twice it runs once."""
        may_wait = call.policy.run is Run.AUTO or call.policy.ask is Ask.BEFORE
        return may_wait and call.idempotency_key is None

    async def _with_webhook(self, call: Call) -> Call:
        """The call with the webhook that it brought, for the task that it may become."""
        if call.exchange.meta.get(draft.WEBHOOK_META_KEY) is None:
            return call
        if self._bench.push is None:
            raise errors.Unsupported("deliveryMode", draft.BY_WEBHOOK)
        return replace(call, webhook=await self._bench.push.webhook_of(call.exchange))

    # --- plain: the upstream's own answer, on this request

    async def _plain(self, call: Call) -> dict[str, Any]:
        named = {k: v for k, v in call.exchange.params.items() if k not in PARAMETERS}
        sent = replace(_tool_call(call), more=named)
        reader = NewsReader(await self._bench.upstreams.call(sent))
        try:
            return await self._until_answered(call, reader)
        finally:
            await reader.abandon()

    async def _until_answered(self, call: Call, reader: NewsReader) -> dict[str, Any]:
        while True:
            item = await reader.next(call.exchange.tell)
            if not isinstance(item, HeldAsk):
                return self._answer(call, item)
            if (ask := call.exchange.ask) is not None:
                item.reply(await ask(item.ask.request))
            else:
                message = "This call cannot ask the client anything"
                item.refuse(decisions.INTERNAL_ERROR, message)

    def _answer(self, call: Call, item: CallNews | None) -> dict[str, Any]:
        match item:
            case Returned():
                return merged_result(item.result)
            case Faulted():
                raise errors.UpstreamFault(item.code, item.message, item.data)
            case LegEnded():
                return self._input_required(call, item)
            case _:
                raise errors.UpstreamUnavailable(call.tool.upstream, "the call had no outcome")

    def _input_required(self, call: Call, leg: LegEnded) -> dict[str, Any]:
        result: dict[str, Any] = {"resultType": "input_required"}
        if leg.asks:
            result["inputRequests"] = {wanted.name: wanted.request for wanted in leg.asks}
        if leg.request_state is not None:
            owner = call.exchange.owner.key
            result["requestState"] = self._seal.seal(leg.request_state, owner, call.digest)
        return result

    # --- plain at first, a task when it lasts

    async def _begin_plain(self, call: Call) -> dict[str, Any]:
        """Run on this request for `grace`; then the running call itself becomes the task's work."""
        takes = self._bench.worker.bench.takes_task(call.tool.upstream, call.tool.upstream_name)
        sent = replace(_tool_call(call), takes_task=takes)
        reader = NewsReader(await self._bench.upstreams.call(sent))
        item: CallNews | None = None
        adopted = False
        try:
            give_up_at = asyncio.get_running_loop().time() + call.policy.grace / 1000
            with contextlib.suppress(TimeoutError):
                item = await reader.next(call.exchange.tell, give_up_at)
            if isinstance(item, LegEnded) and call.policy.ask is Ask.BEFORE:
                return self._answer(call, item)
            # A task that the upstream has made of it is no end: that will tell the rest.
            is_begun = isinstance(item, Returned) and is_task(item.result)
            if isinstance(item, Returned | Faulted) and not is_begun:
                is_plain = call.policy.run is Run.AUTO
                return self._answer(call, item) if is_plain else await self._record(call, item)
            if item is not None:
                reader.put_back(item)
            adopted = True
            return await self._adopt(call, reader)
        except asyncio.CancelledError:
            if takes and not adopted:  # it may have been answered, with a task to be followed
                adopted = True
                self._adoptions.leave(self._begun(call), reader)
            raise
        finally:
            if not adopted:
                await reader.abandon()

    async def _adopt(self, call: Call, reader: NewsReader) -> dict[str, Any]:
        history = self._begun(call)
        try:
            created = await self._adoptions.adopt(history, reader)
        except errors.QuotaExceeded:
            # It runs already: rather than lose the work, the request waits for its answer.
            try:
                answer = await self._until_answered(call, reader)
            finally:
                self._adoptions.leave(history, reader)
            if not is_task(answer):
                return answer
            await self._adoptions.disown(history, answer)
            raise
        return await self._lost_race(call) if created is None else await self._told(created, call)

    def _begun(self, call: Call) -> Events:
        """The history of a call that runs before its task begins."""
        opening = self._opening(call)
        worker, now = self._bench.worker.name, self._bench.commands.now()
        return (opening, *decisions.start_work(evolve(None, opening), worker, now))

    async def _record(self, call: Call, item: Returned | Faulted) -> dict[str, Any]:
        """The task of a call that has ended; its plain answer, where a quota allows no task."""
        try:
            return await self._create(call, self._ended(call, item))
        except errors.QuotaExceeded:
            return self._answer(call, item)

    def _ended(self, call: Call, item: Returned | Faulted) -> Events:
        """The whole story of a call that ended before its task began."""
        now = self._bench.commands.now()
        opening = self._opening(call)
        task = evolve(None, opening)
        (started,) = decisions.start_work(task, self._bench.worker.name, now)
        task = evolve(task, started)
        if isinstance(item, Returned):
            ended = decisions.complete(task, 1, merged_result(item.result), now)
        else:
            ended = decisions.fail(task, 1, error_of(item), now)
        return (opening, started, *ended)

    # --- tasks

    def _opening(self, call: Call) -> events.TaskOpened:
        given = call.tool.definition.get("annotations")
        hints = cast(dict[str, Any], given) if isinstance(given, dict) else {}
        return events.TaskOpened(
            task_id=self._ids.new(),
            version=1,
            at=decisions.instant(self._bench.commands.now()),
            owner=call.exchange.owner.key,
            upstream=call.tool.upstream,
            tool=call.tool.upstream_name,
            arguments=call.arguments,
            client_capabilities=call.input_capabilities,
            ttl_ms=call.policy.ttl,
            poll_interval_ms=call.policy.poll_interval,
            timeout_ms=call.policy.timeout,
            rerun_is_safe=call.policy.rerun_is_safe(hints),
            idempotency_key=call.idempotency_key,
            call_digest=None if call.idempotency_key is None else call.digest,
            trace=call.trace or None,
            carried_answers=call.answers,
            carried_state=call.state,
        )

    async def _create(self, call: Call, history: Events) -> dict[str, Any]:
        created = await self._open(history)
        return await self._lost_race(call) if created is None else await self._told(created, call)

    async def _open(self, history: Events) -> Task | None:
        """The stored task, or None when a call with the same key has stored it first."""
        try:
            return await self._bench.commands.open(history)
        except errors.DuplicateOpening:
            return None

    async def _lost_race(self, call: Call) -> dict[str, Any]:
        known = await self._opened_before(call)
        if known is None:
            raise errors.StoreUnavailable  # expired and removed in between: the client calls again
        return await self._known_task(known, call)

    async def _opened_before(self, call: Call) -> str | None:
        """The task that this key opened, unless its time is over: then it is nobody's."""
        if call.idempotency_key is None:
            return None
        known = await self._bench.views.opened_with(call.exchange.owner.key, call.idempotency_key)
        if known is None or not await self._bench.retention.keeps(known):
            return None
        return known.task_id

    async def _known_task(self, task_id: str, call: Call) -> dict[str, Any]:
        try:
            task = await self._bench.commands.load(task_id)
        except errors.TaskNotFound:
            raise errors.StoreUnavailable from None  # as above: the client calls again
        if task.opened.call_digest != call.digest:
            raise errors.IdempotencyConflict
        return await self._told(task, call)

    async def _told(self, task: Task, call: Call) -> dict[str, Any]:
        """The CreateTaskResult. Whoever reads it may rely on the webhook that came with the call.

        When that fails the task stays; a call with an idempotency key finds it, and tries again.
        """
        if call.webhook is not None:
            await call.webhook.follow(task.id)
        push = self._bench.push
        return created_task(task) if push is None else push.created(call.exchange, task)


def _tool_call(call: Call) -> ToolCall:
    return ToolCall(
        upstream=call.tool.upstream,
        tool=call.tool.upstream_name,
        arguments=call.arguments,
        client_capabilities=call.input_capabilities,
        answers=call.answers,
        request_state=call.state,
        trace=call.trace or None,
        meta=call.exchange.meta,
    )


def _object_or_none(params: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    value = params.get(name)
    if value is not None and not isinstance(value, dict):
        raise errors.InvalidCall(f"{name} must be an object")
    return cast(Mapping[str, Any] | None, value)


def _check_key(key: Any) -> None:
    longest = IDEMPOTENCY_KEY_LENGTH_MAX
    is_good = isinstance(key, str) and 0 < len(key) <= longest and "\0" not in key
    if key is not None and not is_good:
        raise errors.InvalidCall(f"{IDEMPOTENCY_META_KEY} must be 1 to {longest} characters")
