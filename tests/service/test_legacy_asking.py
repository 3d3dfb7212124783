"""What passes between an older client and an upstream of either era, tools without tasks too."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from outlast.tests.support.mcp import http_client
from outlast.tests.support.serving import Serving, command_of, serving
from outlast.tests.support.sessions import RawSession, request
from outlast.tests.support.upstreams import SERVERS

pytestmark = [pytest.mark.anyio, pytest.mark.promise("older-clients-are-served")]

CAPABILITIES = {"elicitation": {}, "sampling": {}, "roots": {}}
ANSWERS: dict[str, dict[str, Any]] = {
    "elicitation/create": {"action": "accept", "content": {"agreed": True}},
    "sampling/createMessage": {
        "role": "assistant",
        "content": {"type": "text", "text": "Paris"},
        "model": "m",
    },
    "roots/list": {"roots": [{"uri": "file:///home"}]},
}
INTERNAL_ERROR = -32603


def config() -> str:
    """Each kind of upstream, each of its tools once as a task and once not."""
    lines: list[str] = []
    for era, flags in (("new", ()), ("old", ("--legacy",))):
        command = command_of(SERVERS / "asking.py", *flags)
        lines += [f"[upstreams.{era}]", f"command = {command}"]
    lines += ["[upstreams.day]", f"command = {command_of(SERVERS / 'everyday.py')}"]
    lines += ["[upstreams.news]", f"command = {command_of(SERVERS / 'announcing.py')}"]
    lines += ["[defaults]", 'run = "direct"']
    for era in ("new", "old"):
        lines += [f"[tools.{era}_{tool}]\nrun = 'task'" for tool in ("capital", "patient")]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
async def outlast(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    folder = tmp_path_factory.mktemp("asking")
    async with serving(folder, config(), module_database_url) as server:
        yield server


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client() as client:
        yield client


@pytest.fixture
async def session(outlast: Serving, http: httpx2.AsyncClient) -> RawSession:
    return await RawSession(outlast.url, http, capabilities=CAPABILITIES).opened()


async def talk(
    session: RawSession, tool: str, refusing: bool = False, **arguments: Any
) -> tuple[list[str], dict[str, Any]]:
    """What was asked during a call, every time answered, and the answer of the call."""
    asked: list[str] = []
    call = request("tools/call", {"name": tool, "arguments": arguments}, next(session.ids))
    async with session.stream(call) as events:
        async for event in events:
            method, message = event.message.get("method"), event.message
            if method in ANSWERS:
                asked.append(method)
                said = {"error": {"code": -1, "message": "no"}} if refusing else None
                reply = said or {"result": ANSWERS[method]}
                await session.post({"jsonrpc": "2.0", "id": message["id"], **reply})
            elif message.get("id") == call["id"]:
                return asked, message
    raise AssertionError("no answer")


@pytest.mark.parametrize("era", ["new", "old"])
@pytest.mark.parametrize(
    ("tool", "arguments", "method", "text"),
    [
        ("confirm", {"question": "Go?"}, "elicitation/create", "yes"),
        ("patient", {"question": "Go?"}, "elicitation/create", "yes"),
        ("capital", {"country": "France"}, "sampling/createMessage", "Paris"),
        ("folders", {}, "roots/list", "file:///home"),
    ],
    ids=["a form", "a form of a task", "sampling of a task", "roots"],
)
async def test_what_an_upstream_of_any_era_asks_is_asked_on_the_calls_stream(
    session: RawSession, era: str, tool: str, arguments: dict[str, Any], method: str, text: str
):
    asked, answer = await talk(session, f"{era}_{tool}", **arguments)
    assert asked == [method]
    assert text in answer["result"]["content"][0]["text"]


@pytest.mark.parametrize("tool", ["new_capital", "new_folders"])
async def test_a_refusal_of_the_client_ends_the_call_with_it(session: RawSession, tool: str):
    arguments = {"country": "France"} if tool == "new_capital" else {}
    _, answer = await talk(session, tool, refusing=True, **arguments)
    assert answer["error"]["code"] == INTERNAL_ERROR
    assert "answered with an error: no" in answer["error"]["message"]


async def test_a_tool_with_mirrored_arguments_needs_no_headers_of_an_older_client(
    session: RawSession,
):
    result = await session.call("day_region", region="eu")
    assert json.loads(result["content"][0]["text"])[0] == "eu"


async def test_what_no_revision_knows_reaches_an_older_client_too(session: RawSession):
    result = await session.call("day_strange")
    modern = {"resultType", "ttlMs", "cacheScope"}
    assert result["x-unknown"] == {"deep": [1, None, "two"]}
    assert result["content"] == [{"type": "text", "text": "odd", "x-part": 1}]
    assert result["_meta"]["dev.example/key"] == {"a": None}
    assert not set(result) & modern


async def test_what_was_told_before_the_sessions_stream_was_open_is_told_on_it(session: RawSession):
    await session.result("resources/subscribe", uri="news+note://one")
    await session.call("news_touch", uri="news+note://one")
    await session.call("news_touch", uri="note://one")
    async with session.stream(None) as events:
        async for event in events:
            if event.message.get("method") == "notifications/resources/updated":
                assert event.message["params"] == {"uri": "news+note://one"}
                return
    raise AssertionError("nothing was told")
