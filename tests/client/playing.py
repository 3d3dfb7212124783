"""A server that answers as a test says, and sources that tell what a test gives them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import anyio

from outlast.adapters.journal import MemoryJournal
from outlast.delivery.frames import TaskState
from outlast.delivery.polling import PollingSource
from outlast.domain import clienting, errors
from outlast.domain.clienting import Journal, StatusSource
from outlast.service.client import Handlers, TaskClient, TaskHandle
from outlast.service.client.reach import Reach

Json = dict[str, Any]
CREATED = "2026-01-01T00:00:00Z"
LOST = errors.ConnectionLost("cut")
SOON_S = 20.0  # for what comes at once, or not at all
OUTLAST = {"_meta": {"io.modelcontextprotocol/serverInfo": {"name": "outlast"}}}


def task(status: str = "working", at: str = CREATED, **more: Any) -> Json:
    """A DetailedTask, polled without a pause worth the name."""
    base: Json = {"taskId": "t", "status": status, "createdAt": CREATED, "lastUpdatedAt": at}
    return {**base, "ttlMs": None, "pollIntervalMs": 1, **more}


def completed(text: str = "done", **more: Any) -> Json:
    content = {"content": [{"type": "text", "text": text}]}
    return task("completed", "2026-01-01T01:00:00Z", result=content, **more)


class Play:
    """`ToolServer`. Each request takes the next answer of its method's list; the last one stays.

    An answer is a result, an error to raise, or a function of the parameters that gives either.
    """

    def __init__(self, **answers: list[Any]) -> None:
        self.answers = {name.replace("_", "/"): list(given) for name, given in answers.items()}
        self.heard: list[tuple[str, Json]] = []

    def params_of(self, method: str) -> list[Json]:
        return [params for name, params in self.heard if name == method]

    async def call(self, params: Mapping[str, Any]) -> Json:
        return await self.request("tools/call", params)

    async def request(self, method: str, params: Mapping[str, Any]) -> Json:
        await asyncio.sleep(0)  # noqa: TID251 - a turn, no time
        self.heard.append((method, dict(params)))
        given = self.answers.get(method, [{}])
        answer = given.pop(0) if len(given) > 1 else given[0]
        if isinstance(answer, Callable):
            answer = answer(params)
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Told:
    """`StatusSource` by a script: a state, an error to raise, an event to wait for first."""

    def __init__(self, *scripts: list[Any]) -> None:
        self.scripts = list(scripts)
        self.begun: list[int] = []
        self.open_now = 0

    async def watch(self, task_id: str, after: int = 0) -> AsyncGenerator[TaskState]:
        self.begun.append(after)
        self.open_now += 1
        try:
            script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
            for item in script:
                if isinstance(item, asyncio.Event):
                    await item.wait()
                elif isinstance(item, BaseException):
                    raise item
                else:
                    yield item
        finally:
            self.open_now -= 1


def state(status: str, version: int | None = None, **more: Any) -> TaskState:
    return TaskState(completed(**more) if status == "completed" else task(status, **more), version)


def asking(*keys: str, **more: Any) -> dict[str, Any]:
    requests = {
        key: {"method": "elicitation/create", "params": {"message": key, **more}} for key in keys
    }
    return task("input_required", inputRequests=requests)


def asks(*keys: str, version: int = 1) -> TaskState:
    """The state of a task that asks these."""
    return TaskState(asking(*keys), version)


class Stalls:
    """A handler that shows a question to somebody who never answers."""

    def __init__(self) -> None:
        self.shown, self.left = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Mapping[str, Any]) -> Any:
        self.shown.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.left.set()


async def all_of(handle: TaskHandle) -> list[clienting.TaskState]:
    """Every state until the end."""
    async with aclosing(handle.updates()) as states:
        return [told async for told in states]


@asynccontextmanager
async def playing(
    server: Play,
    handlers: Handlers | None = None,
    journal: Journal | None = None,
    source: StatusSource | None = None,
) -> AsyncGenerator[TaskClient]:
    """A client of the play."""
    reach = Reach(
        "http://play/mcp",
        "anonymous",
        server,
        source or PollingSource(server),
        journal or MemoryJournal(),
        lambda: datetime.now(UTC),
    )
    client = TaskClient(reach, handlers or Handlers())
    try:
        yield client
    finally:
        await client.close()
