"""Two servers behind a balancer, and a worker: a watch on one sees what is done through the other,
and outlives the server that it is on.

No session, no sticky routing: whoever comes back is led to whom there is, and brings its version.
"""

import asyncio
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import anyio
import httpx2
import pytest

from outlast.delivery.listen import ListenSource
from outlast.delivery.polling import PollingSource
from outlast.delivery.remote import Remote
from outlast.delivery.source import StatusSource
from outlast.delivery.websocket import WebSocketSource
from outlast.domain.clienting import TaskState
from outlast.tests.acceptance.waiting import until
from outlast.tests.chaos.nodes import Node
from outlast.tests.service.conftest import desk_config
from outlast.tests.support.balancer import Balancer, balancing
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.ports import free_port
from outlast.tests.support.publishing import publishing
from outlast.tests.support.streams import AFTER, VERSION

pytestmark = pytest.mark.anyio

READY_S_MAX, STOP_S_MAX = 60.0, 30.0
WATCH_S_MAX = 90.0
SOON_S_MAX = 15.0  # a watch that missed the signal would look by itself after half a minute

WAYS: dict[str, Callable[[Remote, str], StatusSource]] = {
    "poll": lambda remote, _: PollingSource(remote),
    "listen": lambda remote, _: ListenSource(remote),
    "websocket": WebSocketSource,
}
every_way = pytest.mark.parametrize("way", WAYS)


@dataclass(frozen=True)
class Replica:
    """One server and where it is found."""

    node: Node
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def until_ready(self, http: httpx2.AsyncClient) -> None:
        async def ready() -> bool:
            assert self.node.is_running, self.node.log.read_text()
            try:
                reply = await http.get(f"http://127.0.0.1:{self.port}/readyz")
            except httpx2.TransportError:
                return False
            return reply.is_success

        await until(ready, READY_S_MAX)


@dataclass(frozen=True)
class Replicas:
    """Two servers that run nothing, behind a balancer."""

    servers: tuple[Replica, Replica]
    balancer: Balancer
    http: httpx2.AsyncClient

    def client(self, place: int) -> RawClient:
        """Speaks to one of them, past the balancer."""
        return RawClient(self.servers[place].url, self.http)

    def source(self, way: str, place: int | None = None) -> StatusSource:
        """The client's half; of one of them, or through the balancer."""
        port = self.balancer.port if place is None else self.servers[place].port
        remote = Remote(f"http://127.0.0.1:{port}/mcp", self.http)
        return WAYS[way](remote, f"ws://127.0.0.1:{port}/ws")


@asynccontextmanager
async def replicas(
    folder: Path, database_url: str, *, works: bool
) -> AsyncGenerator[Replicas, None]:
    """All of it, started; what still runs in the end has to stop cleanly."""
    config = folder / "outlast.toml"
    config.write_text(desk_config())
    env = {"OUTLAST_DATABASE_URL": database_url}
    ports = free_port(), free_port()
    servers = [_server(folder, config, port, env) for port in ports]
    nodes = [server.node for server in servers]
    if works:
        nodes.append(Node(folder, "worker", ["worker", "--config", str(config)], env))
    try:
        for node in nodes:
            node.start()
        async with http_client() as http, balancing(ports) as balancer:
            for server in servers:
                await server.until_ready(http)
            yield Replicas((servers[0], servers[1]), balancer, http)
        running = [node for node in nodes if node.is_running]
        for node in running:
            node.send(signal.SIGTERM)
        for node in running:
            assert await node.until_ended(STOP_S_MAX) == 0, node.log.read_text()
    finally:
        for node in nodes:
            await node.make_gone()


def _server(folder: Path, config: Path, port: int, env: dict[str, str]) -> Replica:
    arguments = ["serve", "--config", str(config), "--port", str(port), "--no-work"]
    return Replica(Node(folder, f"serve-{port}", arguments, env), port)


@pytest.fixture(scope="module")
async def working(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Replicas]:
    """Two servers and a worker."""
    folder = tmp_path_factory.mktemp("replicas")
    async with replicas(folder, module_database_url, works=True) as started:
        yield started


async def followed(source: StatusSource, task_id: str, after: int = 1) -> list[TaskState]:
    """Every state until the end."""
    with anyio.fail_after(WATCH_S_MAX):
        return [state async for state in source.watch(task_id, after)]


async def version_of(client: RawClient, task_id: str) -> int:
    reply = await client.request("tasks/get", {"taskId": task_id}, meta={AFTER: {}})
    return reply.result["_meta"][VERSION]


# --- one replica, and another


@pytest.mark.promise("watch-survives-its-replica")
@every_way
async def test_a_watch_on_one_replica_sees_what_is_done_through_the_other(
    working: Replicas, way: str
):
    task_id = await working.client(1).opened("sign_task_during", {"document": "d"})
    states: list[TaskState] = []
    watch = cast(AsyncGenerator[TaskState], working.source(way, 0).watch(task_id, 1))
    with anyio.fail_after(WATCH_S_MAX):
        async with aclosing(watch) as told:
            async for state in told:
                states.append(state)
                for key in state.task.get("inputRequests", ()):
                    answer = {key: {"action": "accept", "content": {"name": "Ada"}}}
                    params = {"taskId": task_id, "inputResponses": answer}
                    await working.client(1).request("tasks/update", params)
    assert [state.version for state in states] == list(range(2, len(states) + 2))
    assert states[-1].task["result"]["content"][0]["text"] == "d signed by Ada"


@pytest.mark.promise("watch-survives-its-replica")
@every_way
async def test_a_change_made_through_one_replica_is_seen_on_the_other_at_once(
    working: Replicas, way: str, tmp_path: Path
):
    task_id = await working.client(0).opened("hold_task", {"marker": str(tmp_path / "marker")})
    watch = cast(AsyncGenerator[TaskState], working.source(way, 1).watch(task_id))
    with anyio.fail_after(WATCH_S_MAX):
        async with aclosing(watch) as told:
            while (await anext(told)).task.get("statusMessage") != "holding":
                pass
            await working.client(0).request("tasks/cancel", {"taskId": task_id})
            with anyio.fail_after(SOON_S_MAX):
                *_, last = [state async for state in told]
    assert last.task["status"] == "cancelled"


@pytest.mark.promise("watch-survives-its-replica")
async def test_watches_of_running_tools_outlive_the_replica_that_they_are_on(
    working: Replicas, tmp_path: Path
):
    first, second = working.servers
    working.balancer.first = 0
    notes = {"path": str(tmp_path / "notes"), "seconds": 6.0}
    tasks = {way: await working.client(0).opened("note_task", notes) for way in WAYS}
    watches = [
        asyncio.create_task(followed(working.source(way), task_id))
        for way, task_id in tasks.items()
    ]
    for task_id in tasks.values():
        await until_running(working.client(1), task_id)
    first.node.kill()
    try:
        told = await asyncio.gather(*watches)
    finally:
        first.node.start()
        await first.until_ready(working.http)
    for task_id, states in zip(tasks.values(), told, strict=True):
        end = await version_of(working.client(1), task_id)
        assert [state.version for state in states] == list(range(2, end + 1))
        assert states[-1].task["status"] == "completed"
    assert second.node.is_running


async def until_running(client: RawClient, task_id: str) -> None:
    """Return once its tool has told of any step: which ones are recorded is a matter of time."""

    async def is_running() -> bool:
        task = await client.task(task_id)
        return "step" in task.get("statusMessage", "") or task["status"] != "working"

    await until(is_running, WATCH_S_MAX)


# --- many changes, and every harm


CHANGES_BETWEEN = 40


@pytest.mark.promise("watch-survives-its-replica")
async def test_no_version_is_missed_through_deaths_departures_and_cuts(
    database_url: str, tmp_path: Path
):
    async with replicas(tmp_path, database_url, works=False) as many:
        first, second = (server.node for server in many.servers)
        harms: list[Callable[[], None]] = [
            many.balancer.cut,
            first.kill,
            many.balancer.cut,
            lambda: lead_to(many.balancer, 1),
            first.start,
            lambda: second.send(signal.SIGTERM),
            many.balancer.cut,
        ]
        with publishing(database_url) as publisher:
            task_id = await publisher.opened()
            watches = [asyncio.create_task(followed(many.source(way), task_id)) for way in WAYS]
            for number, harm in enumerate(harms):
                for step in range(CHANGES_BETWEEN):
                    await publisher.progresses(task_id, step=number * CHANGES_BETWEEN + step)
                await until_connected(many)
                harm()
            await many.servers[0].until_ready(many.http)
            assert await second.until_ended(STOP_S_MAX) == 0, second.log.read_text()
            end = await publisher.ends(task_id)
            for way, states in zip(WAYS, await asyncio.gather(*watches), strict=True):
                assert [state.version for state in states] == list(range(2, end + 1)), way
        assert many.balancer.accepted > len(WAYS) * 3


def lead_to(balancer: Balancer, place: int) -> None:
    balancer.first = place


async def until_connected(many: Replicas) -> None:
    """Return once each of the ways that keep a connection has one again."""

    async def connected() -> bool:
        return many.balancer.open_count >= 2

    await until(connected, WATCH_S_MAX)
