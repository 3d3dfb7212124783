"""A client that is posted to: its receiving process may die, and another goes on with its inbox."""

import asyncio
import json
import tempfile
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from outlast.adapters.inbox import SqliteInbox
from outlast.delivery.frames import TaskState
from outlast.delivery.remote import Remote
from outlast.delivery.webhook.keyring import MemoryKeyring
from outlast.delivery.webhook.receiver import Receiver
from outlast.delivery.webhook.source import WebhookSource
from outlast.delivery.webhook.subscriber import Subscribing
from outlast.domain import draft, errors
from outlast.tests.contracts.delivery_histories import Receiving, Refusal
from outlast.tests.contracts.delivery_pushing import now
from outlast.tests.contracts.delivery_serving import Served
from outlast.tests.contracts.delivery_wire import Wire

Step = Callable[[], Awaitable[None]]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Stored:
    """One event that the inbox has taken, the cursor that came with it, and whether it was new."""

    version: int
    webhook_id: str
    cursor: str | None
    is_new: bool


@dataclass
class SteppingInbox:
    """The inbox, with a step before and after each of its commits; it keeps what it has taken.

    Each call ends in a task of its own: a process dies here by being cancelled, and its connection
    must not be closed, in the same memory, under a statement that still runs.
    """

    inbox: SqliteInbox
    step: Step
    stored: list[Stored]

    async def store(
        self, subscription_id: str, webhook_id: str, cursor: str | None, body: bytes
    ) -> bool:
        await self.step()
        is_new = await _whole(self.inbox.store(subscription_id, webhook_id, cursor, body))
        version = json.loads(body).get("data", {}).get("version")
        if version is not None:
            self.stored.append(Stored(version, webhook_id, cursor, is_new))
        await self.step()
        return is_new

    async def waiting(self, limit: int) -> Sequence[tuple[int, str, str, bytes]]:
        return await _whole(self.inbox.waiting(limit))

    async def done(self, number: int) -> None:
        await self.step()
        await _whole(self.inbox.done(number))
        await self.step()

    async def cursor_of(self, subscription_id: str) -> str | None:
        return await _whole(self.inbox.cursor_of(subscription_id))


async def _whole(call: Coroutine[Any, Any, Result]) -> Result:
    return await asyncio.shield(asyncio.ensure_future(call))


@dataclass(frozen=True)
class Refusing:
    """The receiver as an endpoint that is not always well."""

    receiver: Receiver
    refusals: Iterator[Refusal | None]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        refusal = next(self.refusals, None)
        if refusal is None:
            await self.receiver(scope, receive, send)
            return
        if refusal.is_stored:
            await self.receiver(scope, receive, _said_to_nobody)
        await send({"type": "http.response.start", "status": refusal.status, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def _said_to_nobody(_message: Any) -> None:
    pass


@dataclass
class Process:
    """One life of the receiving process."""

    source: WebhookSource
    died: asyncio.Event

    async def refuse(self, _request: httpx2.Request) -> None:
        """The dead ask for nothing: they let go of no subscription."""
        if self.died.is_set():
            raise httpx2.ConnectError("the process is gone")


@dataclass
class Station:
    """All that outlasts a process: its place on the network, its inbox file, its bad luck.

    It is a `StatusSource`. A watch goes on in the next process, from the last state that the one
    before has handed on; and where its endpoint did not pass the challenge, it is begun again.
    """

    wire: Wire
    token: Mapping[str, str]
    receiving: Receiving
    folder: Path
    posts: Wire = field(init=False)
    stored: list[Stored] = field(default_factory=list[Stored])
    port: int = 0
    steps: int = 0

    def __post_init__(self) -> None:
        self.posts = Wire(lambda: self.port, self.receiving.faults, leads_to_client=True)
        self._refusals = iter(self.receiving.refusals)

    async def watch(self, task_id: str, after: int = 0) -> AsyncGenerator[TaskState]:
        """See `StatusSource.watch`."""
        has_ended = False
        while not has_ended:
            async with (
                self._process() as process,
                aclosing(_lived(process, task_id, after)) as told,
            ):
                async for state in told:
                    yield state
                    after = state.version or 0
                has_ended = not process.died.is_set()

    @asynccontextmanager
    async def _process(self) -> AsyncGenerator[Process]:
        died = asyncio.Event()

        async def step() -> None:
            self.steps += 1
            if self.steps in self.receiving.crashes:
                died.set()
            if died.is_set():
                await asyncio.get_running_loop().create_future()  # it goes no further

        async with AsyncExitStack() as stack:
            real = await SqliteInbox.open(self.folder / "inbox.db", now)
            stack.push_async_callback(real.close)
            inbox, keyring = SteppingInbox(real, step, self.stored), MemoryKeyring()
            receiver = Receiver(inbox, keyring, now)
            http = httpx2.AsyncClient(trust_env=False, verify=False)
            await stack.enter_async_context(http)
            remote = Remote(self.wire.url, http, self.token)
            source = WebhookSource(
                Subscribing(remote, keyring, inbox, now), receiver, self.posts.hook_url
            )
            process = Process(source, died)
            http.event_hooks = {"request": [process.refuse]}
            served = Served(Refusing(receiver, self._refusals))
            await served.start()
            stack.push_async_callback(served.end)
            self.port = served.port
            yield process


async def _lived(process: Process, task_id: str, after: int) -> AsyncGenerator[TaskState]:
    """What a watch tells until it ends, or its process does."""
    states = process.source.watch(task_id, after)
    dying = asyncio.ensure_future(process.died.wait())
    coming = asyncio.ensure_future(_next(states))
    try:
        while True:
            await asyncio.wait({coming, dying}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                return
            try:
                state = coming.result()
            except errors.RequestRefused as refused:
                if refused.code != draft.CALLBACK_ENDPOINT:
                    raise
                states = process.source.watch(task_id, after)
            else:
                if state is None:
                    return
                yield state
                after = state.version or 0
            coming = asyncio.ensure_future(_next(states))
    finally:
        for task in (dying, coming):
            task.cancel()
        await asyncio.gather(dying, coming, return_exceptions=True)
        await states.aclose()


async def _next(states: AsyncGenerator[TaskState]) -> TaskState | None:
    return await anext(states, None)


@asynccontextmanager
async def station(
    wire: Wire, token: Mapping[str, str], receiving: Receiving
) -> AsyncGenerator[Station]:
    """Where posts arrive as long as it is open, whether a process is there or not."""
    with tempfile.TemporaryDirectory() as folder:
        made = Station(wire, token, receiving, Path(folder))
        async with made.posts.open():
            yield made
