"""Sessions over plain HTTP: whose they are, how they end, and what a lost connection loses."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from outlast.tests.acceptance.waiting import until, until_file_says
from outlast.tests.service.conftest import desk_config
from outlast.tests.service.legacy_world import ALICE, BOB, WATCHER, bearing, guarded
from outlast.tests.support.mcp import VERSION, RawClient, envelope, http_client
from outlast.tests.support.serving import Serving, serving
from outlast.tests.support.sessions import ACCEPT, RawSession, request

pytestmark = pytest.mark.anyio

WAIT_S = 60.0
IDLE_S = 3  # enough to shake hands and to call, also on a busy machine
UNSUPPORTED, INVALID_REQUEST = -32022, -32600


@pytest.fixture(scope="module")
async def desk(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    folder = tmp_path_factory.mktemp("sessions")
    async with guarded(folder, module_database_url, "sessions_per_owner = 20") as server:
        yield server


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client() as client:
        yield client


@pytest.fixture
async def alice(desk: Serving, http: httpx2.AsyncClient) -> AsyncIterator[RawSession]:
    session = await bearing(desk, http, ALICE, capabilities={"elicitation": {}}).opened()
    yield session
    await http.delete(session.url, headers=session.headers)


@pytest.mark.promise("older-clients-are-served")
@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_older_revision_is_spoken_as_it_was_asked_for(
    desk: Serving, http: httpx2.AsyncClient, version: str
):
    session = bearing(desk, http, ALICE, version=version)
    async with session.stream(request("initialize", handshake(version), 0)) as events:
        [answer] = [event.message async for event in events if event.message]
    assert answer["result"]["protocolVersion"] == version
    assert ("tasks" in answer["result"]["capabilities"]) == (version == "2025-11-25")


def handshake(version: str) -> dict[str, object]:
    info = {"name": "raw", "version": "1"}
    return {"protocolVersion": version, "capabilities": {}, "clientInfo": info}


@pytest.mark.promise("a-session-is-its-owners")
@pytest.mark.parametrize("token", [BOB, "nobody's"])
async def test_a_session_is_not_there_for_others(alice: RawSession, token: str):
    other = alice.beside(authorization=f"Bearer {token}")
    expected = 404 if token == BOB else 401
    assert (await other.post(request("ping", {}, 7))).status_code == expected
    for method in ("GET", "DELETE"):
        reply = await alice.http.request(method, alice.url, headers={**ACCEPT, **other.headers})
        assert reply.status_code == expected
        assert ("www-authenticate" in reply.headers) == (expected == 401)
    assert await alice.result("ping") == {}


@pytest.mark.promise("a-session-is-its-owners")
async def test_another_owners_session_looks_like_one_that_never_was(alice: RawSession):
    foreign = await alice.beside(authorization=f"Bearer {BOB}").post(request("ping", {}, 7))
    unknown = alice.beside(**{"authorization": f"Bearer {BOB}", "mcp-session-id": "0" * 32})
    assert foreign.content == (await unknown.post(request("ping", {}, 7))).content


async def test_a_session_needs_the_scope_of_what_it_asks_for(alice: RawSession, tmp_path: Path):
    watcher = alice.beside(authorization=f"Bearer {WATCHER}")
    call = {"name": "note_task", "arguments": {"path": str(tmp_path / "lines")}}
    reply = await watcher.post(request("tools/call", call, 1))
    assert (reply.status_code, reply.json()["id"]) == (403, 1)
    assert "outlast:call" in reply.headers["www-authenticate"]
    assert await watcher.result("ping") == {}


async def test_a_foreign_host_is_turned_away(alice: RawSession):
    for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
        assert (await alice.beside(**headers).post(request("ping", {}, 1))).status_code in (
            403,
            421,
        )


@pytest.mark.promise("sessions-are-bounded")
async def test_a_session_ends_when_its_client_says_so(desk: Serving, http: httpx2.AsyncClient):
    session = await bearing(desk, http, ALICE).opened()
    assert (await http.delete(session.url, headers=session.headers)).status_code == 200
    assert (await session.post(request("ping", {}, 1))).status_code == 404


@pytest.mark.promise("sessions-are-bounded")
async def test_one_owner_cannot_take_all_sessions(desk: Serving, http: httpx2.AsyncClient):
    opened: list[RawSession] = []
    while (reply := await bearing(desk, http, BOB).initialize()).status_code == 200:
        assert len(opened) <= 20
        named = {"mcp-session-id": reply.headers["mcp-session-id"]}
        opened.append(bearing(desk, http, BOB).beside(**named))
    assert (reply.status_code, len(opened)) == (503, 20)
    assert (await bearing(desk, http, ALICE).opened()).id
    for session in opened:
        assert (await http.delete(desk.url, headers=session.headers)).status_code == 200
    assert (await bearing(desk, http, BOB).opened()).id


@pytest.mark.promise("a-call-of-a-session-runs-once")
async def test_the_same_request_sent_again_gets_the_result_of_the_first(
    alice: RawSession, tmp_path: Path
):
    path = tmp_path / "lines"
    call = {"name": "note_task", "arguments": {"path": str(path), "seconds": 0.5}}
    async with alice.stream(request("tools/call", call, 41)) as events:
        await anext(events)  # the event that only gives an id: it is being served
    answer = await alice.ask("tools/call", 41, **call)
    assert answer["result"]["content"][0]["text"] == "1"
    assert len(path.read_text().splitlines()) == 1
    other = await alice.ask(
        "tools/call", 41, name="note_task", arguments={"path": str(path), "text": "x"}
    )
    assert other["error"]["code"] == -32602


async def test_an_id_that_reads_like_one_in_flight_is_refused_until_that_is_answered(
    alice: RawSession,
):
    call = {"name": "sign_task_during", "arguments": {"document": "The deed"}}
    twin, last = {**request("ping", {}, 50), "id": "50"}, dict[str, Any]()
    async with alice.stream(request("tools/call", call, 50)) as events:
        async for event in events:
            if event.message.get("method") == "elicitation/create":
                refused = await alice.post(twin)
                assert (refused.status_code, refused.json()["id"]) == (400, "50")
                assert refused.json()["error"]["code"] == INVALID_REQUEST
                answer = {"action": "accept", "content": {"name": "Ada"}}
                reply = {"jsonrpc": "2.0", "id": event.message["id"], "result": answer}
                assert (await alice.post(reply)).status_code == 202
            last = event.message
    assert (last["id"], "result" in last) == (50, True)

    async def is_free() -> bool:  # the client may have all of the answer before the server is done
        return (await alice.post(twin)).status_code == 200

    await until(is_free, WAIT_S)


@pytest.mark.promise("a-call-of-a-session-runs-once")
async def test_a_dropped_stream_is_taken_up_where_it_broke(alice: RawSession, tmp_path: Path):
    path = tmp_path / "lines"
    call = {"name": "note_task", "arguments": {"path": str(path), "seconds": 0.5}}
    async with alice.stream(request("tools/call", call, 42)) as events:
        last = (await anext(events)).id
    assert last
    async with alice.stream(None, **{"last-event-id": last}) as events:
        async for event in events:
            if event.message.get("id") == 42:
                assert event.message["result"]["content"][0]["text"] == "1"
                break
    assert len(path.read_text().splitlines()) == 1


@pytest.mark.promise("a-session-is-its-owners")
async def test_what_one_session_was_sent_is_never_replayed_into_another(
    desk: Serving, alice: RawSession, http: httpx2.AsyncClient, tmp_path: Path
):
    call = {"name": "note_task", "arguments": {"path": str(tmp_path / "lines")}}
    async with alice.stream(request("tools/call", call, 1)) as events:
        ids = [event.id async for event in events]
    other = await bearing(desk, http, BOB).opened()
    async with other.stream(None, **{"last-event-id": str(ids[0])}) as events:
        assert [event async for event in events] == []


async def test_a_call_that_is_given_up_is_cancelled(alice: RawSession, tmp_path: Path):
    marker = tmp_path / "marker"
    for number, tool in enumerate(("hold_task", "hold_direct"), 50):
        marker.unlink(missing_ok=True)
        call = {"name": tool, "arguments": {"marker": str(marker)}}
        async with alice.stream(request("tools/call", call, number)):
            await until_file_says(marker, "started", WAIT_S)
            await alice.notify("notifications/cancelled", requestId=number)
            await until_file_says(marker, "stopped", WAIT_S)


@pytest.mark.promise("a-call-of-a-session-runs-once")
async def test_a_task_goes_on_when_its_session_ends(
    desk: Serving, http: httpx2.AsyncClient, tmp_path: Path
):
    marker = tmp_path / "marker"
    session = await bearing(desk, http, ALICE).opened()
    call = {"name": "hold_task", "arguments": {"marker": str(marker)}, "task": {}}
    task_id = (await session.result("tools/call", **call))["task"]["taskId"]
    await until_file_says(marker, "started", WAIT_S)
    await http.delete(session.url, headers=session.headers)
    next_one = await bearing(desk, http, ALICE).opened()
    assert (await next_one.result("tasks/get", taskId=task_id))["status"] == "working"
    assert (await next_one.result("tasks/cancel", taskId=task_id))["status"] == "cancelled"
    # A server that answers nothing for seconds is not waited for.
    await until_file_says(marker, "stopped", WAIT_S)


async def test_hostile_bodies_are_refused_and_the_session_lives(alice: RawSession):
    deep = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b'{"a":' * 80 + b"1" + b"}" * 81
    for body in (deep, b"[]", b"{", b"", b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}', b"1"):
        assert (await alice.post(body)).status_code == 400
    assert (await alice.post(b"[" + b"1," * 3_000_000 + b"1]")).status_code == 413
    assert await alice.result("ping") == {}


async def test_without_a_session_there_is_nothing_but_post(desk: Serving, http: httpx2.AsyncClient):
    for method in ("GET", "DELETE"):
        reply = await http.request(method, desk.url, headers={"authorization": f"Bearer {ALICE}"})
        assert (reply.status_code, reply.headers["allow"]) == (405, "POST")


async def test_a_client_of_this_revision_is_served_as_ever(desk: Serving, alice: RawSession):
    modern = RawClient(desk.url, alice.http)
    reply = await modern.send(
        envelope("server/discover"),
        authorization=f"Bearer {ALICE}",
        mcp_session_id=alice.id or "",
    )
    assert reply.status == 200
    assert "mcp-session-id" not in reply.headers


@pytest.mark.promise("sessions-are-bounded")
async def test_an_idle_session_ends_and_one_that_waits_for_a_call_does_not(
    database_url: str, tmp_path: Path, http: httpx2.AsyncClient
):
    marker = tmp_path / "marker"
    bounds = f"session_idle_s = {IDLE_S}\nsessions_per_owner = 2"
    async with guarded(tmp_path, database_url, bounds) as server:
        idle, busy = [await bearing(server, http, ALICE).opened() for _ in range(2)]
        call = {"name": "hold_task", "arguments": {"marker": str(marker)}}
        async with busy.stream(request("tools/call", call, 1)) as events:
            await anext(events)
        await until_file_says(marker, "started", WAIT_S)

        async def has_room() -> bool:  # a look at the idle session itself would be a use of it
            return (await bearing(server, http, ALICE).initialize()).status_code == 200

        # Twice: the second room is that of the first one, which is idle later than all others.
        for _ in range(2):
            await until(has_room, WAIT_S)
        assert (await idle.post(request("ping", {}, 2))).status_code == 404
        assert (await busy.post(request("ping", {}, 2))).status_code == 200
        await busy.notify("notifications/cancelled", requestId=1)
        await until_file_says(marker, "stopped", WAIT_S)


async def test_switched_off_initialize_is_told_which_versions_are_spoken(
    database_url: str, tmp_path: Path, http: httpx2.AsyncClient
):
    async with serving(tmp_path, desk_config("legacy = false"), database_url) as server:
        for params in ({"protocolVersion": "2025-11-25", "capabilities": {}}, {}):
            body = json.dumps(request("initialize", params, 0)).encode()
            reply = await RawClient(server.url, http).post(body, ACCEPT)
            assert (reply.status, reply.error["code"]) == (400, UNSUPPORTED)
            asked = params.get("protocolVersion", "")
            assert reply.error["data"] == {"supported": [VERSION], "requested": asked}


@pytest.mark.promise("older-clients-are-served")
async def test_several_processes_serve_each_request_by_itself(
    database_url: str, tmp_path: Path, http: httpx2.AsyncClient
):
    flags = ["--processes", "2"]
    async with serving(tmp_path, desk_config(), database_url, flags) as server:
        for number in range(4):
            async with http_client() as fresh:  # another connection, maybe to another process
                client = await RawSession(server.url, fresh).opened()
                assert client.id is None
                path = str(tmp_path / f"lines-{number}")
                answer = await client.call("note_task", path=path, seconds=0.1)
                assert answer["content"][0]["text"] == "1"
        assert (await http.get(server.url, headers=ACCEPT)).status_code == 405
