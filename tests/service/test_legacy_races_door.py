"""Sessions that begin and end at the same time as others, and streams that are taken up again."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest
from mcp.server.streamable_http import EventMessage
from mcp_types import JSONRPCNotification
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope

from outlast.delivery.port import ListenRequest
from outlast.domain.owner import LOCAL_CALLER
from outlast.service.exchange import Exchange
from outlast.service.legacy.calls import Calls
from outlast.service.legacy.door import Bounds, Door
from outlast.service.legacy.listening import SessionEars
from outlast.service.legacy.replay import Replay
from outlast.service.legacy.server import Methods
from outlast.service.legacy.tasks import Journal, OlderTasks
from outlast.service.legacy.waiting import Waiting
from outlast.service.policy import Policies, Policy
from outlast.service.throttle import Throttle
from outlast.service.wiring.identity import own_access
from outlast.tests.service.legacy_played import PATIENCE_S, Watched, agreed, no_moments, told
from outlast.tests.support.sessions import ACCEPT, LATEST, request

pytestmark = [pytest.mark.anyio, pytest.mark.promise("sessions-are-bounded")]

INFO = {"name": "raw", "version": "1"}
HELLO = request(
    "initialize", {"protocolVersion": LATEST, "capabilities": {}, "clientInfo": INFO}, 0
)
READY = told("notifications/initialized")


class Taken:
    """An answer as it is taken."""

    def __init__(self) -> None:
        self.status, self.headers, self.body = 0, dict[str, str](), b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            pairs: Sequence[tuple[bytes, bytes]] = message["headers"]
            self.headers = {name.decode(): value.decode() for name, value in pairs}
        self.body += message.get("body", b"")


def scope_of(method: str, session: str | None = None) -> Scope:
    named = {} if session is None else {"mcp-session-id": session, "mcp-protocol-version": LATEST}
    headers = [(name.encode(), value.encode()) for name, value in {**ACCEPT, **named}.items()]
    path = {"path": "/mcp", "query_string": b"", "http_version": "1.1", "root_path": ""}
    return {"type": "http", "method": method, "headers": headers, "scheme": "http", **path}


async def taken(response: Response, scope: Scope) -> Taken:
    """The answer to a request without a body, or with one that has been read."""
    answer, given = Taken(), [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        if not given:
            await asyncio.Event().wait()  # the client stays
        return given.pop()

    await response(scope, receive, answer.send)
    return answer


async def opened(door: Door) -> str:
    """The id of a new session."""
    response = door.open(LOCAL_CALLER, HELLO["id"], json.dumps(HELLO).encode())
    return (await taken(response, scope_of("POST"))).headers["mcp-session-id"]


def gone_after(told_of: asyncio.Event) -> Receive:
    """A client that has sent all and leaves once this has happened."""
    given: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        if given:
            return given.pop()
        await told_of.wait()
        return {"type": "http.disconnect"}

    return receive


@asynccontextmanager
async def running(bounds: Bounds, watched: Watched | None = None) -> AsyncIterator[Door]:
    async def discover(_exchange: Exchange) -> dict[str, Any]:
        return {"capabilities": {"tools": {}}}

    watched = watched or Watched(agreed)
    waiting = Waiting(watched, no_moments, {"server/discover": discover})
    served = Methods(
        Calls(waiting, Policies(Policy(), {})),
        OlderTasks(waiting, cast(Journal, None)),
        SessionEars(watched),
        {"name": "outlast", "version": "1"},
        lambda _: None,
    )
    door = Door(served.server(), own_access(), Throttle(), bounds)
    with anyio.fail_after(PATIENCE_S):
        async with door.running():
            yield door


async def test_sessions_that_begin_at_once_are_as_many_as_may_be():
    async with running(Bounds(sessions=9, sessions_per_owner=2, idle_s=60)) as door:
        responses = [
            door.open(LOCAL_CALLER, HELLO["id"], json.dumps(HELLO).encode()) for _ in range(5)
        ]
        answers = await asyncio.gather(*(taken(one, scope_of("POST")) for one in responses))
        assert sorted(one.status for one in answers) == [200, 200, 503, 503, 503]
        refused = json.loads(next(one.body for one in answers if one.status != 200))
        assert refused["id"] == HELLO["id"]
        ended = next(one.headers for one in answers if one.status == 200)["mcp-session-id"]
        scope = scope_of("DELETE", ended)
        assert (await taken(await door.serve(Request(scope)), scope)).status == 200
        assert await opened(door)


@pytest.mark.promise("older-clients-are-served")
async def test_what_was_told_before_a_stream_that_broke_off_is_told_on_the_next():
    is_told, has_begun, had = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def changing(request_: ListenRequest) -> AsyncGenerator[bytes]:
        frames = agreed(request_)
        yield await anext(frames)
        yield json.dumps(told("notifications/tools/list_changed")).encode()
        is_told.set()
        await asyncio.Event().wait()

    async def broken_off(_message: Message) -> None:
        has_begun.set()
        await asyncio.Event().wait()

    class Having(Taken):
        async def send(self, message: Message) -> None:
            await super().send(message)
            if b"list_changed" in self.body:
                had.set()

    bounds = Bounds(sessions=9, sessions_per_owner=9, idle_s=60)
    async with running(bounds, Watched(changing)) as door:
        session = await opened(door)
        ready = [{"type": "http.request", "body": json.dumps(READY).encode(), "more_body": False}]

        async def receive() -> Message:
            return ready.pop()

        notified = await door.serve(Request(scope_of("POST", session), receive))
        await taken(notified, scope_of("POST", session))
        await is_told.wait()
        scope = scope_of("GET", session)
        await (await door.serve(Request(scope)))(scope, gone_after(has_begun), broken_off)
        scope = scope_of("GET", session)
        await (await door.serve(Request(scope)))(scope, gone_after(had), Having().send)
        assert had.is_set()


@pytest.mark.promise("older-clients-are-served")
async def test_what_is_told_while_a_stream_is_taken_up_again_is_told_on_it():
    session, heard = object(), list[str]()
    replay = Replay(lambda: session)

    def note(method: str) -> JSONRPCNotification:
        return JSONRPCNotification(jsonrpc="2.0", method=method)

    async def take(event: EventMessage) -> None:
        heard.append(cast(JSONRPCNotification, event.message).method)
        if heard == ["one"]:
            await replay.store_event("other", note("not this one"))
            await replay.store_event("stream", note("two"))

    start = await replay.store_event("stream", None)
    await replay.store_event("stream", note("one"))
    assert await replay.replay_events_after(start, take) == "stream"
    assert heard == ["one", "two"]
