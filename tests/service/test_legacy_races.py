"""A session over lines whose client leaves, gives up or is told too soon: nothing of it is lost."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest

from outlast.delivery.port import ListenRequest
from outlast.domain import errors
from outlast.service.exchange import Exchange
from outlast.service.legacy import lines
from outlast.service.legacy.calls import Calls
from outlast.service.legacy.listening import SessionEars
from outlast.service.legacy.server import Methods
from outlast.service.legacy.tasks import Journal, OlderTasks
from outlast.service.legacy.waiting import Waiting
from outlast.service.policy import Policies, Policy, Run
from outlast.tests.domain.given import DEPLOY, YES
from outlast.tests.service.legacy_played import (
    PATIENCE_S,
    Frames,
    Watched,
    agreed,
    framed,
    no_moments,
    told,
)
from outlast.tests.support.sessions import request

pytestmark = [pytest.mark.anyio, pytest.mark.promise("older-clients-are-served")]

WORKING, CANCELLED = framed({"status": "working"}), framed({"status": "cancelled"})
ASKING = framed({"status": "input_required", "inputRequests": {"in-1": DEPLOY.request}})
TASK: Mapping[str, Any] = {"resultType": "task", "taskId": "t", "status": "working"}


class Lines:
    """The client's end: what it says comes when the test says so."""

    def __init__(self) -> None:
        self._said: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def lines(self) -> AsyncIterator[bytes]:
        while (line := await self._said.get()) is not None:
            yield line

    async def send(self, line: bytes) -> None:
        self._heard.put_nowait(json.loads(line))

    def say(self, *messages: Mapping[str, Any]) -> None:
        for message in messages:
            self._said.put_nowait(json.dumps(message).encode())

    def leave(self) -> None:
        self._said.put_nowait(None)

    async def hears(self, **wanted: Any) -> dict[str, Any]:
        """The next message with these members; those before it are passed over."""
        while True:
            message = await self._heard.get()
            if wanted.items() <= message.items():
                return message

    async def shakes_hands(self) -> None:
        info = {"name": "raw", "version": "1"}
        capabilities = {"elicitation": {}}
        params = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info}
        self.say(request("initialize", params, 0), told("notifications/initialized"))
        await self.hears(id=0)


def tasks(*frames: bytes, then: Awaitable[object] | None = None) -> Frames:
    """Watches of a task tell this; those of a session, that they have been agreed to."""

    async def of_task() -> AsyncGenerator[bytes]:
        for frame in frames:
            yield frame
        await (then or asyncio.Event().wait())

    return lambda request: of_task() if request.declares_tasks else agreed(request)


@asynccontextmanager
async def serving(
    listener: Any, methods: Mapping[str, Any], run: Run = Run.AUTO
) -> AsyncIterator[tuple[Lines, "asyncio.Task[None]"]]:
    """A session that has shaken hands, and its serving, which ends when the client leaves."""

    async def discover(_exchange: Exchange) -> dict[str, Any]:
        return {"capabilities": {"tools": {}}}

    waiting = Waiting(listener, no_moments, {"server/discover": discover, **methods})
    policies = Policies(Policy(run=run), {})
    served = Methods(
        Calls(waiting, policies),
        OlderTasks(waiting, cast(Journal, None)),
        SessionEars(listener),
        {"name": "outlast", "version": "1"},
        lambda _: None,
    )
    client = Lines()
    with anyio.fail_after(PATIENCE_S):
        serving_ = asyncio.create_task(lines.serve(served.server(), client.lines(), client.send))
        try:
            await client.shakes_hands()
            yield client, serving_
        finally:
            client.leave()
            await asyncio.gather(serving_, return_exceptions=True)


class Acts:
    """Methods of a task that record what was done, each once it may."""

    def __init__(self) -> None:
        self.begun, self.done = dict[str, asyncio.Event](), list[str]()
        self.may_act = asyncio.Event()
        self.methods: Mapping[str, Any] = {
            "tools/call": self._called,
            "tasks/cancel": lambda exchange: self._act("cancel", exchange),
            "tasks/update": lambda exchange: self._act("update", exchange),
        }

    async def _called(self, _exchange: Exchange) -> dict[str, Any]:
        return dict(TASK)

    async def _act(self, name: str, _exchange: Exchange) -> dict[str, Any]:
        self.has_begun(name).set()
        await self.may_act.wait()
        self.done.append(name)
        return {}

    def has_begun(self, name: str) -> asyncio.Event:
        return self.begun.setdefault(name, asyncio.Event())


CALL = request("tools/call", {"name": "deploy", "arguments": {}}, 7)


async def test_a_session_that_hears_of_no_changes_is_served_all_the_same():
    async def failing(_request: ListenRequest) -> AsyncGenerator[bytes]:
        raise errors.StoreUnavailable
        yield b""

    async with serving(Watched(failing), {}) as (client, _):
        client.say(request("ping", {}, 1))
        assert (await client.hears(id=1))["result"] == {}
        client.say(request("resources/subscribe", {"uri": "a:b"}, 2))
        assert (await client.hears(id=2))["error"]["message"] == str(errors.StoreUnavailable())
        client.say(request("ping", {}, 3))
        assert (await client.hears(id=3))["result"] == {}


async def test_a_subscription_that_is_given_up_leaves_one_watch_and_it_is_the_one_before():
    may_begin = asyncio.Event()

    async def slow(request: ListenRequest) -> AsyncGenerator[bytes]:
        if "a:b" in request.params["notifications"]["resourceSubscriptions"]:
            has_asked.set()
            await may_begin.wait()
        async for frame in agreed(request):
            yield frame

    watched, has_asked = Watched(slow), asyncio.Event()
    async with serving(watched, {}) as (client, served):
        client.say(request("resources/subscribe", {"uri": "a:b"}, 1))
        await has_asked.wait()
        client.say(told("notifications/cancelled", requestId=1))
        await watched.all_closed(but=1)
        client.leave()
        await served
        await watched.all_closed()


async def test_what_cannot_be_unsubscribed_yet_can_be_later():
    refusing = False

    class Full(Watched):
        async def open(self, request: ListenRequest) -> Any:
            if refusing:
                raise errors.TooManyWatches("watches of this owner", 1)
            return await super().open(request)

    watched = Full(agreed)
    async with serving(watched, {}) as (client, _):
        client.say(request("resources/subscribe", {"uri": "a:b"}, 1))
        assert (await client.hears(id=1))["result"] == {}
        refusing = True
        client.say(request("resources/unsubscribe", {"uri": "a:b"}, 2))
        assert "error" in await client.hears(id=2)
        refusing = False
        client.say(request("resources/unsubscribe", {"uri": "a:b"}, 3))
        assert (await client.hears(id=3))["result"] == {}
        assert watched.opened[-1].params["notifications"]["resourceSubscriptions"] == []


async def test_an_answer_reaches_its_task_though_the_client_leaves_at_once():
    acts = Acts()
    async with serving(Watched(tasks(ASKING)), acts.methods) as (client, served):
        client.say(CALL)
        asked = await client.hears(method="elicitation/create")
        client.say({"jsonrpc": "2.0", "id": asked["id"], "result": YES})
        await acts.has_begun("update").wait()
        client.leave()
        await client.hears(id=7)
        acts.may_act.set()
        await served
        assert acts.done == ["update"]


async def test_a_client_that_leaves_while_it_is_asked_cancels_nothing():
    acts = Acts()
    acts.may_act.set()
    async with serving(Watched(tasks(ASKING)), acts.methods) as (client, served):
        client.say(CALL)
        await client.hears(method="elicitation/create")
        client.leave()
        await served
        assert acts.done == []


async def test_a_cancel_is_carried_out_though_the_client_leaves_at_once():
    acts, watched = Acts(), Watched(tasks(ASKING))
    async with serving(watched, acts.methods) as (client, served):
        client.say(CALL)
        await client.hears(method="elicitation/create")
        client.say(told("notifications/cancelled", requestId=7))
        await acts.has_begun("cancel").wait()
        client.leave()
        await watched.all_closed()
        acts.may_act.set()
        await served
        assert acts.done == ["cancel"]


async def test_a_call_that_is_cancelled_before_it_is_a_task_is_so_though_the_client_leaves():
    may_begin, acts = asyncio.Event(), Acts()
    acts.may_act.set()

    async def slow(_exchange: Exchange) -> dict[str, Any]:
        has_begun.set()
        await may_begin.wait()
        return dict(TASK)

    has_begun = asyncio.Event()
    methods = {**acts.methods, "tools/call": slow}
    watched = Watched(tasks(WORKING))
    async with serving(watched, methods) as (client, served):
        client.say(CALL)
        await has_begun.wait()
        client.say(told("notifications/cancelled", requestId=7))
        client.leave()
        await watched.all_closed()
        may_begin.set()
        await served
        assert acts.done == ["cancel"]


async def test_a_refusal_cancels_the_task_though_the_client_leaves_at_once():
    acts = Acts()
    async with serving(Watched(tasks(ASKING)), acts.methods) as (client, served):
        client.say(CALL)
        asked = await client.hears(method="elicitation/create")
        client.say({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -1, "message": "no"}})
        await acts.has_begun("cancel").wait()
        client.leave()
        await client.hears(id=7)
        acts.may_act.set()
        await served
        assert acts.done == ["cancel"]


@pytest.mark.parametrize("named", ["7", 7])
async def test_a_call_is_cancelled_by_its_id_however_that_is_written(named: str | int):
    acts = Acts()
    async with serving(Watched(tasks(ASKING)), acts.methods) as (client, _):
        client.say(CALL)
        await client.hears(method="elicitation/create")
        client.say(told("notifications/cancelled", requestId=named))
        await acts.has_begun("cancel").wait()
        acts.may_act.set()


async def test_a_direct_call_that_was_sent_twice_is_stopped_twice_when_the_session_ends():
    begun: asyncio.Queue[None] = asyncio.Queue()
    stopped: asyncio.Queue[None] = asyncio.Queue()

    async def endless(_exchange: Exchange) -> dict[str, Any]:
        begun.put_nowait(None)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.put_nowait(None)
        return {}

    async with serving(Watched(agreed), {"tools/call": endless}, Run.DIRECT) as (client, served):
        client.say(CALL, CALL)
        await begun.get()
        await begun.get()
        client.leave()
        await served
        await stopped.get()
        await stopped.get()
