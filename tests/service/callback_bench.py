"""A store, the callback endpoint on a socket, and jobs that sign with somebody else's library."""

import json
import secrets
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import httpx2
import uvicorn
from standardwebhooks import Webhook
from starlette.applications import Starlette
from starlette.routing import Route

from outlast.delivery.webhook import signing
from outlast.domain import decisions, errors
from outlast.domain.decisions import Events
from outlast.domain.ports import CallNews, Returned, RunningCall, Tool, ToolCall
from outlast.domain.task import Task, fold
from outlast.service.callbacks import PATH, Callbacks, Tickets
from outlast.service.commands import Commands
from outlast.service.hosting import HttpServer
from outlast.service.legs import PENDING_KEY
from outlast.service.retention import Retention
from outlast.service.workbench import Workbench
from outlast.service.worker import Stores, Worker
from outlast.tests.contracts.stores import Ports
from outlast.tests.domain.given import OPENED, RESULT, Wish

KEY = "a server key"
PENDING: dict[str, Any] = {"content": [], "_meta": {PENDING_KEY: True}}
SCHEMA = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}


class Clock:
    """The service's clock, which a test sets forward, and may stop."""

    def __init__(self) -> None:
        self.ahead = timedelta()
        self.stopped_at: datetime | None = None

    def __call__(self) -> datetime:
        return (self.stopped_at or datetime.now(UTC)) + self.ahead

    def stop(self) -> None:
        """From now on nobody sets it forward but the test."""
        self.stopped_at = datetime.now(UTC)


class Scripted(RunningCall):
    """A call that says this and no more."""

    def __init__(self, *told: CallNews) -> None:
        self._told = told

    async def news(self) -> AsyncIterator[CallNews]:
        for item in self._told:
            yield item

    async def cancel(self) -> None:
        """Nothing runs."""


class Upstream:
    """One upstream of one tool, `ci.run_ci_pipeline`. Its calls return at once."""

    def __init__(self) -> None:
        self.output_schema: dict[str, Any] | None = None
        self.is_away, self.is_listed = False, True
        self.result: Mapping[str, Any] = PENDING
        self.told_first: tuple[CallNews, ...] = ()
        self.calls: list[ToolCall] = []

    async def tools(self) -> Sequence[Tool]:
        if self.is_away:
            # One of several that is away is left out.
            return [Tool("other", "other", "other", {})]
        schema = {} if self.output_schema is None else {"outputSchema": self.output_schema}
        tool = Tool("ci_run", OPENED.upstream, OPENED.tool, schema)
        return [tool] if self.is_listed else []

    async def ready(self, upstream: str, capabilities: Mapping[str, Any] | None = None) -> None:
        if self.is_away:
            raise errors.UpstreamUnavailable(upstream, "it is away")

    async def call(self, call: ToolCall) -> RunningCall:
        self.calls.append(call)
        return Scripted(*self.told_first, Returned(self.result))

    async def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True)
class Job:
    """A job elsewhere: it knows the URL, the secret and how to sign."""

    url: str
    secret: str
    http: httpx2.AsyncClient

    async def posts(
        self, body: Any, callback_id: str | None = None, **headers: str
    ) -> httpx2.Response:
        """Send one callback; the answer. `headers` come over those that are right."""
        text = body if isinstance(body, str) else json.dumps(body)
        given = self.signed(text, callback_id or f"evt_{secrets.token_hex(8)}")
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(self.url, content=text.encode(), headers=given | named)

    def signed(self, text: str, callback_id: str, at: datetime | None = None) -> dict[str, str]:
        at = at or datetime.now(UTC)
        return {
            "content-type": "application/json",
            "webhook-id": callback_id,
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": Webhook(self.secret).sign(callback_id, at, text),
        }

    async def progresses(self, amount: float, callback_id: str | None = None) -> httpx2.Response:
        return await self.posts({"type": "progress", "progress": amount}, callback_id)

    async def completes(
        self, result: Mapping[str, Any] = RESULT, callback_id: str | None = None
    ) -> httpx2.Response:
        return await self.posts({"type": "completed", "result": result}, callback_id)


@dataclass(frozen=True)
class Bench:
    """One process's part of the service."""

    ports: Ports
    commands: Commands
    clock: Clock
    upstream: Upstream
    tickets: Tickets
    http: httpx2.AsyncClient

    async def queued(self, **changes: Any) -> Task:
        """A task that waits for a worker."""
        return await self.commands.open(self._opening(**changes))

    async def opened(self, *wishes: Wish, **changes: Any) -> Task:
        """A task in its first attempt, and after these wishes. No worker can be there before."""
        events = self._opening(**changes)
        for wish in (starts(self.clock), *wishes):
            task = fold(events)
            assert task is not None
            events = (*events, *wish(task))
        return await self.commands.open(events)

    def _opening(self, **changes: Any) -> Events:
        task_id, at = secrets.token_urlsafe(32), decisions.instant(self.clock())
        return decisions.open_task(replace(OPENED, task_id=task_id, at=at, **changes))

    async def delegated(self, **changes: Any) -> tuple[Task, Job]:
        """A task whose job runs elsewhere, and the job."""
        task = await self.opened(delegates(self.clock), **changes)
        return task, self.job(task)

    def job(self, task: Task) -> Job:
        """The job that this attempt may have started."""
        offered = self.tickets.offer(task)
        assert offered is not None
        return Job(offered["url"], offered["secret"], self.http)

    async def load(self, task: Task) -> Task:
        return await self.commands.load(task.id)


def starts(clock: Clock, worker: str = "worker-a") -> Wish:
    return lambda task: decisions.start_work(task, worker, clock())


def delegates(clock: Clock, until: datetime | None = None) -> Wish:
    return lambda task: decisions.delegate(task, task.attempt, until, clock())


def loses(clock: Clock) -> Wish:
    return lambda task: decisions.lose_work(task, task.attempt, "gone", clock())


def is_signed(secret: bytes, headers: Mapping[str, str], body: bytes) -> bool:
    try:
        signing.verify([secret], headers, body, datetime.now(UTC))
    except signing.SignatureRefused:
        return False
    return True


@asynccontextmanager
async def working(
    bench: Bench, name: str, *, slots: int = 1, offers: bool = True
) -> AsyncGenerator[Worker]:
    """A worker of this name that claims, and is shut down at the end."""
    own = Workbench(bench.commands, bench.upstream, bench.ports.signal)
    if offers:
        own = replace(own, offer=bench.tickets.offer)
    retention = Retention(bench.commands, bench.ports.views, bench.ports.past, timedelta(days=30))
    stores = Stores(bench.ports.dispatcher, retention)
    worker = Worker(name, own, stores, slots=slots)
    worker.start()
    try:
        yield worker
    finally:
        await worker.drain(0.0)


@asynccontextmanager
async def bench_on(ports: Ports) -> AsyncGenerator[Bench]:
    """The endpoint over this store, on a free port of loopback."""
    clock, upstream = Clock(), Upstream()
    commands = Commands(ports.log, clock)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        base = f"http://127.0.0.1:{listener.getsockname()[1]}"
        tickets = Tickets(KEY, base)
        callbacks = Callbacks(tickets, commands, upstream, is_signed)
        async with (
            serving(callbacks.post, listener),
            httpx2.AsyncClient(trust_env=False, timeout=30.0) as http,
        ):
            yield Bench(ports, commands, clock, upstream, tickets, http)


def app_of(post: Callable[..., Any]) -> Starlette:
    return Starlette(routes=[Route(PATH, post, methods=["POST"])])


@asynccontextmanager
async def serving(post: Callable[..., Any], listener: socket.socket) -> AsyncGenerator[None]:
    config = uvicorn.Config(app_of(post), log_level="warning", lifespan="off", ws="none")
    server = HttpServer(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listener])
        try:
            yield
        finally:
            server.should_exit = True
