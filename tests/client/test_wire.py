"""The client's end of the wire: whatever shape a conforming server's answer has."""

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from outlast.delivery.calling import HEADER_MISMATCH, CallingRemote
from outlast.delivery.remote import Remote, result_of
from outlast.domain import errors

pytestmark = pytest.mark.anyio

Answer = Callable[[httpx2.Request, Any], httpx2.Response]


# What gateways answer in a server's place, and what no server answers.
OF_GATEWAYS: list[Any] = [
    {"timestamp": "2026-11-30T00:00:00Z", "status": 503, "error": "Service Unavailable"},
    {"error": {"code": "ServiceUnavailable", "message": "busy"}},
    {"error": {"code": 504, "message": "Gateway Timeout"}},
    {"jsonrpc": "2.0", "error": {"code": True}},
    {"jsonrpc": "2.0", "error": {"message": "no code"}},
    {"jsonrpc": "2.0", "error": None, "result": {}},
    {"jsonrpc": "2.0", "result": "OK"},
    {"result": {"healthy": False}},
]


def remote_of(answer: Answer, heard: list[httpx2.Request] | None = None) -> CallingRemote:
    def handle(request: httpx2.Request) -> httpx2.Response:
        if heard is not None:
            heard.append(request)
        return answer(request, json.loads(request.content))

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(handle))
    return CallingRemote("http://server/mcp", http)


def result(message: Any, content: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": content}


async def test_an_answer_may_be_a_stream_with_other_messages_before_it():
    def streams(request: httpx2.Request, message: Any) -> httpx2.Response:
        progress = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}
        frames = [progress, result({"id": 999}, {"not": "ours"}), result(message, {"ours": True})]
        text = ": a comment\n\n" + "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames)
        return httpx2.Response(200, text=text, headers={"content-type": "text/event-stream"})

    assert await remote_of(streams).call({"name": "work"}) == {"ours": True}


@pytest.mark.parametrize(
    "answer",
    [
        httpx2.Response(200, text="", headers={"content-type": "text/event-stream"}),
        httpx2.Response(503, text="<html>busy</html>"),
        httpx2.Response(200, text="[]"),
    ],
)
async def test_what_is_no_answer_is_a_lost_connection(answer: httpx2.Response):
    with pytest.raises(errors.ConnectionLost):
        await remote_of(lambda *_: answer).request("tasks/get", {"taskId": "t"})


@pytest.mark.parametrize("kind", [Remote, CallingRemote])
@pytest.mark.parametrize("body", OF_GATEWAYS)
async def test_the_json_of_a_gateway_is_no_word_of_the_server(kind: type[Remote], body: Any):
    answer = httpx2.Response(503, json=body)
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: answer))
    remote = kind("http://server/mcp", http)
    with pytest.raises(errors.ConnectionLost, match="HTTP status 503"):
        await remote.request("tasks/get", {"taskId": "t"})
    with pytest.raises(errors.ConnectionLost, match="HTTP status 503"):
        async for _ in remote.stream("subscriptions/listen", {}):
            pass


@pytest.mark.parametrize("body", OF_GATEWAYS)
async def test_nor_is_it_one_in_a_stream(body: Any):
    def streams(request: httpx2.Request, message: Any) -> httpx2.Response:
        text = f"data: {json.dumps({'id': message['id'], **body})}\n\n"
        return httpx2.Response(200, text=text, headers={"content-type": "text/event-stream"})

    with pytest.raises(errors.ConnectionLost, match="without an answer"):
        await remote_of(streams).call({"name": "work"})
    with pytest.raises(errors.ConnectionLost):
        [result_of(told) async for told in remote_of(streams).stream("subscriptions/listen", {})]


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_identity_is_a_refusal_whatever_is_on_the_page(status: int):
    with pytest.raises(errors.RequestRefused) as refused:
        await remote_of(lambda *_: httpx2.Response(status, text="<html>")).request("tasks/get", {})
    assert refused.value.code == status


async def test_an_error_comes_through_with_code_message_and_data():
    def refuses(request: httpx2.Request, message: Any) -> httpx2.Response:
        error = {"code": -32050, "message": "Quota", "data": {"n": 1}}
        return httpx2.Response(400, json={"jsonrpc": "2.0", "id": None, "error": error})

    with pytest.raises(errors.RequestRefused) as refused:
        await remote_of(refuses).call({"name": "work"})
    error = refused.value
    assert (error.code, str(error), error.data) == (-32050, "Quota", {"n": 1})


async def test_what_the_faster_writer_cannot_write_is_sent_all_the_same():
    sent = {"big": 2**80, "text": "\ud800"}
    params = {"name": "work", "arguments": sent}
    heard: list[httpx2.Request] = []
    remote = remote_of(lambda _, message: httpx2.Response(200, json=result(message, {})), heard)
    await remote.call(params)
    assert json.loads(heard[0].content)["params"]["arguments"] == sent


async def test_arguments_are_mirrored_into_headers_for_the_tool_that_wants_it():
    schema = {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    }
    heard: list[httpx2.Request] = []

    def answers(request: httpx2.Request, message: Any) -> httpx2.Response:
        if message["method"] == "tools/list":
            is_first = "cursor" not in message["params"]
            tools = [{"name": "other"}] if is_first else [{"name": "work", "inputSchema": schema}]
            page = {"tools": tools} | ({"nextCursor": "2"} if is_first else {})
            return httpx2.Response(200, json=result(message, page))
        if request.headers.get("mcp-param-region") != "eu":
            error = {"code": HEADER_MISMATCH, "message": "Mcp-Param-Region"}
            return httpx2.Response(400, json={"jsonrpc": "2.0", "id": 1, "error": error})
        return httpx2.Response(200, json=result(message, {"content": []}))

    remote = remote_of(answers, heard)
    assert await remote.call({"name": "work", "arguments": {"region": "eu"}}) == {"content": []}
    assert len(heard) == 4
    with pytest.raises(errors.RequestRefused):
        await remote.call({"name": "other", "arguments": {"region": "eu"}})
