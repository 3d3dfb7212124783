"""Tasks of an upstream that can only be polled, while what follows them is killed."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import psycopg
import pytest

from outlast.tests.chaos.client import REQUEST_S_MAX, Client, pause
from outlast.tests.chaos.nodes import cluster
from outlast.tests.chaos.test_followed_jobs import ENDS, World
from outlast.tests.service.bridge_world import Batch, until_told
from outlast.tests.service.tasking_world import TOOLS, Tasking
from outlast.tests.support.mcp import RawClient, http_client

pytestmark = pytest.mark.anyio

TASKS = 12
KILLS = 4


@pytest.fixture
async def tasking(tmp_path: Path) -> AsyncIterator[Tasking]:
    made = Tasking(tmp_path)
    async with made.running():
        yield made


@pytest.fixture
async def world(tmp_path: Path, database_url: str, tasking: Tasking) -> AsyncIterator[World]:
    async with (
        cluster(tmp_path, database_url) as made,
        httpx2.AsyncClient(trust_env=False, timeout=REQUEST_S_MAX) as http,
    ):
        (tmp_path / "outlast.toml").write_text(tasking.config + TOOLS)
        server = made.serve(work=False)
        server.start()
        await made.until_ready(server)
        workers = made.worker("first"), made.worker("second")
        world = World(made, Batch(tmp_path), Client(http, made.url), workers)
        await world.start(workers[0])
        yield world


@pytest.mark.promise("followed-task-survives-kills")
async def test_an_upstreams_task_is_begun_once_and_ends_once_whoever_is_killed(
    world: World, tasking: Tasking
):
    names = [f"n{number}" for number in range(TASKS)]
    tasks = {name: await world.client.call("hold", {"name": name}, name) for name in names}
    async with http_client() as http:
        for task_id in tasks.values():
            await until_told(RawClient(f"{world.chaos.url}/mcp", http), task_id, "^holding$")
    first, second = world.workers
    for number in range(KILLS):
        dying, coming = (first, second) if number % 2 == 0 else (second, first)
        await world.start(coming)
        for name in names[number * 3 : number * 3 + 3]:
            tasking.go(name)
        await pause(0.15 * number)
        dying.kill()
    for name, task_id in tasks.items():
        task = await world.client.ended(task_id, seconds=60.0)
        assert task["status"] == "completed", task
        assert task["result"]["structuredContent"] == {"result": f"built {name}"}
        assert tasking.calls.count(f"begun {name}") == 1
    assert Counter(tasking.calls)["tools/call hold"] == TASKS
    assert _ends(world) == dict.fromkeys(tasks.values(), 1)


def _ends(world: World) -> dict[str, int]:
    with psycopg.connect(world.chaos.database_url) as connection:
        rows = connection.execute("SELECT originator_id, topic FROM outlast.task_events")
        return dict(Counter(row[0] for row in rows.fetchall() if row[1] in ENDS))
