"""What tools a client is shown: whole, in pages, named apart, and with their headers checked."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from outlast.tests.service.conftest import DESK, EVERYDAY
from outlast.tests.service.passing_world import Reading
from outlast.tests.support.mcp import UNDECLARED, RawClient, envelope, headers_of, http_client
from outlast.tests.support.serving import command_of, serving

pytestmark = pytest.mark.anyio

MISMATCH, INVALID_PARAMS = -32020, -32602
FILLERS = 230

CONFIG = f"""
[defaults]
run = "task"
poll_interval = "50ms"
[upstreams.desk]
command = {command_of(DESK, str(FILLERS))}
[upstreams.every-day]
command = {command_of(EVERYDAY)}
[tools.every-day_add]
run = "direct"
"""


@pytest.fixture(scope="module")
async def two_upstreams(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    folder = tmp_path_factory.mktemp("two")
    async with serving(folder, CONFIG, module_database_url) as server:
        async with http_client() as http:
            # A list waits for an upstream that is slow to start, but not for ever.
            await Reading(RawClient(server.url, http)).until_whole("tools/list")
        yield server.url


@pytest.fixture
async def client(two_upstreams: str) -> AsyncIterator[RawClient]:
    async with http_client() as http:
        yield RawClient(two_upstreams, http)


async def pages(client: RawClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    params: dict[str, Any] = {}
    while True:
        page = (await client.request("tools/list", params)).result
        found.append(page)
        if "nextCursor" not in page:
            return found
        params = {"cursor": page["nextCursor"]}


async def test_the_pages_together_hold_every_tool_once_in_the_upstreams_order(client: RawClient):
    found = await pages(client)
    assert [len(page["tools"]) for page in found[:-1]] == [100] * (len(found) - 1)
    names = [tool["name"] for page in found for tool in page["tools"]]
    assert len(names) == len(set(names)) > FILLERS
    fillers = [name for name in names if "filler" in name]
    assert fillers == [f"desk_filler_{number:03}" for number in range(FILLERS)]
    assert names[0].startswith("desk_")
    assert names[-1].startswith("every-day_")
    assert await pages(client) == found


async def test_each_page_tells_how_long_and_for_whom_it_may_be_kept(client: RawClient):
    for page in await pages(client):
        assert (page["ttlMs"], page["cacheScope"]) == (0, "private")  # as the upstreams say
        assert isinstance(page.get("nextCursor", ""), str)
    discovered = (await client.request("server/discover")).result
    assert (discovered["ttlMs"], discovered["cacheScope"]) == (60_000, "public")


async def test_a_cursor_that_is_not_ours_is_refused(client: RawClient):
    for cursor in ("", "bm9wZQ==", "é", "=", 5, [], {}, True):
        reply = await client.request("tools/list", {"cursor": cursor})
        assert reply.refusal == (400, INVALID_PARAMS)


async def test_a_cursor_whose_place_is_before_the_first_page_is_refused(client: RawClient):
    names = [tool["name"] for page in await pages(client) for tool in page["tools"]]
    for place, name in ((-1, names[-2]), (-10, names[-11]), (0, names[-1])):
        cursor = base64.urlsafe_b64encode(f"tools:{place}:{name}".encode()).decode()
        reply = await client.request("tools/list", {"cursor": cursor})
        assert reply.refusal == (400, INVALID_PARAMS)


async def test_a_definition_is_the_upstreams_own_but_for_the_name(client: RawClient):
    tools = {tool["name"]: tool for page in await pages(client) for tool in page["tools"]}
    assert tools["every-day_add"]["x-unknown"] == {"kept": None}
    assert tools["every-day_add"]["inputSchema"]["required"] == ["a", "b"]
    assert tools["desk_sign_task_during"]["annotations"]["readOnlyHint"] is True


async def test_a_prefixed_name_reaches_its_own_upstream_and_its_own_policy(client: RawClient):
    summed = (await client.call("every-day_add", {"a": 1, "b": 2})).result
    assert summed["structuredContent"] == {"result": 3}
    task_id = await client.opened("desk_red")
    ended = await client.until_status(task_id)
    assert ended["result"]["content"][0]["text"] == "Error executing tool red: The build is red"
    for name in ("add", "desk_add", "every-day_red", "every_day_add", "desk"):
        assert (await client.call(name)).refusal == (400, INVALID_PARAMS)


async def test_fields_that_nobody_knows_survive_plain_and_as_a_task(client: RawClient):
    plain = (await client.call("every-day_strange", capabilities=UNDECLARED)).result
    task_id = await client.opened("every-day_strange")
    stored = (await client.until_status(task_id))["result"]
    for result in (plain, stored):
        assert result["content"] == [{"type": "text", "text": "odd", "x-part": 1}]
        assert result["structuredContent"] == {"nothing": None}
        assert result["x-unknown"] == {"deep": [1, None, "two"]}
        assert result["_meta"]["dev.example/key"] == {"a": None}
        assert result["resultType"] == "complete"


@pytest.mark.promise("routing-headers-are-checked")
@pytest.mark.parametrize(
    ("headers", "is_good"),
    [
        ([("mcp-param-region", "eu")], True),
        ([("Mcp-Param-Region", "=?base64?ZXU=?=")], True),
        ([], False),
        ([("mcp-param-region", "us")], False),
        ([("mcp-param-region", "=?base64?!?=")], False),
        ([("mcp-param-region", "eu"), ("mcp-param-region", "eu")], False),
        ([("mcp-param-region", "eu"), ("MCP-Param-Region", "us")], False),
    ],
    ids=["equal", "in base64", "missing", "other", "bad base64", "twice", "twice, differing"],
)
async def test_a_mirrored_argument_is_held_against_its_header(
    client: RawClient, headers: list[tuple[str, str]], is_good: bool
):
    params = {"name": "every-day_region", "arguments": {"region": "eu"}}
    body = envelope("tools/call", params, UNDECLARED)
    reply = await client.post(json.dumps(body).encode(), [*headers_of(body).items(), *headers])
    if is_good:
        assert reply.result["isError"] is False
    else:
        assert reply.refusal == (400, MISMATCH)
