"""Tasks of an upstream that can only be polled, followed by the real `outlast serve`."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from standardwebhooks import Webhook
from websockets.asyncio.client import connect

from outlast.service import config
from outlast.tests.delivery.webhook_world import SECRET, hook
from outlast.tests.service.bridge_world import ended, until_told
from outlast.tests.service.tasking_world import TOOLS, Tasking
from outlast.tests.support.mcp import UNDECLARED, RawClient, envelope, http_client
from outlast.tests.support.serving import Serving, serving
from outlast.tests.support.streams import LISTEN, listening, states

pytestmark = pytest.mark.anyio

QUOTA = "[quotas]\ntasks_per_owner = 1\n"
READ_S_MAX = 30.0


@pytest.fixture(scope="module")
async def tasking(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Tasking]:
    made = Tasking(tmp_path_factory.mktemp("tasking"))
    async with made.running():
        yield made


@pytest.fixture(scope="module")
async def served(
    tasking: Tasking, module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    folder = tmp_path_factory.mktemp("served")
    async with serving(folder, tasking.config + TOOLS, module_database_url) as server:
        yield server


@pytest.fixture
async def client(served: Serving) -> AsyncIterator[RawClient]:
    async with http_client() as http:
        yield RawClient(served.url, http)


def built(name: str) -> dict[str, Any]:
    """The upstream's own result of a call that was held."""
    return {
        "_meta": {"fastmcp": {"wrap_result": True}},
        "content": [{"type": "text", "text": f"built {name}"}],
        "structuredContent": {"result": f"built {name}"},
        "isError": False,
        "resultType": "complete",
    }


async def told_on_socket(server: Serving, task_id: str, go: anyio.Event) -> list[dict[str, Any]]:
    """All states that `/ws` tells of the task; `go` is set once it is watched."""
    url = f"ws{server.base_url.removeprefix('http')}/ws"
    told: list[dict[str, Any]] = []
    async with connect(url, proxy=None) as connection:
        watch = envelope(LISTEN, {"notifications": {"taskIds": [task_id]}})
        await connection.send(json.dumps(watch))
        with anyio.fail_after(READ_S_MAX):
            while "id" not in (message := json.loads(await connection.recv())):
                go.set()
                told += states([message])
    return told


@pytest.mark.promise("upstream-tasks-are-followed")
async def test_a_task_that_can_only_be_polled_is_told_of_in_every_way(
    client: RawClient, served: Serving, tasking: Tasking
):
    heard: dict[str, list[dict[str, Any]]] = {}
    async with hook() as endpoint:
        delivery = {"mode": "webhook", "url": endpoint.url, "secret": SECRET}
        asked = {"name": "task.finished", "delivery": delivery}
        assert (await client.request("events/subscribe", asked)).result
        task_id = await client.opened("hold", {"name": "every"})
        await until_told(client, task_id, "^holding$")

        async def on_socket(go: anyio.Event) -> None:
            heard["socket"] = await told_on_socket(served, task_id, go)

        async with listening(served.url, task_id) as stream, anyio.create_task_group() as tasks:
            await stream.message()
            go = anyio.Event()
            tasks.start_soon(on_socket, go)
            await go.wait()
            tasking.go("every")
            heard["listen"] = states(await stream.to_the_end())
        (post,) = await endpoint.got(1)
    task = await ended(client, task_id)
    assert (task["status"], task["result"]) == ("completed", built("every"))
    for way, told in heard.items():
        assert told[-1]["result"] == built("every"), way
    Webhook(SECRET).verify(post.body, dict(post.headers))
    assert post.content["data"]["taskId"] == task_id
    assert post.content["data"]["status"] == "completed"
    assert tasking.count("begun every") == 1


async def test_each_look_names_the_upstreams_task_in_its_header_and_ours_nowhere(
    client: RawClient, tasking: Tasking
):
    task_id = await client.opened("hold", {"name": "named"})
    await tasking.until_noted("begun named")
    before = tasking.count("tasks/get ")
    await tasking.until_noted("tasks/get ", before + 2)
    tasking.go("named")
    await ended(client, task_id)
    names = {call.partition(" ")[2] for call in tasking.calls if call.startswith("tasks/")}
    assert "-" not in names
    assert task_id not in names


@pytest.mark.promise("upstream-tasks-are-followed")
async def test_a_call_that_might_be_quick_becomes_our_task_when_the_upstream_makes_one(
    client: RawClient, tasking: Tasking
):
    task_id = await client.opened("must", {"name": "auto"})
    await until_told(client, task_id, "^holding$")
    tasking.go("auto")
    assert (await ended(client, task_id))["result"] == built("auto")
    quick = await client.call("quick", {"name": "q"})
    assert quick.result["structuredContent"] == {"result": "saw q"}


@pytest.mark.promise("upstream-tasks-are-asked-for-by-who-follows")
async def test_only_a_call_that_would_be_followed_says_that_tasks_are_known(
    client: RawClient, tasking: Tasking
):
    tasking.go("plain")
    for tool, capabilities in (("hold", UNDECLARED), ("plainly", None)):
        plain = await client.call(tool, {"name": "plain"}, capabilities=capabilities)
        assert plain.result["structuredContent"] == {"result": "built plain"}, tool
    refused = await client.call("must", {"name": "plain"}, capabilities=UNDECLARED)
    assert refused.error["code"] == -32021


async def test_an_error_and_a_result_that_is_one_are_the_upstreams_own(client: RawClient):
    failed = await ended(client, await client.opened("fails", {"name": "f"}))
    assert failed["status"] == "failed"
    error = {"code": -32050, "message": "no quota for f", "data": {"retryAfterMs": 1500}}
    assert failed["error"] == error
    wrong = await ended(client, await client.opened("is_error", {"name": "build"}))
    assert (wrong["status"], wrong["result"]["isError"]) == ("completed", True)
    assert "build is red" in wrong["result"]["content"][0]["text"]


@pytest.mark.promise("upstream-tasks-are-answered")
async def test_what_the_upstreams_task_asks_is_answered_through_ours_under_our_own_keys(
    client: RawClient, tasking: Tasking
):
    task_id = await client.opened("ask", {"name": "poll"})
    task = await client.until_status(task_id, "input_required", seconds=READ_S_MAX)
    keys = {ask["params"]["message"]: key for key, ask in task["inputRequests"].items()}
    assert set(keys.values()) == {"in-1", "in-2"}
    for message, name in (("the second of poll?", "Bob"), ("the first of poll?", "Ada")):
        key, answer = keys[message], {"action": "accept", "content": {"name": name}}
        await client.request("tasks/update", {"taskId": task_id, "inputResponses": {key: answer}})
    task = await ended(client, task_id)
    assert task["status"] == "completed", task
    assert task["result"]["content"][0]["text"] == "Ada and Bob"
    assert tasking.count("asked poll") >= 2


@pytest.mark.promise("upstream-tasks-are-cancelled")
async def test_a_cancelled_task_stops_the_upstreams(client: RawClient, tasking: Tasking):
    task_id = await client.opened("hold", {"name": "stopped"})
    # Not only begun: it notes that it was stopped from its first words on.
    await until_told(client, task_id, "^holding$")
    cancels = tasking.count("tasks/cancel ")
    await client.request("tasks/cancel", {"taskId": task_id})
    task = await ended(client, task_id)
    assert (task["status"], task["statusMessage"]) == ("cancelled", "Cancelled on request")
    await tasking.until_noted("stopped stopped")
    assert tasking.count("tasks/cancel ") == cancels + 1


@pytest.mark.parametrize(
    ("lines", "makes"),
    [
        ('url = "http://127.0.0.1:1/mcp"', True),
        ('url = "http://127.0.0.1:1/mcp"\ntasks = false', False),
        ('command = ["server"]', False),
        ('command = ["server"]\ntasks = true', True),
    ],
)
def test_a_process_of_our_own_makes_tasks_only_if_that_is_said(lines: str, makes: bool):
    read = config.parse(f"[upstreams.u]\n{lines}\n", "outlast.toml")
    assert read.upstreams["u"].makes_tasks is makes


async def test_an_upstream_may_be_told_to_make_no_tasks(
    tasking: Tasking, tmp_path: Path, database_url: str
):
    file = f"{tasking.config}tasks = false\n{TOOLS}"
    async with serving(tmp_path, file, database_url) as server, http_client() as http:
        client = RawClient(server.url, http)
        looks = tasking.count("tasks/get ")
        task_id = await client.opened("hold", {"name": "off"})
        await tasking.until_noted("begun off")
        tasking.go("off")
        result = (await ended(client, task_id))["result"]
        assert result["structuredContent"] == {"result": "built off"}
        assert tasking.count("tasks/get ") == looks


@pytest.mark.promise("upstream-tasks-are-followed")
async def test_a_task_that_its_upstream_has_lost_fails_and_says_so(
    tmp_path: Path, database_url: str
):
    tasking = Tasking(tmp_path)
    file = tasking.config + TOOLS
    async with serving(tmp_path, file, database_url) as server, http_client() as http:
        client = RawClient(server.url, http)
        async with tasking.running():
            task_id = await client.opened("hold", {"name": "lost"})
            await until_told(client, task_id, "^holding$")
        away = await until_told(client, task_id, "upstream")
        assert away["status"] == "working"
        looks = tasking.count("tasks/get ")
        async with tasking.running():
            task = await ended(client, task_id)
    assert (task["status"], task["error"]["data"]) == ("failed", {"reason": "job_lost"})
    assert "not found" in task["error"]["message"]
    assert tasking.count("tasks/get ") >= looks + 2
    assert tasking.count("begun lost") == 1


async def test_where_a_quota_allows_no_task_the_upstreams_is_stopped_again(
    tasking: Tasking, tmp_path: Path, database_url: str
):
    file = tasking.config + TOOLS + QUOTA
    async with serving(tmp_path, file, database_url) as server, http_client() as http:
        client = RawClient(server.url, http)
        await client.opened("hold", {"name": "within"})
        cancels = tasking.count("tasks/cancel ")
        refused = await client.call("must", {"name": "beyond"})
        assert refused.error["data"]["reason"] == "quota_exceeded"
        # Its body may be stopped before its first line: what the upstream was asked tells.
        await tasking.until_noted("tasks/cancel ", times=cancels + 1)
