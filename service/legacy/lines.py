"""A session over lines: of a client that began with `initialize` on standard input.

The SDK's server reads messages from a stream and writes them to one; its own transport over
standard streams reads a descriptor of which we already have the first line. The session lasts as
long as the lines, and has an id of ours, so that its requests have keys.
"""

import secrets
from collections.abc import AsyncIterator
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, PARSE_ERROR, jsonrpc_message_adapter
from pydantic import ValidationError

from ...domain import errors
from ...domain.owner import LOCAL_CALLER
from .. import jsonrpc
from ..endpoint import BODY_BYTES_MAX
from ..session import Send
from ..streams import TOO_LONG
from .visit import HERE, Session, Visit

Given = MemoryObjectSendStream[SessionMessage | Exception]
Told = MemoryObjectReceiveStream[SessionMessage]


async def serve(server: "Server[Any]", lines: AsyncIterator[bytes], send: Send) -> None:
    """Serve one session until its lines end. Raises ConnectionLost once the client has gone."""
    session = Session(LOCAL_CALLER.owner.key, secrets.token_hex(16))
    HERE.set(Visit(LOCAL_CALLER, session))
    given, to_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    from_server, told = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_read, lines, given, send)
            group.start_soon(_write, told, send)
            await server.run(to_server, from_server, server.create_initialization_options())
    except* errors.ConnectionLost as lost:
        raise errors.ConnectionLost from lost
    finally:
        session.close()
        await session.settled()  # whoever serves the lines lets the store go after this


async def _read(lines: AsyncIterator[bytes], given: Given, send: Send) -> None:
    async with given:
        async for line in lines:
            if line == TOO_LONG:
                said = f"A line has at most {BODY_BYTES_MAX} bytes"
                await send(jsonrpc.error_bytes(None, INVALID_REQUEST, said))
                continue
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValidationError:
                await send(jsonrpc.error_bytes(None, PARSE_ERROR, "This is no JSON-RPC message"))
                continue
            await given.send(SessionMessage(message))


async def _write(told: Told, send: Send) -> None:
    async with told:
        async for item in told:
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            await send(text.encode())
