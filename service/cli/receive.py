"""`outlast receive`: a webhook endpoint with a subscription of its own, and a line a delivery.

A line is printed once its delivery is stored, and again by the next process if this one dies before
that is noted: at least once, like the delivery itself.
"""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, cast

import anyio
import uvicorn

from ...domain import draft, errors
from .. import logs, policy, wiring
from ..hosting import NOT_STARTED, HttpServer, stop_on_signals
from ..receiving import Deliveries, Wanted

INBOX = Path(".outlast") / "inbox.db"
UNLIMITED = "unlimited"
DISCONNECT_S = 5  # what deliveries under way get to end
LINE_S_MAX = 2.0  # what a line that is being printed gets to end
UNSUBSCRIBE_S_MAX = 10.0
CHUNK_BYTES = 4096  # a pipe that can be written to takes so much without waiting

STOPPED, OVER = 0, 1  # exit codes


class OutputClosed(errors.OutlastError):
    """Nobody reads the output any more."""


def arguments_of(text: str) -> Mapping[str, Any]:
    """The subscription's arguments. Raises ConfigurationError."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise errors.ConfigurationError(f"--arguments is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise errors.ConfigurationError("--arguments must be a JSON object")
    return cast(dict[str, Any], given)


def ttl_ms_of(text: str) -> int | None:
    """The suggested life of the subscription; None for one without end.

    Raises ConfigurationError.
    """
    try:
        return None if text == UNLIMITED else policy.milliseconds(text)
    except ValueError as error:
        raise errors.ConfigurationError(f'--ttl: {error}, or "{UNLIMITED}"') from None


def receive(wanted: Wanted, listener: socket.socket, *, unsubscribe: bool) -> int:
    """Receive until SIGTERM or SIGINT, or until the server ends the subscription; the exit code.

    An end is a failure unless it came because nothing is left to tell.
    """
    logs.configure("info")
    try:
        return asyncio.run(_receive(wanted, listener, unsubscribe=unsubscribe))
    except errors.RequestRefused as error:
        raise errors.RemoteError(
            f"the server refused the subscription: {error} ({error.code}) {error.data or ''}"
        ) from error


async def _receive(wanted: Wanted, listener: socket.socket, *, unsubscribe: bool) -> int:
    stop = stop_on_signals()
    printer = Printer(sys.stdout.fileno())
    async with wiring.receiving(wanted) as reception:
        server = _http_server(reception.app)
        serving = asyncio.create_task(server.serve([listener]))
        printing = asyncio.create_task(printer.print_all(reception))
        work = (serving, printing, asyncio.create_task(reception.keep()))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({*work, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if unsubscribe and not printing.done():
                with anyio.move_on_after(UNSUBSCRIBE_S_MAX), suppress(errors.RemoteError):
                    await reception.unsubscribe()
        finally:
            server.should_exit = True
            await asyncio.wait({serving})
            await printer.finish_line()
            for task in (*work, stopping):
                task.cancel()
            await asyncio.gather(*work, stopping, return_exceptions=True)
    for task in work:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            raise error
    if printing.cancelled() and not stop.is_set():
        raise errors.ConfigurationError(NOT_STARTED)
    return STOPPED if printing.cancelled() else printing.result()


class Printer:
    """Writes lines, without holding up whoever acknowledges deliveries meanwhile."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._turn = asyncio.Lock()

    async def print_all(self, reception: Deliveries) -> int:
        """Until the subscription is over; the exit code. Raises StoreUnavailable, OutputClosed."""
        code = OVER
        async with aclosing(reception.received()) as deliveries:
            async for received in deliveries:
                line = {
                    "subscriptionId": received.subscription_id,
                    "webhookId": received.webhook_id,
                    "delivery": received.content,
                }
                async with self._turn:
                    await self._write(json.dumps(line).encode() + b"\n")
                if received.envelope == draft.ENDED:
                    code = _code_of(received.content.get("error"))
        return code

    async def finish_line(self) -> None:
        """Let the line that is being written end, if someone reads it; no other begins."""
        with anyio.move_on_after(LINE_S_MAX):
            await self._turn.acquire()

    async def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            with suppress(PermissionError):  # a file, which can always be written to
                await anyio.wait_writable(self._descriptor)
            try:
                rest = rest[os.write(self._descriptor, rest[:CHUNK_BYTES]) :]
            except BlockingIOError:
                continue  # another writer was faster
            except OSError as error:
                raise OutputClosed from error


def _code_of(error: object) -> int:
    reason = cast(dict[str, Any], error) if isinstance(error, dict) else {}
    return STOPPED if reason.get("code") == draft.NOT_FOUND else OVER


def _http_server(app: Any) -> HttpServer:
    return HttpServer(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=DISCONNECT_S,
            lifespan="on",
        )
    )
