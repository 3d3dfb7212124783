"""The shipped nginx.conf in front of two servers and two workers on one database."""

import asyncio
import signal
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

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
from outlast.tests.support.deploying import nginx_command, nginx_conf, proxied
from outlast.tests.support.listening import accepting
from outlast.tests.support.mcp import RawClient, envelope, http_client
from outlast.tests.support.ports import free_port
from outlast.tests.support.streams import AFTER, VERSION

pytestmark = pytest.mark.anyio

READY_S_MAX = 60.0
STOP_S_MAX = 30.0
WATCH_S_MAX = 60.0
FRAME_S_MAX = 60.0
GETS_AFTER = 40
BODY_BYTES_MAX = 4 * 1024 * 1024
Source = Callable[[Remote, str], StatusSource]

WAYS: dict[str, Source] = {
    "poll": lambda remote, _: PollingSource(remote),
    "listen": lambda remote, _: ListenSource(remote),
    "websocket": WebSocketSource,
}
PUSHING = ("listen", "websocket")


@dataclass(frozen=True)
class Site:
    """What clients see is `url`; `servers` are behind it, by their ports. `log` is nginx's."""

    url: str
    servers: dict[int, Node]
    http: httpx2.AsyncClient
    log: Path

    @property
    def client(self) -> RawClient:
        return RawClient(f"{self.url}/mcp", self.http)

    def source(self, way: str) -> StatusSource:
        remote = Remote(f"{self.url}/mcp", self.http)
        return WAYS[way](remote, f"{self.url.replace('http', 'ws', 1)}/ws")

    async def until_ready(self, port: int) -> None:
        node = self.servers[port]

        async def ready() -> bool:
            assert node.is_running, node.log.read_text()
            try:
                return (await self.http.get(f"http://127.0.0.1:{port}/readyz")).is_success
            except httpx2.TransportError:
                return False

        await until(ready, READY_S_MAX)

    async def until_used(self, port: int) -> None:
        """Return once nginx sends requests there: what had failed is left in peace for 2 s."""
        before = self.log.stat().st_size

        async def used() -> bool:
            await self.client.request("server/discover")
            return f" 127.0.0.1:{port} 200\n" in self.log.read_text()[before:]

        await until(used, READY_S_MAX)

    async def task(self, task_id: str) -> dict[str, Any]:
        """What tasks/get says."""
        return await self._told("tasks/get", {"taskId": task_id}, meta={AFTER: {}})

    async def answer(self, task_id: str) -> None:
        """Sign."""
        [key] = (await self.task(task_id))["inputRequests"]
        answers = {key: {"action": "accept", "content": {"name": "Ada"}}}
        await self._told("tasks/update", {"taskId": task_id, "inputResponses": answers})

    async def _told(self, method: str, params: dict[str, Any], **more: Any) -> dict[str, Any]:
        """The answer; asked for once more if the first request did not reach anybody."""
        told: list[str] = []
        for _ in range(2):
            try:
                reply = await self.client.request(method, params, **more)
            except httpx2.TransportError as error:
                told.append(repr(error))
                continue
            if reply.status == httpx2.codes.OK:
                return reply.result
            told.append(f"{reply.status} {reply.content[:200]!r}")
        raise AssertionError(f"failed twice in a row: {told}")


@pytest.fixture(scope="module")
async def site(
    nginx: Path, module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    """All of it, started."""
    folder, prefix = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("prefix")
    config = folder / "outlast.toml"
    config.write_text(desk_config("drain_s = 5"))
    env = {"OUTLAST_DATABASE_URL": module_database_url}
    servers = {}
    for port in (free_port(), free_port()):
        arguments = ["serve", "--no-work", "--config", str(config), "--port", str(port)]
        servers[port] = Node(folder, f"serve-{port}", arguments, env)
    workers = [
        Node(folder, name, ["worker", "--config", str(config)], env) for name in ("one", "two")
    ]
    nodes = [*servers.values(), *workers]
    try:
        for node in nodes:
            node.start()
        async with http_client() as http:
            for port in servers:
                await Site("", servers, http, Path()).until_ready(port)
            for worker in workers:
                await worker.until_said("outlast worker: waiting", READY_S_MAX)
            async with proxied(nginx, prefix, list(servers)) as url:
                yield Site(url, servers, http, prefix / "nginx.log")
        for node in nodes:
            node.send(signal.SIGTERM)
        for node in nodes:
            assert await node.until_ended(STOP_S_MAX) == 0, node.log.read_text()
    finally:
        for node in nodes:
            await node.make_gone()


def test_nginx_accepts_the_file_and_would_refuse_a_broken_one(nginx: Path, tmp_path: Path):
    conf = nginx_conf(free_port(), [1, 2])
    broken = conf.replace("proxy_buffering off;", "proxy_bufering off;")
    for text, status in ((conf, 0), (broken, 1)):
        command = [*nginx_command(nginx, tmp_path, text), "-t"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        assert "[warn]" not in done.stderr


@pytest.mark.promise("proxy-passes-frames-at-once")
@pytest.mark.parametrize("way", PUSHING)
async def test_a_frame_passes_before_its_stream_ends(site: Site, way: str, tmp_path: Path):
    task_id = await site.client.opened("hold_task", {"marker": str(tmp_path / "marker")})
    watch = cast(AsyncGenerator[TaskState], site.source(way).watch(task_id))
    async with aclosing(watch) as told:
        with anyio.fail_after(FRAME_S_MAX):
            while (await anext(told)).task.get("statusMessage") != "holding":
                pass
        # The tool never ends by itself: what was told was told while the stream was open.
        assert (await site.task(task_id))["status"] == "working"
        await site.client.request("tasks/cancel", {"taskId": task_id})
        with anyio.fail_after(FRAME_S_MAX):
            *_, last = [state async for state in told]
    assert last.task["status"] == "cancelled"


@pytest.mark.promise("proxy-passes-frames-at-once")
async def test_the_proxy_holds_nothing_back_also_where_no_header_asks_for_that(
    nginx: Path, tmp_path: Path
):
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        writer.write(head + b"data: first\n\n")
        await writer.drain()
        if b"/events" in request:
            await over.wait()

    async with accepting(serve) as port:
        try:
            async with proxied(nginx, tmp_path, [port, port]) as url, http_client() as http:
                with anyio.fail_after(FRAME_S_MAX):
                    async with http.stream("GET", f"{url}/events") as reply:
                        assert await anext(reply.aiter_lines()) == "data: first"
        finally:
            over.set()


async def test_a_client_with_a_handshake_stays_with_the_replica_of_its_session(site: Site):
    headers = {"accept": "application/json, text/event-stream"}
    version = "2025-11-25"
    params = {
        "protocolVersion": version,
        "capabilities": {},
        "clientInfo": {"name": "tests", "version": "1"},
    }
    begin = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    begun = await site.http.post(f"{site.url}/mcp", json=begin, headers=headers)
    assert begun.is_success, begun.text
    headers |= {
        "mcp-session-id": begun.headers["mcp-session-id"],
        "mcp-protocol-version": version,
    }
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (await site.http.post(f"{site.url}/mcp", json=ready, headers=headers)).is_success
    for number in range(1, 13):
        ping = {"jsonrpc": "2.0", "id": number, "method": "ping"}
        reply = await site.http.post(f"{site.url}/mcp", json=ping, headers=headers)
        assert reply.is_success, reply.text
    await site.http.delete(f"{site.url}/mcp", headers=headers)


async def test_what_is_too_large_or_of_one_replica_alone_ends_at_the_proxy(site: Site):
    headers = {"content-type": "application/json"}
    large = await site.http.post(
        f"{site.url}/mcp", content=b" " * (BODY_BYTES_MAX + 1), headers=headers
    )
    assert large.status_code == httpx2.codes.CONTENT_TOO_LARGE
    assert (await site.http.get(f"{site.url}/metrics")).status_code == httpx2.codes.NOT_FOUND


async def test_a_call_that_passes_as_a_read_is_refused_and_so_never_made_twice(
    site: Site, tmp_path: Path
):
    params = {"name": "note_direct", "arguments": {"path": str(tmp_path / "notes")}}
    body = envelope("tools/call", params)
    reply = await site.client.send(body, mcp_method="tasks/get", mcp_name="note_direct")
    assert reply.status == httpx2.codes.BAD_REQUEST
    assert not (tmp_path / "notes").exists()


@pytest.mark.promise("proxied-clients-outlive-a-replica")
@pytest.mark.parametrize(
    ("place", "number"), [(0, signal.SIGKILL), (1, signal.SIGTERM)], ids=["killed", "draining"]
)
async def test_clients_go_on_when_a_replica_leaves(site: Site, place: int, number: signal.Signals):
    port = list(site.servers)[place]
    node = site.servers[port]
    tasks = {way: await site.client.opened("sign_task_during", {"document": way}) for way in WAYS}
    told: dict[str, list[TaskState]] = {way: [] for way in WAYS}
    watches = [
        asyncio.create_task(follow(site.source(way), task_id, told[way]))
        for way, task_id in tasks.items()
    ]
    await until_asked(told)
    node.send(number)
    try:
        for _ in range(GETS_AFTER):
            for task_id in tasks.values():
                assert (await site.task(task_id))["status"] == "input_required"
        for task_id in tasks.values():
            await site.answer(task_id)
        await asyncio.gather(*watches)
        status = await node.until_ended(STOP_S_MAX)
        assert status == (-signal.SIGKILL if number == signal.SIGKILL else 0)
    finally:
        await node.make_gone()
        node.start()
        await site.until_ready(port)
        await site.until_used(port)
    for way, task_id in tasks.items():
        end = (await site.task(task_id))["_meta"][VERSION]
        assert [state.version for state in told[way]] == list(range(2, end + 1))
        assert told[way][-1].task["result"]["content"][0]["text"] == f"{way} signed by Ada"


async def follow(source: StatusSource, task_id: str, told: list[TaskState]) -> None:
    """Every state until the end."""
    with anyio.fail_after(WATCH_S_MAX):
        async for state in source.watch(task_id, 1):
            told.append(state)  # noqa: PERF401 - what was told so far is read meanwhile


async def until_asked(told: dict[str, list[TaskState]]) -> None:
    """Return once each watch has told of the question: each has been connected, then."""

    async def asked() -> bool:
        return all(
            states and states[-1].task["status"] == "input_required" for states in told.values()
        )

    await until(asked, WATCH_S_MAX)
