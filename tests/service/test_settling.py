"""What a task looks like while it lives and once it has ended, and when its time is up."""

import re
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outlast.adapters.bus import Bus
from outlast.adapters.memory import MemoryStore
from outlast.adapters.memory_past import MemoryPastTasks
from outlast.delivery.feed import Feed
from outlast.delivery.polling import PollingMethod
from outlast.domain import decisions, errors, events
from outlast.domain.owner import LOCAL_CALLER, LOCAL_OWNER
from outlast.domain.task import Task
from outlast.service.commands import Commands
from outlast.service.exchange import Exchange
from outlast.service.methods.tasks import TaskMethods
from outlast.service.retention import Retention
from outlast.tests.acceptance.waiting import until, until_file_says
from outlast.tests.support.mcp import DECLARED, UNDECLARED, RawClient
from outlast.tests.support.serving import Serving

pytestmark = pytest.mark.anyio

INSTANT = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
ALWAYS = {
    *("resultType", "_meta", "taskId", "status", "createdAt", "lastUpdatedAt"),
    *("ttlMs", "pollIntervalMs"),
}
ACCEPT = {"action": "accept", "content": {"name": "Ada"}}
BOUND_S = 60.0


def checked(task: dict[str, Any], status: str, *fields: str) -> dict[str, Any]:
    """The task, once it is clear that it has this status and these further fields only."""
    assert task["status"] == status
    assert set(task) == ALWAYS | set(fields)
    assert task["resultType"] == "complete"
    for instant in (task["createdAt"], task["lastUpdatedAt"]):
        assert INSTANT.match(instant)
    assert task["createdAt"] <= task["lastUpdatedAt"]
    assert (type(task["ttlMs"]), type(task["pollIntervalMs"])) == (int, int)
    return task


# --- each status on the wire


async def test_a_working_task_tells_how_far_it_is(client: RawClient, tmp_path: Path):
    marker = tmp_path / "marker"
    task_id = await client.opened("hold_task", {"marker": str(marker)})
    await until_file_says(marker, "started", BOUND_S)

    async def has_told() -> bool:
        return "statusMessage" in await client.task(task_id)

    await until(has_told, BOUND_S)
    task = checked(await client.task(task_id), "working", "statusMessage")
    assert (task["statusMessage"], task["ttlMs"], task["pollIntervalMs"]) == (
        *("holding", 600_000),
        50,
    )
    cancel = await client.request("tasks/cancel", {"taskId": task_id})
    assert set(cancel.result) == {"resultType", "_meta"}
    await until_file_says(marker, "stopped", BOUND_S)
    ended = checked(await client.until_status(task_id), "cancelled", "statusMessage")
    assert ended["statusMessage"] != "holding"


async def test_a_waiting_task_shows_its_question_until_it_is_answered(client: RawClient):
    task_id = await client.opened("sign_task_during", {"document": "d"})
    waiting = await client.until_status(task_id, "input_required")
    checked(waiting, "input_required", "statusMessage", "inputRequests")
    [(key, request)] = waiting["inputRequests"].items()
    assert set(request) == {"method", "params"}
    assert (key, request["method"]) == ("in-1", "elicitation/create")
    assert request["params"]["message"] == "Who signs?"
    assert request["params"]["requestedSchema"]["required"] == ["name"]
    answers = {"taskId": task_id, "inputResponses": {key: ACCEPT}}
    assert set((await client.request("tasks/update", answers)).result) == {"resultType", "_meta"}
    assert (await client.task(task_id))["status"] != "input_required"
    ended = checked(await client.until_status(task_id), "completed", "result")
    assert ended["result"]["content"] == [{"type": "text", "text": "d signed by Ada"}]


@pytest.mark.promise("malformed-answer-applies-nothing")
@pytest.mark.parametrize(
    "answer",
    [
        *(None, 5, "Ada", [], {}),
        *({"action": "maybe"}, {"action": None}, {"content": {"name": "Ada"}}),
        *({"action": "accept", "content": "Ada"}, {"action": "accept", "content": {"n": {}}}),
    ],
)
async def test_an_answer_of_the_wrong_shape_is_refused_and_changes_nothing(
    parked: tuple[RawClient, str], answer: Any
):
    client, task_id = parked
    before = await client.task(task_id)
    responses = {"unknown": {"ignored": True}, "in-1": answer}
    reply = await client.request("tasks/update", {"taskId": task_id, "inputResponses": responses})
    assert reply.refusal == (400, -32602)
    assert "in-1" in reply.error["message"]
    assert await client.task(task_id) == before


async def test_answers_to_what_was_not_asked_are_acknowledged_and_ignored(
    parked: tuple[RawClient, str],
):
    client, task_id = parked
    before = await client.task(task_id)
    for responses in ({}, {"in-2": ACCEPT}, {"who": 5}, {"__main__:who": ACCEPT}, {"": None}):
        params = {"taskId": task_id, "inputResponses": responses}
        assert (await client.request("tasks/update", params)).result["resultType"] == "complete"
    assert await client.task(task_id) == before


@pytest.mark.parametrize("responses", [None, [], "in-1", 5])
async def test_an_update_without_a_map_of_answers_is_refused(
    parked: tuple[RawClient, str], responses: Any
):
    client, task_id = parked
    params = {"taskId": task_id, "inputResponses": responses}
    assert (await client.request("tasks/update", params)).refusal == (400, -32602)


@pytest.fixture
async def parked(client: RawClient) -> AsyncIterator[tuple[RawClient, str]]:
    """A client, and its task that waits for a name."""
    task_id = await client.opened("sign_task_during", {"document": "d"})
    assert (await client.until_status(task_id, "input_required"))["status"] == "input_required"
    yield client, task_id
    await client.request("tasks/cancel", {"taskId": task_id})


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_a_request_that_does_not_declare_the_extension_is_refused_before_all_else(
    parked: tuple[RawClient, str], method: str
):
    client, task_id = parked
    before = await client.task(task_id)
    for params in (
        {"taskId": task_id, "inputResponses": {"in-1": ACCEPT}},
        {"taskId": task_id, "inputResponses": 5},
        {"taskId": "unknown", "inputResponses": {}},
        {},
    ):
        reply = await client.request(method, params, capabilities=UNDECLARED)
        assert reply.refusal == (400, -32021)
        needed = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
        assert reply.error["data"] == {"requiredCapabilities": needed}
    assert await client.task(task_id) == before


@pytest.mark.parametrize("tool", ["raises", "red", "fault"])
async def test_a_task_ends_as_the_plain_call_does(client: RawClient, tool: str):
    plain = (await client.call(tool, capabilities=UNDECLARED)).body
    ended = await client.until_status(await client.opened(tool))
    if "error" in plain:
        assert checked(ended, "failed", "error", "statusMessage")["error"] == plain["error"]
        return
    checked(ended, "completed", "result")
    own = {key: value for key, value in ended["result"].items() if key != "_meta"}
    assert own == {key: value for key, value in plain["result"].items() if key != "_meta"}
    assert own["isError"] is True


async def test_a_fault_keeps_its_code_its_words_and_its_data(client: RawClient):
    ended = await client.until_status(await client.opened("fault"))
    assert ended["error"] == {
        "code": -32050,
        "message": "Quota exceeded",
        "data": {"retryAfterMs": 1500, "window": None},
    }
    assert ended["statusMessage"] == "Quota exceeded"


@pytest.mark.parametrize("tool", ["red", "fault"])
async def test_an_ended_task_is_left_as_it_is_whoever_asks(client: RawClient, tool: str):
    task_id = await client.opened(tool)
    ended = await client.until_status(task_id)
    for method in ("tasks/cancel", "tasks/update", "tasks/cancel"):
        params = {"taskId": task_id, "inputResponses": {"in-1": 5}}
        assert (await client.request(method, params)).result["resultType"] == "complete"
    assert await client.task(task_id) == ended


# --- time


async def test_a_tool_that_takes_too_long_is_stopped_and_its_task_fails(
    client: RawClient, tmp_path: Path
):
    marker = tmp_path / "marker"

    async def has_begun() -> bool:
        """Whether the body was there to be stopped: a busy machine takes its half second."""
        task_id = await client.opened("hold_hurried", {"marker": str(marker)})
        failed = checked(await client.until_status(task_id), "failed", "error", "statusMessage")
        assert failed["error"]["code"] == -32603
        assert failed["error"]["data"] == {"reason": "timeout"}
        return marker.exists()

    await until(has_begun, BOUND_S)
    await until_file_says(marker, "stopped", BOUND_S)


async def test_work_that_outlives_its_time_gets_more_and_shows_it(
    client: RawClient, tmp_path: Path
):
    notes, arguments = tmp_path / "notes", {"path": str(tmp_path / "notes"), "seconds": 2.5}
    created: dict[str, Any] = {}

    async def has_begun() -> bool:
        """Whether it began within its time: on a busy machine it may expire before."""
        created.update((await client.call("note_brief", arguments)).result)
        assert created["ttlMs"] == 2_000
        await until(is_known, BOUND_S)
        return notes.exists()

    async def is_known() -> bool:
        error = (await client.task(created["taskId"])).get("error")
        assert error is None or error["data"] == {"reason": "expired"}
        return notes.exists() or error is not None

    async def has_more() -> bool:
        return (await client.task(created["taskId"]))["ttlMs"] > 60_000

    await until(has_begun, BOUND_S)
    await until(has_more, BOUND_S)
    ended = await client.until_status(created["taskId"])
    assert ended["status"] == "completed"
    assert ended["createdAt"] == created["createdAt"]
    assert ended["ttlMs"] >= 300_000


async def test_a_question_that_nobody_answers_in_time_fails_its_task(client: RawClient):
    seen: list[dict[str, Any]] = []

    async def is_asked() -> bool:
        """Whether the question was seen within its second, and a beat has not given it more."""
        task_id = await client.opened("sign_soon", {"document": "d"})
        seen.append(await client.until_status(task_id, "input_required"))
        return seen[-1]["status"] == "input_required" and seen[-1]["ttlMs"] == 1_000

    await until(is_asked, BOUND_S)
    task_id = seen[-1]["taskId"]
    failed = checked(await client.until_status(task_id), "failed", "error", "statusMessage")
    assert (failed["error"]["code"], failed["error"]["data"]) == (-32603, {"reason": "expired"})
    answered = {"taskId": task_id, "inputResponses": {"in-1": ACCEPT}}
    assert (await client.request("tasks/update", answered)).result["resultType"] == "complete"
    assert await client.task(task_id) == failed


async def test_an_ended_task_whose_time_is_up_leaves_nothing_behind(
    desk: Serving, client: RawClient
):
    task_id = await client.opened("red")
    await client.until_status(task_id)
    with psycopg.connect(desk.database_url) as connection:
        connection.execute(
            "UPDATE outlast.task_view SET expires_at = now() - interval '1s' WHERE task_id = %s",
            [task_id],
        )
    assert (await client.request("tasks/get", {"taskId": task_id})).refusal == (400, -32602)
    await until(lambda: no_rows(desk.database_url, task_id), BOUND_S)
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        reply = await client.request(method, {"taskId": task_id, "inputResponses": {}})
        assert (reply.refusal, reply.error["message"]) == ((400, -32602), "Task not found.")


async def no_rows(database_url: str, task_id: str) -> bool:
    with psycopg.connect(database_url) as connection:
        for table, column in (
            *(("task_view", "task_id"), ("run_queue", "task_id")),
            ("task_events", "originator_id"),
        ):
            query = f"SELECT 1 FROM outlast.{table} WHERE {column} = %s"
            if connection.execute(query.encode(), [task_id]).fetchone() is not None:
                return False
    return True


# --- expired, and not yet removed


class Clock:
    """Time that moves when a test says so."""

    def __init__(self) -> None:
        self.now = datetime(2026, 8, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.mark.parametrize("method", ["get", "update", "cancel"])
async def test_an_ended_task_is_not_found_from_its_last_instant_on(method: str):
    clock, store = Clock(), MemoryStore(Bus())
    commands = Commands(store, clock)
    poller = PollingMethod(Feed(store, store, lambda task: b"", clock))
    retention = Retention(commands, store, MemoryPastTasks(store), timedelta(days=30))
    task = await ended_task(commands, clock)
    serve = getattr(TaskMethods(commands, poller, retention), method)
    assert task.expires_at is not None
    clock.now = task.expires_at - timedelta(milliseconds=1)
    assert await serve(exchange_of(task, method)) is not None
    clock.now = task.expires_at
    with pytest.raises(errors.TaskNotFound):
        await serve(exchange_of(task, method))


async def ended_task(commands: Commands, clock: Clock) -> Task:
    opening = events.TaskOpened(
        task_id="t" * 43,
        version=1,
        at=decisions.instant(clock.now),
        owner=LOCAL_OWNER.key,
        upstream="desk",
        tool="red",
        arguments={},
        client_capabilities={},
        ttl_ms=1_000,
        poll_interval_ms=50,
        timeout_ms=None,
        rerun_is_safe=False,
        idempotency_key=None,
        call_digest="digest",
        trace=None,
        carried_answers=None,
        carried_state=None,
    )
    await commands.open((opening,))
    wishes: list[Callable[[Task], decisions.Events]] = [
        lambda task: decisions.start_work(task, "w", clock.now),
        lambda task: decisions.complete(task, 1, {"content": []}, clock.now),
    ]
    for wish in wishes:
        await commands.change(opening.task_id, wish)
    return await commands.load(opening.task_id)


def exchange_of(task: Task, method: str) -> Exchange:
    params = {"taskId": task.id, "inputResponses": {}}
    return Exchange(LOCAL_CALLER, 1, f"tasks/{method}", params, DECLARED, {})
