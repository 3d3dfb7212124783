"""How many may listen, who is cut off, what a real tool's stream holds, and how a client's half of
it reads servers that are not quite ours."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from outlast.delivery.listen import ListenSource
from outlast.delivery.polling import PollingSource
from outlast.delivery.remote import Remote
from outlast.delivery.source import StatusSource
from outlast.delivery.websocket import WebSocketSource
from outlast.domain import errors
from outlast.tests.acceptance.waiting import until
from outlast.tests.service.conftest import desk_config
from outlast.tests.service.test_listen import ALICE, BOB, TOKENS, key_of
from outlast.tests.service.test_owners import token_file
from outlast.tests.support.hasty import hasty
from outlast.tests.support.listening import accepting
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.publishing import Publisher, publishing
from outlast.tests.support.serving import Serving, serving
from outlast.tests.support.streams import (
    ACKNOWLEDGED,
    AFTER,
    CHANGED,
    Broken,
    RawStream,
    asking,
    listening,
    states,
    versions,
)

pytestmark = pytest.mark.anyio

TOO_MANY, REASON = -32603, "too_many_watches"
PER_OWNER, IN_ALL = 10, 12
TAKE_S = 3.0  # what the healthy ones must not take longer than on a busy machine
HEALTHY = PER_OWNER - 1
LARGE = "x" * 200_000
STOP_S_MAX = 15.0
SEAT_S_MAX = READ_S_MAX = 20.0


@pytest.fixture(scope="module")
async def server(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    """A server with few seats and little patience, which runs nothing."""
    folder = tmp_path_factory.mktemp("limits")
    (folder / "tokens.toml").write_text(token_file(TOKENS))
    limits = f"watches = {IN_ALL}\nwatches_per_owner = {PER_OWNER}"
    config = desk_config(f'tokens_file = "tokens.toml"\n{limits}')
    flags, outlast = ["--no-work"], hasty(take=TAKE_S)
    async with serving(folder, config, module_database_url, flags, outlast) as started:
        yield started


@pytest.fixture
def publisher(server: Serving) -> Iterator[Publisher]:
    with publishing(server.database_url) as own:
        yield own


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as own:
        yield own


async def refusal(server: Serving, task_id: str, token: str) -> dict[str, Any] | None:
    """Why a stream of this task is refused now; None when it is not."""
    wanted = {"notifications": {"taskIds": [task_id]}}
    async with asking(server.url, wanted, token=token) as reply:
        if reply.header("content-type") == "text/event-stream":
            return None
        return (await reply.body())["error"]


async def until_a_seat_is_free(server: Serving, task_id: str, seconds: float) -> None:
    async def is_free() -> bool:
        return await refusal(server, task_id, ALICE) is None

    await until(is_free, seconds)


async def seated(
    server: Serving, task_id: str, token: str, stack: AsyncExitStack, **how: Any
) -> RawStream:
    """A stream of this task, once there is a seat: who has just gone may not be missed yet."""
    found: list[RawStream] = []

    async def is_seated() -> bool:
        own = AsyncExitStack()
        wanted = {"notifications": {"taskIds": [task_id]}}
        stream = await own.enter_async_context(asking(server.url, wanted, token=token, **how))
        if stream.header("content-type") != "text/event-stream":
            await own.aclose()
            return False
        stack.push_async_callback(own.aclose)
        found.append(stream)
        return True

    await until(is_seated, SEAT_S_MAX)
    return found[0]


async def test_each_limit_is_named_and_a_client_that_has_gone_leaves_its_seat(
    server: Serving, publisher: Publisher, stack: AsyncExitStack
):
    own, others = (
        await publisher.opened(owner=key_of(ALICE)),
        await publisher.opened(owner=key_of(BOB)),
    )

    async def take(task_id: str, token: str) -> RawStream:
        stream = await seated(server, task_id, token, stack)
        await stream.messages(2)
        return stream

    streams = [await take(own, ALICE) for _ in range(PER_OWNER)]
    assert await refusal(server, own, ALICE) == {
        "code": TOO_MANY,
        "message": f"There are already {PER_OWNER} watches of one owner, which is the limit",
        "data": {"reason": REASON, "limit": "watches of one owner", "most": PER_OWNER},
    }
    for _ in range(IN_ALL - PER_OWNER):
        await take(others, BOB)
    assert await refusal(server, others, BOB) == {
        "code": TOO_MANY,
        "message": f"There are already {IN_ALL} watches of this process, which is the limit",
        "data": {"reason": REASON, "limit": "watches of this process", "most": IN_ALL},
    }
    streams[0].writer.transport.abort()
    # And one that closes as it should.
    await take(own, ALICE)
    streams[1].writer.close()
    await take(own, ALICE)


async def test_what_is_refused_or_ends_takes_no_seat_for_longer(
    server: Serving, publisher: Publisher, stack: AsyncExitStack
):
    ended = await publisher.opened(owner=key_of(ALICE))
    await publisher.ends(ended)
    for _ in range(2 * PER_OWNER):
        async with asking(server.url, {"notifications": 1}, token=ALICE) as reply:
            assert reply.status == httpx2.codes.BAD_REQUEST
        await (await seated(server, ended, ALICE, stack)).to_the_end()
    # None of those is closed by its client, and there is a seat for as many as ever.
    going_on = await publisher.opened(owner=key_of(ALICE))
    for _ in range(PER_OWNER):
        await (await seated(server, going_on, ALICE, stack)).messages(2)


@pytest.mark.promise("slow-reader-is-cut-off-and-loses-nothing")
async def test_a_reader_that_stalls_is_cut_off_and_holds_up_nobody(
    server: Serving, publisher: Publisher, stack: AsyncExitStack
):
    task_id = await publisher.opened(owner=key_of(ALICE))
    stalled = await seated(server, task_id, ALICE, stack)
    stalled.stall()
    healthy = [await seated(server, task_id, ALICE, stack) for _ in range(HEALTHY)]
    for stream in healthy:
        await stream.messages(2)
    assert await refusal(server, task_id, ALICE) is not None
    seat_is_free = asyncio.create_task(until_a_seat_is_free(server, task_id, 10 * TAKE_S))
    steps = 0
    with anyio.fail_after(20 * TAKE_S):
        while not seat_is_free.done():
            steps += 1
            version = await publisher.progresses(task_id, LARGE, step=steps)
            with anyio.fail_after(READ_S_MAX):  # each healthy one has it before the next change
                told = [await stream.message() for stream in healthy]
            assert {v for message in told for v in versions([message])} == {version}
    await seat_is_free
    assert "Traceback" not in server.log.read_text()
    await came_back_for_the_rest(server, publisher, stalled, task_id, stack)


async def came_back_for_the_rest(
    server: Serving,
    publisher: Publisher,
    stalled: RawStream,
    task_id: str,
    stack: AsyncExitStack,
) -> None:
    """What the stalled one reads after all breaks off; what it comes back for is the rest."""
    seen: list[dict[str, Any]] = []
    stalled.recover()
    try:
        while True:
            seen.append(await stalled.message())
    except Broken:
        pass
    assert seen[0]["method"] == ACKNOWLEDGED
    last = versions(seen)[-1]
    assert versions(seen) == list(range(2, last + 1))
    end = await publisher.ends(task_id)
    again = await seated(server, task_id, ALICE, stack, meta={AFTER: {task_id: last}})
    assert versions(await again.to_the_end()) == list(range(last + 1, end + 1))


# --- a real tool


@pytest.mark.promise("listen-speaks-the-specification")
async def test_a_stream_holds_no_progress_and_no_log_messages_of_any_call(
    client: RawClient, tmp_path: Path
):
    loud = {"progressToken": "p", "io.modelcontextprotocol/logLevel": "debug"}
    created = await client.call(
        "note_task", {"path": str(tmp_path / "notes"), "seconds": 0.5}, meta=loud
    )
    task_id = created.result["taskId"]
    async with listening(client.url, task_id, meta=loud) as stream:
        acknowledged, *told, result = await stream.to_the_end()
    assert acknowledged["method"] == ACKNOWLEDGED
    assert {message["method"] for message in told} == {CHANGED}
    assert states(told)[-1]["status"] == "completed"
    assert versions(told) == list(range(versions(told)[0], versions(told)[-1] + 1))
    assert result["result"]["resultType"] == "complete"


@pytest.mark.promise("listen-speaks-the-specification")
async def test_an_answer_given_elsewhere_is_heard_on_the_stream(client: RawClient):
    task_id = await client.opened("sign_task_during", {"document": "d"})
    await client.until_status(task_id, "input_required")
    async with listening(client.url, task_id) as stream:
        _, asked = await stream.messages(2)
        [key] = states([asked])[0]["inputRequests"]
        answer = {"action": "accept", "content": {"name": "Ada"}}
        await client.request("tasks/update", {"taskId": task_id, "inputResponses": {key: answer}})
        *told, _ = await stream.to_the_end()
    assert states(told)[-1]["result"]["content"][0]["text"] == "d signed by Ada"


# --- the end of the process


@pytest.mark.promise("listen-speaks-the-specification")
async def test_on_sigterm_every_stream_gets_its_result_and_the_process_ends_at_once(
    database_url: str, tmp_path: Path, stack: AsyncExitStack
):
    async with serving(tmp_path, desk_config(), database_url, ["--no-work"]) as server:
        with publishing(database_url) as publisher:
            task_ids = [await publisher.opened() for _ in range(5)]
        streams = [
            await stack.enter_async_context(listening(server.url, task_id, request_id=task_id))
            for task_id in task_ids
        ]
        for stream in streams:
            await stream.messages(2)
        server.process.terminate()
        with anyio.fail_after(STOP_S_MAX):
            for task_id, stream in zip(task_ids, streams, strict=True):
                [result] = await stream.to_the_end()
                assert (result["id"], result["result"]["resultType"]) == (task_id, "complete")
            assert await server.process.wait() == 0


# --- the client's half


STATE = b'{"taskId":"t","status":"completed","lastUpdatedAt":"2026-07-28T12:00:00.000Z"}'
STREAM = (
    b'data: {"method":"notifications/subscriptions/acknowledged","params":{"notifications":'
    b'{"taskIds":["t"]}}}\n\n'
    b': a comment\n\ndata: {"method":"notifications/tasks","params":' + STATE + b"}\n\n"
)


@asynccontextmanager
async def speaking(content_type: str, body: bytes) -> AsyncIterator[str]:
    """The URL of a server that says this to everybody."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    async with accepting(serve) as port:
        yield f"http://127.0.0.1:{port}/mcp"


@pytest.mark.parametrize(
    "content_type",
    ["text/event-stream", "text/event-stream; charset=utf-8", "Text/Event-Stream;charset=UTF-8"],
)
async def test_a_stream_is_known_by_its_media_type_alone(content_type: str):
    async with speaking(content_type, STREAM) as url, http_client() as http:
        with anyio.fail_after(READ_S_MAX):
            told = [state async for state in ListenSource(Remote(url, http)).watch("t")]
    assert [state.task["status"] for state in told] == ["completed"]


def sources(remote: Remote, server: Serving) -> dict[str, StatusSource]:
    return {
        "poll": PollingSource(remote),
        "listen": ListenSource(remote),
        "websocket": WebSocketSource(remote, f"ws{server.base_url.removeprefix('http')}/ws"),
    }


@pytest.mark.parametrize("way", ["poll", "listen", "websocket"])
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}], ids=["none", "wrong"])
async def test_a_token_that_is_not_valid_is_told_of_at_once_on_every_way(
    server: Serving, way: str, headers: dict[str, str]
):
    async with http_client() as http:
        source = sources(Remote(server.url, http, headers), server)[way]
        with anyio.fail_after(READ_S_MAX), pytest.raises(errors.RequestRefused) as refused:
            async for _ in source.watch("t"):
                pass
    assert refused.value.code == httpx2.codes.UNAUTHORIZED


@pytest.mark.parametrize("way", ["poll", "listen", "websocket"])
async def test_odd_content_reaches_the_client_unchanged_on_every_way(
    server: Serving, publisher: Publisher, way: str
):
    task_id = await publisher.opened(owner=key_of(ALICE))
    odd = {"large": 2**70, "alone": "\ud800", "quoted": '"\\'}
    await publisher.ends(task_id, {"content": [], "structuredContent": odd})
    async with http_client() as http:
        remote = Remote(server.url, http, {"Authorization": f"Bearer {ALICE}"})
        with anyio.fail_after(READ_S_MAX):
            [state] = [s async for s in sources(remote, server)[way].watch(task_id)]
    assert state.task["result"]["structuredContent"] == odd
