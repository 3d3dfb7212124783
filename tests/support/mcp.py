"""A client that says exactly what a test wants said: one envelope, its headers, one answer.

It helps with nothing and hides nothing: no retries, no parsing beyond JSON, no negotiation.
"""

import copy
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2
from mcp.shared.inbound import NAME_BEARING_METHODS, encode_header_value

from outlast.tests.acceptance.waiting import until

VERSION = "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
TASKS = f"{PREFIX}tasks"
SERVER_INFO = f"{PREFIX}serverInfo"
IDEMPOTENCY_KEY = "dev.outlast/idempotencyKey"

DECLARED: Mapping[str, Any] = {"elicitation": {}, "extensions": {TASKS: {}}}
UNDECLARED: Mapping[str, Any] = {"elicitation": {}}
TERMINAL = ("completed", "failed", "cancelled")

ANSWER_S_MAX = 30.0

_ids = itertools.count(1)


@dataclass(frozen=True)
class Reply:
    """What came back: the status, the headers and the body as it was."""

    status: int
    headers: httpx2.Headers
    content: bytes

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Every JSON-RPC message of a stream, or the one of a plain answer."""
        if not self.is_stream:
            return [json.loads(self.content)]
        lines = self.content.decode().splitlines()
        return [json.loads(line[len("data: ") :]) for line in lines if line.startswith("data: ")]

    @property
    def body(self) -> dict[str, Any]:
        return self.messages[-1]

    @property
    def result(self) -> dict[str, Any]:
        assert "result" in self.body, self.body
        return self.body["result"]

    @property
    def error(self) -> dict[str, Any]:
        assert "error" in self.body, self.body
        return self.body["error"]

    @property
    def refusal(self) -> tuple[int, int]:
        """The HTTP status and the JSON-RPC code of an error."""
        return self.status, self.error["code"]


def envelope(
    method: str,
    params: Mapping[str, Any] | None = None,
    capabilities: Mapping[str, Any] = DECLARED,
    meta: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A complete request of this revision."""
    own = {
        f"{PREFIX}protocolVersion": VERSION,
        f"{PREFIX}clientInfo": {"name": "tests", "version": "1"},
        f"{PREFIX}clientCapabilities": copy.deepcopy(dict(capabilities)),
    }
    named = {**(params or {}), "_meta": {**own, **(meta or {})}}
    return {"jsonrpc": "2.0", "id": next(_ids), "method": method, "params": named}


def headers_of(body: Mapping[str, Any]) -> dict[str, str]:
    """The headers that go with a request."""
    headers = {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-protocol-version": VERSION,
        "mcp-method": encode_header_value(body["method"]),
    }
    name = body["params"].get(NAME_BEARING_METHODS.get(body["method"], "taskId"))
    if isinstance(name, str):
        headers["mcp-name"] = encode_header_value(name)
    return headers


@dataclass(frozen=True)
class RawClient:
    """Speaks to one MCP endpoint as one owner."""

    url: str
    http: httpx2.AsyncClient
    token: str | None = None
    capabilities: Mapping[str, Any] = field(default_factory=lambda: DECLARED)

    async def post(
        self, content: bytes, headers: Mapping[str, str] | list[tuple[str, str]]
    ) -> Reply:
        """Send these very bytes."""
        given = list(headers.items()) if isinstance(headers, Mapping) else headers
        if self.token is not None:
            given = [*given, ("authorization", f"Bearer {self.token}")]
        reply = await self.http.post(self.url, content=content, headers=given)
        return Reply(reply.status_code, reply.headers, reply.content)

    async def send(self, body: Mapping[str, Any], **headers: str | None) -> Reply:
        """Send a body with its headers; `mcp_name="x"` replaces one, `mcp_name=None` leaves it out.

        JSON is written as Python writes it, so lone surrogates and large integers are possible.
        """
        changed = {name.replace("_", "-"): value for name, value in headers.items()}
        wanted = {**headers_of(body), **changed}
        kept = {name: value for name, value in wanted.items() if value is not None}
        return await self.post(json.dumps(body).encode(), kept)

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        capabilities: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Send one good request."""
        declared = self.capabilities if capabilities is None else capabilities
        return await self.send(envelope(method, params, declared, meta))

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        capabilities: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Reply:
        """Call a tool; `params` are further members of the request's parameters."""
        named = {"name": tool, "arguments": dict(arguments or {}), **params}
        return await self.request("tools/call", named, capabilities=capabilities, meta=meta)

    async def opened(self, tool: str, arguments: Mapping[str, Any] | None = None) -> str:
        """The id of the task that this call becomes."""
        created = (await self.call(tool, arguments)).result
        assert created["resultType"] == "task", created
        return created["taskId"]

    async def task(self, task_id: str) -> dict[str, Any]:
        """What tasks/get says now."""
        return (await self.request("tasks/get", {"taskId": task_id})).result

    async def until_status(
        self, task_id: str, *statuses: str, seconds: float = 60.0
    ) -> dict[str, Any]:
        """Poll until the task has one of these statuses, or has ended, and return it."""
        seen: dict[str, Any] = {}

        async def reached() -> bool:
            seen.update(task=await self.task(task_id))
            return seen["task"]["status"] in (*statuses, *TERMINAL)

        await until(reached, seconds)
        return seen["task"]


def http_client() -> httpx2.AsyncClient:
    """Connections over loopback: no settings of the environment, no certificates to load."""
    return httpx2.AsyncClient(trust_env=False, verify=False, timeout=ANSWER_S_MAX)
