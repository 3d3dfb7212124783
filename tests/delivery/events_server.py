"""A server of `events/subscribe` and `tasks/get`, as small as can be, and a client of it.

The signer is the one of the `standardwebhooks` package: nothing of ours checks itself here.
"""

import hashlib
import json
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import httpx2
import orjson
import standardwebhooks
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from outlast.adapters.inbox import SqliteInbox
from outlast.delivery.remote import Remote
from outlast.delivery.webhook.keyring import MemoryKeyring
from outlast.delivery.webhook.receiver import Receiver
from outlast.delivery.webhook.source import WebhookSource
from outlast.delivery.webhook.subscriber import Subscribing
from outlast.tests.acceptance.waiting import until
from outlast.tests.delivery.posting import now, served

Json = dict[str, Any]
PATIENCE_S = 60.0


class Refusal(Exception):
    def __init__(self, code: int, **data: Any) -> None:
        super().__init__()
        self.error = {"code": code, "message": "Refused", "data": data}


@dataclass
class EventsServer:
    """Its tasks as the states they went through; its answers as a test wants them."""

    http: httpx2.AsyncClient
    url: str = ""
    token: str | None = None
    tasks: dict[str, list[Json]] = field(default_factory=dict)
    subscriptions: dict[str, Json] = field(default_factory=dict)
    calls: list[tuple[str, Json]] = field(default_factory=list)
    faults: list[Refusal | int] = field(default_factory=list)
    grant: Json = field(default_factory=dict)
    ttl_s: float = 900.0
    cursor: int = 0
    before_answer: Callable[[str], Awaitable[None]] | None = None
    unsubscribe_gate: anyio.Event | None = None

    async def serve(self, request: Request) -> Response:
        if self.token is not None and request.headers.get("authorization") != self.token:
            return Response(status_code=401)
        message = await request.json()
        method, params = message["method"], message["params"]
        self.calls.append((method, params))
        fault = self.faults.pop(0) if self.faults and method.startswith("events/") else None
        if isinstance(fault, int):
            return Response("<html>", status_code=fault)
        envelope = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            if fault is not None:
                raise fault
            return JSONResponse({**envelope, "result": await self._answer(method, params)})
        except Refusal as refusal:
            return JSONResponse({**envelope, "error": refusal.error})

    async def _answer(self, method: str, params: Json) -> Json:
        if method == "events/subscribe":
            return await self._subscribe(params)
        if method == "events/unsubscribe":
            if self.unsubscribe_gate is not None:
                await self.unsubscribe_gate.wait()
            if self.subscriptions.pop(subscription_id(params), None) is None:
                raise Refusal(-32011, kind="subscription")
            return {}
        states = self.tasks.get(params["taskId"])
        if not states:
            raise Refusal(-32602)
        after = params["_meta"].get("dev.outlast/after", {}).get(params["taskId"], 0)
        between = states[after:-1] if after else []
        meta = {"dev.outlast/version": len(states), "dev.outlast/changes": between}
        return {**states[-1], "_meta": meta, "resultType": "complete"}

    async def _subscribe(self, params: Json) -> Json:
        found = subscription_id(params)
        asked = {**params["delivery"], "name": params["name"]}
        nonce = secrets.token_urlsafe(32)
        content = {"type": "verification", "challenge": nonce}
        answer = await self._post(asked, found, f"msg_{nonce}", content)
        if answer.status_code != 200 or answer.json() != {"challenge": nonce}:
            raise Refusal(-32015, reason="challenge_failed")
        self.subscriptions[found] = asked
        if self.before_answer is not None:
            await self.before_answer(found)
        until = datetime.now(UTC) + timedelta(seconds=self.ttl_s)
        return {
            "id": found,
            "refreshBefore": until.isoformat(),
            "cursor": f"g{self.cursor}",
            "truncated": False,
            **self.grant,
        }

    async def _post(self, asked: Json, sub: str, webhook_id: str, content: Json) -> httpx2.Response:
        body, now = json.dumps(content), datetime.now(UTC)
        signature = standardwebhooks.Webhook(asked["secret"]).sign(webhook_id, now, body)
        headers = {
            "content-type": "application/json",
            "webhook-id": webhook_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": signature,
            "X-MCP-Subscription-Id": sub,
        }
        return await self.http.post(asked["url"], content=body, headers=headers)

    async def deliver(self, content: Json, sub: str | None = None) -> int:
        """Post to the one subscription there is, or to this one; the status that came back."""
        sub = sub or next(iter(self.subscriptions))
        webhook_id = content.get("eventId") or f"msg_{secrets.token_hex(8)}"
        answer = await self._post(self.subscriptions[sub], sub, webhook_id, content)
        return answer.status_code

    def advance(self, task_id: str, status: str = "working", **more: Any) -> Json:
        """The task moves on; the event that tells it, not yet delivered."""
        states = self.tasks.setdefault(task_id, [])
        version = len(states) + 1
        stamp = f"2026-11-29T12:00:{version:02d}Z"
        state = {"taskId": task_id, "status": status, "lastUpdatedAt": stamp, **more}
        states.append({**state, "_meta": {"dev.outlast/version": version}})
        self.cursor += 1
        return {
            "eventId": f"evt_{task_id}_{version}",
            "name": "task.updated",
            "timestamp": stamp,
            "data": {**state, "tool": "work", "version": version},
            "cursor": f"c{self.cursor}",
        }

    def count(self, method: str) -> int:
        return len(self.asked(method))

    def asked(self, method: str) -> list[Json]:
        return [params for name, params in self.calls if name == method]

    async def until_called(self, method: str, times: int = 1) -> None:
        async def is_called() -> bool:
            return self.count(method) >= times

        await until(is_called, PATIENCE_S)

    async def until_subscribed(self) -> None:
        async def is_subscribed() -> bool:
            return bool(self.subscriptions)

        await until(is_subscribed, PATIENCE_S)


def subscription_id(params: Json) -> str:
    key = [params["delivery"]["url"], params["name"], params["arguments"]]
    return "sub_" + hashlib.sha256(orjson.dumps(key)).hexdigest()[:16]


@asynccontextmanager
async def events_server() -> AsyncGenerator[EventsServer]:
    async with httpx2.AsyncClient(trust_env=False, verify=False, timeout=PATIENCE_S) as http:
        server = EventsServer(http)
        app = Starlette(routes=[Route("/{path:path}", server.serve, methods=["POST"])])
        async with served(app) as url:
            server.url = url
            yield server


class WatchedKeyring(MemoryKeyring):
    """Shows when a delivery waits for its subscription to become known."""

    def __init__(self) -> None:
        super().__init__()
        self.holds = anyio.Event()

    async def changed(self) -> None:
        self.holds.set()
        await super().changed()


@dataclass
class Client:
    """A source with its receiver on a real socket, and the server that it watches."""

    server: EventsServer
    source: WebhookSource
    inbox: SqliteInbox
    keyring: WatchedKeyring
    shared: Subscribing
    url: str


@asynccontextmanager
async def webhook_client(folder: Path) -> AsyncGenerator[Client]:
    keyring = WatchedKeyring()
    inbox = await SqliteInbox.open(folder / "inbox.db", now)
    receiver = Receiver(inbox, keyring, now)
    async with (
        served(receiver) as url,
        events_server() as server,
        httpx2.AsyncClient(trust_env=False, verify=False, timeout=PATIENCE_S) as http,
    ):
        shared = Subscribing(Remote(server.url, http), keyring, inbox, now)
        yield Client(server, WebhookSource(shared, receiver, url), inbox, keyring, shared, url)
    await inbox.close()
