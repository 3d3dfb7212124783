"""The build farm behind its ten-line tool, behind the real `outlast serve`: all as processes."""

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.postgres import Database
from outlast.domain.events import TaskEvent, WorkDelegated, WorkStarted
from outlast.examples import build_farm, farm_tool
from outlast.tests.acceptance.waiting import until
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.ports import free_port
from outlast.tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
MODULE = "def double(number):\n    return 2 * number\n"
TEST = """import unittest, sums
class Sums(unittest.TestCase):
    def test_double(self):
        self.assertEqual(sums.double(2), {expected})
"""


@asynccontextmanager
async def farming(folder: Path) -> AsyncIterator[str]:
    """The URL of a farm of its own."""
    port, log = free_port(), folder / "farm.log"
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, build_farm.__file__, "--port", str(port)]
    with log.open("wb") as output:
        process = await anyio.open_process(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        async with httpx2.AsyncClient(trust_env=False) as http:

            async def answers() -> bool:
                assert process.returncode is None, log.read_text()
                try:
                    refused = await http.post(f"{url}/jobs", json={"project": "none"})
                except httpx2.TransportError:
                    return False
                return refused.status_code == 400

            await until(answers, PATIENCE_S)
        yield url
    finally:
        process.kill()
        await process.wait()


@pytest.fixture(scope="module")
async def server(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    folder = tmp_path_factory.mktemp("farm")
    async with farming(folder) as farm:
        config = "\n".join(
            [
                "[defaults]",
                'run = "task"',
                'poll_interval = "50ms"',
                "[upstreams.farm]",
                f"command = {[sys.executable, farm_tool.__file__]}",
                f'env = {{ {farm_tool.FARM} = "{farm}" }}',
            ]
        )
        async with serving(folder, config, module_database_url) as server:
            yield server


def project(folder: Path, expected: int = 4) -> Path:
    """A small Python project; its test passes when it expects 4."""
    folder.mkdir()
    (folder / "sums.py").write_text(MODULE)
    (folder / "test_sums.py").write_text(TEST.format(expected=expected))
    return folder


async def built(server: Serving, folder: Path) -> dict[str, Any]:
    """The task of a build, once it has ended."""
    async with http_client() as http:
        client = RawClient(server.url, http)
        created = (await client.call("build", {"project": str(folder)})).result
        ended: dict[str, Any] = {}

        async def has_ended() -> bool:
            task = (await client.request("tasks/get", {"taskId": created["taskId"]})).result
            ended.update(task)
            return task["status"] != "working"

        await until(has_ended, PATIENCE_S)
        return ended


async def history(server: Serving, task_id: str) -> list[TaskEvent]:
    database = Database(server.database_url)
    await database.open()
    log = PostgresEventLog(database)
    try:
        return list(await log.read(task_id))
    finally:
        log.close()
        await database.close()


async def test_a_project_is_built_elsewhere_and_its_task_gets_the_result(
    server: Serving, tmp_path: Path
):
    folder = project(tmp_path / "sums")
    task = await built(server, folder)
    assert task["status"] == "completed", task
    report = task["result"]["structuredContent"]
    assert (report["project"], report["outcome"]) == (str(folder), "built")
    assert (len(report["sha256"]), task["result"]["isError"]) == (64, False)
    told = [type(event) for event in await history(server, task["taskId"])]
    assert (told.count(WorkStarted), told.count(WorkDelegated)) == (1, 1)
    assert [path.name for path in folder.iterdir() if path.name == "__pycache__"] == []


async def test_a_project_whose_tests_fail_is_a_tool_error_with_their_output(
    server: Serving, tmp_path: Path
):
    task = await built(server, project(tmp_path / "sums", expected=5))
    assert (task["status"], task["result"]["isError"]) == ("completed", True)
    assert "4 != 5" in task["result"]["content"][0]["text"]


async def test_a_project_that_is_not_there_is_a_protocol_error(server: Serving, tmp_path: Path):
    task = await built(server, tmp_path / "nowhere")
    assert (task["status"], task["error"]["code"]) == ("failed", build_farm.NOT_BUILT)


async def test_a_client_that_knows_no_tasks_is_told_to_call_it_as_one(
    server: Serving, tmp_path: Path
):
    with anyio.fail_after(PATIENCE_S):
        async with http_client() as http:
            client = RawClient(server.url, http, capabilities={})
            result = (await client.call("build", {"project": str(tmp_path)})).result
    assert result["isError"] is True
    assert "as a task" in result["content"][0]["text"]
