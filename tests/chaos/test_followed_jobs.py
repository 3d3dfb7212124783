"""Jobs of a server of the old kind, while what follows them is killed: begun once, ended once."""

import signal
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import psycopg
import pytest

from outlast.tests.acceptance.waiting import until
from outlast.tests.chaos.client import REQUEST_S_MAX, Client, Json, pause
from outlast.tests.chaos.nodes import Cluster, Node, cluster
from outlast.tests.chaos.test_outage import Store
from outlast.tests.service.bridge_world import Batch, bridge, config
from outlast.tests.support.ports import free_port
from outlast.tests.support.upstreams import http_server, until_it_listens

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
JOBS = 24
KILLS = 6


@dataclass(frozen=True)
class World:
    """The old server on its own, a server that runs no task, and two workers to be killed."""

    chaos: Cluster
    batch: Batch
    client: Client
    workers: tuple[Node, Node]

    async def submit(self, name: str, tool: str = "submit_job") -> str:
        return await self.client.call(tool, self.batch.arguments(name), name)

    async def start(self, worker: Node) -> None:
        worker.start()
        await worker.until_said("waiting for tasks")

    async def hand_over(self) -> None:
        """The first worker dies, and then the second begins."""
        first, second = self.workers
        first.kill()
        await self.start(second)


@asynccontextmanager
async def world_on(folder: Path, url: str) -> AsyncGenerator[World]:
    """All of it in this folder, on this store."""
    port, batch = free_port(), Batch(folder)
    with http_server("batch_server", port):
        await until_it_listens(port)
        async with (
            cluster(folder, url) as made,
            httpx2.AsyncClient(trust_env=False, timeout=REQUEST_S_MAX) as http,
        ):
            upstream = f'url = "http://127.0.0.1:{port}/mcp"'
            stall = '[tools.stall]\nrun = "task"\n'
            file = config(upstream, submit_job=bridge(lost_after='"60s"')) + stall
            (folder / "outlast.toml").write_text(file)
            server = made.serve(work=False)
            server.start()
            await made.until_ready(server)
            world = World(
                made, batch, Client(http, made.url), (made.worker("first"), made.worker("second"))
            )
            await world.start(world.workers[0])
            yield world


@pytest.fixture
async def world(tmp_path: Path, database_url: str) -> AsyncIterator[World]:
    async with world_on(tmp_path, database_url) as made:
        yield made


@pytest.fixture
def store() -> Iterator[Store]:
    """A database server of one's own."""
    with tempfile.TemporaryDirectory(prefix="ol-") as folder:
        running = Store(Path(folder))
        try:
            yield running
        finally:
            running.stop()


@pytest.mark.promise("followed-job-survives-kills")
@pytest.mark.parametrize("tool", ["job_status", "job_result"])
async def test_a_look_that_died_is_taken_again_by_another(world: World, tool: str):
    task_id = await world.submit("a")
    await world.batch.until_called("status job-a")
    asked = {"job_status": "status job-a", "job_result": "result job-a"}[tool]
    times = world.batch.count(asked)  # before: the very next look may be the one that hangs
    world.batch.put("a", hangs=tool, state="done")
    await world.batch.until_called(asked, times + 1)
    await world.hand_over()
    world.batch.put("a", hangs=None)
    task = await world.client.ended(task_id)
    assert task["result"]["structuredContent"] == {"built": "a"}
    assert world.batch.count("submit a") == 1


@pytest.mark.promise("followed-job-survives-kills")
async def test_a_cancel_that_may_not_have_been_told_is_told_again(world: World):
    task_id = await world.submit("b")
    await world.batch.until_called("status job-b")
    world.batch.put("b", hangs="cancel_job")
    await world.client.cancel(task_id)
    await world.batch.until_called("cancel job-b")
    await world.hand_over()
    await world.batch.until_called("cancel job-b", 2)
    world.batch.put("b", hangs=None)
    assert (await world.client.ended(task_id))["status"] == "cancelled"
    assert world.batch.count("submit b") == 1


@pytest.mark.promise("followed-job-survives-kills")
async def test_a_job_that_nobody_has_told_us_of_is_lost_and_not_submitted_again(world: World):
    task_id = await world.submit("c", "stall")
    await world.batch.until_called("submit c")
    await world.hand_over()
    task = await world.client.ended(task_id)
    assert task["error"]["data"] == {"reason": "worker_lost"}
    assert world.batch.count("submit c") == 1


@pytest.mark.promise("followed-job-survives-kills")
async def test_jobs_end_once_whatever_happens_to_their_workers(world: World):
    first, second = world.workers
    tasks = {f"n{n}": await world.submit(f"n{n}") for n in range(JOBS)}
    for name in tasks:
        await world.batch.until_called(f"submit {name}")
    for number in range(KILLS):
        dying, coming = (first, second) if number % 2 == 0 else (second, first)
        await world.start(coming)
        for name in list(tasks)[number * 4 : number * 4 + 4]:
            world.batch.put(name, state="running", percent=number, looks=1 + number)
        await pause(0.15 * number)
        dying.kill()
    await _all_end_once(world, tasks)


@pytest.mark.promise("followed-job-survives-kills")
async def test_jobs_end_once_although_the_database_went_away(tmp_path: Path, store: Store):
    async with world_on(tmp_path, store.url) as world:
        tasks = {f"n{n}": await world.submit(f"n{n}") for n in range(JOBS)}
        for name in tasks:
            await world.batch.until_called(f"status job-{name}")
        store.end(signal.SIGKILL)
        for name in tasks:
            world.batch.put(name, state="done")
        await store.start_again()
        await _all_end_once(world, tasks)


async def _all_end_once(world: World, tasks: dict[str, str]) -> None:
    for name, task_id in tasks.items():
        task: Json = {}

        async def has_ended(task_id: str = task_id, task: Json = task) -> bool:
            task.update(await world.client.surely(lambda: world.client.get(task_id)))
            return task["status"] not in {"working", "input_required"}

        await until(has_ended, PATIENCE_S)
        assert world.batch.count(f"submit {name}") == 1
        if task["status"] == "completed":
            assert task["result"]["structuredContent"] == {"built": name}
        else:  # its worker died between the submission and the record of it
            assert task["error"]["data"] == {"reason": "worker_lost"}
    ends = Counter(task_id for task_id, topic in _topics(world) if topic in ENDS)
    assert {ends[task_id] for task_id in tasks.values()} == {1}


ENDS = {"task.completed", "task.failed", "task.cancelled", "task.expired"}


def _topics(world: World) -> list[tuple[str, str]]:
    with psycopg.connect(world.chaos.database_url) as connection:
        rows = connection.execute("SELECT originator_id, topic FROM outlast.task_events")
        return [(row[0], row[1]) for row in rows.fetchall()]
