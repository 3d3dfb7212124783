"""A sender with its stores on PostgreSQL, and endpoints on loopback that keep what they get."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from outlast.adapters import codec
from outlast.adapters.outbox import PostgresOutbox
from outlast.adapters.owner_events import PostgresOwnerEvents
from outlast.adapters.postgres import Database
from outlast.adapters.signal import PostgresSignal
from outlast.adapters.task_view import PostgresTaskViews
from outlast.adapters.webhooks import PostgresWebhookSubscriptions
from outlast.delivery.events.cursors import Cursors
from outlast.delivery.events.occurrences import Occurrences
from outlast.delivery.feed import Feed
from outlast.delivery.port import EventsRequest
from outlast.delivery.webhook import signing
from outlast.delivery.webhook.challenge import Challenger
from outlast.delivery.webhook.exchange import Limits, WebhookClient
from outlast.delivery.webhook.sender import Sealing, Sender, SenderStores
from outlast.delivery.webhook.signing import ServerKey
from outlast.delivery.webhook.subscriptions import (
    Rules,
    SubscriptionMethods,
    SubscriptionStores,
)
from outlast.delivery.webhook.vault import Vault
from outlast.domain import draft
from outlast.domain.owner import Owner
from outlast.domain.ports import Clock
from outlast.tests.acceptance.waiting import until
from outlast.tests.delivery.posting import served
from outlast.tests.support import databases
from outlast.tests.support.publishing import Publisher, publishing

ALICE, BOB = Owner("tests", "alice", "default").key, Owner("tests", "bob", "default").key
KEY = "a key for tests that is long enough"
PATIENCE_S = 60.0
SECRET = signing.spell_secret(bytes(range(32)))


def now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Posted:
    """One POST as an endpoint saw it."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        return orjson.loads(self.body)

    @property
    def webhook_id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def version(self) -> int:
        return int(self.content["data"]["version"])


Behaviour = Callable[[Posted], "int | Response"]


@dataclass
class Hook:
    """An endpoint: echoes challenges, keeps all else, and answers as `behaves` says."""

    url: str = ""
    behaves: Behaviour = lambda _: 204
    echoes: bool = True
    posted: list[Posted] = field(default_factory=list[Posted])
    may_answer: asyncio.Event | None = None
    challenges: list[Posted] = field(default_factory=list[Posted])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        post = Posted(request.headers, await request.body())
        answer = self._answer(post)
        if self.may_answer is not None and post in self.posted:
            await self.may_answer.wait()
        await answer(scope, receive, send)

    def _answer(self, post: Posted) -> Response:
        if post.content.get("type") == draft.VERIFICATION:
            self.challenges.append(post)
            echo = post.content["challenge"] if self.echoes else "something else"
            return JSONResponse({"challenge": echo})
        self.posted.append(post)
        answer = self.behaves(post)
        return answer if isinstance(answer, Response) else Response(status_code=answer)

    @property
    def events(self) -> list[Posted]:
        return [post for post in self.posted if "type" not in post.content]

    @property
    def envelopes(self) -> list[Any]:
        return [post.content for post in self.posted if "type" in post.content]

    async def until(self, condition: Callable[["Hook"], bool]) -> None:
        async def holds() -> bool:
            return condition(self)

        await until(holds, PATIENCE_S)

    async def got(self, count: int) -> list[Posted]:
        """So many events, once they are there."""
        await self.until(lambda hook: len(hook.events) >= count)
        return self.events


@asynccontextmanager
async def hook(listener: socket.socket | None = None) -> AsyncGenerator[Hook]:
    """An endpoint on a port of its own, or on this one."""
    made = Hook()
    async with served(made, listener) as url:
        made.url = url
        yield made


class World:
    """The stores of one database, and what stands on them in one process."""

    def __init__(self, url: str, database: Database, signal: PostgresSignal) -> None:
        self.url, self.database, self.signal = url, database, signal
        self.outbox = PostgresOutbox(database)
        self.subscriptions = PostgresWebhookSubscriptions(database)
        self.events = PostgresOwnerEvents(database)
        self.cursors = Cursors(KEY, 1)
        self.allowed = {ALICE, BOB}
        self.server_key: ServerKey | None = None
        self.client = WebhookClient(allow_loopback_http=True)

    @property
    def feed(self) -> Feed:
        from outlast.adapters.event_log import PostgresEventLog

        log = PostgresEventLog(self.database)
        return Feed(PostgresTaskViews(self.database), log, codec.wire_of, now)

    async def empties(self) -> None:
        """Begin with nothing, on a database that was used before."""
        await asyncio.to_thread(databases.empty, self.url)

    def sender(self, limits: Limits | None = None, slots: int = 64) -> Sender:
        """A sender of its own, with its own connections to endpoints; not started."""
        return Sender(
            SenderStores(self.outbox, self.subscriptions, Occurrences(self.feed), self.signal),
            WebhookClient(allow_loopback_http=True, limits=limits),
            Sealing(self.cursors, Vault(KEY), self.server_key),
            now,
            self.allowed.__contains__,
            slots,
        )

    def methods(
        self, client: WebhookClient | None = None, clock: Clock = now, **rules: Any
    ) -> SubscriptionMethods:
        return SubscriptionMethods(
            SubscriptionStores(self.subscriptions, self.outbox, self.events, self.feed),
            self.cursors,
            Vault(KEY),
            Challenger(client or self.client, clock, self.server_key),
            Rules(**{"allow_loopback": True, **rules}),
            clock,
        )

    async def subscribe(
        self,
        url: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        name: str = draft.TASK_UPDATED,
        owner: str = ALICE,
        secret: str = SECRET,
        **params: Any,
    ) -> dict[str, Any]:
        return await self.methods().subscribe(
            request(url, arguments, name=name, owner=owner, secret=secret, **params)
        )

    async def nothing_waits(self) -> None:
        async def is_empty() -> bool:
            return await self.outbox.waiting() == 0

        await self.until_true(is_empty)

    async def until_true(self, condition: Callable[[], Awaitable[bool]]) -> None:
        await until(condition, PATIENCE_S)

    @asynccontextmanager
    async def sending(self, **how: Any) -> AsyncGenerator[Sender]:
        sender = self.sender(**how)
        sender.start()
        try:
            yield sender
        finally:
            await sender.drain()


def request(
    url: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    name: str = draft.TASK_UPDATED,
    owner: str = ALICE,
    secret: str = SECRET,
    **params: Any,
) -> EventsRequest:
    delivery = {"mode": "webhook", "url": url, "secret": secret}
    body: dict[str, Any] = {"name": name, "arguments": arguments or {}, "delivery": delivery}
    return EventsRequest(owner, True, 1, {**body, **params})


Made = tuple[World, Publisher]


@asynccontextmanager
async def world(url: str) -> AsyncGenerator[Made]:
    """A world over this database, and who publishes into it."""
    async with AsyncExitStack() as stack:
        database = Database(url)
        await database.open()
        stack.push_async_callback(database.close)
        signal = PostgresSignal(url, database)
        await signal.open()
        stack.push_async_callback(signal.close)
        made = World(url, database, signal)
        stack.push_async_callback(made.client.aclose)
        publisher = stack.enter_context(publishing(url))
        yield made, publisher
        await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop, for what has just been closed
