"""Requests that share a connection to a real HTTP server: what becomes of one is not the others'.

Each answer waits until the test lets it come, so that the order is the test's.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from outlast.adapters import upstream_http
from outlast.adapters.upstream import McpUpstreams, UpstreamSettings
from outlast.domain import errors
from outlast.domain.ports import CallNews, Returned
from outlast.tests.support.asgi import listening
from outlast.tests.support.upstreams import WAIT_S, begin, hear, outcome, until

pytestmark = pytest.mark.anyio

NAME = "gated"
SESSION = {"mcp-session-id": "s"}
CAPABILITIES = {"tools": {}, "prompts": {"listChanged": True}}
TOOLS = ("good", "garbled", "cut")
SCHEMA = {"type": "object"}


class Gated:
    """A legacy server. `gates` holds back what is asked for by this method or tool."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.gates: dict[str, asyncio.Event] = {}
        self.prompts = ["first"]
        self.stands = asyncio.Event()
        self.let_go = asyncio.Event()

    def gate(self, what: str) -> asyncio.Event:
        return self.gates.setdefault(what, asyncio.Event())

    async def until_asked(self, what: str, times: int = 1) -> None:
        async def is_so() -> bool:
            return self.asked[what] >= times

        await until(is_so)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[McpUpstreams]:
        route = Route("/mcp", self._serve, methods=["GET", "POST", "DELETE"])
        async with listening(Starlette(routes=[route])) as port:
            settings = UpstreamSettings(NAME, url=f"http://127.0.0.1:{port}/mcp", era="legacy")
            try:
                async with McpUpstreams([settings]) as upstreams:
                    yield upstreams
            finally:
                self.let_go.set()
                for gate in self.gates.values():
                    gate.set()

    async def _serve(self, request: Request) -> Response:
        if request.method == "DELETE":
            return Response(status_code=200)
        if request.method == "GET":
            return await self._standing()
        message = await request.json()
        if "id" not in message:
            return Response(status_code=202)
        method = message["method"]
        what = message["params"]["name"] if method == "tools/call" else method
        answer = self._answer(message, what)
        self.asked[what] += 1
        if what in self.gates:
            await self.gates[what].wait()
        return answer

    async def _standing(self) -> Response:
        """The server's own stream."""
        self.asked["GET"] += 1
        if "GET" not in self.gates:
            return Response(status_code=405)
        await self.gates["GET"].wait()

        async def until_let_go() -> AsyncIterator[str]:
            yield "id: 1\nretry: 1\ndata:\n\n"
            self.stands.set()
            await self.let_go.wait()

        return StreamingResponse(until_let_go(), media_type="text/event-stream")

    def _answer(self, message: Mapping[str, Any], what: str) -> Response:
        """What it is when it is asked for, whenever it comes."""
        if what == "garbled":
            headers = {**SESSION, "content-encoding": "gzip"}
            return Response(b"{}", media_type="application/json", headers=headers)
        if what == "cut":
            return StreamingResponse(iter(()), media_type="text/event-stream", headers=SESSION)
        server = {"name": NAME, "version": "1"}
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": CAPABILITIES,
                "serverInfo": server,
            },
            "tools/list": {
                "tools": [{"name": n, "inputSchema": {"type": "object"}} for n in TOOLS]
            },
            "prompts/list": {"prompts": [{"name": name} for name in self.prompts]},
            "good": {"content": []},
        }
        told = {"jsonrpc": "2.0", "id": message["id"], "result": results.get(what, {})}
        return JSONResponse(told, headers=SESSION)


async def called(upstreams: McpUpstreams, tool: str) -> CallNews:
    return await outcome(upstreams, tool, upstream=NAME)


async def prompts(upstreams: McpUpstreams) -> list[str]:
    with anyio.fail_after(WAIT_S):
        return [entry["name"] for entry in (await upstreams.listed("prompts")).entries]


async def test_an_answer_that_cannot_be_unpacked_fails_its_call_and_no_other() -> None:
    server = Gated()
    gate = server.gate("good")
    async with server.served() as upstreams:
        other = await begin(upstreams, "good", upstream=NAME)
        await server.until_asked("good")
        with pytest.raises(errors.UpstreamUnavailable):
            await called(upstreams, "garbled")
        gate.set()
        assert [type(news) for news in await hear(other)] == [Returned]


async def test_a_list_that_is_being_read_is_not_lost_with_a_call_that_is() -> None:
    server = Gated()
    gate = server.gate("prompts/list")
    async with server.served() as upstreams:
        await upstreams.ready(NAME)
        listing = asyncio.ensure_future(prompts(upstreams))
        await server.until_asked("prompts/list")
        with pytest.raises(errors.UpstreamUnavailable):
            await called(upstreams, "cut")
        gate.set()
        assert await listing == ["first"]


async def test_what_was_read_before_changes_were_told_is_read_again_once_they_are() -> None:
    server = Gated()
    opens = server.gate("GET")
    async with server.served() as upstreams:
        await upstreams.ready(NAME)
        assert await prompts(upstreams) == ["first"]
        server.prompts.append("second")  # nobody could be told
        opens.set()
        with anyio.fail_after(WAIT_S):
            await server.stands.wait()
            own = upstreams._upstreams[NAME]  # pyright: ignore[reportPrivateUsage] - no other way
            await (await own.open_shared()).hears.wait()
        assert await prompts(upstreams) == ["first", "second"]


async def test_a_transport_that_breaks_is_an_answer_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Gated()
    server.gate("good")

    def broken(_response: httpx2.Response) -> str:
        raise RuntimeError("a defect")

    async with server.served() as upstreams:
        other = await begin(upstreams, "good", upstream=NAME)
        await server.until_asked("good")
        monkeypatch.setattr(upstream_http, "_kind", broken)
        with pytest.raises(errors.UpstreamUnavailable):
            await called(upstreams, "garbled")
        with pytest.raises(errors.UpstreamUnavailable):
            await hear(other)
