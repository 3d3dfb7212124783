"""`events/list`, `events/poll` and `events/stream` from the outside: a real server, real sockets.

The server runs no tasks: a publisher changes them in the store, as a worker elsewhere would.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import pytest

from outlast.domain.owner import LOCAL_OWNER
from outlast.tests.acceptance.waiting import until
from outlast.tests.service.conftest import desk_config
from outlast.tests.service.test_listen import ALICE, BOB, TOKENS, bare, chunk_with_data, key_of
from outlast.tests.service.test_owners import expire, token_file
from outlast.tests.service.test_socket import cancel, connected, heard, listen
from outlast.tests.support.hasty import hasty
from outlast.tests.support.mcp import DECLARED, RawClient, envelope, http_client
from outlast.tests.support.publishing import Publisher, publishing
from outlast.tests.support.serving import Serving, serving
from outlast.tests.support.streams import SUBSCRIPTION, RawStream, asking

pytestmark = pytest.mark.anyio

HEARTBEAT_S = 0.5
PER_OWNER = 4
EVENTS = "io.modelcontextprotocol/events"
OVER = {"kind": "subscription", "reason": "task_terminal"}
STREAM = "events/stream"


@pytest.fixture(scope="module")
async def server(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    """A server that knows two owners and runs nothing."""
    folder = tmp_path_factory.mktemp("events")
    (folder / "tokens.toml").write_text(token_file(TOKENS))
    config = desk_config(f'tokens_file = "tokens.toml"\nwatches_per_owner = {PER_OWNER}')
    outlast = hasty(heartbeat=HEARTBEAT_S)
    async with serving(folder, config, module_database_url, ["--no-work"], outlast) as started:
        yield started


@pytest.fixture(scope="module")
async def anybody(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    """The URL of a server on the same store that takes everybody for one owner."""
    folder = tmp_path_factory.mktemp("anybody")
    async with serving(folder, desk_config(), module_database_url, ["--no-work"]) as started:
        yield started.url


@pytest.fixture
def publisher(server: Serving) -> Iterator[Publisher]:
    with publishing(server.database_url) as own:
        yield own


@pytest.fixture
async def alice(server: Serving) -> AsyncIterator[RawClient]:
    async with http_client() as http:
        yield RawClient(server.url, http, ALICE)


async def opened(publisher: Publisher, token: str = ALICE, **changes: Any) -> str:
    return await publisher.opened(owner=key_of(token), **changes)


async def polled(client: RawClient, name: str, cursor: str | None, **params: Any) -> dict[str, Any]:
    asked = {"name": name, "cursor": cursor, **params}
    return (await client.request("events/poll", asked)).result


def streaming(
    server: Serving,
    name: str,
    cursor: str | None = None,
    *,
    request_id: Any = 1,
    token: str = ALICE,
    **params: Any,
) -> AbstractAsyncContextManager[RawStream]:
    asked = {"name": name, "cursor": cursor, **params}
    return asking(server.url, asked, request_id=request_id, token=token, method=STREAM)


async def news(stream: RawStream) -> dict[str, Any]:
    """The next message that is no heartbeat."""
    while (message := await stream.message()).get("method", "").endswith("/heartbeat"):
        pass
    return message


def of_task(task_id: str) -> dict[str, Any]:
    return {"arguments": {"taskId": task_id}}


# --- what the server says of itself


async def test_events_are_declared_in_both_forms(alice: RawClient):
    declared = (await alice.request("server/discover")).result["capabilities"]
    assert declared["events"] == {"listChanged": False}
    assert declared["extensions"][EVENTS] == {}


async def test_the_list_tells_what_there_is_and_how_it_comes(alice: RawClient):
    listed = (await alice.request("events/list")).result
    assert [(kind["name"], kind["delivery"]) for kind in listed["events"]] == [
        (name, ["poll", "push", "webhook"])
        for name in ("task.updated", "task.finished", "task.progress")
    ]
    assert "nextCursor" not in listed
    assert (await alice.request("events/list", {"cursor": "p2"})).error["code"] == -32602


async def test_who_could_be_anybody_gets_no_webhook(anybody: str):
    async with http_client() as http:
        client = RawClient(anybody, http)
        listed = (await client.request("events/list")).result
        assert [kind["delivery"] for kind in listed["events"]] == [["poll", "push"]] * 3
        for method in ("events/subscribe", "events/unsubscribe"):
            refused = (await client.request(method, {"name": "task.updated"})).error
            assert (refused["code"], refused["message"]) == (-32012, "Forbidden")


# --- poll


async def test_each_event_tells_the_task_as_tasks_get_told_it_then(
    alice: RawClient, publisher: Publisher
):
    cursor = (await polled(alice, "task.updated", None))["cursor"]
    task_id = await opened(publisher)
    at_the_time = [bare(await alice.task(task_id))]
    for step in (publisher.progresses, publisher.asks, publisher.ends):
        await step(task_id)
        at_the_time.append(bare(await alice.task(task_id)))
    answer = await polled(alice, "task.updated", cursor)
    told = [event["data"] for event in answer["events"]]
    assert [data.pop("version") for data in told] == [1, 2, 3, 4, 5]
    assert {data.pop("tool") for data in told} == {"run_ci_pipeline"}
    assert told[1:] == at_the_time
    assert {key: answer[key] for key in ("truncated", "hasMore", "nextPollMs")} == {
        "truncated": False,
        "hasMore": False,
        "nextPollMs": 5000,
    }
    finished = await polled(alice, "task.finished", cursor)
    assert [event["data"]["status"] for event in finished["events"]] == ["completed"]
    progress = await polled(alice, "task.progress", cursor, **of_task(task_id))
    assert [event["data"]["progress"] for event in progress["events"]] == [1]


async def test_a_drain_in_small_batches_misses_and_repeats_nothing(
    alice: RawClient, publisher: Publisher
):
    cursor = (await polled(alice, "task.updated", None))["cursor"]
    task_ids = [await opened(publisher), await opened(publisher, tool="other")]
    for step in range(4):
        for task_id in task_ids:
            await publisher.progresses(task_id, step=step)
    whole = await polled(alice, "task.updated", cursor)
    found, place, has_more = list[Any](), cursor, True
    while has_more:
        answer = await polled(alice, "task.updated", place, maxEvents=3)
        found += answer["events"]
        place, has_more = answer["cursor"], answer["hasMore"]
    assert (found, place) == (whole["events"], whole["cursor"])
    assert len(found) == 12
    narrowed = await polled(alice, "task.progress", cursor, arguments={"tools": ["other"]})
    assert [event["data"]["taskId"] for event in narrowed["events"]] == [task_ids[1]] * 4


async def test_what_another_owner_does_shows_in_nothing(alice: RawClient, publisher: Publisher):
    before = await polled(alice, "task.updated", None)
    theirs = await opened(publisher, BOB)
    await publisher.ends(theirs)
    assert await polled(alice, "task.updated", None) == before
    assert await polled(alice, "task.updated", before["cursor"]) == before
    bob = RawClient(alice.url, alice.http, BOB)
    assert [
        event["data"]["taskId"] for event in (await polled(bob, "task.finished", "x"))["events"]
    ]
    stolen = await polled(bob, "task.updated", before["cursor"])
    assert stolen["truncated"]


async def test_a_cursor_is_good_at_every_replica(
    anybody: str, publisher: Publisher, tmp_path_factory: pytest.TempPathFactory, server: Serving
):
    folder = tmp_path_factory.mktemp("second")
    async with (
        serving(folder, desk_config(), server.database_url, ["--no-work"]) as second,
        http_client() as http,
    ):
        cursor = (await polled(RawClient(anybody, http), "task.updated", None))["cursor"]
        task_id = await publisher.opened(owner=LOCAL_OWNER.key)
        answer = await polled(RawClient(second.url, http), "task.updated", cursor)
    assert [event["data"]["taskId"] for event in answer["events"]] == [task_id] * 2
    assert not answer["truncated"]


async def test_the_end_of_a_task_is_told_as_an_error_and_only_after_its_last_event(
    alice: RawClient, publisher: Publisher
):
    task_id = await opened(publisher)
    cursor = (await polled(alice, "task.finished", None, **of_task(task_id)))["cursor"]
    await publisher.ends(task_id)
    answer = await polled(alice, "task.finished", cursor, **of_task(task_id))
    assert [event["data"]["version"] for event in answer["events"]] == [3]
    for place in (answer["cursor"], None):
        asked = {"name": "task.finished", "cursor": place, **of_task(task_id)}
        refused = (await alice.request("events/poll", asked)).error
        assert refused == {"code": -32011, "message": "NotFound", "data": OVER}


@pytest.mark.parametrize("method", ["events/poll", STREAM])
async def test_what_is_not_there_or_not_valid_is_refused_by_its_code(
    alice: RawClient, publisher: Publisher, server: Serving, method: str
):
    theirs, expired = await opened(publisher, BOB), await opened(publisher)
    await publisher.ends(expired)
    expire(server.database_url, expired)
    hidden = [
        (await alice.request(method, {"name": "task.updated", **of_task(each)})).error
        for each in (theirs, expired, "never was")
    ]
    got = (await alice.request("tasks/get", {"taskId": "never was"})).error
    assert hidden == [got] * 3
    unknown = (await alice.request(method, {"name": "task.vanished"})).error
    assert unknown == {"code": -32011, "message": "NotFound", "data": {"kind": "event"}}
    for wrong in ({}, {"name": "task.updated", "arguments": {"x": 1}}, {"name": 3}):
        assert (await alice.request(method, wrong)).error["code"] == -32602


# --- stream


async def test_a_stream_is_data_frames_from_the_first_to_the_result(
    server: Serving, publisher: Publisher
):
    task_id = await opened(publisher)
    async with streaming(server, "task.updated", request_id=7, **of_task(task_id)) as stream:
        assert stream.header("content-type") == "text/event-stream"
        active = await stream.message()
        beat = await chunk_with_data(stream)
        await publisher.ends(task_id)
        event, over, result = [await news(stream) for _ in range(3)]
        assert await stream.chunk() == b""
    assert active["method"] == "notifications/events/active"
    assert active["params"]["truncated"] is False
    assert beat.startswith(b"event: message\r\ndata: ")
    heartbeat = json.loads(beat.split(b"data: ")[1])
    assert heartbeat["method"] == "notifications/events/heartbeat"
    assert heartbeat["params"]["cursor"] == active["params"]["cursor"]
    assert event["method"] == "notifications/events/event"
    assert event["params"]["data"]["status"] == "completed"
    assert over["method"] == "notifications/events/terminated"
    assert over["params"]["error"] == {"code": -32011, "message": "NotFound", "data": OVER}
    for message in (active, heartbeat, event, over):
        assert message["params"]["_meta"] == {SUBSCRIPTION: 7}
    assert result == {"jsonrpc": "2.0", "id": 7, "result": {"resultType": "complete", "_meta": {}}}


@pytest.mark.parametrize("request_id", ["1", 0, -1, "", 'a "b" é'])
async def test_the_subscription_id_is_the_requests_id_in_its_type(
    server: Serving, publisher: Publisher, request_id: Any
):
    async with streaming(server, "task.updated", request_id=request_id) as stream:
        told = (await stream.message())["params"]["_meta"][SUBSCRIPTION]
    assert (told, type(told)) == (request_id, type(request_id))


async def test_a_stream_that_broke_off_goes_on_from_its_last_cursor(
    server: Serving, publisher: Publisher, alice: RawClient
):
    task_id = await opened(publisher)
    async with streaming(server, "task.updated") as stream:
        await stream.message()
        await publisher.progresses(task_id)
        first = (await news(stream))["params"]
    for step in range(3):
        await publisher.progresses(task_id, step=step)
    async with streaming(server, "task.updated", first["cursor"]) as stream:
        assert (await stream.message())["params"]["truncated"] is False
        later = [(await news(stream))["params"]["data"]["version"] for _ in range(3)]
    assert (first["data"]["version"], later) == (3, [4, 5, 6])
    answer = await polled(alice, "task.updated", first["cursor"])
    assert [event["data"]["version"] for event in answer["events"]] == later


async def test_a_stream_of_all_tasks_hears_of_tasks_that_are_not_yet_there(
    server: Serving, publisher: Publisher
):
    async with streaming(server, "task.updated") as stream:
        await stream.message()
        await opened(publisher, BOB)
        task_id = await opened(publisher)
        told = [(await news(stream))["params"]["data"] for _ in range(2)]
    assert [(data["taskId"], data["version"]) for data in told] == [(task_id, 1), (task_id, 2)]


async def test_streams_take_seats_and_give_them_back(server: Serving, alice: RawClient):
    bob = RawClient(alice.url, alice.http, BOB)
    async with AsyncExitStack() as stack:
        for _ in range(PER_OWNER):
            stream = streaming(server, "task.updated", token=BOB)
            await (await stack.enter_async_context(stream)).message()
        refused = (await bob.request(STREAM, {"name": "task.updated"})).error
        assert (refused["code"], refused["message"]) == (-32013, "ResourceExhausted")
        assert refused["data"] == {"limit": "subscriptions", "max": PER_OWNER}

    async def has_a_seat() -> bool:
        async with streaming(server, "task.updated", token=BOB) as stream:
            return stream.header("content-type") == "text/event-stream"

    await until(has_a_seat, 20)


# --- the WebSocket


def stream_message(request_id: Any, **params: Any) -> str:
    return json.dumps({**envelope(STREAM, {"cursor": None, **params}), "id": request_id})


async def next_of(connection: Any, request_id: Any) -> dict[str, Any]:
    """The next message of this stream that is no heartbeat."""
    while True:
        message = await heard(connection)
        about = message.get("params", {}).get("_meta", {}).get(SUBSCRIPTION, message.get("id"))
        if about == request_id and not message.get("method", "").endswith("/heartbeat"):
            return message


async def test_a_websocket_carries_streams_beside_watches_until_they_are_cancelled(
    server: Serving, publisher: Publisher
):
    task_id = await opened(publisher)
    async with connected(server) as connection:
        await connection.send(stream_message("all", name="task.updated"))
        assert (await next_of(connection, "all"))["method"] == "notifications/events/active"
        await connection.send(listen("watch", task_id))
        await connection.send(stream_message("one", name="task.finished", **of_task(task_id)))
        assert (await next_of(connection, "one"))["method"] == "notifications/events/active"
        await connection.send(cancel("all"))
        await connection.send(stream_message("all", name="task.vanished"))
        assert (await next_of(connection, "all"))["error"]["code"] == -32011
        await publisher.ends(task_id)
        told = [await next_of(connection, "one") for _ in range(3)]
        assert [message.get("method") for message in told] == [
            "notifications/events/event",
            "notifications/events/terminated",
            None,
        ]


async def test_a_websocket_still_serves_no_other_method(server: Serving):
    async with connected(server) as connection:
        for method in ("events/poll", "events/list", "tasks/get"):
            await connection.send(json.dumps(envelope(method)))
            assert (await heard(connection))["error"]["code"] == -32601


# --- switched off


async def test_switched_off_there_is_nothing_of_it(
    server: Serving, tmp_path_factory: pytest.TempPathFactory
):
    folder = tmp_path_factory.mktemp("off")
    config = f"{desk_config()}[events]\nenabled = false\n"
    capabilities = {**DECLARED, "events": {}}
    async with serving(folder, config, server.database_url) as off, http_client() as http:
        client = RawClient(off.url, http, capabilities=capabilities)
        declared = (await client.request("server/discover")).result["capabilities"]
        assert ("events" in declared, EVENTS in declared["extensions"]) == (False, False)
        for method in ("events/list", "events/poll", STREAM, "events/subscribe"):
            assert (await client.request(method, {"name": "task.updated"})).refusal == (404, -32601)
        assert "eventSource" not in (await client.call("note_task", {"path": "/dev/null"})).result
        given = {"dev.outlast/webhook": {"url": "https://a.example/", "secret": "whsec_x"}}
        refused = (await client.call("note_task", {"path": "/dev/null"}, meta=given)).error
        assert (refused["code"], refused["message"]) == (-32014, "Unsupported")
