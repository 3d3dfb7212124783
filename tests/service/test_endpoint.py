"""The endpoint's own clocks, over real HTTP in this process, with times that can be waited for."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from outlast.adapters.identity import LocalIdentity
from outlast.delivery.port import ListenRequest, OpenWatch
from outlast.domain import errors
from outlast.domain.ports import Logged, Progress
from outlast.service import endpoint, hosting
from outlast.service.access import Access
from outlast.service.cli import serving
from outlast.service.exchange import NEWS_BACKLOG_MAX, Exchange
from outlast.service.guard import Guard
from outlast.service.heads import Asked
from outlast.tests.support.asgi import listening
from outlast.tests.support.mcp import RawClient, Reply, envelope, headers_of, http_client

pytestmark = pytest.mark.anyio

SOON_S = 0.1
STOP_S_MAX = 20.0

Tool = Callable[[Exchange], Awaitable[dict[str, Any]]]


class NoListener:
    async def open(self, request: ListenRequest) -> OpenWatch:
        """Nobody listens here."""
        raise errors.InvalidCall(str(request.request_id))


def endpoint_of(tool: Tool) -> endpoint.Endpoint:
    """An endpoint whose methods all are `tool`."""
    methods: Any = {"tools/call": tool, "server/discover": tool}
    access = Access(LocalIdentity(), Guard(["127.0.0.1"], []))
    info = {"name": "outlast", "version": "0"}
    return endpoint.Endpoint(methods, NoListener(), access, info, require_task_name=False)


@asynccontextmanager
async def served(tool: Tool) -> AsyncIterator[RawClient]:
    """A client of an endpoint whose `tools/call` is `tool`."""
    post = endpoint_of(tool).post

    async def mcp(request: Request) -> Response:
        return await post(Asked(request.scope, request.receive))

    app = Starlette(routes=[Route("/mcp", mcp, methods=["POST"])])
    async with listening(app) as port, http_client() as http:
        yield RawClient(f"http://127.0.0.1:{port}/mcp", http)


BOTH, JSON_ONLY = "application/json, text/event-stream", "application/json"
DONE = {"content": [{"type": "text", "text": "done"}]}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes seconds and minutes takes a moment."""
    for name in ("QUICK_S", "STREAM_AFTER_S", "KEEP_ALIVE_S"):
        monkeypatch.setattr(endpoint, name, SOON_S)


async def call(client: RawClient, accept: str = BOTH, token: Any = None) -> Reply:
    meta = {} if token is None else {"progressToken": token}
    body = envelope("tools/call", {"name": "t", "arguments": {}}, meta=meta)
    return await client.send(body, accept=accept)


async def slowly(exchange: Exchange) -> dict[str, Any]:
    waiting = asyncio.ensure_future(asyncio.Event().wait())
    await asyncio.wait({waiting}, timeout=5 * SOON_S)
    waiting.cancel()
    return DONE


async def test_a_quiet_answer_that_takes_long_keeps_its_connection_alive():
    may_end = asyncio.Event()

    async def waits(exchange: Exchange) -> dict[str, Any]:
        await may_end.wait()
        return DONE

    body, content = envelope("tools/call", {"name": "t", "arguments": {}}), b""
    async with served(waits) as client, asyncio.timeout(STOP_S_MAX):
        asked = client.http.stream("POST", client.url, json=body, headers=headers_of(body))
        async with asked as answer:
            async for chunk in answer.aiter_raw():
                content += chunk
                if content.count(b":\r\n\r\n") >= 2:
                    may_end.set()
    reply = Reply(answer.status_code, answer.headers, content)
    assert reply.is_stream
    assert [message["result"]["content"] for message in reply.messages] == [DONE["content"]]


async def test_who_reads_no_streams_waits_for_the_one_answer():
    async with served(slowly) as client:
        reply = await call(client, JSON_ONLY, token=1)
    assert (reply.is_stream, reply.result["content"]) == (False, DONE["content"])


async def test_a_method_that_is_quick_by_nature_is_never_a_stream():
    async with served(slowly) as client:
        reply = await client.request("server/discover")
    assert not reply.is_stream


@pytest.mark.promise("logs-reach-their-own-request")
@pytest.mark.parametrize("accept", [BOTH, JSON_ONLY])
async def test_what_is_told_before_the_answer_comes_before_it(accept: str):
    async def talks(exchange: Exchange) -> dict[str, Any]:
        exchange.tell(Progress(1, None, None))
        exchange.tell(Logged({"level": "info", "data": 2, "x-unknown": None}))
        exchange.tell(Progress(3, None, None))
        return DONE

    logging = {"io.modelcontextprotocol/logLevel": "info"}
    async with served(talks) as client:
        for own, kept in (({**logging, "progressToken": 0}, [1, 2, 3]), (logging, [2])):
            body = envelope("tools/call", {"name": "t", "arguments": {}}, meta=own)
            *told, answer = (await client.send(body, accept=accept)).messages
            said = [m["params"].get("progress", m["params"].get("data")) for m in told]
            assert said == (kept if accept == BOTH else [])
            logs = [m["params"] for m in told if m["method"] == "notifications/message"]
            assert logs == [{"level": "info", "data": 2, "x-unknown": None}][: len(told)]
            assert answer["result"]["content"] == DONE["content"]


async def test_of_more_progress_than_is_read_the_latest_is_told():
    async def talks(exchange: Exchange) -> dict[str, Any]:
        for step in range(10 * NEWS_BACKLOG_MAX):
            exchange.tell(Progress(step, None, None))
        return await slowly(exchange)

    async with served(talks) as client:
        *told, answer = (await call(client, token="p")).messages
    steps = [message["params"]["progress"] for message in told]
    assert steps == list(range(9 * NEWS_BACKLOG_MAX, 10 * NEWS_BACKLOG_MAX))
    assert answer["result"]["content"] == DONE["content"]


@pytest.mark.parametrize("accept", [BOTH, JSON_ONLY])
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_fault_of_ours_tells_the_client_nothing_of_its_cause(accept: str, is_late: bool):
    async def breaks(exchange: Exchange) -> dict[str, Any]:
        if is_late:
            await slowly(exchange)
        raise RuntimeError("hunter2")

    async with served(breaks) as client:
        reply = await call(client, accept)
    assert (reply.status, reply.error) == (200, {"code": -32603, "message": "Internal error"})
    assert reply.is_stream == (is_late and accept == BOTH)


@pytest.mark.parametrize("accept", [BOTH, JSON_ONLY])
async def test_a_client_that_leaves_ends_the_work_which_may_still_tidy_up(accept: str):
    begun, tidied = asyncio.Event(), asyncio.Event()

    async def tidy(exchange: Exchange) -> dict[str, Any]:
        exchange.tell(Progress(1, None, None))
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await slowly(exchange)
            tidied.set()
        return DONE

    async with served(tidy) as client:
        waiting = asyncio.ensure_future(call(client, accept, token=1))
        await asyncio.wait_for(begun.wait(), STOP_S_MAX)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.wait_for(tidied.wait(), STOP_S_MAX)


async def test_a_client_that_has_left_before_the_first_frame_ends_the_work():
    stopped = asyncio.Event()

    async def waits(exchange: Exchange) -> dict[str, Any]:
        exchange.tell(Progress(1, None, None))
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return DONE

    body = envelope("tools/call", {"name": "t"}, meta={"progressToken": 1})
    headers = [(b"host", b"127.0.0.1")]
    headers += [(name.encode(), value.encode()) for name, value in headers_of(body).items()]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": headers}
    arriving: asyncio.Queue[Any] = asyncio.Queue()
    arriving.put_nowait({"type": "http.request", "body": json.dumps(body).encode()})
    response = await endpoint_of(waits).post(Asked(scope, arriving.get))
    assert (response.media_type, stopped.is_set()) == ("text/event-stream", False)
    arriving.put_nowait({"type": "http.disconnect"})
    sent: asyncio.Queue[Any] = asyncio.Queue()
    await asyncio.wait_for(response(scope, arriving.get, sent.put), STOP_S_MAX)
    assert stopped.is_set()


@pytest.mark.promise("bad-input-kills-nothing")
async def test_a_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(endpoint, "BODY_S_MAX", SOON_S)
    async with served(slowly) as client:
        address = urlsplit(client.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        headers = headers_of(envelope("server/discover"))
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\n{head}".encode())
        writer.write(b"content-length: 100\r\n\r\n{")
        answer = await asyncio.wait_for(reader.readuntil(b"}}}"), STOP_S_MAX)
        writer.close()
        await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 408 ")
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert (error["code"], error["data"]["limit"]) == (-32600, "body_seconds")


def test_no_answer_waits_for_the_acknowledgement_of_its_first_packet():
    # The one place that makes the socket that is listened on.
    with (
        serving.prepared(hosting.listener_on("127.0.0.1", 0, 1)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
