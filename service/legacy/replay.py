"""What was sent on the streams of sessions, for clients that come back with `Last-Event-ID`.

The SDK has one store for all sessions and names a stream by its request's id, which every session
counts from 0. So who is asking is part of the question here: what one session was sent is never
replayed into another. Kept in memory and bounded; what is gone was sent once, and not again.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp_types.jsonrpc import JSONRPCMessage

BYTES_MAX = 64 * 1024 * 1024  # of all sessions of a process
EVENTS_PER_SESSION_MAX = 1_000
EVENT_BYTES = 256  # what an event takes beside its message


@dataclass(frozen=True)
class Kept:
    """One event: whose, on which stream, and its message; None for one that only gives an id."""

    session: object
    stream: str
    message: JSONRPCMessage | None
    size: int


class Replay(EventStore):
    """`EventStore` of the SDK. `current` tells the session that is being served right now."""

    def __init__(self, current: Callable[[], object], bytes_max: int = BYTES_MAX) -> None:
        self._current, self._bytes_max, self._bytes = current, bytes_max, 0
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._of: dict[object, OrderedDict[str, None]] = {}

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """See EventStore. Ids cannot be guessed, though a foreign one would open nothing."""
        session, event_id = self._current(), secrets.token_urlsafe(12)
        length = 0 if message is None else len(message.model_dump_json(by_alias=True))
        kept = Kept(session, stream_id, message, EVENT_BYTES + length)
        self._kept[event_id] = kept
        self._bytes += kept.size
        own = self._of.setdefault(session, OrderedDict())
        own[event_id] = None
        while len(own) > EVENTS_PER_SESSION_MAX:
            self._drop(next(iter(own)))
        while self._bytes > self._bytes_max and len(self._kept) > 1:
            self._drop(next(iter(self._kept)))
        return event_id

    async def replay_events_after(
        self, last_event_id: str, send_callback: EventCallback
    ) -> str | None:
        """See EventStore. Nothing for an id that is unknown, or another session's."""
        session = self._current()
        last = self._kept.get(last_event_id)
        if last is None or last.session is not session:
            return None
        own = list(self._of[session])
        seen = set(own[: own.index(last_event_id) + 1])
        # And then what came while those were taken: until this is over nobody else sends it.
        while new := [event_id for event_id in self._of.get(session, ()) if event_id not in seen]:
            seen.update(new)
            for event_id in new:
                kept = self._kept.get(event_id)
                if kept is not None and kept.stream == last.stream and kept.message is not None:
                    await send_callback(EventMessage(kept.message, event_id))
        return last.stream

    def forget(self, session: object) -> None:
        """Drop all of a session that has ended."""
        for event_id in list(self._of.pop(session, ())):
            self._bytes -= self._kept.pop(event_id).size

    def _drop(self, event_id: str) -> None:
        kept = self._kept.pop(event_id)
        self._bytes -= kept.size
        own = self._of[kept.session]
        del own[event_id]
        if not own:
            del self._of[kept.session]
