"""A request's body, read no further than it may be long, and no longer than it may take."""

import asyncio
from http import HTTPStatus
from typing import Any

from mcp_types import INVALID_REQUEST
from starlette.requests import ClientDisconnect, Request

from .jsonrpc import Rejection


class BodyRefused(Exception):
    """The body is not taken; `status` is the HTTP status for it, `data` names the limit."""

    def __init__(self, status: HTTPStatus, message: str, limit: str, most: float) -> None:
        super().__init__(message)
        self.status, self.message = int(status), message
        self.data = {"reason": status.name.lower(), "limit": limit, "most": most}


async def read(request: Request, bytes_max: int, seconds_max: float) -> bytes:
    """All of it. Raises BodyRefused, and ClientDisconnect."""

    def refuse_large(length: int) -> None:
        if length > bytes_max:
            raise BodyRefused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"The body is larger than {bytes_max} bytes",
                "body_bytes",
                bytes_max,
            )

    length = request.headers.get("content-length", "")
    refuse_large(int(length) if length.isdecimal() and length.isascii() else 0)
    if has_come(request):
        body = await _at_once(request)
        refuse_large(len(body))
        return body
    body = bytearray()
    try:
        async with asyncio.timeout(seconds_max):
            async for chunk in request.stream():
                body += chunk
                refuse_large(len(body))
    except TimeoutError:
        raise BodyRefused(
            HTTPStatus.REQUEST_TIMEOUT,
            f"The body did not arrive within {seconds_max:g} s",
            "body_seconds",
            seconds_max,
        ) from None
    return bytes(body)


def has_come(request: Request) -> bool:
    """Whether the server holds all of it, as of nearly every message. Then nothing is waited for,
    and neither a timer nor a loop over pieces is needed, which cost more than the reading."""
    cycle: Any = getattr(request.receive, "__self__", None)
    return getattr(cycle, "more_body", None) is False  # uvicorn's; of another server: not known


async def _at_once(request: Request) -> bytes:
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message["body"]


async def read_message(request: Request, bytes_max: int, seconds_max: float) -> bytes:
    """The same for a JSON-RPC message. Raises Rejection, and ClientDisconnect."""
    try:
        return await read(request, bytes_max, seconds_max)
    except BodyRefused as refused:
        raise Rejection(
            INVALID_REQUEST, refused.message, data=refused.data, status=refused.status
        ) from None


def is_json(request: Request) -> bool:
    """Whether the body says that it is JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json"
