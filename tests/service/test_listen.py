"""`subscriptions/listen` from the outside: a real server, raw sockets, the very bytes.

The server runs no tasks: a publisher changes them in the store, as a worker elsewhere would.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest

from outlast.adapters.identity import ISSUER
from outlast.domain.owner import Owner
from outlast.tests.service.conftest import desk_config
from outlast.tests.service.test_owners import expire, token_file
from outlast.tests.support.hasty import hasty
from outlast.tests.support.mcp import TASKS, UNDECLARED, RawClient, http_client
from outlast.tests.support.publishing import Publisher, publishing
from outlast.tests.support.serving import Serving, serving
from outlast.tests.support.streams import (
    ACKNOWLEDGED,
    AFTER,
    CHANGED,
    SUBSCRIPTION,
    VERSION,
    RawStream,
    asking,
    listening,
    states,
    versions,
)

pytestmark = pytest.mark.anyio

KEEP_ALIVE_S = 0.5
INVALID_PARAMS, MISSING_CAPABILITY = -32602, -32021
ALICE, BOB = "alice-token-5c1e", "bob-token-31d0"
TOKENS = {ALICE: ("alice", "desk"), BOB: ("bob", "desk")}


def key_of(token: str) -> str:
    return Owner(ISSUER, *TOKENS[token]).key


@pytest.fixture(scope="module")
async def server(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    """A server that knows two owners and runs nothing."""
    folder = tmp_path_factory.mktemp("listen")
    (folder / "tokens.toml").write_text(token_file(TOKENS))
    config = desk_config('tokens_file = "tokens.toml"')
    outlast = hasty(keep_alive=KEEP_ALIVE_S)
    async with serving(folder, config, module_database_url, ["--no-work"], outlast) as started:
        yield started


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


def listens(server: Serving, *task_ids: str, **how: Any) -> Any:
    return listening(server.url, *task_ids, **{"token": ALICE, **how})


def bare(result: dict[str, Any]) -> dict[str, Any]:
    """What tasks/get says of the task itself."""
    return {key: value for key, value in result.items() if key not in ("_meta", "resultType")}


# --- what goes over the wire


@pytest.mark.promise("listen-speaks-the-specification")
async def test_a_stream_is_framed_to_the_byte(server: Serving, publisher: Publisher):
    task_id = await opened(publisher)
    async with listens(server, task_id) as stream:
        assert stream.header("content-type") == "text/event-stream"
        assert stream.header("x-accel-buffering") == "no"
        assert stream.header("cache-control") == "no-cache"
        assert stream.header("transfer-encoding") == "chunked"
        assert stream.header("content-length") is None
        await stream.messages(2)
        await publisher.ends(task_id)
        chunks = [await chunk_with_data(stream) for _ in range(2)]
        assert await stream.chunk() == b""
    for chunk in chunks:
        head, data, *rest = chunk.split(b"\r\n")
        assert (head, data[:6], rest) == (b"event: message", b"data: ", [b"", b""])
        assert b"\n" not in data
        assert json.loads(data[6:])["jsonrpc"] == "2.0"


async def chunk_with_data(stream: RawStream) -> bytes:
    """The next chunk that is no sign of life. Each chunk holds one whole event."""
    while (chunk := await stream.chunk()).startswith(b":"):
        assert chunk == b":\r\n\r\n"
    return chunk


@pytest.mark.promise("listen-speaks-the-specification")
async def test_a_quiet_stream_gives_signs_of_life_and_nothing_else(
    server: Serving, publisher: Publisher
):
    async with listens(server, await opened(publisher)) as stream:
        await stream.messages(2)
        with anyio.fail_after(20 * KEEP_ALIVE_S):
            assert [await stream.event() for _ in range(3)] == [b":\r\n\r\n"] * 3


@pytest.mark.promise("listen-speaks-the-specification")
@pytest.mark.parametrize("request_id", ["1", 1, 0, -1, "", 'a "b" \\ é', 2**53 + 1])
async def test_the_subscription_id_is_the_requests_id_in_its_type(
    server: Serving, publisher: Publisher, request_id: Any
):
    task_id = await opened(publisher)
    await publisher.ends(task_id)
    async with listens(server, task_id, request_id=request_id) as stream:
        acknowledged, state, result = await stream.to_the_end()
    for carrier in (acknowledged["params"], state["params"], result["result"]):
        told = carrier["_meta"][SUBSCRIPTION]
        assert (told, type(told)) == (request_id, type(request_id))
    assert (result["id"], type(result["id"])) == (request_id, type(request_id))


@pytest.mark.promise("listen-speaks-the-specification")
async def test_the_acknowledgement_is_first_however_fast_changes_come(
    server: Serving, publisher: Publisher
):
    task_id = await opened(publisher)

    async def publish() -> None:
        for step in range(100_000):
            await publisher.progresses(task_id, step=step)

    publishing_on = asyncio.create_task(publish())
    try:
        for number in range(25):
            async with listens(server, task_id, request_id=number) as stream:
                first, *later = await stream.messages(4)
            assert (first["method"], first["params"]["_meta"]) == (
                ACKNOWLEDGED,
                {SUBSCRIPTION: number},
            )
            assert [message["method"] for message in later] == [CHANGED] * 3
            present = versions(later)[0]
            assert versions(later) == [present, present + 1, present + 2]
    finally:
        publishing_on.cancel()
        await asyncio.gather(publishing_on, return_exceptions=True)


@pytest.mark.promise("listen-speaks-the-specification")
async def test_each_state_is_the_very_one_that_tasks_get_gives_at_that_version(
    server: Serving, publisher: Publisher, alice: RawClient
):
    task_id = await opened(publisher)
    at_the_time = [bare(await alice.task(task_id))]
    async with listens(server, task_id) as stream:
        told = await stream.messages(2)
        for step in (publisher.progresses, publisher.asks, publisher.progresses, publisher.ends):
            await step(task_id)
            at_the_time.append(bare(await alice.task(task_id)))
            told.append(await stream.message())
        told += await stream.to_the_end()
    assert states(told) == at_the_time
    assert [list(state) for state in states(told)] == [list(state) for state in at_the_time]
    assert versions(told) == [2, 3, 4, 5, 6]
    assert [state["status"] for state in at_the_time] == [
        *("working", "working", "input_required", "input_required", "completed")
    ]


async def test_what_a_stream_tells_and_what_a_poll_catches_up_on_are_the_same(
    server: Serving, publisher: Publisher, alice: RawClient
):
    task_id = await opened(publisher)
    async with listens(server, task_id) as stream:
        told = await stream.messages(2)
        for step in (publisher.progresses, publisher.asks, publisher.ends):
            await step(task_id)
        told += await stream.to_the_end()
    polled = await alice.request("tasks/get", {"taskId": task_id}, meta={AFTER: {task_id: 2}})
    between = polled.result["_meta"]["dev.outlast/changes"]
    assert [bare(change) for change in [*between, polled.result]] == states(told)[1:]
    assert [change["_meta"][VERSION] for change in [*between, polled.result]] == versions(told)[1:]


async def test_a_stream_goes_on_after_the_version_that_its_client_knows(
    server: Serving, publisher: Publisher
):
    task_id = await opened(publisher)
    for step in range(4):
        await publisher.progresses(task_id, step=step)
    await publisher.ends(task_id)
    async with listens(server, task_id, meta={AFTER: {task_id: 4}}) as stream:
        assert versions(await stream.to_the_end()) == [5, 6, 7]


async def test_last_event_id_means_nothing(server: Serving, publisher: Publisher):
    task_id = await opened(publisher)
    await publisher.ends(task_id)
    async with listens(server, task_id, headers={"last-event-id": "99999999999999"}) as stream:
        assert versions(await stream.to_the_end()) == [3]


@pytest.mark.promise("listen-speaks-the-specification")
async def test_the_result_comes_when_all_tasks_have_ended_and_the_connection_is_free_again(
    server: Serving, publisher: Publisher
):
    first, second = await opened(publisher), await opened(publisher)
    async with listens(server, first, second, request_id="all") as stream:
        await stream.messages(3)
        await publisher.ends(first)
        assert [s["taskId"] for s in states([await stream.message()])] == [first]
        await publisher.progresses(second)
        assert [s["taskId"] for s in states([await stream.message()])] == [second]
        await publisher.ends(second)
        *_, result = await stream.to_the_end()
        assert result == {
            "jsonrpc": "2.0",
            "id": "all",
            "result": {"resultType": "complete", "_meta": {SUBSCRIPTION: "all"}},
        }
        await stream.send("tasks/get", {"taskId": first}, authorization=f"Bearer {ALICE}")
        await stream.read_head()
        assert (await stream.body())["result"]["status"] == "completed"


@pytest.mark.parametrize("known", [0, 3, 1000])
async def test_a_task_that_has_ended_before_still_tells_its_end(
    server: Serving, publisher: Publisher, known: int
):
    task_id = await opened(publisher)
    await publisher.ends(task_id)
    async with listens(server, task_id, meta={AFTER: {task_id: known}}) as stream:
        acknowledged, *told, result = await stream.to_the_end()
    assert acknowledged["method"] == ACKNOWLEDGED
    assert [state["status"] for state in states(told)] == ["completed"]
    assert result["result"]["resultType"] == "complete"


ODD = 'a "quoted" \\ back\\\\slash \u2028 \r\n data: {} \x01 é 🦊'


@pytest.mark.promise("listen-speaks-the-specification")
@pytest.mark.parametrize(
    "odd", [ODD, 2**70, -(2**64), "\ud800 alone", {ODD: [ODD]}], ids=lambda odd: type(odd).__name__
)
async def test_odd_content_breaks_no_frame(
    server: Serving, publisher: Publisher, alice: RawClient, odd: Any
):
    task_id = await opened(publisher, tool=ODD, arguments={"odd": odd})
    other = await opened(publisher)
    async with listens(server, task_id, other) as stream:
        await stream.messages(3)
        await publisher.progresses(task_id, ODD)
        await publisher.ends(task_id, {"content": [], "structuredContent": {"odd": odd}})
        await publisher.ends(other)
        *told, _ = await stream.to_the_end()
    # Of two tasks either may be told of first.
    progress, ended = [state for state in states(told) if state["taskId"] == task_id]
    assert progress["statusMessage"] == ODD
    assert ended["result"]["structuredContent"] == {"odd": odd}
    assert ended == bare(await alice.task(task_id))
    polled = await alice.request("tasks/get", {"taskId": task_id}, meta={AFTER: {task_id: 2}})
    assert ended == bare(polled.result)


async def test_a_task_id_with_quotes_is_told_of_too(server: Serving, publisher: Publisher):
    task_id = await opened(publisher, task_id='a "quoted" \\ id ü')
    async with listens(server, task_id) as stream:
        acknowledged, _ = await stream.messages(2)
        assert acknowledged["params"]["notifications"] == {"taskIds": [task_id]}
        await publisher.ends(task_id)
        assert [s["taskId"] for s in states(await stream.to_the_end())] == [task_id]


# --- what may be asked for


@pytest.mark.promise("listen-speaks-the-specification")
async def test_tasks_are_refused_to_who_did_not_declare_them(server: Serving):
    wanted = {"notifications": {"taskIds": []}}
    async with asking(server.url, wanted, token=ALICE, capabilities=UNDECLARED) as reply:
        body = await reply.body()
    assert (reply.status, body["error"]["code"]) == (400, MISSING_CAPABILITY)
    assert body["error"]["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}


async def test_who_did_not_declare_tasks_may_listen_to_other_things(server: Serving):
    wanted = {"notifications": {"promptsListChanged": True}}
    async with asking(server.url, wanted, token=ALICE, capabilities=UNDECLARED) as stream:
        acknowledged = await stream.message()
    assert acknowledged["method"] == ACKNOWLEDGED
    assert "taskIds" not in acknowledged["params"]["notifications"]


@pytest.mark.promise("listen-speaks-the-specification")
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"notifications": None},
        {"notifications": []},
        {"notifications": "taskIds"},
        {"notifications": {"taskIds": "all"}},
        {"notifications": {"taskIds": [1]}},
        {"notifications": {"taskIds": {}}},
        {"notifications": {"taskIds": ["x"] * 1001}},
        {"notifications": {"resourceSubscriptions": [None]}},
    ],
    ids=lambda params: json.dumps(params)[:48],
)
async def test_a_filter_that_is_none_is_refused(server: Serving, params: dict[str, Any]):
    async with asking(server.url, params, token=ALICE, request_id="f") as reply:
        body = await reply.body()
    assert (reply.status, body["id"], body["error"]["code"]) == (400, "f", INVALID_PARAMS)
    assert reply.header("content-type") == "application/json"


@pytest.mark.parametrize("after", [5, [], {"x": -1}, {"x": "1"}, {"x": True}, {"x": 1.5}])
async def test_a_place_that_is_none_is_refused(server: Serving, after: Any):
    wanted = {"notifications": {"taskIds": ["x"]}}
    async with asking(server.url, wanted, token=ALICE, meta={AFTER: after}) as reply:
        assert (await reply.body())["error"]["code"] == INVALID_PARAMS


@pytest.mark.promise("watchers-see-only-their-own")
async def test_exactly_the_own_and_known_tasks_are_agreed_to(server: Serving, publisher: Publisher):
    own, foreign = await opened(publisher), await opened(publisher, BOB)
    expired = await opened(publisher)
    await publisher.ends(expired)
    expire(server.database_url, expired)
    asked = [foreign, "x" * 43, own, expired, "", "\0", own]
    async with listens(server, *asked) as stream:
        acknowledged, state = await stream.messages(2)
        assert acknowledged["params"]["notifications"] == {"taskIds": [own]}
        await publisher.ends(foreign)
        await publisher.ends(own)
        told = [state, *await stream.to_the_end()]
    assert [task["taskId"] for task in states(told)] == [own, own]


async def test_a_stream_of_nothing_ends_at_once(server: Serving, publisher: Publisher):
    foreign = await opened(publisher, BOB)
    async with listens(server, foreign, "x" * 43) as stream:
        acknowledged, result = await stream.to_the_end()
    assert acknowledged["params"]["notifications"] == {"taskIds": []}
    assert result["result"]["resultType"] == "complete"


@pytest.mark.parametrize(
    ("token", "challenge"), [(None, "Bearer"), ("wrong", 'Bearer error="invalid_token"')]
)
async def test_who_is_unknown_is_challenged_as_on_any_request(
    server: Serving, token: str | None, challenge: str
):
    async with asking(server.url, {"notifications": {}}, token=token) as reply:
        assert (reply.status, reply.header("www-authenticate")) == (401, challenge)
