"""The tasks of 2025-11-25: made, asked for, waited for, listed and cancelled in its own words."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from outlast.tests.acceptance.waiting import until_file_says
from outlast.tests.service.legacy_world import ALICE, BOB, bearing, guarded
from outlast.tests.support.mcp import http_client
from outlast.tests.support.serving import Serving
from outlast.tests.support.sessions import RawSession, request

pytestmark = [pytest.mark.anyio, pytest.mark.promise("older-tasks-are-ours")]

WAIT_S = 60.0
RELATED = "io.modelcontextprotocol/related-task"
INVALID_PARAMS, NOT_FOUND = -32602, -32601


@pytest.fixture(scope="module")
async def desk(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    folder = tmp_path_factory.mktemp("older-tasks")
    async with guarded(folder, module_database_url) as server:
        yield server


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client() as client:
        yield client


@pytest.fixture
async def alice(desk: Serving, http: httpx2.AsyncClient) -> RawSession:
    session = bearing(desk, http, ALICE, capabilities={"elicitation": {}})
    next(session.ids)  # the tests have this one
    return await session.opened()


@pytest.fixture
async def bob(desk: Serving, http: httpx2.AsyncClient) -> RawSession:
    return await bearing(desk, http, BOB).opened()


async def begun(session: RawSession, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await session.result("tools/call", name=tool, arguments=arguments, task={"ttl": 60000})
    assert set(result) == {"task"}
    return result["task"]


async def test_a_call_as_a_task_is_answered_at_once_and_its_result_is_waited_for(
    alice: RawSession, tmp_path: Path
):
    task = await begun(alice, "note_task", path=str(tmp_path / "lines"), seconds=0.3)
    assert task["status"] == "working"
    assert {"taskId", "createdAt", "lastUpdatedAt", "ttl", "pollInterval"} <= set(task)
    result = await alice.result("tasks/result", taskId=task["taskId"])
    assert result["content"][0]["text"] == "1"
    assert result["_meta"][RELATED] == {"taskId": task["taskId"]}
    assert "resultType" not in result
    ended = await alice.result("tasks/get", taskId=task["taskId"])
    assert (ended["status"], "result" in ended) == ("completed", False)


async def test_what_the_task_asks_is_asked_while_its_result_is_waited_for(alice: RawSession):
    task = await begun(alice, "sign_task_during", document="The deed")
    about = {"taskId": task["taskId"]}
    # By the number that the server's own first question has: that is another's, and no matter.
    async with alice.stream(request("tasks/result", about, 1)) as events:
        async for event in events:
            if event.message.get("method") == "elicitation/create":
                assert event.message["params"]["_meta"][RELATED] == about
                assert event.message["id"] == 1
                answer = {"action": "accept", "content": {"name": "Ada"}}
                reply = {"jsonrpc": "2.0", "id": event.message["id"], "result": answer}
                assert (await alice.post(reply)).status_code == 202
            elif event.message.get("id") == 1:
                assert event.message["result"]["content"][0]["text"] == "The deed signed by Ada"
                return
    raise AssertionError("no answer")


async def test_an_error_is_told_as_the_call_itself_would_have_told_it(alice: RawSession):
    red, fault = [await begun(alice, tool) for tool in ("red", "fault")]
    assert (await alice.result("tasks/result", taskId=red["taskId"]))["isError"] is True
    assert (await alice.result("tasks/get", taskId=red["taskId"]))["status"] == "failed"
    told = await alice.ask("tasks/result", taskId=fault["taskId"])
    assert told["error"] == (await alice.ask("tools/call", name="fault", arguments={}))["error"]


async def test_a_task_is_its_owners_alone(alice: RawSession, bob: RawSession, tmp_path: Path):
    task = await begun(alice, "note_task", path=str(tmp_path / "lines"))
    for method in ("tasks/get", "tasks/result", "tasks/cancel"):
        foreign = await bob.ask(method, 5, taskId=task["taskId"])
        assert foreign["error"]["code"] == INVALID_PARAMS
        assert foreign == await bob.ask(method, 5, taskId="x" * 43)


async def test_only_the_owners_own_tasks_are_listed_oldest_first_and_in_pages(
    desk: Serving, http: httpx2.AsyncClient, bob: RawSession, alice: RawSession, tmp_path: Path
):
    foreign = await begun(alice, "note_task", path=str(tmp_path / "lines"))
    made = [(await begun(bob, "note_task", path=str(tmp_path / "own")))["taskId"] for _ in range(3)]
    again = await bearing(desk, http, BOB).opened()  # tasks outlast the session
    listed: list[str] = []
    page = await again.result("tasks/list")
    while True:
        listed += [task["taskId"] for task in page["tasks"]]
        if "nextCursor" not in page:
            break
        page = await again.result("tasks/list", cursor=page["nextCursor"])
    assert [task_id for task_id in listed if task_id in made] == made
    assert foreign["taskId"] not in listed


@pytest.mark.parametrize("cursor", ["", "%%", "LTE=", "OTk5OTk5OTk5OTk5OTk5OTk5OTk5OQ==", 5])
async def test_a_cursor_that_was_made_up_is_refused(alice: RawSession, cursor: Any):
    assert (await alice.ask("tasks/list", cursor=cursor))["error"]["code"] == INVALID_PARAMS


async def test_a_cancelled_task_has_stopped_and_cannot_be_cancelled_again(
    alice: RawSession, tmp_path: Path
):
    marker = tmp_path / "marker"
    task = await begun(alice, "hold_task", marker=str(marker))
    await until_file_says(marker, "started", WAIT_S)
    assert (await alice.result("tasks/cancel", taskId=task["taskId"]))["status"] == "cancelled"
    # A server that answers nothing for seconds is not waited for.
    await until_file_says(marker, "stopped", WAIT_S)
    again = await alice.ask("tasks/cancel", taskId=task["taskId"])
    assert again["error"]["code"] == INVALID_PARAMS
    assert "error" in await alice.ask("tasks/result", taskId=task["taskId"])


async def test_a_tool_whose_calls_are_no_tasks_says_so(alice: RawSession, tmp_path: Path):
    tools = {tool["name"]: tool for tool in (await alice.result("tools/list"))["tools"]}
    assert "execution" not in tools["note_direct"]
    assert tools["note_task"]["execution"] == {"taskSupport": "optional"}
    call = {"name": "note_direct", "arguments": {"path": str(tmp_path / "lines")}, "task": {}}
    assert (await alice.ask("tools/call", **call))["error"]["code"] == NOT_FOUND
    assert not (tmp_path / "lines").exists()


async def test_an_older_revision_has_no_tasks(
    desk: Serving, http: httpx2.AsyncClient, tmp_path: Path
):
    session = await bearing(desk, http, ALICE, version="2025-06-18").opened()
    for method in ("tasks/get", "tasks/list", "tasks/result", "tasks/cancel"):
        assert (await session.ask(method, taskId="x"))["error"]["code"] == NOT_FOUND
    call = {"name": "note_task", "arguments": {"path": str(tmp_path / "lines")}, "task": {}}
    assert (await session.result("tools/call", **call))["content"][0]["text"] == "1"


async def test_the_same_request_sent_again_makes_no_second_task(alice: RawSession, tmp_path: Path):
    arguments = {"path": str(tmp_path / "lines")}
    call = {"name": "note_task", "arguments": arguments, "task": {}}
    first, second = [await alice.ask("tools/call", 77, **call) for _ in range(2)]
    assert first["result"]["task"]["taskId"] == second["result"]["task"]["taskId"]
