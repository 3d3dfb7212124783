"""What stands between a client and its server: forwards, and now and then says something itself."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2
import uvicorn

from outlast.service.hosting import HttpServer
from outlast.tests.client_cli.terminal import PATIENCE_S
from outlast.tests.support.ports import free_port

Json = dict[str, Any]
Answer = tuple[int, str, bytes]  # status, content type, body


def of_json(status: int, body: Any) -> Answer:
    return status, "application/json", json.dumps(body).encode()


@dataclass
class Gateway:
    """In front of the server at `behind`, if there is one.

    `replaced` may give another answer to a request that was answered, or would be.
    """

    replaced: Callable[[Json], Answer | None]
    behind: str | None = None
    url: str = ""
    heard: list[str] = field(default_factory=list[str])

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, is_whole = b"", False
        while not is_whole:
            message = await receive()
            body += message.get("body", b"")
            is_whole = not message.get("more_body")
        request = json.loads(body)
        self.heard.append(request["method"])
        own = (404, "text/plain", b"nobody is here")
        if self.behind is not None:
            own = await self._forwarded(self.behind, scope["headers"], body)
        # Replaced only now: the request did arrive.
        status, kind, reply = self.replaced(request) or own
        headers = [(b"content-type", kind.encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": reply})

    @staticmethod
    async def _forwarded(behind: str, headers: list[tuple[bytes, bytes]], body: bytes) -> Answer:
        kept = [
            (name, value) for name, value in headers if name not in {b"host", b"content-length"}
        ]
        async with httpx2.AsyncClient(timeout=PATIENCE_S) as http:
            answer = await http.post(behind, content=body, headers=kept)
        return answer.status_code, answer.headers.get("content-type", ""), answer.content


@asynccontextmanager
async def gateway(
    replaced: Callable[[Json], Answer | None], behind: str | None = None
) -> AsyncGenerator[Gateway]:
    """Serve it meanwhile."""
    port = free_port()
    made = Gateway(replaced, behind, f"http://127.0.0.1:{port}/mcp")
    config = uvicorn.Config(
        made, "127.0.0.1", port, lifespan="off", log_config=None, timeout_graceful_shutdown=1
    )
    server = HttpServer(config)
    [listener] = [config.bind_socket()]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listener])
        try:
            yield made
        finally:
            server.should_exit = True
