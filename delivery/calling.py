"""The client's end of the wire for whoever calls tools: any conforming server, any shape of answer.

Beyond `Remote`: an answer may come as a stream, a call may take longer than any other request, and
arguments that a tool wants mirrored into headers are mirrored.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, cast

import httpx2
from mcp.shared.inbound import mcp_param_headers, x_mcp_header_map

from ..domain import errors
from ..domain.clienting import is_answer
from .frames import dumps
from .remote import (
    ANSWER_S_MAX,
    CONNECT_S_MAX,
    FRAME_BYTES_MAX,
    Json,
    Remote,
    answer_in,
    message_in,
    refuse_haste,
    result_of,
)

CALL_S_MAX = 3600.0  # of silence: a server may work on a plain call for long and say nothing
HEADER_MISMATCH = -32020
PAGES_MAX = 1000

_REFUSALS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


class CallingRemote(Remote):
    """`ToolServer`."""

    async def request(self, method: str, params: Mapping[str, Any]) -> Json:
        """See `Server.request`."""
        return await self._ask(method, params, {}, ANSWER_S_MAX)

    async def call(self, params: Mapping[str, Any]) -> Json:
        """See `ToolServer.call`."""
        try:
            return await self._ask("tools/call", params, {}, CALL_S_MAX)
        except errors.RequestRefused as error:
            # Nothing has run. Few tools want this, so their list is read only when one does.
            if error.code != HEADER_MISMATCH:
                raise
            mirrored = await self._mirrored(params)
            if not mirrored:
                raise
        return await self._ask("tools/call", params, mirrored, CALL_S_MAX)

    async def _ask(
        self, method: str, params: Mapping[str, Any], more: Mapping[str, str], silence_s: float
    ) -> Json:
        message = self.message(method, params)
        try:
            async with self.client.stream(
                "POST",
                self.url,
                content=dumps(message),
                headers={**self._headers(message), **more},
                timeout=httpx2.Timeout(silence_s, connect=CONNECT_S_MAX),
            ) as answer:
                return result_of(await _response(answer, message["id"]))
        except httpx2.TransportError as error:
            raise errors.ConnectionLost(str(error) or type(error).__name__) from error

    async def _mirrored(self, params: Mapping[str, Any]) -> dict[str, str]:
        """The headers that this tool wants its arguments repeated in."""
        cursor: dict[str, Any] = {}
        for _ in range(PAGES_MAX):
            page = await self.request("tools/list", cursor)
            for tool in cast(list[Json], page.get("tools") or []):
                if tool.get("name") == params.get("name"):
                    arguments = cast(Json, params.get("arguments") or {})
                    return mcp_param_headers(x_mcp_header_map(tool.get("inputSchema")), arguments)
            if page.get("nextCursor") is None:
                break
            cursor = {"cursor": page["nextCursor"]}
        return {}


async def _response(answer: httpx2.Response, request_id: Any) -> Json:
    """The one response in an answer. Raises RequestRefused, ConnectionLost, SlowDown."""
    if answer.status_code in _REFUSALS:
        raise errors.RequestRefused(answer.status_code, HTTPStatus(answer.status_code).phrase)
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "text/event-stream":
        body = await answer.aread()
        refuse_haste(answer, body)
        return answer_in(answer.status_code, body)
    async for event in httpx2.EventSource(answer, FRAME_BYTES_MAX):
        message = message_in(event.data) if event.data else {}
        if message.get("id") == request_id and is_answer(message):
            return message
    raise errors.ConnectionLost("the stream ended without an answer")
