"""Two servers on one database behind one address, and clients that hear of tasks in five ways."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import psycopg

from outlast.domain.clienting import Journal
from outlast.service.client import Handlers, TaskClient, TaskHandle
from outlast.service.client.client import Via
from outlast.tests.support.balancer import Balancer, balancing
from outlast.tests.support.serving import Serving, command_of, serving

PATIENCE_S = 60.0
VIAS: tuple[Via, ...] = ("polling", "listen", "websocket", "webhook", "auto")
UPSTREAM = Path(__file__).with_name("scenario_server.py")

Json = dict[str, Any]


def config() -> str:
    return (
        '[defaults]\nrun = "task"\npoll_interval = "50ms"\nttl = "10m"\n'
        f"[upstreams.scenarios]\ncommand = {command_of(UPSTREAM)}\n"
        '[tools.ask_before]\nask = "before"\n[tools.ask_direct]\nrun = "direct"\n'
        "[events]\ndevelopment = true\n"
    )


@dataclass
class World:
    """`url` leads to the first server that is there; `ports` may be changed meanwhile."""

    folder: Path
    database_url: str
    ports: list[int] = field(default_factory=list[int])
    balancer: Balancer = field(init=False)

    @property
    def url(self) -> str:
        return f"{self.balancer.base_url}/mcp"

    @asynccontextmanager
    async def server(self, *flags: str) -> AsyncGenerator[Serving]:
        """One more server, last in line while it runs."""
        async with serving(self.folder, config(), self.database_url, flags) as server:
            port = int(server.base_url.rpartition(":")[2])
            self.ports.append(port)
            try:
                yield server
            finally:
                self.ports.remove(port)

    def expire(self, task_id: str) -> None:
        """Let the time of a task that has ended be over."""
        with psycopg.connect(self.database_url) as connection:
            connection.execute(
                "UPDATE outlast.task_view SET expires_at = now() - interval '1 day' "
                "WHERE task_id = %s",
                [task_id],
            )


@asynccontextmanager
async def world(folder: Path, database_url: str) -> AsyncGenerator[World]:
    """An address with no server behind it yet."""
    made = World(folder, database_url)
    async with balancing(made.ports) as made.balancer:
        yield made


class Person:
    """Somebody who answers, and remembers what was asked."""

    def __init__(self, answer: Callable[[str], Json] | None = None) -> None:
        self.asked: list[str] = []
        self._answer = answer or (lambda message: {"name": message.lower()})

    async def __call__(self, request: Mapping[str, Any]) -> Json:
        message = request["params"]["message"]
        self.asked.append(message)
        return {"action": "accept", "content": self._answer(message)}


@asynccontextmanager
async def client_of(
    url: str,
    via: Via = "polling",
    person: Any = None,
    journal: Path | Journal | None = None,
) -> AsyncGenerator[TaskClient]:
    handlers = Handlers(by_hand=True) if person is None else Handlers(any=person)
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(
            TaskClient.connect(url, via=via, journal=journal, input=handlers)
        )


async def called(client: TaskClient, tool: str, **arguments: Any) -> TaskHandle:
    with anyio.fail_after(PATIENCE_S):
        outcome = await client.call_tool(tool, arguments)
    assert isinstance(outcome, TaskHandle), outcome
    return outcome


async def text_of(handle: TaskHandle) -> str:
    result = await handle.result(PATIENCE_S)
    [block] = result["content"]
    return block["text"]
