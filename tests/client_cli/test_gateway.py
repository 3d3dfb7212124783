"""A gateway's own words among those of the server: nothing is forgotten, and nothing runs twice.

And servers whose list of tools comes in an odd shape, or never.
"""

import json
import socket
from typing import Any

import anyio
import pytest

from outlast.tests.client_cli.conftest import Cli
from outlast.tests.client_cli.gateway import Answer, Json, gateway, of_json

pytestmark = pytest.mark.anyio

SOON_S = 15.0  # half of what the list of tools gets without a --timeout

PAGES: list[Any] = [
    {"error": {"code": 504, "message": "Gateway Timeout"}},
    {"error": {"code": "ServiceUnavailable", "message": "busy"}},
    {"status": 503, "error": "Service Unavailable"},
]


def first(method: str, page: Any) -> Any:
    """This page in the place of the first answer to the method."""
    pages = [of_json(504, page)]

    def replaced(request: Json) -> Answer | None:
        return pages.pop() if pages and request["method"] == method else None

    return replaced


@pytest.mark.parametrize("page", PAGES, ids=["a code", "a word for a code", "a text"])
async def test_a_call_whose_answer_a_gateway_swallowed_is_found_again(cli: Cli, page: Any):
    async with gateway(first("tools/call", page), cli.url) as between:
        call = ("call", "count", "steps=1", "--via", "poll", "--server", between.url)
        done = await cli.run(*call)
        [row] = (await cli.run("tasks", "--json", "--server", between.url)).told
    assert (done.code, done.out) == (0, "counted 1\n"), done.err
    assert row["state"] == "completed"
    assert between.heard.count("tools/call") == 2


@pytest.mark.parametrize("page", PAGES, ids=["a code", "a word for a code", "a text"])
async def test_a_watch_goes_on_after_what_a_gateway_said(cli: Cli, page: Any):
    async with gateway(first("tasks/get", page), cli.url) as between:
        call = ("call", "count", "steps=1", "--via", "poll", "--server", between.url)
        done = await cli.run(*call)
    assert (done.code, done.out) == (0, "counted 1\n"), done.err


@pytest.mark.parametrize("page", PAGES, ids=["a code", "a word for a code", "a text"])
async def test_a_list_of_tools_that_a_gateway_refused_is_no_answer(cli: Cli, page: Any):
    async with gateway(first("tools/list", page), cli.url) as between:
        done = await cli.run("call", "count", "steps=1", "--server", between.url)
    assert (done.code, done.out) == (6, "")
    assert done.err == "outlast: the server answered with HTTP status 504\n"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
async def test_a_list_in_a_stream_may_hold_what_looks_like_the_end_of_a_line(cli: Cli, end: str):
    schema = {"type": "object", "properties": {"steps": {"type": "integer"}}}
    tool = {"name": "count", "description": "two\u2028or\u0085three lines", "inputSchema": schema}

    def replaced(request: Json) -> Answer | None:
        if request["method"] != "tools/list":
            return None
        message = {"jsonrpc": "2.0", "id": request["id"], "result": {"tools": [tool]}}
        rows = ["event: message", f"data: {json.dumps(message, ensure_ascii=False)}", "", ""]
        return 200, "text/event-stream", end.join(rows).encode()

    async with gateway(replaced, cli.url) as between:
        done = await cli.run("call", "count", "steps=1", "--server", between.url)
    assert (done.code, done.out) == (0, "counted 1\n"), done.err


async def test_the_time_of_a_call_bounds_the_reading_of_its_schema(cli: Cli):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        server = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        began = anyio.current_time()
        call = ("call", "count", "steps=1", "--timeout", "200ms", "--server", server)
        done = await cli.run(*call)
    assert anyio.current_time() - began < SOON_S
    assert (done.code, done.out) == (6, "")
    assert "nothing was called" in done.err
    assert (await cli.run("tasks", "--server", server)).out == ""
