"""Connections that end where a step is half done, to real servers."""

import asyncio
import sys
from pathlib import Path

import anyio
import pytest
from mcp_types import LOG_LEVEL_META_KEY
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from outlast.adapters.upstream import McpUpstreams, UpstreamSettings
from outlast.domain import errors
from outlast.domain.ports import Returned
from outlast.tests.support.asgi import listening
from outlast.tests.support.upstreams import WAIT_S, begin, hear

pytestmark = pytest.mark.anyio

# A legacy server that exits, once, when it is told which log messages are wanted.
EXITS = """
import json, pathlib, sys
mark = pathlib.Path(sys.argv[1])
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "logging/setLevel" and not mark.exists():
        mark.touch()
        sys.exit()
    results = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}, "logging": {}},
            "serverInfo": {"name": "exits", "version": "1"},
        },
        "tools/call": {"content": []},
    }
    if "id" in message:
        result = results.get(message["method"], {})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


async def test_a_call_whose_connection_is_lost_before_it_was_sent_is_sent_on_another(
    tmp_path: Path,
) -> None:
    mark = tmp_path / "mark"
    command = [sys.executable, "-c", EXITS, str(mark)]
    settings = UpstreamSettings("exits", command=command, era="legacy")
    async with McpUpstreams([settings]) as upstreams:
        meta = {LOG_LEVEL_META_KEY: "info"}
        running = await begin(upstreams, "any", upstream="exits", meta=meta)
        news = await hear(running)
        assert mark.exists()
        assert [type(item) for item in news] == [Returned]


async def test_who_waits_for_a_connection_that_fails_does_not_wait_until_it_is_closed() -> None:
    """The server speaks a version that nobody knows, and never answers the end of its session."""
    let_go, ends = asyncio.Event(), asyncio.Event()

    async def serve(request: Request) -> Response:
        if request.method == "DELETE":
            ends.set()
            await let_go.wait()
            return Response(status_code=200)
        message = await request.json()
        server = {"name": "new", "version": "1"}
        result = {"protocolVersion": "2999-01-01", "capabilities": {}, "serverInfo": server}
        told = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        return JSONResponse(told, headers={"mcp-session-id": "s"})

    route = Route("/mcp", serve, methods=["POST", "DELETE"])
    async with listening(Starlette(routes=[route])) as port:
        url = f"http://127.0.0.1:{port}/mcp"
        async with McpUpstreams([UpstreamSettings("new", url=url, era="legacy")]) as upstreams:
            waiting = asyncio.ensure_future(upstreams.ready("new"))
            with anyio.fail_after(WAIT_S):
                await ends.wait()
                with pytest.raises(errors.UpstreamUnavailable, match="unknown version 2999"):
                    await waiting
            assert not let_go.is_set()
            let_go.set()
