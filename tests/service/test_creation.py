"""A call becomes a task or it does not: by policy, by what this very request declares, and once."""

import asyncio
import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from mcp import Client

from outlast.tests.acceptance.waiting import until_file_says
from outlast.tests.service import desk_server
from outlast.tests.service.conftest import GRACE_S, tasks_stored
from outlast.tests.support.mcp import (
    DECLARED,
    IDEMPOTENCY_KEY,
    PREFIX,
    SERVER_INFO,
    TASKS,
    UNDECLARED,
    RawClient,
    Reply,
    envelope,
)
from outlast.tests.support.serving import Serving

pytestmark = pytest.mark.anyio

MISSING, INVALID_PARAMS = -32021, -32602
LONGER_THAN_GRACE_S = GRACE_S + 0.5
AT_ONCE = 20
STARTED_S_MAX = 30.0
ANSWER = {"__main__:who": {"action": "accept", "content": {"name": "Ada"}}}


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


def lines(notes: Path) -> int:
    """How often a tool has written there."""
    return len(notes.read_text().splitlines()) if notes.exists() else 0


def opening_stored(database_url: str, task_id: str) -> dict[str, Any]:
    """The first event of this task, as it lies in the log."""
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "SELECT state FROM outlast.task_events"
            " WHERE originator_id = %s AND originator_version = 1",
            (task_id,),
        ).fetchone()
    assert row is not None
    return json.loads(row[0])


def keyed(key: str) -> dict[str, str]:
    return {IDEMPOTENCY_KEY: key}


def kind(reply: Reply) -> str | int:
    """In one word what a call was answered with."""
    body = reply.body
    return body["error"]["code"] if "error" in body else body["result"]["resultType"]


# --- policy and declaration


@pytest.mark.parametrize(
    ("tool", "declared", "undeclared"),
    [
        ("note_direct", "complete", "complete"),
        ("note_auto", "complete", "complete"),
        ("note_task", "task", "complete"),
        ("note_only", "task", MISSING),
        ("sign_direct_during", "input_required", "input_required"),
        ("sign_direct_before", "input_required", "input_required"),
        ("sign_auto_during", "task", "input_required"),
        ("sign_auto_before", "input_required", "input_required"),
        ("sign_task_during", "task", "input_required"),
        ("sign_task_before", "input_required", "input_required"),
        ("sign_only_during", "task", MISSING),
        ("sign_only_before", "input_required", MISSING),
    ],
)
async def test_policy_and_declaration_decide_what_a_call_becomes(
    desk: Serving, client: RawClient, notes: Path, tool: str, declared: str, undeclared: str | int
):
    arguments = {"path": str(notes)} if tool.startswith("note") else {"document": "d"}
    stored = tasks_stored(desk.database_url)
    told = await client.call(tool, arguments, capabilities=DECLARED)
    assert kind(told) == declared
    assert tasks_stored(desk.database_url) - stored == (declared == "task")
    plain = await client.call(tool, arguments, capabilities=UNDECLARED)
    assert kind(plain) == undeclared
    assert tasks_stored(desk.database_url) - stored == (declared == "task")


@pytest.mark.promise("task-only-refuses-undeclared")
async def test_a_task_only_tool_tells_an_undeclared_client_what_it_would_need(
    client: RawClient, notes: Path
):
    for capabilities in ({}, UNDECLARED, {"extensions": {}}, {"extensions": None}):
        arguments = {"path": str(notes)}
        reply = await client.call("note_only", arguments, capabilities=capabilities)
        assert reply.refusal == (400, MISSING)
        assert reply.error["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    assert lines(notes) == 0


@pytest.mark.promise("undeclared-client-gets-plain-result")
@pytest.mark.parametrize(
    "capabilities",
    [
        {},
        {"tasks": {"requests": {"tools": {"call": {}}}}},
        {"extensions": {TASKS: None}},
        {"extensions": {TASKS: True}},
        {"extensions": {"io.modelcontextprotocol/Tasks": {}}},
        {"extensions": [TASKS]},
        {"experimental": {TASKS: {}}},
    ],
    ids=["nothing", "legacy slot", "null", "true", "other name", "a list", "elsewhere"],
)
async def test_a_client_that_did_not_declare_waits_for_the_tools_own_result(
    desk: Serving, client: RawClient, notes: Path, capabilities: dict[str, Any]
):
    stored = tasks_stored(desk.database_url)
    arguments = {"path": str(notes), "seconds": 0.3}
    reply = await client.call("note_task", arguments, capabilities=capabilities)
    assert reply.result["content"] == [{"type": "text", "text": "1"}]
    assert (reply.result["resultType"], "taskId" in reply.result) == ("complete", False)
    assert tasks_stored(desk.database_url) == stored


async def test_a_declaration_counts_for_its_own_request_and_no_other(
    client: RawClient, notes: Path
):
    arguments = {"path": str(notes)}
    for declared in (True, False, True):
        capabilities = DECLARED if declared else UNDECLARED
        reply = await client.call("note_task", arguments, capabilities=capabilities)
        assert kind(reply) == ("task" if declared else "complete")


async def test_settings_within_the_declaration_are_let_be(client: RawClient, notes: Path):
    capabilities = {"extensions": {TASKS: {"requests": ["x"]}, "com.example/other": {}}}
    reply = await client.call("note_task", {"path": str(notes)}, capabilities=capabilities)
    assert kind(reply) == "task"


async def test_an_older_revision_has_no_tasks_even_if_they_are_declared(
    client: RawClient, notes: Path
):
    params = {"name": "note_task", "arguments": {"path": str(notes)}}
    meta = {f"{PREFIX}protocolVersion": "2025-11-25"}
    body = envelope("tools/call", params, DECLARED, meta)
    reply = await client.send(body, mcp_protocol_version="2025-11-25")
    assert (reply.refusal, lines(notes)) == ((400, -32022), 0)


@pytest.mark.promise("legacy-task-field-is-ignored")
@pytest.mark.parametrize("field", [{"ttl": 60_000, "pollInterval": 5}, {}, None, 7, "x", []])
async def test_the_old_task_field_neither_opts_in_nor_is_refused(
    client: RawClient, notes: Path, field: Any
):
    arguments = {"path": str(notes)}
    for tool in ("note_task", "note_auto"):
        reply = await client.call(tool, arguments, capabilities=UNDECLARED, task=field)
        assert kind(reply) == "complete"
    assert kind(await client.call("note_direct", arguments, task=field)) == "complete"
    created = await client.call("note_task", arguments, task=field)
    assert (kind(created), created.result["ttlMs"]) == ("task", 600_000)


# --- what must not become a task


@pytest.mark.promise("invalid-arguments-create-no-task")
@pytest.mark.parametrize(
    "arguments",
    [{}, {"path": 5}, {"path": "p", "seconds": "long"}, {"path": None}, {"path": ["p"]}],
    ids=["missing", "a number", "a word", "null", "a list"],
)
@pytest.mark.parametrize("tool", ["note_task", "note_only", "note_auto"])
async def test_arguments_that_do_not_fit_are_answered_as_the_upstream_itself_answers_them(
    desk: Serving, client: RawClient, tool: str, arguments: dict[str, Any]
):
    async with Client(desk_server.mcp) as plain:
        own = await plain.call_tool(tool, arguments)
    stored = tasks_stored(desk.database_url)
    for meta in ({}, keyed(f"invalid {tool} {arguments}")):
        reply = await client.call(tool, arguments, meta=meta)
        texts = [block["text"] for block in reply.result["content"]]
        assert texts == [getattr(block, "text", None) for block in own.content]
        assert reply.result["isError"] is own.is_error is True
        assert "taskId" not in reply.result
    assert tasks_stored(desk.database_url) == stored


@pytest.mark.promise("invalid-arguments-create-no-task")
async def test_an_unknown_tool_is_no_task(desk: Serving, client: RawClient):
    stored = tasks_stored(desk.database_url)
    for capabilities in (DECLARED, UNDECLARED):
        reply = await client.call("note", capabilities=capabilities)
        assert (reply.refusal, reply.error["message"]) == ((400, -32602), "Unknown tool: note")
    assert tasks_stored(desk.database_url) == stored


# --- durable, and the same everywhere


def row_of(database_url: str, task_id: str) -> tuple[Any, ...] | None:
    with psycopg.connect(database_url) as connection:
        return connection.execute(
            "SELECT v.status, v.wire, count(e.*) FROM outlast.task_view v"
            " JOIN outlast.task_events e ON e.originator_id = v.task_id"
            " WHERE v.task_id = %s GROUP BY v.task_id",
            [task_id],
        ).fetchone()


@pytest.mark.promise("create-is-durable")
async def test_a_handle_that_has_arrived_is_in_the_store_and_on_every_replica(
    desk: Serving, client: RawClient, other: RawClient, notes: Path
):
    for asked, reader in ((client, other), (other, client)) * 5:
        created = (await asked.call("note_task", {"path": str(notes)})).result
        row = row_of(desk.database_url, created["taskId"])
        assert row is not None
        assert row[2] >= 1
        read = await reader.task(created["taskId"])
        assert (read["taskId"], read["createdAt"]) == (created["taskId"], created["createdAt"])


async def test_what_identifies_a_task_is_told_in_the_same_bytes_for_ever(
    desk: Serving, client: RawClient, other: RawClient, notes: Path
):
    arguments = {"path": str(notes), "seconds": 0.5}
    created = (await client.call("note_task", arguments)).result
    fixed = ("taskId", "createdAt", "ttlMs", "pollIntervalMs")
    seen = [await reader.task(created["taskId"]) for reader in (client, other) * 3]
    seen.append(await other.until_status(created["taskId"]))
    row = row_of(desk.database_url, created["taskId"])
    assert row is not None
    seen.append(json.loads(bytes(row[1])))
    for task in seen:
        assert [json.dumps(task[name]) for name in fixed] == [
            json.dumps(created[name]) for name in fixed
        ]
    moves = [task["lastUpdatedAt"] for task in [created, *seen]]
    assert moves == sorted(moves)
    assert created["createdAt"] == created["lastUpdatedAt"]


async def test_a_created_task_tells_its_own_fields_and_no_outcome(client: RawClient, notes: Path):
    created = (await client.call("note_task", {"path": str(notes)})).result
    named = {"resultType", "taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs"}
    assert set(created) == named | {"pollIntervalMs", "_meta"}
    assert (created["status"], created["pollIntervalMs"]) == ("working", 50)
    assert len(created["taskId"]) == 43


async def test_every_result_tells_its_type_and_who_answers(client: RawClient, notes: Path):
    created = await client.call("hold_task", {"marker": str(notes)})
    task = {"taskId": created.result["taskId"]}
    await until_file_says(notes, "started", STARTED_S_MAX)
    replies = {
        "task": [created],
        "input_required": [await client.call("sign_direct_during", {"document": "d"})],
        "complete": [
            await client.request("server/discover"),
            await client.request("tools/list"),
            await client.call("red", capabilities=UNDECLARED),
            await client.request("tasks/get", task),
            await client.request("tasks/update", {**task, "inputResponses": {}}),
            await client.request("tasks/cancel", task),
        ],
    }
    for result_type, answers in replies.items():
        for reply in answers:
            assert reply.result["resultType"] == result_type
            assert reply.result["_meta"][SERVER_INFO]["name"] == "outlast"
    for acknowledged in replies["complete"][-2:]:
        assert set(acknowledged.result) == {"resultType", "_meta"}


# --- auto


async def test_a_call_that_outlives_its_grace_goes_on_as_the_task_itself(
    client: RawClient, notes: Path
):
    arguments = {"path": str(notes), "seconds": LONGER_THAN_GRACE_S}
    created = (await client.call("note_auto", arguments)).result
    assert created["resultType"] == "task"
    ended = await client.until_status(created["taskId"])
    assert (ended["status"], ended["result"]["structuredContent"]) == ("completed", {"result": "1"})
    assert lines(notes) == 1


async def test_a_question_within_the_grace_goes_into_the_task(client: RawClient):
    task_id = await client.opened("sign_auto_during", {"document": "d"})
    waiting = await client.until_status(task_id, "input_required")
    [key] = waiting["inputRequests"]
    answers = {key: ANSWER["__main__:who"]}
    await client.request("tasks/update", {"taskId": task_id, "inputResponses": answers})
    ended = await client.until_status(task_id)
    assert ended["result"]["content"][0]["text"] == "d signed by Ada"


# --- idempotency


@pytest.mark.promise("creation-is-idempotent")
@pytest.mark.parametrize("tool", ["note_task", "note_auto", "note_only"])
async def test_the_same_key_and_call_is_the_same_task_however_many_come_at_once(
    client: RawClient, other: RawClient, notes: Path, tool: str
):
    arguments = {"path": str(notes), "text": tool}
    calls = [
        asker.call(
            tool, dict(reversed(arguments.items())) if turned else arguments, meta=keyed(tool)
        )
        for asker in (client, other)
        for turned in (False, True) * (AT_ONCE // 4)
    ]
    replies = await asyncio.gather(*calls)
    assert {kind(reply) for reply in replies} == {"task"}
    [task_id] = {reply.result["taskId"] for reply in replies}
    assert (await client.until_status(task_id))["status"] == "completed"
    assert lines(notes) == 1
    again = (await client.call(tool, arguments, meta=keyed(tool))).result
    assert (again["taskId"], again["resultType"], again["status"]) == (task_id, "task", "completed")
    assert "result" not in again
    assert lines(notes) == 1


@pytest.mark.promise("creation-is-idempotent")
async def test_the_same_key_for_another_call_is_refused(
    desk: Serving, client: RawClient, notes: Path
):
    arguments = {"path": str(notes)}
    meta = keyed("one call only")
    await client.call("note_task", arguments, meta=meta)
    stored = tasks_stored(desk.database_url)
    for tool, other_arguments in (
        ("note_task", {**arguments, "text": "x"}),
        ("note_only", arguments),
        ("note_task", {}),
    ):
        reply = await client.call(tool, other_arguments, meta=meta)
        assert reply.refusal == (400, INVALID_PARAMS)
    assert tasks_stored(desk.database_url) == stored


async def test_only_a_call_with_a_key_leaves_a_digest_to_know_it_by(
    desk: Serving, client: RawClient, notes: Path
):
    arguments = {"path": str(notes)}
    for key in (None, "digested"):
        meta = {} if key is None else keyed(key)
        task_id = (await client.call("note_task", arguments, meta=meta)).result["taskId"]
        opening = opening_stored(desk.database_url, task_id)
        assert opening["idempotency_key"] == key
        assert (opening["call_digest"] is None) == (key is None)


async def test_a_key_that_came_with_a_refused_call_is_free(client: RawClient, notes: Path):
    meta = keyed("refused first")
    assert (await client.call("note_task", {}, meta=meta)).result["isError"] is True
    assert kind(await client.call("note_task", {"path": str(notes)}, meta=meta)) == "task"


@pytest.mark.promise("creation-is-idempotent")
@pytest.mark.parametrize("run", ["auto", "task", "only"])
async def test_a_keyed_call_is_recorded_before_it_may_ask_and_so_asks_within_its_task(
    client: RawClient, run: str
):
    tool, arguments, meta = f"sign_{run}_before", {"document": run}, keyed(f"rounds {run}")
    [task_id] = {(await client.call(tool, arguments, meta=meta)).result["taskId"] for _ in range(2)}
    await client.until_status(task_id, "input_required")
    answers = {"in-1": ANSWER["__main__:who"]}
    await client.request("tasks/update", {"taskId": task_id, "inputResponses": answers})
    ended = await client.until_status(task_id)
    assert ended["result"]["content"][0]["text"] == f"{run} signed by Ada"
