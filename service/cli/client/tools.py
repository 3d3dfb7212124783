"""What tools a server has and what they take: for words on the command line, and for the shell."""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import httpx2
import orjson

from ....domain import clienting, errors

PROTOCOL_VERSION = "2026-07-28"
ANSWER_S_MAX = 30.0
PAGES_MAX = 100  # a server that has more would go on for ever

Json = dict[str, Any]


async def listed(server: str, token: str | None, seconds: float = ANSWER_S_MAX) -> list[Json]:
    """Every tool of the server. Raises RequestRefused, ConnectionLost."""
    tools: list[Json] = []
    cursor: str | None = None
    try:
        async with httpx2.AsyncClient(timeout=seconds) as client:
            for number in range(PAGES_MAX):
                page = await _page(client, server, token, number, cursor)
                tools += cast(list[Json], page.get("tools") or [])
                cursor = page.get("nextCursor")
                if not cursor:
                    break
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise errors.ConnectionLost(f"{server} gives no answer: {error}") from error
    return tools


def named(tools: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """The tool of this name. Raises ConfigurationError."""
    for tool in tools:
        if tool.get("name") == name:
            return tool
    names = [str(tool.get("name")) for tool in tools]
    close = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(names) or 'none'}"
    raise errors.ConfigurationError(f"the server has no tool {name!r}; {hint}")


async def _page(
    client: httpx2.AsyncClient, server: str, token: str | None, number: int, cursor: str | None
) -> Json:
    meta = {
        "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "outlast", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"_meta": meta} if cursor is None else {"_meta": meta, "cursor": cursor}
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": PROTOCOL_VERSION,
        "Mcp-Method": "tools/list",
    }
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    body = {"jsonrpc": "2.0", "id": number, "method": "tools/list", "params": params}
    reply = await client.post(server, content=orjson.dumps(body), headers=headers)
    return _result(reply)


def _result(reply: httpx2.Response) -> Json:
    text = reply.text
    if reply.headers.get("content-type", "").startswith("text/event-stream"):
        # Not `splitlines`: it breaks at U+2028 and U+0085 too, which a text in JSON may hold.
        rows = [row[5:] for row in re.split("\r?\n", text) if row.startswith("data:")]
        text = rows[-1] if rows else ""
    try:
        answer = _object(orjson.loads(text))
    except ValueError:
        answer = Json()
    if not clienting.is_answer(answer):
        raise errors.ConnectionLost(f"the server answered with HTTP status {reply.status_code}")
    if "error" not in answer:
        return answer["result"]
    error = _object(answer["error"])
    raise errors.RequestRefused(error["code"], str(error.get("message", "")), error.get("data"))


def _object(value: Any) -> Json:
    return cast(Json, value) if isinstance(value, dict) else {}
