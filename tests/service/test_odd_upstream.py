"""What an upstream sends that no honest one would: clients get valid JSON of it, and no fault."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from math import inf, nan
from typing import Any, NoReturn

import httpx2
import pytest

from outlast.adapters import codec
from outlast.delivery import frames
from outlast.service import jsonrpc
from outlast.tests.support.mcp import SERVER_INFO, UNDECLARED, RawClient, http_client
from outlast.tests.support.serving import Serving, command_of, serving
from outlast.tests.support.sessions import RawSession, request
from outlast.tests.support.upstreams import SERVERS

pytestmark = pytest.mark.anyio

ODD = SERVERS / "odd_server.py"
LARGE = 2**70
VAST = {"beyond": [None, 1.5], "large": LARGE}
CONFIG = f"""
[defaults]
run = "task"
poll_interval = "50ms"
[upstreams.odd]
command = {command_of(ODD)}
[tools]
vast_now = {{ run = "direct" }}
large_now = {{ run = "direct" }}
large_log = {{ run = "direct" }}
unmarked = {{ run = "direct" }}
"""


@pytest.fixture(scope="module")
async def odd(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    async with serving(tmp_path_factory.mktemp("odd"), CONFIG, module_database_url) as server:
        yield server


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client() as client:
        yield client


@pytest.fixture
async def client(odd: Serving, http: httpx2.AsyncClient) -> RawClient:
    return RawClient(odd.url, http)


@pytest.fixture
async def session(odd: Serving, http: httpx2.AsyncClient) -> RawSession:
    return await RawSession(odd.url, http).opened()


def valid(text: str) -> Any:
    """JSON as the grammar has it, without the words that Python would read too."""

    def refused(word: str) -> NoReturn:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refused)


class TestWhatIsBeyondADouble:
    async def test_it_is_null_in_the_answer_and_in_the_task(self, client: RawClient) -> None:
        reply = await client.call("vast_now", capabilities=UNDECLARED)
        assert valid(reply.content.decode())["result"]["structuredContent"] == VAST
        task_id = await client.opened("vast")
        await client.until_status(task_id)
        reply = await client.request("tasks/get", {"taskId": task_id})
        told = valid(reply.content.decode())["result"]
        assert told["result"]["structuredContent"] == VAST

    async def test_a_session_lists_and_reads_the_task(
        self, client: RawClient, session: RawSession
    ) -> None:
        task_id = await client.opened("vast")
        await client.until_status(task_id)
        listed = await session.result("tasks/list")
        assert task_id in [task["taskId"] for task in listed["tasks"]]
        result = await session.result("tasks/result", taskId=task_id)
        assert result["structuredContent"] == VAST
        assert (await session.call("vast"))["structuredContent"] == VAST

    @pytest.mark.parametrize(
        "write", [jsonrpc.dumps, frames.dumps, codec.encode], ids=["answer", "frame", "store"]
    )
    def test_every_writer_writes_null(self, write: Callable[[Any], bytes]) -> None:
        given = {"a": [inf, {"b": -inf}], "c": (nan, 1.5), "large": LARGE, "\ud800": "\ud800"}
        told = valid(write(given).decode())
        assert told == {"a": [None, {"b": None}], "c": [None, 1.5], **_rest(given)}
        assert given["a"] == [inf, {"b": -inf}]

    def test_what_was_stored_with_it_before_can_be_read(self) -> None:
        stored = b'{"v":Infinity,"large":1180591620717411303424}'
        assert jsonrpc.loads(stored) == {"v": inf, "large": LARGE}


class TestLargeIntegersInASession:
    async def test_they_stay_integers_in_every_way_to_be_told(self, session: RawSession) -> None:
        large = {"large": LARGE, "small": 1}
        assert _whole(await session.call("large_now")) == large
        assert _whole(await session.call("large")) == large
        begun = await session.result("tools/call", name="large", arguments={}, task={})
        about = {"taskId": begun["task"]["taskId"]}
        assert _whole(await session.result("tasks/result", **about)) == large

    async def test_they_stay_integers_in_a_log_message(self, session: RawSession) -> None:
        call = {"name": "large_log", "arguments": {}}
        async with session.stream(request("tools/call", call, next(session.ids))) as events:
            messages = [event.message async for event in events]
        logged = [m for m in messages if m.get("method") == "notifications/message"]
        assert [_whole(m["params"], "data") for m in logged] == [{"large": LARGE}]


class TestWhatShouldBeAnObject:
    async def test_annotations_that_are_none_say_nothing(
        self, client: RawClient, session: RawSession
    ) -> None:
        ended = await client.until_status(await client.opened("unhinted"))
        assert ended["status"] == "completed"
        assert (await session.call("unhinted"))["content"][0]["text"] == "unhinted"

    async def test_a_result_whose_meta_is_none_reaches_the_client(
        self, client: RawClient, session: RawSession
    ) -> None:
        result = (await client.call("unmarked", capabilities=UNDECLARED)).result
        assert result["content"][0]["text"] == "unmarked"
        assert list(result["_meta"]) == [SERVER_INFO]
        result = await session.call("unmarked")
        assert (result["content"][0]["text"], "_meta" in result) == ("unmarked", False)
        task_id = await client.opened("unmarked_task")
        await client.until_status(task_id)
        result = await session.result("tasks/result", taskId=task_id)
        assert result["content"][0]["text"] == "unmarked_task"


def _whole(told: Mapping[str, Any], member: str = "structuredContent") -> Any:
    """A member, once its numbers are known to be integers: 2.0**70 equals 2**70."""
    assert all(isinstance(number, int) for number in told[member].values()), told
    return told[member]


def _rest(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key not in ("a", "c")}
