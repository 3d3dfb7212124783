"""Answers of a legacy Streamable HTTP server whose streams end early and are resumed by their last
event, over real HTTP: whose error it is, and when the connection was lost after all."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from outlast.adapters.upstream import McpUpstreams, UpstreamSettings
from outlast.domain import errors
from outlast.domain.ports import CallNews, Faulted, Returned
from outlast.tests.acceptance.waiting import until
from outlast.tests.support.asgi import listening
from outlast.tests.support.upstreams import FORM, WAIT_S, outcome

pytestmark = pytest.mark.anyio

ANSWERS = {
    "ok": {"result": {"content": [{"type": "text", "text": "resumed"}]}},
    "err": {"error": {"code": -32050, "message": "no quota", "data": {"retryAfterMs": 5}}},
}
OWN_ERROR = Faulted(-32050, "no quota", {"retryAfterMs": 5})
SESSION = {"mcp-session-id": "s"}
TOLD = {"tools": {}, "prompts": {"listChanged": True}}


class Resuming:
    """A server that ends the stream of each call after an event that names the call.

    What comes on the stream that is resumed, the call says: `ends` of `arguments` is how often that
    one ends without an answer as well, and `then` is what there is instead of a stream after that.
    """

    def __init__(self) -> None:
        self.calls: dict[str, dict[str, Any]] = {}
        self.resumed: list[str] = []
        self.asked: list[str] = []
        self.standing = asyncio.Event()
        self.let_go = asyncio.Event()
        self.stands = False

    @asynccontextmanager
    async def served(self) -> AsyncIterator[McpUpstreams]:
        route = Route("/mcp", self._serve, methods=["GET", "POST", "DELETE"])
        async with listening(Starlette(routes=[route])) as port:
            url = f"http://127.0.0.1:{port}/mcp"
            settings = UpstreamSettings("resuming", url=url, era="legacy")
            async with McpUpstreams([settings]) as upstreams:
                yield upstreams
            self.let_go.set()

    async def _serve(self, request: Request) -> Response:
        if request.method == "DELETE":
            return Response(status_code=200)
        if request.method == "GET":
            return self._got(request.headers.get("last-event-id"))
        message = await request.json()
        self.asked.append(message.get("method", "an answer"))
        if "id" not in message:
            return Response(status_code=202)
        if message["method"] != "tools/call":
            return JSONResponse(_plain(message), headers=SESSION)
        event = f"call{len(self.calls)}"
        self.calls[event] = message
        return _stream(_event(f"{event}.0"))

    def _got(self, event: str | None) -> Response:
        if event is None or event.startswith("standing"):
            return self._standing(event)
        name, _, times = event.partition(".")
        self.resumed.append(event)
        call = self.calls[name]
        asked: Mapping[str, Any] = call["params"]["arguments"]
        if int(times) < asked.get("ends", 0):
            return _stream(_event(f"{name}.{int(times) + 1}"))
        if asked.get("then") == "refused":
            return Response(status_code=500)
        if asked.get("then") == "no stream":
            return JSONResponse({})
        answer = {"jsonrpc": "2.0", "id": call["id"], **ANSWERS[call["params"]["name"]]}
        return _stream(_event("last", json.dumps(answer)))

    def _standing(self, event: str | None) -> Response:
        """The server's own stream: it ends at once, is resumed, and stays until it is let go."""
        if not self.stands:
            return Response(status_code=405)
        if event is None:
            return _stream(_event("standing.0"))

        async def until_let_go() -> AsyncIterator[str]:
            yield _event("standing.1", retry_ms=600_000)
            self.standing.set()
            await self.let_go.wait()

        return StreamingResponse(until_let_go(), media_type="text/event-stream")


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    server = {"name": "resuming", "version": "1"}
    results: dict[str, Any] = {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": TOLD, "serverInfo": server},
        "tools/list": {"tools": [{"name": n, "inputSchema": {"type": "object"}} for n in ANSWERS]},
        "prompts/list": {"prompts": [{"name": "p"}]},
    }
    return {"jsonrpc": "2.0", "id": message["id"], "result": results.get(message["method"], {})}


def _event(name: str, data: str = "", retry_ms: int = 1) -> str:
    return f"id: {name}\nretry: {retry_ms}\ndata: {data}\n\n"


def _stream(*events: str) -> StreamingResponse:
    return StreamingResponse(iter(events), media_type="text/event-stream", headers=SESSION)


async def called(upstreams: McpUpstreams, tool: str, **arguments: Any) -> CallNews:
    return await outcome(upstreams, tool, arguments, FORM, upstream="resuming")


@pytest.mark.parametrize("ends", [0, 1, 3], ids=lambda ends: f"resumed-{ends + 1}-times")
async def test_an_error_on_a_resumed_stream_is_the_upstreams_own(ends: int) -> None:
    server = Resuming()
    async with server.served() as upstreams:
        assert await called(upstreams, "err", ends=ends) == OWN_ERROR
        assert server.resumed == [f"call0.{number}" for number in range(ends + 1)]
        assert isinstance(await called(upstreams, "ok", ends=ends), Returned)


@pytest.mark.parametrize("then", ["refused", "no stream"])
@pytest.mark.parametrize("ends", [0, 2], ids=lambda ends: f"after-{ends}-resumptions")
async def test_a_stream_that_cannot_be_resumed_is_a_lost_connection(ends: int, then: str) -> None:
    server = Resuming()
    async with server.served() as upstreams:
        with pytest.raises(errors.UpstreamUnavailable):
            await called(upstreams, "err", ends=ends, then=then)
        assert len(server.resumed) > ends
        assert await called(upstreams, "err") == OWN_ERROR  # the next call is none the worse


async def test_the_end_of_the_servers_own_stream_is_noticed_after_it_was_resumed() -> None:
    server = Resuming()
    server.stands = True
    async with server.served() as upstreams:

        async def is_asked_anew() -> bool:
            before = server.asked.count("prompts/list")
            await upstreams.listed("prompts")
            return server.asked.count("prompts/list") > before

        async def is_kept() -> bool:
            return not await is_asked_anew()

        await is_asked_anew()
        with anyio.fail_after(WAIT_S):
            await server.standing.wait()
        # Changes would be told now, so that nothing is asked twice.
        await until(is_kept, WAIT_S)
        server.let_go.set()
        await until(is_asked_anew, WAIT_S)
        # What was doubted once is read once; what is not heard of is read each time.
        assert await is_asked_anew()
