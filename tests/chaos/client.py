"""A client that keeps its tasks whatever happens to the connection, and checks what it is told."""

import itertools
from collections.abc import Callable
from typing import Any

import anyio
import httpx2

PROTOCOL = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": PROTOCOL,
    "io.modelcontextprotocol/clientInfo": {"name": "chaos", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {
        "elicitation": {"form": {}},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    },
}
IDEMPOTENCY_META_KEY = "dev.outlast/idempotencyKey"
TERMINAL = ("completed", "failed", "cancelled")
PAUSE_S = 0.05
REQUEST_S_MAX = 20.0
INTERNAL_ERROR = -32603

Json = dict[str, Any]
Allowed = Callable[["Refused"], bool]


class Refused(Exception):
    """A JSON-RPC error. `status` is that of HTTP."""

    def __init__(self, status: int, error: Json) -> None:
        super().__init__(f"HTTP {status}: {error}")
        self.status, self.code, self.error = status, error["code"], error


async def pause(seconds: float = PAUSE_S) -> None:
    """Let the others work before looking again."""
    await anyio.sleep(seconds)  # noqa: TID251 - the pace of a polling client


def passing(refused: Refused) -> bool:
    """True for what an outage may answer: an internal error on HTTP 200, and nothing else."""
    return (refused.status, refused.code) == (200, INTERNAL_ERROR)


class Client:
    """One JSON-RPC request a POST; `surely` repeats it until it is answered."""

    def __init__(self, http: httpx2.AsyncClient, url: str) -> None:
        self._http, self._url, self._ids = http, f"{url}/mcp", itertools.count(1)
        self.refusals: list[Refused] = []

    async def call(self, tool: str, arguments: Json, key: str) -> str:
        """The id of the task that this call became."""
        meta = {IDEMPOTENCY_META_KEY: key}
        result = await self._send("tools/call", tool, {"name": tool, "arguments": arguments}, meta)
        assert result["resultType"] == "task", result
        return result["taskId"]

    async def get(self, task_id: str) -> Json:
        """The task as it is now."""
        task = await self._send("tasks/get", task_id, {"taskId": task_id})
        assert task["taskId"] == task_id
        return task

    async def update(self, task_id: str, answers: Json) -> None:
        """Answer questions; acknowledged when this returns."""
        params = {"taskId": task_id, "inputResponses": answers}
        await self._send("tasks/update", task_id, params)

    async def cancel(self, task_id: str) -> None:
        """Ask for the end of it; acknowledged when this returns."""
        await self._send("tasks/cancel", task_id, {"taskId": task_id})

    async def surely(self, request: Callable[[], Any]) -> Any:
        """Repeat until it is answered. An answer that no outage excuses is raised."""
        while True:
            try:
                return await request()
            except httpx2.TransportError:
                pass
            except Refused as refused:
                if not passing(refused):
                    raise
                self.refusals.append(refused)
            await pause()

    async def until(self, task_id: str, *statuses: str, seconds: float = 60.0) -> Json:
        """The task, once it has one of these statuses."""
        task: Json = {}
        try:
            with anyio.fail_after(seconds):
                while task.get("status") not in statuses:
                    task = await self.surely(lambda: self.get(task_id))
                    await pause()
        except TimeoutError:
            raise AssertionError(f"not {statuses} within {seconds:g} s: {task}") from None
        return task

    async def ended(self, task_id: str, seconds: float = 60.0) -> Json:
        """The task, once it has ended."""
        return await self.until(task_id, *TERMINAL, seconds=seconds)

    async def asked(self, task_id: str, seconds: float = 60.0) -> str:
        """The key of the one question of a task, once it is asked."""
        task = await self.until(task_id, "input_required", seconds=seconds)
        (key,) = task["inputRequests"]
        return key

    async def _send(self, method: str, name: str, params: Json, meta: Json | None = None) -> Json:
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": PROTOCOL,
            "Mcp-Method": method,
            "Mcp-Name": name,
        }
        params = {**params, "_meta": {**META, **(meta or {})}}
        body = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        reply = await self._http.post(self._url, json=body, headers=headers)
        answer = _message(reply)
        if "error" in answer:
            raise Refused(reply.status_code, answer["error"])
        return answer["result"]


def _message(reply: httpx2.Response) -> Json:
    """The answer, which may come as the last event of a stream."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return reply.json()
    data = [line[5:] for line in reply.text.splitlines() if line.startswith("data:")]
    if not data:
        raise httpx2.RemoteProtocolError("the stream ended without an answer")
    return httpx2.Response(200, text=data[-1]).json()


def word(text: str) -> Json:
    """The answer to a question of the upstream."""
    return {"action": "accept", "content": {"word": text}}


def text_of(task: Json) -> str:
    """What the tool returned."""
    return task["result"]["content"][0]["text"]
