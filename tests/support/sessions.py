"""A client of the `initialize` era that says exactly what a test wants said, over plain HTTP."""

import itertools
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2

ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
ANSWER_S_MAX = 30.0
LATEST = "2025-11-25"


@dataclass(frozen=True)
class Event:
    """One server-sent event: its id, and its message; empty for one that only gives an id."""

    id: str | None
    message: dict[str, Any]


@dataclass
class RawSession:
    """One session, or the attempt at one. `headers` go with every request."""

    url: str
    http: httpx2.AsyncClient
    version: str = LATEST
    headers: dict[str, str] = field(default_factory=dict[str, str])
    capabilities: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ids: Any = field(default_factory=lambda: itertools.count(1))

    @property
    def id(self) -> str | None:
        return self.headers.get("mcp-session-id")

    async def opened(self) -> "RawSession":
        """Shake hands; the session is ready for requests."""
        reply = await self.initialize()
        assert reply.status_code == 200, reply.text
        self.headers["mcp-protocol-version"] = self.version
        if "mcp-session-id" in reply.headers:
            self.headers["mcp-session-id"] = reply.headers["mcp-session-id"]
        assert (await self.notify("notifications/initialized")).status_code == 202
        return self

    async def initialize(self) -> httpx2.Response:
        params = {
            "protocolVersion": self.version,
            "capabilities": self.capabilities,
            "clientInfo": {"name": "raw", "version": "1"},
        }
        return await self.post(request("initialize", params, 0))

    def beside(self, **headers: str) -> "RawSession":
        """The same session as somebody else would use it."""
        return RawSession(self.url, self.http, self.version, {**self.headers, **headers})

    async def post(self, body: Mapping[str, Any] | bytes) -> httpx2.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.http.post(self.url, content=content, headers={**ACCEPT, **self.headers})

    async def notify(self, method: str, **params: Any) -> httpx2.Response:
        return await self.post({"jsonrpc": "2.0", "method": method, "params": params})

    async def ask(
        self, method: str, request_id: int | None = None, **params: Any
    ) -> dict[str, Any]:
        """The answer to a request, whatever it is."""
        chosen = next(self.ids) if request_id is None else request_id
        async with self.stream(request(method, params, chosen)) as events:
            async for event in events:
                if event.message.get("id") == chosen and "method" not in event.message:
                    return event.message
        raise AssertionError("the stream ended without the answer")

    async def result(self, method: str, **params: Any) -> dict[str, Any]:
        answer = await self.ask(method, **params)
        assert "result" in answer, answer
        return answer["result"]

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return await self.result("tools/call", name=tool, arguments=arguments)

    @asynccontextmanager
    async def stream(
        self, body: Mapping[str, Any] | None, **headers: str
    ) -> AsyncGenerator[AsyncGenerator[Event]]:
        """The events that answer a POST of `body`, or a GET without one; leaving cuts it off."""
        content = None if body is None else json.dumps(body).encode()
        method = "GET" if body is None else "POST"
        given = {**ACCEPT, **self.headers, **headers}
        with anyio.fail_after(ANSWER_S_MAX):
            async with self.http.stream(
                method, self.url, content=content, headers=given
            ) as response:
                assert response.status_code == 200, (await response.aread()).decode()
                yield _events(response)


def request(method: str, params: Mapping[str, Any], request_id: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": dict(params)}


async def _events(response: httpx2.Response) -> AsyncGenerator[Event]:
    event_id: str | None = None
    async for line in response.aiter_lines():
        name, _, value = line.partition(": ")
        if name == "id":
            event_id = value
        elif name == "data" or line == "data:":
            yield Event(event_id, json.loads(value) if value else {})
