"""The client's end of the wire: one JSON-RPC request a POST, its answer or its stream."""

import base64
import itertools
import json
import math
import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import httpx2
import orjson

from ..domain import errors
from ..domain.clienting import is_answer
from ..domain.extension import TASKS_EXTENSION
from .webhook.reply import retry_after_s

PROTOCOL_VERSION = "2026-07-28"
UNAUTHORIZED = 401
TOO_MANY_REQUESTS = 429
HASTE = "too_many_requests"  # the reason in the data of Outlast's own error
WAIT_S_MAX = 600.0  # of what a server may ask for
CONNECT_S_MAX = 5.0
ANSWER_S_MAX = 60.0
SILENCE_S_MAX = 60.0  # a stream shows that it lives at least twice as often
FRAME_BYTES_MAX = 64 * 1024 * 1024

_PLAIN = re.compile(r"^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$")

Json = dict[str, Any]


@dataclass(frozen=True)
class Remote:
    """A server's MCP endpoint, and what we say of ourselves with every request.

    `client` is shared and owned by whoever made it; `headers` may carry an Authorization.
    """

    url: str
    client: httpx2.AsyncClient
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    capabilities: Mapping[str, Any] = field(default_factory=dict[str, Any])
    _ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def message(self, method: str, params: Mapping[str, Any]) -> Json:
        """A request under the next id, with the envelope that every request carries."""
        declared = cast(Json, self.capabilities.get("extensions", {}))
        extensions: Json = {**declared, TASKS_EXTENSION: {}}
        given: Json = params.get("_meta", {})
        meta: Json = {
            **given,
            "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
            "io.modelcontextprotocol/clientInfo": {"name": "outlast", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {
                **self.capabilities,
                "extensions": extensions,
            },
        }
        body: Json = {**params, "_meta": meta}
        return {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": body}

    async def request(self, method: str, params: Mapping[str, Any]) -> Json:
        """The result. Raises RequestRefused for a JSON-RPC error, ConnectionLost for no answer."""
        message = self.message(method, params)
        try:
            answer = await self.client.post(
                self.url, content=orjson.dumps(message), headers=self._headers(message)
            )
        except httpx2.TransportError as error:
            raise errors.ConnectionLost(str(error) or type(error).__name__) from error
        refuse_haste(answer, answer.content)
        return result_of(_decoded(answer.status_code, answer.content))

    async def stream(self, method: str, params: Mapping[str, Any]) -> AsyncGenerator[Json]:
        """Every message of the answer's stream. Raises RequestRefused, ConnectionLost."""
        message = self.message(method, params)
        timeout = httpx2.Timeout(ANSWER_S_MAX, connect=CONNECT_S_MAX, read=SILENCE_S_MAX)
        try:
            async with self.client.stream(
                "POST",
                self.url,
                content=orjson.dumps(message),
                headers=self._headers(message),
                timeout=timeout,
            ) as answer:
                kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind != "text/event-stream":
                    body = await answer.aread()
                    refuse_haste(answer, body)
                    yield _decoded(answer.status_code, body)
                    return
                async for event in httpx2.EventSource(answer, FRAME_BYTES_MAX):
                    if event.data:
                        yield message_in(event.data)
        except httpx2.TransportError as error:
            raise errors.ConnectionLost(str(error) or type(error).__name__) from error

    def _headers(self, message: Json) -> dict[str, str]:
        headers = {
            **self.headers,
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": PROTOCOL_VERSION,
            "Mcp-Method": message["method"],
        }
        name = message["params"].get("taskId") or message["params"].get("name")
        if isinstance(name, str):
            headers["Mcp-Name"] = header_value(name)
        return headers


def header_value(text: str) -> str:
    """The text as a header may carry it (Streamable HTTP, "Value Encoding")."""
    if _PLAIN.match(text) and not (text.startswith("=?base64?") and text.endswith("?=")):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def answer_in(status: int, body: bytes) -> Json:
    """The response in a body; what is none (a gateway's page, nothing) is a lost connection."""
    try:
        message = message_in(body)
    except errors.ConnectionLost:
        message = {}
    if not is_answer(message):
        raise errors.ConnectionLost(f"the server answered with HTTP status {status}")
    return message


def result_of(message: Json) -> Json:
    """The result in a response. Raises RequestRefused, SlowDown, and ConnectionLost for none."""
    if not is_answer(message):
        raise errors.ConnectionLost("the answer holds neither a result nor an error")
    if "error" not in message:
        return cast(Json, message["result"])
    error = cast(Json, message["error"])
    after_s = _asked_s(error)
    if after_s is not None:
        raise errors.SlowDown(after_s)
    raise errors.RequestRefused(error["code"], str(error.get("message", "")), error.get("data"))


def refuse_haste(answer: httpx2.Response, body: bytes) -> None:
    """Raises SlowDown for the status that says so, whoever it is that sent it."""
    if answer.status_code != TOO_MANY_REQUESTS:
        return
    try:
        error = message_in(body).get("error")
    except errors.ConnectionLost:
        error = None
    after_s = _asked_s(cast(Json, error)) if isinstance(error, dict) else None
    if after_s is None:
        after_s = asked_s(answer.headers.get("retry-after"))
    raise errors.SlowDown(after_s)


def asked_s(header: str | None) -> float:
    """The seconds that a Retry-After asks for; 0 for none that can be read."""
    wait_s = None if header is None else retry_after_s(header, datetime.now(UTC))
    return min(float(wait_s or 0), WAIT_S_MAX)


def _asked_s(error: Json) -> float | None:
    """The seconds that Outlast asks for; None in an error that says something else."""
    data = error.get("data")
    told = cast(Json, data) if isinstance(data, dict) else Json()
    wait_ms = told.get("retryAfterMs")
    if told.get("reason") != HASTE or isinstance(wait_ms, bool):
        return None
    if not isinstance(wait_ms, int | float) or not 0 <= wait_ms < math.inf:
        return None
    return min(wait_ms, WAIT_S_MAX * 1000) / 1000  # in this order: no division of a huge integer


def message_in(text: str | bytes) -> Json:
    """The message in a frame. Raises ConnectionLost for what is none.

    Read by the standard library: large integers and lone surrogates pass a faster one changed, or
    not at all.
    """
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.ConnectionLost(f"the server sent what is no JSON: {error}") from error
    if not isinstance(message, dict):
        raise errors.ConnectionLost("the server sent JSON that is no message")
    return cast(Json, message)


def _decoded(status: int, body: bytes) -> Json:
    if status == UNAUTHORIZED:
        raise errors.RequestRefused(status, "a valid token is required")
    return answer_in(status, body)
