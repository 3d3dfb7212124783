"""What comes in over HTTP and must not get further: each gets its answer, and the process lives."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.abc
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from outlast.tests.acceptance.waiting import until, until_file_says
from outlast.tests.service import hostile
from outlast.tests.service.conftest import desk_config, tasks_stored
from outlast.tests.support.mcp import (
    PREFIX,
    TASKS,
    VERSION,
    RawClient,
    Reply,
    envelope,
    headers_of,
    http_client,
)
from outlast.tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

SECRETS = ("hunter2", "s3cret-token")
CONNECTIONS = 20
STARTED_S_MAX = 30.0


def by_name(cases: list[hostile.Case]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


async def refused(client: RawClient, case: hostile.Case, path: Path) -> None:
    content, headers = case.request(str(path))
    reply = await client.post(content, headers)
    assert reply.refusal == (case.status, case.code), reply.body
    assert reply.headers["content-type"] == "application/json"
    assert reply.body["jsonrpc"] == "2.0"
    assert not path.exists()


@pytest.mark.promise("bad-input-kills-nothing")
@by_name(hostile.FRAMING)
async def test_a_message_that_is_none_is_refused(
    client: RawClient, case: hostile.Case, tmp_path: Path
):
    await refused(client, case, tmp_path / "notes")


@pytest.mark.promise("routing-headers-are-checked")
@by_name(hostile.HEADERS)
async def test_headers_that_do_not_tell_what_the_body_tells_are_refused(
    client: RawClient, case: hostile.Case, tmp_path: Path
):
    await refused(client, case, tmp_path / "notes")


@by_name(hostile.ENVELOPE)
async def test_an_envelope_that_lacks_what_it_must_have_is_refused(
    client: RawClient, case: hostile.Case, tmp_path: Path
):
    await refused(client, case, tmp_path / "notes")


@pytest.mark.promise("removed-methods-are-not-found")
@by_name(hostile.METHODS)
async def test_a_method_that_is_not_there_is_not_found(
    client: RawClient, case: hostile.Case, tmp_path: Path
):
    await refused(client, case, tmp_path / "notes")


@by_name(hostile.PARAMETERS)
async def test_parameters_that_cannot_be_meant_are_refused(
    client: RawClient, case: hostile.Case, tmp_path: Path
):
    await refused(client, case, tmp_path / "notes")


@pytest.mark.promise("bad-input-kills-nothing")
async def test_after_all_of_it_the_process_lives_stored_nothing_and_told_no_secret(
    desk: Serving, client: RawClient, tmp_path: Path
):
    stored, pid = tasks_stored(desk.database_url), desk.process.pid
    for case in hostile.ALL:
        content, headers = case.request(str(tmp_path / "notes"))
        await client.post(content, [*headers, ("authorization", f"Bearer {SECRETS[1]}")])
    health = await client.http.get(f"{desk.base_url}/healthz")
    assert (health.status_code, health.json()) == (200, {"status": "ok"})
    assert (desk.process.returncode, desk.process.pid) == (None, pid)
    assert tasks_stored(desk.database_url) == stored
    log = desk.log.read_text()
    assert [secret for secret in SECRETS if secret in log] == []
    assert "unexpected reason" not in log


@pytest.mark.parametrize("name", ["jsonrpc 1.0", "no method", "params a list"])
async def test_a_refusal_names_the_request_that_it_refuses(client: RawClient, name: str):
    [case] = [case for case in hostile.FRAMING if case.name == name]
    content, headers = case.request("unused")
    assert (await client.post(content, headers)).body["id"] == json.loads(content)["id"]


@pytest.mark.parametrize("request_id", [0, -1, "", "é\0", 2**63 - 1, "i" * 1024])
async def test_any_id_that_is_valid_comes_back_as_it_was(client: RawClient, request_id: Any):
    body = {**envelope("server/discover"), "id": request_id}
    assert (await client.send(body)).body["id"] == request_id


async def test_a_body_as_deep_and_as_large_as_is_allowed_is_read(client: RawClient):
    body = hostile.good("unused")
    levels = hostile.DEPTH_MAX - hostile.DEPTH_OF_ARGUMENTS
    body["params"] |= {"name": "nope", "arguments": {"text": hostile.nested(levels)}}
    text = json.dumps(body).encode()
    padded = text + b" " * (hostile.BODY_BYTES_MAX - len(text))
    assert (await client.post(padded, headers_of(body))).error["message"] == "Unknown tool: nope"


async def test_a_body_that_does_not_tell_its_length_is_cut_off_where_it_is_too_large(
    client: RawClient,
):
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(hostile.BODY_BYTES_MAX // 65_536 + 1):
            yield b" " * 65_536

    headers = headers_of(hostile.good("unused"))
    reply = await client.http.post(client.url, content=pieces(), headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, hostile.INVALID)


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON"])
async def test_the_content_type_is_compared_as_a_media_type(client: RawClient, kind: str):
    reply = await client.send(envelope("server/discover"), content_type=kind)
    assert reply.result["supportedVersions"] == [VERSION]


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1", "http://[::1]:1"])
async def test_a_page_of_this_machine_may_ask(client: RawClient, origin: str):
    reply = await client.send(envelope("server/discover"), origin=origin)
    assert reply.status == 200


async def test_a_name_in_base64_is_decoded_before_it_is_compared(client: RawClient):
    body = envelope("tools/call", {"name": "red", "arguments": {}}, capabilities={})
    assert (await client.send(body, mcp_name="=?base64?cmVk?=")).result["isError"] is True


@pytest.mark.promise("routing-headers-are-checked")
@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_a_tasks_name_is_its_id_and_is_checked_before_the_task_is_looked_for(
    client: RawClient, method: str
):
    task_id = await client.opened("red")
    body = envelope(method, {"taskId": task_id, "inputResponses": {}})
    assert (await client.send(body, mcp_name="another")).refusal == (400, hostile.MISMATCH)
    assert (await client.send(body)).result["resultType"] == "complete"
    # Clients in use do not send it; the setting below is for those who want it.
    assert (await client.send(body, mcp_name=None)).result["resultType"] == "complete"
    encoded = await client.send({**body, "params": {**body["params"], "taskId": "tâche"}})
    assert encoded.refusal == (400, hostile.PARAMS)


@pytest.mark.promise("routing-headers-are-checked")
async def test_a_tasks_name_can_be_required(module_database_url: str, tmp_path: Path):
    config = desk_config("require_task_name_header = true")
    async with serving(tmp_path, config, module_database_url) as server, http_client() as http:
        body = envelope("tasks/get", {"taskId": "unknown"})
        strict = RawClient(server.url, http)
        assert (await strict.send(body, mcp_name=None)).refusal == (400, hostile.MISMATCH)
        assert (await strict.send(body)).refusal == (400, hostile.PARAMS)


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"])
async def test_only_posts_are_taken(client: RawClient, method: str):
    reply = await client.http.request(method, client.url)
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", ["/", "/mcp/x", "/docs", "/openapi.json", "/sse"])
async def test_other_paths_are_not_found(desk: Serving, client: RawClient, path: str):
    assert (await client.http.post(f"{desk.base_url}{path}", json={})).status_code == 404


async def test_a_version_that_is_not_spoken_is_answered_with_those_that_are(client: RawClient):
    body = envelope("server/discover", meta={f"{PREFIX}protocolVersion": "2999-01-01"})
    reply = await client.send(body, mcp_protocol_version="2999-01-01")
    assert reply.error["data"] == {"supported": [VERSION], "requested": "2999-01-01"}


async def test_a_session_of_older_revisions_is_ignored(client: RawClient):
    reply = await client.send(
        envelope("server/discover"), mcp_session_id="abc", last_event_id="a\\ndata: x"
    )
    assert reply.status == 200
    assert "mcp-session-id" not in reply.headers


async def notify(client: RawClient, method: str, request_id: int) -> Reply:
    body = {"jsonrpc": "2.0", "method": method, "params": {"requestId": request_id}}
    return await client.post(json.dumps(body).encode(), {"content-type": "application/json"})


@pytest.mark.parametrize("method", ["notifications/cancelled", "notifications/unheard-of"])
async def test_a_notification_is_taken_without_a_word(client: RawClient, method: str):
    reply = await notify(client, method, 1)
    assert (reply.status, reply.content) == (202, b"")


async def test_cancelling_the_call_that_made_a_task_leaves_the_task_alone(
    desk: Serving, client: RawClient, tmp_path: Path
):
    marker = tmp_path / "marker"
    params = {"name": "hold_task", "arguments": {"marker": str(marker)}}
    body = envelope("tools/call", params)
    async with http_client() as http:
        caller = RawClient(desk.url, http)
        task_id = (await caller.send(body)).result["taskId"]

        async def has_told() -> bool:
            return (await caller.task(task_id)).get("statusMessage") == "holding"

        await until_file_says(marker, "started", STARTED_S_MAX)
        await until(has_told, STARTED_S_MAX)  # the last that it says of itself
        before = await caller.task(task_id)
        await notify(caller, "notifications/cancelled", body["id"])
    assert await client.task(task_id) == before
    assert marker.read_text() == "started"
    await client.request("tasks/cancel", {"taskId": task_id})
    assert (await client.until_status(task_id))["status"] == "cancelled"


async def connected(server: Serving) -> anyio.abc.SocketStream:
    address = urlsplit(server.base_url)
    return await anyio.connect_tcp(address.hostname or "", address.port or 0)


@pytest.mark.promise("bad-input-kills-nothing")
@pytest.mark.parametrize(
    "sent",
    [b"POST /mcp HTTP/1.1\r\nHost: local", b"\x16\x03\x01\x02\x00", b"G\0T / HTTP/9\r\n\r\n"],
    ids=["half a header", "TLS", "no HTTP"],
)
async def test_connections_that_never_finish_a_request_hold_up_nobody(
    desk: Serving, client: RawClient, sent: bytes
):
    streams = [await connected(desk) for _ in range(CONNECTIONS)]
    try:
        for stream in streams:
            await stream.send(sent)
        assert (await client.request("server/discover")).status == 200
    finally:
        for stream in streams:
            await stream.aclose()
    assert (await client.request("server/discover")).status == 200


@pytest.mark.promise("bad-input-kills-nothing")
async def test_a_client_that_leaves_in_the_middle_of_its_request_creates_nothing(
    desk: Serving, client: RawClient, tmp_path: Path
):
    stored = tasks_stored(desk.database_url)
    body = hostile.good(str(tmp_path / "notes"))
    content = json.dumps(body).encode()
    head = "".join(f"{name}: {value}\r\n" for name, value in headers_of(body).items())
    for kept in (0, 1, len(content) // 2, len(content) - 1):
        stream = await connected(desk)
        request = f"POST /mcp HTTP/1.1\r\nhost: localhost\r\n{head}content-length: {len(content)}"
        await stream.send(request.encode() + b"\r\n\r\n" + content[:kept])
        await stream.aclose()
    assert (await client.request("server/discover")).status == 200
    assert tasks_stored(desk.database_url) == stored
    assert "unexpected" not in desk.log.read_text()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
PLACES = [
    ("id",),
    ("method",),
    ("jsonrpc",),
    ("params",),
    *(
        ("params", name)
        for name in (
            *("name", "arguments", "taskId", "inputResponses", "requestState", "cursor"),
            *("_meta", "task", "progressToken"),
        )
    ),
    ("params", "arguments", "document"),
    ("params", "inputResponses", "in-1"),
    ("params", "inputResponses", "in-1", "content"),
    ("params", "inputResponses", "__main__:who"),
    *(
        ("params", "_meta", name)
        for name in (
            *(f"{PREFIX}clientCapabilities", f"{PREFIX}clientInfo", f"{PREFIX}protocolVersion"),
            *("progressToken", "traceparent", "baggage"),
            *("dev.outlast/idempotencyKey", "dev.outlast/after"),
        )
    ),
    ("params", "_meta", f"{PREFIX}clientCapabilities", "extensions"),
    ("params", "_meta", f"{PREFIX}clientCapabilities", "extensions", TASKS),
    ("params", "_meta", f"{PREFIX}clientCapabilities", "elicitation"),
]
METHODS = [
    *("server/discover", "tools/list", "tools/call"),
    *("tasks/get", "tasks/update", "tasks/cancel"),
]
TOOLS = ["sign_task_during", "sign_auto_before", "sign_direct_during", "red", "fault"]


@st.composite
def mutations(draw: st.DrawFn) -> Any:
    """A good request with one to three places changed, or no request at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(JSON)
    params: dict[str, Any] = {"name": draw(st.sampled_from(TOOLS)), "arguments": {"document": "d"}}
    params |= {"taskId": "", "inputResponses": {"in-1": {"action": "accept"}}}
    body = envelope(draw(st.sampled_from(METHODS)), params)
    for place in draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=3)):
        holder: Any = body
        for name in place[:-1]:
            holder = holder.get(name) if isinstance(holder, dict) else None
        if isinstance(holder, dict):
            holder[place[-1]] = draw(JSON)
    return body


def headers_for(body: Any) -> dict[str, str]:
    """The headers that let a damaged body get as far in as it can."""
    try:
        headers = headers_of(body)
        {name: value.encode("ascii") for name, value in headers.items()}
    except (AttributeError, KeyError, TypeError, UnicodeError):
        return headers_of(envelope("server/discover"))
    return {name: value for name, value in headers.items() if "\0" not in value}


@pytest.fixture
async def parked(client: RawClient) -> str:
    task_id = await client.opened("sign_task_during", {"document": "d"})
    assert (await client.until_status(task_id, "input_required"))["status"] == "input_required"
    return task_id


@pytest.mark.promise("bad-input-kills-nothing")
@pytest.mark.parametrize("key", ["traceparent", "tracestate", "baggage"])
async def test_a_trace_context_that_is_none_does_not_reach_the_upstream(
    client: RawClient, key: str
):
    """Found: the upstream stumbled over one that is no string, and the call failed."""
    meta = {key: True}
    reply = await client.call("sign_auto_before", {"document": "d"}, meta=meta)
    assert reply.result["resultType"] == "input_required"


@pytest.mark.promise("bad-input-kills-nothing")
@settings(
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(body=mutations())
async def test_whatever_comes_in_is_answered_and_never_with_a_fault_of_ours(
    client: RawClient, parked: str, body: Any
):
    if isinstance(body, dict) and isinstance(params := body.get("params"), dict):
        params["taskId"] = params.get("taskId") or parked
    try:
        content = json.dumps(body).encode()
    except UnicodeError:
        return
    reply = await client.post(content, headers_for(body))
    if reply.status == 202:
        assert "id" not in body
        return
    assert reply.status in (200, 400, 404), reply.content
    answer = reply.body
    assert answer["jsonrpc"] == "2.0"
    assert ("result" in answer) != ("error" in answer)
    if "error" in answer:
        assert answer["error"]["code"] != -32603, answer
