"""An upstream's own tasks on the wire: who is told that they are known, and whose they are."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from outlast.adapters.upstream import McpUpstreams, UpstreamSettings
from outlast.adapters.upstream_facts import Facts
from outlast.adapters.upstream_names import Names
from outlast.adapters.upstream_request import Request
from outlast.adapters.upstream_wire import outcome_of
from outlast.domain.passing import Forward
from outlast.domain.ports import CallNews, Faulted, LegEnded, Returned, ToolCall
from outlast.tests.service.tasking_world import Tasking
from outlast.tests.support.upstreams import hear, stdio, until

pytestmark = pytest.mark.anyio

TASKS = "io.modelcontextprotocol/tasks"
FORM = {"elicitation": {}}
KNOWS = Facts({"extensions": {TASKS: {}}}, None, None)
NEVER_HEARD = Facts({"tools": {}}, None, None)


@pytest.fixture(scope="module")
async def tasking(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Tasking]:
    made = Tasking(tmp_path_factory.mktemp("tasking"))
    async with made.running():
        yield made


@pytest.fixture
async def upstreams(tasking: Tasking) -> AsyncIterator[McpUpstreams]:
    """The server of tasks, and one that has none beside it."""
    url = f"http://127.0.0.1:{tasking.port}/mcp"
    settings = [UpstreamSettings("tasking", url=url), stdio("everyday", name="other")]
    async with McpUpstreams(settings) as both:
        yield both


async def asked(upstreams: McpUpstreams, name: str, **more: Any) -> CallNews:
    call = ToolCall("tasking", "ask", {"name": name}, FORM, **more)
    return (await hear(await upstreams.call(call)))[-1]


async def told(
    upstreams: McpUpstreams, task_id: str, capabilities: Mapping[str, Any] = FORM
) -> CallNews:
    look = Forward("tasks/get", {"taskId": task_id}, capabilities, "tasking")
    return (await hear(await upstreams.forward(look)))[-1]


async def test_a_handle_comes_only_to_who_takes_one_and_its_task_is_asked_after(
    upstreams: McpUpstreams, tasking: Tasking
):
    assert isinstance(await asked(upstreams, "plain"), LegEnded)
    handle = await asked(upstreams, "task", takes_task=True)
    assert isinstance(handle, Returned)
    assert handle.result["resultType"] == "task"
    task_id = handle.result["taskId"]

    async def it_asks() -> bool:
        return isinstance(await told(upstreams, task_id), LegEnded)

    await until(it_asks)
    assert f"tasks/get {task_id}" in tasking.calls
    refused = await told(upstreams, task_id, {})
    assert isinstance(refused, Faulted)
    assert (refused.code, refused.data) == (
        -32021,
        {"requiredCapabilities": {"elicitation": {"form": {}}}},
    )


async def test_a_task_that_is_not_there_is_the_servers_own_error(upstreams: McpUpstreams):
    assert await told(upstreams, "nobody's") == Faulted(-32602, "Task nobody's not found")


def declared(method: str, facts: Facts, *, takes_task: bool) -> Any:
    request = Request(
        "u", method, {}, FORM, {}, None, False, True, lambda result: result, takes_task=takes_task
    )
    return request.declared(facts).get("extensions")


def test_tasks_are_known_on_a_call_that_takes_one_of_a_server_that_has_some():
    assert declared("tools/call", KNOWS, takes_task=True) == {TASKS: {}}
    assert declared("tools/call", KNOWS, takes_task=False) is None
    assert declared("tools/call", NEVER_HEARD, takes_task=True) is None
    assert declared("tasks/get", NEVER_HEARD, takes_task=False) == {TASKS: {}}
    assert declared("prompts/get", KNOWS, takes_task=False) is None


@pytest.mark.parametrize("handle", [{}, {"taskId": ""}, {"taskId": 7}])
def test_a_handle_without_an_id_is_an_error(handle: dict[str, Any]):
    answer = {"resultType": "task", **handle}
    assert isinstance(outcome_of(answer, takes_task=True), Faulted)


def test_a_task_that_nobody_takes_is_an_error():
    assert isinstance(outcome_of({"resultType": "task", "taskId": "t"}), Faulted)


def test_what_a_task_ended_with_has_public_names():
    link = {"type": "resource_link", "name": "a", "uri": "note://a"}
    ended = {"status": "completed", "result": {"content": [link]}}
    public = {"status": "completed", "result": {"content": [{**link, "uri": "ci+note://a"}]}}
    names = Names(["ci", "other"])
    assert names.result("tasks/get", "ci", ended) == public
    assert names.result("tasks/get", "ci", {"status": "working"}) == {"status": "working"}
