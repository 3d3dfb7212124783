"""A sender of signed deliveries, as small as can be, and a receiver served for it."""

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import anyio
import httpx2
import orjson
import uvicorn

from outlast.delivery.webhook import signing
from outlast.service.hosting import HttpServer

START_S_MAX = 30.0


def now() -> datetime:
    return datetime.now(UTC)


def event(number: int, cursor: str | None = "c", **more: Any) -> dict[str, Any]:
    return {
        "eventId": f"evt_{number}",
        "name": "task.finished",
        "timestamp": "2026-11-29T12:00:00Z",
        "data": {"taskId": "t1"},
        "cursor": cursor,
        **more,
    }


def signed(
    secret: bytes, subscription_id: str, webhook_id: str, body: bytes, age_s: int = 0
) -> dict[str, str]:
    stamp = int(now().timestamp()) - age_s
    return {
        "content-type": "application/json",
        "webhook-id": webhook_id,
        "webhook-timestamp": str(stamp),
        "webhook-signature": signing.sign([secret], webhook_id, stamp, body),
        "X-MCP-Subscription-Id": subscription_id,
    }


class Sender:
    """Posts to one receiver."""

    def __init__(self, client: httpx2.AsyncClient, url: str, secret: bytes) -> None:
        self.client, self.url, self.secret = client, url, secret

    async def __call__(
        self,
        content: Any,
        webhook_id: str = "evt_1",
        subscription_id: str = "sub_1",
        secret: bytes | None = None,
        age_s: int = 0,
    ) -> httpx2.Response:
        body = content if isinstance(content, bytes) else orjson.dumps(content)
        headers = signed(secret or self.secret, subscription_id, webhook_id, body, age_s)
        return await self.client.post(self.url, content=body, headers=headers)


@asynccontextmanager
async def served(app: Any, listener: socket.socket | None = None) -> AsyncGenerator[str]:
    """The URL of an ASGI app that real sockets reach."""
    listener = listener or bound()
    config = uvicorn.Config(app, log_level="critical", ws="none", timeout_graceful_shutdown=1)
    server = HttpServer(config)
    async with anyio.create_task_group() as group:
        group.start_soon(server.serve, [listener])
        with anyio.fail_after(START_S_MAX):
            # The server tells nobody that it is ready: look again.
            while not server.started:  # noqa: ASYNC110 - see above
                await anyio.sleep(0.01)  # noqa: TID251 - see above
        try:
            yield url_of(listener)
        finally:
            server.should_exit = True
    listener.close()


def bound() -> socket.socket:
    """A socket on a port of its own, on which nobody listens yet."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    return listener


def url_of(listener: socket.socket) -> str:
    """Where what is served there is reached."""
    return f"http://127.0.0.1:{listener.getsockname()[1]}/hooks/c1"
