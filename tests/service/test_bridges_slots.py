"""Looks and slots: jobs elsewhere take no slot, and what takes the slots is not in their way.

And an upstream that goes away: its jobs are not given up.
"""

from pathlib import Path

import pytest

from outlast.tests.service.bridge_world import BATCH, Batch, bridge, config, ended, until_told
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.ports import free_port
from outlast.tests.support.serving import command_of, serving
from outlast.tests.support.upstreams import http_server, until_it_listens

pytestmark = pytest.mark.anyio

JOBS = 200
HOLD = """
[tools.stall]
run = "task"
"""


@pytest.mark.promise("followed-job-holds-no-slot")
async def test_two_hundred_jobs_behind_one_slot_all_end(database_url: str, tmp_path: Path):
    batch = Batch(tmp_path)
    file = config(f"command = {command_of(BATCH)}", submit_job=bridge(poll_max='"5s"'))
    async with (
        serving(tmp_path, file, database_url, ["--slots", "1"]) as server,
        http_client() as http,
    ):
        client = RawClient(server.url, http)
        names = [f"n{number}" for number in range(JOBS)]
        tasks = [await client.opened("submit_job", batch.arguments(name)) for name in names]
        for name in names:
            await batch.until_called(f"status job-{name}")
        for task_id in tasks:
            assert (await client.task(task_id))["status"] == "working"
        for name in names:
            batch.put(name, state="done")
        for name, task_id in zip(names, tasks, strict=True):
            assert (await ended(client, task_id))["result"]["structuredContent"] == {"built": name}
            assert batch.count(f"submit {name}") == 1


@pytest.mark.promise("followed-job-holds-no-slot")
async def test_jobs_are_looked_at_while_calls_have_every_slot(database_url: str, tmp_path: Path):
    batch = Batch(tmp_path)
    file = config(f"command = {command_of(BATCH)}", submit_job=bridge()) + HOLD
    async with (
        serving(tmp_path, file, database_url, ["--slots", "1"]) as server,
        http_client() as http,
    ):
        client = RawClient(server.url, http)
        job = await client.opened("submit_job", batch.arguments("job"))
        await batch.until_called("status job-job")
        call = await client.opened("stall", batch.arguments("call"))
        await batch.until_called("submit call")
        waiting = await client.opened("submit_job", batch.arguments("waiting"))
        batch.put("job", state="done")
        assert (await ended(client, job))["status"] == "completed"
        assert batch.count("submit waiting") == 0
        await client.request("tasks/cancel", {"taskId": call})
        await batch.until_called("status job-waiting")
        batch.put("waiting", state="done")
        assert (await ended(client, waiting))["status"] == "completed"


@pytest.mark.promise("followed-job-holds-no-slot")
async def test_a_status_tool_that_does_not_answer_takes_no_slot(database_url: str, tmp_path: Path):
    batch = Batch(tmp_path)
    file = config(f"command = {command_of(BATCH)}", submit_job=bridge())
    flags = ["--slots", "1"]
    async with serving(tmp_path, file, database_url, flags) as server, http_client() as http:
        client = RawClient(server.url, http)
        stuck = await client.opened("submit_job", batch.arguments("stuck"))
        await batch.until_called("status job-stuck")
        batch.put("stuck", hangs="job_status")
        looks = batch.count("status job-stuck") + 1
        await batch.until_called("status job-stuck", looks)
        told = await client.task(stuck)
        other = await client.opened("submit_job", batch.arguments("other", looks=1))
        assert (await ended(client, other))["status"] == "completed"
        assert batch.count("status job-stuck") == looks
        assert await client.task(stuck) == told, "that look has been given up meanwhile"
        batch.put("stuck", hangs=None, state="done")


async def test_a_job_whose_upstream_is_away_waits_for_it_and_says_so(
    database_url: str, tmp_path: Path
):
    batch, port = Batch(tmp_path), free_port()
    file = config(f'url = "http://127.0.0.1:{port}/mcp"', submit_job=bridge(lost_after='"100ms"'))
    async with serving(tmp_path, file, database_url) as server, http_client() as http:
        client = RawClient(server.url, http)
        with http_server("batch_server", port):
            await until_it_listens(port)
            task_id = await client.opened("submit_job", batch.arguments("away"))
            await batch.until_called("status job-away")
        task = await until_told(client, task_id, "batch")
        assert task["status"] == "working"
        batch.put("away", state="done")
        with http_server("batch_server", port):
            assert (await ended(client, task_id))["status"] == "completed"
    assert batch.count("submit away") == 1
