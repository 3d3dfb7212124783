"""What a session hears by itself: changes of lists, and of the resources that it subscribed to.

One watch a session, of the kind that `subscriptions/listen` opens, its frames sent on the session's
own stream. Another set of resources is another watch: begun before the old one ends, so that a
change may be told twice but is never missed.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, METHOD_NOT_FOUND

from ...delivery.port import KEEP_ALIVE, Listener, ListenRequest, OpenWatch
from ...domain import errors
from .. import jsonrpc
from .asking import Context, tell
from .visit import HERE, Session

URIS_MAX = 1_000  # subscriptions of one session

_LISTS = dict.fromkeys(("toolsListChanged", "promptsListChanged", "resourcesListChanged"), True)

_log = logging.getLogger("outlast.endpoint")


@dataclass(frozen=True)
class SessionEars:
    """See the module."""

    listener: Listener

    async def begin(self, context: Context) -> None:
        """Hear of lists from now on. A session that cannot have one more watch does without."""
        session = HERE.get().session
        async with session.lock:
            if session.listening is None and session.id is not None:
                try:
                    await self._listen(context, session)
                except (errors.OutlastError, MCPError) as error:
                    _log.info("a session hears of no changes: %s", error)

    async def subscribe(self, context: Context) -> dict[str, Any]:
        """`resources/subscribe`: answered once its changes are heard."""
        session, uri = HERE.get().session, str((context.params or {})["uri"])
        async with session.lock:
            is_heard = session.listening is not None and not session.listening.done()
            if uri in session.uris and is_heard:
                return {}
            if len(session.uris - {uri}) >= URIS_MAX:
                raise errors.InvalidCall(f"At most {URIS_MAX} subscriptions in a session")
            session.uris.add(uri)
            try:
                agreed = await self._listen(context, session)
            except BaseException:
                session.uris.discard(uri)
                raise
            if uri not in agreed.get("resourceSubscriptions", ()):
                session.uris.discard(uri)
                raise MCPError(METHOD_NOT_FOUND, "Nothing here tells of changes of its resources")
        return {}

    async def unsubscribe(self, context: Context) -> dict[str, Any]:
        """`resources/unsubscribe`."""
        session, uri = HERE.get().session, str((context.params or {})["uri"])
        async with session.lock:
            if uri in session.uris:
                session.uris.discard(uri)
                try:
                    await self._listen(context, session)
                except BaseException:
                    session.uris.add(uri)  # the watch before goes on, which tells of it
                    raise
        return {}

    async def _listen(self, context: Context, session: Session) -> Mapping[str, Any]:
        """Begin a watch in place of the one before; what was agreed to.

        The one before goes on where that fails, or is given up.
        """
        wanted = {"notifications": {**_LISTS, "resourceSubscriptions": sorted(session.uris)}}
        request = ListenRequest(session.owner, session.id or "", wanted, declares_tasks=False)
        watch = await self.listener.open(request)
        if session.is_closed:  # meanwhile: nobody would ever close it
            await watch.close()
            raise MCPError(CONNECTION_CLOSED, "The session has ended")
        began: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        relay = asyncio.ensure_future(_relay(context, watch, began))
        # Never cancelled: to whoever waits that would look like the end of the session.
        relay.add_done_callback(lambda _: began.done() or began.set_exception(_not_begun()))
        former, session.listening = session.listening, relay
        try:
            agreed = await began
        except BaseException:
            session.listening = former
            if former is not None and session.is_closed:
                former.cancel()
            relay.cancel()
            await watch.close()  # a relay that is cancelled before its first step never does
            raise
        if former is not None:
            former.cancel()
        return agreed


async def _relay(
    context: Context, watch: OpenWatch, began: "asyncio.Future[Mapping[str, Any]]"
) -> None:
    """Send what the watch tells, until the session or this server ends."""
    frames = watch.frames()
    try:
        async for frame in frames:
            message: dict[str, Any] = jsonrpc.loads(frame) if frame != KEEP_ALIVE else {}
            params = dict(message.get("params") or {})
            if not began.done():
                began.set_result(params["notifications"])
            elif "method" in message:
                params.pop("_meta", None)  # it names a subscription of this revision
                await tell(context, message["method"], params, alone=True)
    except errors.OutlastError as error:
        if began.done():
            _log.warning("a session hears of changes no more: %s", error)
        else:
            began.set_exception(error)
    finally:
        await frames.aclose()
        await watch.close()


def _not_begun() -> Exception:
    return MCPError(INTERNAL_ERROR, "What changes here cannot be told of now")
