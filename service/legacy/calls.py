"""`tools/call` for clients that wait for the result, and what passes through for them.

A call that becomes a task is waited for. Whatever becomes of the client's connection, the task goes
on, and the same request sent again in its session finds it: its session and its id are the key.
Only `notifications/cancelled` cancels it.
"""

import asyncio
from collections.abc import Generator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, cast

from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, LOG_LEVEL_META_KEY, METHOD_NOT_FOUND

from ...domain import errors
from ...domain.extension import REQUIRED_CAPABILITIES
from ...domain.ports import Logged, Progress
from .. import jsonrpc
from ..exchange import IDEMPOTENCY_META_KEY, Exchange
from ..jsonrpc import RequestId
from ..policy import Policies, Run
from . import shapes
from .asking import Context, ask, declared, tell
from .visit import HERE, Running, to_its_end
from .waiting import Waiting

CALL = "tools/call"
ROUNDS_MAX = 16  # a tool that asks more often in one call is stopped
CREATE_S_MAX = 10.0  # a cancelled call gets so long to become the task that is to be cancelled


@dataclass(frozen=True)
class Calls:
    """See the module."""

    waiting: Waiting
    policies: Policies

    async def serve(self, context: Context) -> dict[str, Any]:
        """One request of a method that takes a while, but no task."""
        return await self._answered(context, exchange_of(context))

    async def call(self, context: Context) -> dict[str, Any]:
        """One `tools/call`; as the older revision's own task if that is what is asked for."""
        params, session = context.params or {}, HERE.get().session
        as_task = shapes.has_tasks(context.protocol_version) and params.get("task") is not None
        is_direct = self.policies.of(str(params.get("name"))).run is Run.DIRECT
        if as_task and is_direct:
            raise MCPError(METHOD_NOT_FOUND, "The calls of this tool cannot be tasks")
        exchange = _with_key(exchange_of(context))
        # A task of its own: a request that is cut off must not cut off the making of a task.
        work = asyncio.ensure_future(self._answered(context, exchange))
        work.add_done_callback(_heard)
        if is_direct:
            session.stops(work)
        with _kept(session.calls, exchange.request_id, Running(work, is_direct)):
            result = await asyncio.shield(work)
            if result.get("resultType") != "task":
                return _plain(result, as_task=as_task)
            if as_task:
                return {"task": shapes.task(result)}
            return await self._waited(context, exchange, result["taskId"])

    async def _waited(self, context: Context, exchange: Exchange, task_id: str) -> dict[str, Any]:
        try:
            return await self.waiting.result(context, exchange, task_id)
        except errors.TooManyWatches:  # nobody would ever hear of it
            await self.waiting.give_up(exchange, task_id)
            raise

    async def cancelled(self, context: Context, request_id: Any) -> None:
        """The client wants no answer to this request any more. It may leave with these words."""
        running = _taken(HERE.get().session.calls, request_id)
        if running is None:
            return
        if running.is_direct:
            running.work.cancel()
            return
        await to_its_end(self._cancel(exchange_of(context), running))

    async def _cancel(self, exchange: Exchange, running: Running) -> None:
        await asyncio.wait({running.work}, timeout=CREATE_S_MAX)
        if not running.work.done():
            running.work.cancel()
            return
        with suppress(Exception, asyncio.CancelledError):
            result = running.work.result()
            if result.get("resultType") == "task":
                await self.waiting.cancel(exchange, result["taskId"])

    async def _answered(self, context: Context, exchange: Exchange) -> dict[str, Any]:
        """The answer, once all rounds that the client has to be asked in are over."""
        for _ in range(ROUNDS_MAX):
            result = await self._round(context, exchange)
            if result.get("resultType") != "input_required":
                return result
            requests = cast(dict[str, Any], result.get("inputRequests") or {})
            answers = {name: await ask(context, wanted) for name, wanted in requests.items()}
            given = {"inputResponses": answers, "requestState": result.get("requestState")}
            new = {key: value for key, value in given.items() if value is not None}
            exchange = replace(exchange, params={**exchange.params, **new})
        raise MCPError(INTERNAL_ERROR, f"The call asked the client more than {ROUNDS_MAX} times")

    async def _round(self, context: Context, exchange: Exchange) -> dict[str, Any]:
        """One answer, with the news on the way to it told before it."""
        work = asyncio.ensure_future(self.waiting.methods[exchange.method](exchange))
        try:
            async with aclosing(exchange.news_until(work)) as told:
                async for news in told:
                    if news is not None:
                        await _pass_on(context, exchange, news)
            result = work.result()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        return jsonrpc.loads(result) if isinstance(result, bytes) else result


def exchange_of(context: Context) -> Exchange:
    """The request as the methods see it. It has no headers that would have to repeat it.

    What the session set for its log holds for each of its requests.
    """
    visit, params = HERE.get(), dict(context.params or {})
    params.pop("task", None)  # it is answered here, and no upstream's
    meta = cast(dict[str, Any], params.get("_meta") or {})
    params["_meta"] = {LOG_LEVEL_META_KEY: visit.session.log_level, **meta}
    request_id = context.request_id if context.request_id is not None else ""
    capabilities = {**declared(context), **REQUIRED_CAPABILITIES}
    return Exchange(
        visit.caller,
        request_id,
        context.method,
        params,
        capabilities,
        None,
        lambda request: ask(context, request),
    )


def _with_key(exchange: Exchange) -> Exchange:
    """With the key of its place in its session, unless the client has one of its own."""
    key = HERE.get().session.key_of(exchange.request_id)
    if key is None or IDEMPOTENCY_META_KEY in exchange.meta:
        return exchange
    meta = {**exchange.meta, IDEMPOTENCY_META_KEY: key}
    return replace(exchange, params={**exchange.params, "_meta": meta})


def _plain(result: dict[str, Any], *, as_task: bool) -> dict[str, Any]:
    if as_task:  # arguments that do not fit, say: refused by the upstream before there was a task
        raise MCPError(INVALID_PARAMS, "The call has been answered without a task", result)
    return result


async def _pass_on(context: Context, exchange: Exchange, news: Progress | Logged) -> None:
    wire = jsonrpc.loads(exchange.notification(news))
    await tell(context, wire["method"], wire["params"], alone=False)


def _heard(work: "asyncio.Future[Any]") -> None:
    if not work.cancelled():
        work.exception()  # whoever asked may have gone


@contextmanager
def _kept(
    calls: dict[RequestId, Running], request_id: RequestId, running: Running
) -> Generator[None]:
    """Keep a call where `cancelled` finds it. One that is cut off stays there for that."""
    calls[request_id] = running
    try:
        yield
    except asyncio.CancelledError:
        raise
    except BaseException:
        _forget(calls, request_id, running)
        raise
    _forget(calls, request_id, running)


def _taken(calls: dict[RequestId, Running], named: Any) -> Running | None:
    """The call of this id, which is cut off by now. "7" is 7 here: so it was for the SDK."""
    if not isinstance(named, str | int) or isinstance(named, bool):
        return None
    given = coerce_request_id(named)
    alike = [one for one in calls if coerce_request_id(one) == given]
    return calls.pop(named if named in alike else alike[0]) if alike else None


def _forget(calls: dict[RequestId, Running], request_id: RequestId, running: Running) -> None:
    if calls.get(request_id) is running:
        del calls[request_id]
