"""Each way of delivery as an observer that sees what its client sees, and nothing else."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import orjson
from websockets.asyncio.client import connect

from outlast.delivery.frames import LISTEN
from outlast.delivery.listen import ListenSource, listen_params
from outlast.delivery.polling import PollingSource
from outlast.delivery.remote import Remote
from outlast.delivery.source import StatusSource
from outlast.delivery.websocket import WebSocketSource
from outlast.domain.clienting import TaskState
from outlast.tests.contracts.delivery_histories import Fault, Receiving
from outlast.tests.contracts.delivery_receiving import Station, station
from outlast.tests.contracts.delivery_wire import Wire
from outlast.tests.contracts.delivery_world import World

Json = dict[str, Any]


@dataclass(frozen=True)
class Client:
    """One client of one owner, on a wire of its own."""

    wire: Wire
    remote: Remote
    station: Station

    @property
    def wires(self) -> tuple[Wire, Wire]:
        """What it asks on, and what it is posted to on."""
        return self.wire, self.station.posts

    def listen_request(self, *task_ids: str) -> Json:
        return self.remote.message(LISTEN, listen_params(dict.fromkeys(task_ids, 0)))

    def socket(self) -> connect:
        return connect(
            self.wire.socket_url, additional_headers=dict(self.remote.headers), proxy=None
        )

    async def frames(self, way: "Way", *task_ids: str) -> AsyncGenerator[Json]:
        """Every message of one listen request, until its answer or the end of its connection."""
        request = self.listen_request(*task_ids)
        async with aclosing(way.messages(self, request)) as messages:
            async for message in messages:
                yield message

    async def all_frames(self, way: "Way", *task_ids: str) -> list[Json]:
        return [message async for message in self.frames(way, *task_ids)]


@asynccontextmanager
async def client(
    world: World,
    owner: int,
    faults: Iterable[Fault] = (),
    *,
    is_narrow: bool = False,
    receiving: Receiving | None = None,
) -> AsyncGenerator[Client]:
    """Connected through a wire that suffers these faults, one a connection."""
    headers = {"Authorization": f"Bearer {owner}"}
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        wire = await enter(Wire(world.port, faults, is_narrow=is_narrow).open())
        http = await enter(httpx2.AsyncClient(trust_env=False, verify=False))
        posted = await enter(station(wire, headers, receiving or Receiving()))
        yield Client(wire, Remote(wire.url, http, headers), posted)


@dataclass
class Observer:
    """Watches one task from one version, and keeps what it is told."""

    source: StatusSource
    task_id: str
    after: int
    news: asyncio.Event
    seen: list[TaskState] = field(default_factory=list[TaskState])
    has_ended: bool = False

    async def watch(self) -> None:
        """Until the watch ends."""
        async with aclosing(self.source.watch(self.task_id, self.after)) as states:
            async for state in states:
                self.seen.append(state)
                self.news.set()
        self.has_ended = True
        self.news.set()

    @property
    def versions(self) -> list[int]:
        return [state.version or 0 for state in self.seen]


async def _streamed(client: Client, request: Json) -> AsyncGenerator[Json]:
    remote = client.remote
    headers = {
        **remote.headers,
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": LISTEN,
    }
    async with remote.client.stream(
        "POST", remote.url, content=orjson.dumps(request), headers=headers
    ) as answer:
        if answer.headers["content-type"] == "application/json":
            yield orjson.loads(await answer.aread())
            return
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                yield orjson.loads(line[len("data: ") :])


async def _socketed(client: Client, request: Json) -> AsyncGenerator[Json]:
    async with client.socket() as socket:
        await socket.send(orjson.dumps(request).decode())
        async for text in socket:
            message = orjson.loads(text)
            yield message
            if "method" not in message:
                return


@dataclass(frozen=True)
class Way:
    """One implementation: its client half, and its messages as they come."""

    name: str
    source: Callable[[Client], StatusSource]
    messages: Callable[[Client, Json], AsyncGenerator[Json]]


async def _none(client: Client, request: Json) -> AsyncGenerator[Json]:
    raise NotImplementedError("this way has no frames")
    yield {}


LISTEN_WAY = Way("listen", lambda client: ListenSource(client.remote), _streamed)
WEBSOCKET_WAY = Way(
    "websocket",
    lambda client: WebSocketSource(client.remote, client.wire.socket_url),
    _socketed,
)
POLLING_WAY = Way("polling", lambda client: PollingSource(client.remote), _none)
WEBHOOK_WAY = Way("webhook", lambda client: client.station, _none)

WAYS = (POLLING_WAY, LISTEN_WAY, WEBSOCKET_WAY)  # of the store in memory, which has no outbox
ALL_WAYS = (*WAYS, WEBHOOK_WAY)
PUSHED = (LISTEN_WAY, WEBSOCKET_WAY)


async def watched_through(
    way: Way, world: World, owner: int, task_id: str, after: int = 0
) -> Observer:
    """Watch to the end on a sound wire."""
    async with client(world, owner) as ours:
        observer = Observer(way.source(ours), task_id, after, asyncio.Event())
        await observer.watch()
    return observer
