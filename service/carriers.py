"""An open watch as an SSE response. It knows frames, and nothing of tasks."""

import asyncio
import contextlib
import logging
from datetime import UTC, datetime

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..delivery.port import KEEP_ALIVE, OpenWatch
from ..domain import errors

TAKE_S_MAX = 30.0  # a reader that takes no frame for so long is cut off; it comes back for the rest

STREAM = "text/event-stream"
STREAM_HEADERS = {"X-Accel-Buffering": "no", "Cache-Control": "no-cache", "Content-Type": STREAM}

_log = logging.getLogger("outlast.endpoint")


class FrameResponse(Response):
    """Sends frames for as long as the client takes them, and then lets go of the watch.

    `until` is when the caller's identity ends; the client comes back with a new token.
    """

    def __init__(self, watch: OpenWatch, until: datetime | None = None) -> None:
        super().__init__(headers=STREAM_HEADERS)
        del self.headers["content-length"]
        self._watch, self._until = watch, until

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - the signature of ASGI, whose scope is not needed
        """Serve the watch. One that breaks off is left unfinished, so that its connection is cut.

        So a client can tell it from one that has ended: that one's last frame is its result.
        """
        gone = asyncio.create_task(self._close_once_gone(receive))
        # A task of its own: waking it for a sign of life goes through three frames, waking this one
        # through those of every middleware.
        sending = asyncio.create_task(self._send(send))
        known = asyncio.timeout(seconds_until(self._until))
        try:
            async with known:
                await sending
        except (TimeoutError, errors.StoreUnavailable) as error:
            if known.expired():
                _log.info("a stream is cut off: its caller's token has expired")
            else:
                _log.warning("a stream is cut off: %s", str(error) or "its reader takes nothing")
        finally:
            for task in (sending, gone):
                task.cancel()
            await self._watch.close()  # before a wait that may itself be cancelled
            await asyncio.gather(sending, gone, return_exceptions=True)

    async def _close_once_gone(self, receive: Receive) -> None:
        await disconnected(receive)
        await self._watch.close()  # its frames end, and so does the sending

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with contextlib.aclosing(self._watch.frames()) as frames:
            async for frame in frames:
                body = {"type": "http.response.body", "body": event(frame), "more_body": True}
                # A sign of life too: behind what filled a stuck reader's buffers it would wait for
                # as long as the reader lives, and hold up all that comes after it.
                async with asyncio.timeout(TAKE_S_MAX):
                    await send(body)
                del frame, body  # while all is quiet, nothing is held
        async with asyncio.timeout(TAKE_S_MAX):
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def seconds_until(until: datetime | None) -> float | None:
    """How long a caller's identity lasts from now on; None for ever, which costs no timer."""
    if until is None:
        return None
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


def event(frame: bytes) -> bytes:
    """One server-sent event; a comment for the empty frame. JSON text holds no line break."""
    if frame == KEEP_ALIVE:
        return b":\r\n\r\n"
    return b"event: message\r\ndata: " + frame + b"\r\n\r\n"


async def disconnected(receive: Receive) -> None:
    """Return when the client has gone. The body has been read, so nothing else can come."""
    while (await receive())["type"] != "http.disconnect":
        pass
