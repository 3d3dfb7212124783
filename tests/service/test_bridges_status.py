"""The status tool bridge, served: jobs that a server made asynchronous in its own way are tasks."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outlast.tests.service.bridge_world import (
    BATCH,
    Batch,
    bridge,
    config,
    ended,
    until_told,
)
from outlast.tests.service.passing_world import Reading
from outlast.tests.support.mcp import UNDECLARED, RawClient, http_client
from outlast.tests.support.serving import Serving, command_of, serving

pytestmark = pytest.mark.anyio

TEXTUAL = bridge(
    job_id="'/job (\\S+) was submitted/'",
    status='"json.state"',
    message=None,
    progress='"json.percent"',
)
TOOLS = {
    "submit_job": bridge(),
    "say_job": TEXTUAL,
    "run_now": bridge(),
}
# The same tool in other words of the policy, each under an upstream of its own.
VARIANTS = {
    "plain": bridge(result_tool=None, cancel_tool=None, lost_after='"10m"'),
    "stubborn": bridge(cancel_wait='"3s"'),
    "wrong": bridge(status_tool='"no_such_tool"'),
}


@pytest.fixture(scope="module")
async def served(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    folder = tmp_path_factory.mktemp("served")
    async with serving(folder, _config(), module_database_url) as server:
        async with http_client() as http:
            # Five upstreams start at once, and a list is made without those that are slow at it.
            await Reading(RawClient(server.url, http)).until_whole("tools/list")
        yield server


def _config() -> str:
    """One server, three times more under other names and policies: tools have prefixes here."""
    upstream = f"command = {command_of(BATCH)}"
    lines = [config(upstream, **{f"batch_{tool}": how for tool, how in TOOLS.items()})]
    for name, how in VARIANTS.items():
        lines += [f"[upstreams.{name}]", upstream, f"[tools.{name}_submit_job]"]
        lines += [f"[tools.{name}_submit_job.bridge]", how]
    lines += ["[tools.brief_submit_job]", 'timeout = "5s"', "[upstreams.brief]", upstream]
    lines += ["[tools.brief_submit_job.bridge]", bridge()]
    return "\n".join(lines) + "\n"


@pytest.fixture
async def client(served: Serving) -> AsyncIterator[RawClient]:
    async with http_client() as http:
        yield RawClient(served.url, http)


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    return Batch(tmp_path)


@pytest.mark.promise("old-jobs-become-tasks")
async def test_a_job_is_looked_at_until_it_is_done_and_ends_with_what_the_result_tool_says(
    client: RawClient, batch: Batch
):
    task_id = await client.opened("batch_submit_job", batch.arguments("a"))
    queued = await until_told(client, task_id, "^queued, 0 of 100$")
    assert queued["status"] == "working"
    batch.put("a", state="running", percent=40, message="linking")
    await until_told(client, task_id, "^linking$")
    batch.put("a", state="done", percent=100)
    task = await ended(client, task_id)
    assert task["status"] == "completed"
    assert task["result"]["structuredContent"] == {"built": "a"}
    assert task["result"]["isError"] is False
    assert (batch.count("submit a"), batch.count("result job-a")) == (1, 1)


async def test_an_id_in_a_sentence_and_a_state_in_json_text_will_do(
    client: RawClient, batch: Batch
):
    task_id = await client.opened("batch_say_job", batch.arguments("b", looks=2))
    assert (await ended(client, task_id))["result"]["structuredContent"] == {"built": "b"}


async def test_an_answer_without_a_job_is_the_result(client: RawClient, batch: Batch):
    task_id = await client.opened("batch_run_now", batch.arguments("c"))
    assert (await ended(client, task_id))["result"]["structuredContent"] == {"built": "c"}
    assert batch.calls == ["run c"]


async def test_a_client_without_tasks_gets_the_job_as_it_would_without_us(
    client: RawClient, batch: Batch
):
    answer = await client.call("batch_submit_job", batch.arguments("d"), capabilities=UNDECLARED)
    assert answer.result["structuredContent"] == {"job_id": "job-d"}
    assert batch.calls == ["submit d"]


async def test_a_job_that_failed_is_a_completed_task_whose_result_is_an_error(
    client: RawClient, batch: Batch
):
    task_id = await client.opened("batch_submit_job", batch.arguments("e"))
    await batch.until_called("status job-e")
    batch.put("e", state="error", message="the disk is full")
    task = await ended(client, task_id)
    assert (task["status"], task["result"]["isError"]) == ("completed", True)
    assert task["result"]["structuredContent"]["message"] == "the disk is full"
    assert batch.count("result job-e") == 0


async def test_without_a_result_tool_the_last_answer_about_the_job_is_the_result(
    client: RawClient, batch: Batch
):
    task_id = await client.opened("plain_submit_job", batch.arguments("f", looks=1))
    task = await ended(client, task_id)
    assert task["result"]["structuredContent"] == {"state": "done", "percent": 100}


async def test_a_cancelled_task_has_its_job_told_once_and_ends_when_the_job_has(
    client: RawClient, batch: Batch
):
    task_id = await client.opened("batch_submit_job", batch.arguments("g"))
    await batch.until_called("status job-g")
    await client.request("tasks/cancel", {"taskId": task_id})
    task = await ended(client, task_id)
    assert (task["status"], task["statusMessage"]) == ("cancelled", "Cancelled on request")
    assert batch.count("cancel job-g") == 1


async def test_a_job_that_does_not_stop_is_left_to_itself_in_the_end(
    client: RawClient, batch: Batch
):
    task_id = await client.opened("stubborn_submit_job", batch.arguments("h"))
    await batch.until_called("status job-h")
    batch.put("h", stubborn=True)
    await client.request("tasks/cancel", {"taskId": task_id})
    assert (await ended(client, task_id))["status"] == "cancelled"
    assert batch.count("cancel job-h") == 1


async def test_a_job_that_is_done_before_it_could_stop_is_done(client: RawClient, batch: Batch):
    task_id = await client.opened("batch_submit_job", batch.arguments("i"))
    await batch.until_called("status job-i")
    batch.put("i", state="done", stubborn=True)
    await client.request("tasks/cancel", {"taskId": task_id})
    assert (await ended(client, task_id))["status"] == "completed"


async def test_a_job_that_nothing_can_stop_is_left_at_once(client: RawClient, batch: Batch):
    task_id = await client.opened("plain_submit_job", batch.arguments("j"))
    await batch.until_called("status job-j")
    await client.request("tasks/cancel", {"taskId": task_id})
    assert (await ended(client, task_id))["status"] == "cancelled"


async def test_a_job_that_somebody_else_cancelled_is_a_cancelled_task(
    client: RawClient, batch: Batch
):
    task_id = await client.opened("batch_submit_job", batch.arguments("k"))
    await batch.until_called("status job-k")
    batch.put("k", state="cancelled")
    task = await ended(client, task_id)
    assert task["status"] == "cancelled"
    assert task["statusMessage"] == "The job was cancelled at its upstream"


async def test_a_state_that_the_policy_does_not_know_means_that_the_job_goes_on(
    client: RawClient, batch: Batch, served: Serving
):
    task_id = await client.opened("batch_submit_job", batch.arguments("l"))
    await batch.until_called("status job-l")
    batch.put("l", state="napping")
    task = await until_told(client, task_id, "^napping, 0 of 100$")
    assert task["status"] == "working"
    batch.put("l", state="done")
    assert (await ended(client, task_id))["status"] == "completed"
    assert served.log.read_text().count("state 'napping' is in no list") == 1


async def test_a_job_that_its_upstream_forgot_is_lost_after_a_while(
    client: RawClient, batch: Batch
):
    task_id = await client.opened("batch_submit_job", batch.arguments("m"))
    await batch.until_called("status job-m")
    batch.forget("m")
    task = await until_told(client, task_id, "there is no job job-m")
    task = await ended(client, task_id)
    assert (task["status"], task["error"]["data"]) == ("failed", {"reason": "job_lost"})
    assert "there is no job job-m" in task["error"]["message"]


async def test_a_job_that_is_found_again_goes_on(client: RawClient, batch: Batch):
    task_id = await client.opened("plain_submit_job", batch.arguments("n"))
    await batch.until_called("status job-n")
    batch.forget("n")
    await until_told(client, task_id, "there is no job job-n")
    batch.put("n", state="running", percent=7)
    await until_told(client, task_id, "^running, 7 of 100$")
    batch.put("n", state="done")
    assert (await ended(client, task_id))["status"] == "completed"


async def test_a_status_tool_that_is_none_is_said_and_fails_the_task(
    client: RawClient, batch: Batch, served: Serving
):
    task_id = await client.opened("wrong_submit_job", batch.arguments("o"))
    task = await ended(client, task_id)
    assert (task["status"], task["error"]["data"]) == ("failed", {"reason": "job_lost"})
    assert "no_such_tool" in task["error"]["message"]
    assert "no_such_tool" in served.log.read_text()


async def test_a_job_that_takes_longer_than_its_tool_may_is_told_to_stop(
    client: RawClient, batch: Batch
):
    task_id = await client.opened("brief_submit_job", batch.arguments("p"))
    task = await ended(client, task_id)
    assert (task["status"], task["error"]["data"]) == ("failed", {"reason": "timeout"})
    assert batch.count("cancel job-p") == 1


async def test_looks_that_see_nothing_new_leave_no_trace(client: RawClient, batch: Batch):
    task_id = await client.opened("batch_submit_job", batch.arguments("q"))
    before = await until_told(client, task_id, "^queued, 0 of 100$")
    await batch.until_called("status job-q", batch.count("status job-q") + 4)
    assert await client.task(task_id) == before


async def test_a_bridged_tool_does_not_promise_the_shape_of_what_names_the_job(client: RawClient):
    tools = (await client.request("tools/list")).result["tools"]
    typed = {tool["name"] for tool in tools if "outputSchema" in tool}
    assert {"batch_job_status", "batch_job_result", "plain_stall"} <= typed
    assert not typed & {"batch_submit_job", "plain_submit_job", "batch_run_now"}
