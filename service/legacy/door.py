"""The door for clients with sessions: who may come in, to which session, and how long one lasts.

A session lives in one process and belongs to one owner: to all others it is not there. Where
several processes share a port a request may come to any of them; there each is served by itself,
without a session, and so without anything that would need one.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from mcp.server.lowlevel import Server
from mcp.server.streamable_http import GET_STREAM_KEY
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ...domain.owner import Caller
from .. import bodies, jsonrpc, problems
from ..access import Access
from ..carriers import seconds_until
from ..endpoint import BODY_BYTES_MAX, BODY_S_MAX
from ..jsonrpc import Rejection
from ..throttle import Throttle
from .replay import Replay
from .visit import HERE, Carried, Session, Visit

SESSION_ID, VERSION = b"mcp-session-id", b"mcp-protocol-version"
LAST_EVENT_ID = b"last-event-id"
_EVENT_ID = b"id: "  # in what is sent of a stream
LOOKS_PER_IDLE_TIME = 4  # how often sessions are looked through for idle ones

# As the server lists them, for a comparison that costs next to nothing.
_MODERN = tuple((VERSION, version.encode()) for version in MODERN_PROTOCOL_VERSIONS)
_OLDER = tuple((VERSION, version.encode()) for version in HANDSHAKE_PROTOCOL_VERSIONS)

_log = logging.getLogger("outlast.endpoint")


@dataclass(frozen=True)
class Bounds:
    """How many sessions a process keeps, and how long without a request."""

    sessions: int
    sessions_per_owner: int
    idle_s: float


class Door:
    """See the module. Without `bounds` there are no sessions."""

    def __init__(
        self, server: Server[Any], access: Access, throttle: Throttle, bounds: Bounds | None
    ) -> None:
        self._access, self._throttle, self._bounds = access, throttle, bounds
        self.server = server
        self._sessions: dict[str, Session] = {}
        self._opening: set[Session] = set()  # those whose clients have no id yet
        self._replay = Replay(lambda: HERE.get().session)
        self._closing = asyncio.Event()
        self._manager = StreamableHTTPSessionManager(
            server,
            event_store=None if bounds is None else self._replay,
            stateless=bounds is None,
            session_idle_timeout=None,  # ended here, where it is known what a session still has
            max_sessions=None,
            max_request_body_size=BODY_BYTES_MAX,
        )

    def wants(self, scope: Scope) -> bool:
        """Whether this request is for a session. Asked of every request, so it must cost little."""
        headers = scope["headers"]
        for modern in _MODERN:
            if modern in headers:
                return False
        if self._bounds is None:
            return any(older in headers for older in _OLDER)
        return any(name == SESSION_ID for name, _ in headers)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Serve sessions. All of them end with this."""
        async with self._manager.run():
            sweeping = asyncio.create_task(self._sweep())
            try:
                yield
            finally:
                self._closing.set()
                await sweeping

    def wind_down(self) -> None:
        """End every session, and so every stream that a client holds open."""
        self._closing.set()

    def opens(self, request: Request) -> bool:
        """See `Sessions`. Whoever names this revision in a header wants no session."""
        version = request.headers.get(VERSION.decode())
        return version not in MODERN_PROTOCOL_VERSIONS

    def open(self, caller: Caller, request_id: jsonrpc.RequestId, body: bytes) -> Response:
        """See `Sessions`."""
        return _Handed(self, Visit(caller, Session(caller.owner.key), request_id), body)

    async def serve(self, request: Request) -> Response:
        """Answer one request of a session. Never raises but for a client that has gone."""
        request_id: jsonrpc.RequestId | None = None
        body: bytes | None = None
        try:
            caller = await self._access.admit(request.headers)
            self._throttle.called(caller.owner.key)
            session = self._session(request, caller)
            if request.method == "POST":
                body = await bodies.read_message(request, BODY_BYTES_MAX, BODY_S_MAX)
                value = jsonrpc.decoded(body)
                request_id = _request_id(value)
                self._demand(caller, value)
            return _Handed(self, Visit(caller, session, request_id), body)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:  # noqa: BLE001 - the edge: every failure has an answer
            self._throttle.refused(error)
            return problems.response(request_id, error)

    async def get_or_delete(self, request: Request) -> Response:
        """The stream or the end of a session; without one there is nothing but POST."""
        if self.wants(request.scope) and request.method in ("GET", "DELETE"):
            return await self.serve(request)
        return Response(status_code=405, headers={"Allow": "POST"})

    def _session(self, request: Request, caller: Caller) -> Session:
        if self._bounds is None:
            return Session(caller.owner.key)
        session = self._sessions.get(request.headers.get("mcp-session-id", ""))
        if session is None or session.owner != caller.owner.key:
            # Another's, one that has ended, and one that never was: the client begins a new one.
            raise Rejection(INVALID_REQUEST, "Session not found", status=404)
        return session

    def _demand_room(self, owner: str) -> None:
        if self._bounds is None:
            return
        known = [*self._sessions.values(), *self._opening]
        mine = sum(one.owner == owner for one in known)
        if len(known) >= self._bounds.sessions or mine >= self._bounds.sessions_per_owner:
            raise Rejection(INTERNAL_ERROR, "There are too many sessions open", status=503)

    def _demand(self, caller: Caller, value: Mapping[str, Any]) -> None:
        """The scope of the method, while there is an HTTP status to refuse with."""
        method, params = value.get("method"), _object(value.get("params"))
        if isinstance(method, str):
            self._access.demand_method(caller, method, _object(params.get("_meta")))

    # --- handing over

    async def carry(self, visit: Visit, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the SDK answer. Its session is known to us from the moment its client knows it."""
        session = visit.session
        try:
            self._demand_place(visit)
        except Rejection as refused:
            return await problems.response(visit.request_id, refused)(scope, receive, send)
        HERE.set(visit)

        first = _from_the_start(session, scope)

        async def heard(message: Message) -> None:
            nonlocal first
            if session.id is None and message["type"] == "http.response.start":
                self._keep(session, message)
                session.first_event = await self._replay.store_event(GET_STREAM_KEY, None)
            await send(message)
            if _EVENT_ID in message.get("body", b""):
                first = None  # from now on the client itself can name an event

        session.in_flight += 1
        try:
            async with _alone(visit), asyncio.timeout(seconds_until(visit.caller.until)):
                await self._manager.handle_request(scope, receive, heard)
        except TimeoutError:
            _log.info("a stream is cut off: its caller's token has expired")
        finally:
            session.in_flight -= 1
            session.first_event = session.first_event or first
            self._opening.discard(session)
            session.used_at = asyncio.get_running_loop().time()
            if session.id is None or (scope["method"] == "DELETE" and self._bounds is not None):
                self._forget(session)

    def _demand_place(self, visit: Visit) -> None:
        """Room for one session more. Asked here, where it is taken: many may begin at once."""
        if _is_taken(visit):
            message = "Another request in flight has an id that reads the same"
            raise Rejection(INVALID_REQUEST, message)
        if visit.session.id is None:
            self._demand_room(visit.session.owner)
            self._opening.add(visit.session)

    def _keep(self, session: Session, started: Message) -> None:
        headers: Mapping[bytes, bytes] = dict(started["headers"])
        named = headers.get(SESSION_ID)
        if named is not None and started["status"] < 400:  # noqa: PLR2004 - the first of the refusals
            session.id = named.decode("latin-1")
            self._opening.discard(session)
            self._sessions[session.id] = session

    def _forget(self, session: Session) -> None:
        if session.id is not None:
            self._sessions.pop(session.id, None)
        session.close()
        self._replay.forget(session)

    # --- ending

    async def _sweep(self) -> None:
        """End the sessions that nobody uses; in the end, all."""
        if self._bounds is None:
            return
        pause_s = self._bounds.idle_s / LOOKS_PER_IDLE_TIME
        while not self._closing.is_set():
            try:
                await asyncio.wait_for(self._closing.wait(), pause_s)
            except TimeoutError:
                since = asyncio.get_running_loop().time() - self._bounds.idle_s
                for one in list(self._sessions.values()):
                    if one.is_idle and one.used_at < since:  # still, after the end of the others
                        await self._end(one)
        left = list(self._sessions.values())
        for one in left:
            await self._end(one)
        await asyncio.gather(*(one.settled() for one in left))

    async def _end(self, session: Session) -> None:
        """End a session as its client would: the SDK has no other way to be told."""
        named = (session.id or "").encode("latin-1")
        scope: Scope = {"type": "http", "method": "DELETE", "path": "/", "query_string": b""}
        scope["headers"] = [(SESSION_ID, named)]
        self._forget(session)
        await self._manager.handle_request(scope, _nothing, _unheard)


def _from_the_start(session: Session, scope: Scope) -> str | None:
    """Let the first stream of a session begin with what was told before it was there.

    The SDK sends that to nobody: as it sees it, a client that names no event has missed none. The
    event that this stream begins after; nobody else's does until it has failed to tell of any.
    """
    if scope["method"] != "GET":
        return None
    first, session.first_event = session.first_event, None
    if first is None or any(name == LAST_EVENT_ID for name, _ in scope["headers"]):
        return None
    scope["headers"] = [*scope["headers"], (LAST_EVENT_ID, first.encode())]
    return first


def _is_taken(visit: Visit) -> bool:
    """Whether 50 is asked while "50" is in flight: the SDK names a stream by the text of its id,
    so one of the two would never be answered. The very same id is another matter, see `_alone`."""
    given, in_flight = visit.request_id, visit.session.open
    return given is not None and any(str(one) == str(given) and one != given for one in in_flight)


@asynccontextmanager
async def _alone(visit: Visit) -> AsyncGenerator[None]:
    """Serve this request once the same one, sent before, is served no more.

    Who sends a request again has lost the first one, of which the server may not know yet. The SDK
    knows both by the one id, and the end of the first would be that of the second.
    """
    carried, session, request_id = Carried(), visit.session, visit.request_id
    if request_id is None:
        yield
        return
    former, session.open[request_id] = session.open.get(request_id), carried
    try:
        if former is not None:
            former.scope.cancel()
            await former.gone.wait()
        with carried.scope:
            yield
    finally:
        carried.gone.set()
        if session.open.get(request_id) is carried:
            del session.open[request_id]


class _Handed(Response):
    """A response that the SDK writes."""

    def __init__(self, door: Door, visit: Visit, body: bytes | None) -> None:
        super().__init__()
        self._door, self._visit, self._body = door, visit, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand over, with the body that has been read already."""
        left = [] if self._body is None else [self._body]

        async def again() -> Message:
            if left:
                return {"type": "http.request", "body": left.pop(), "more_body": False}
            return await receive()

        await self._door.carry(self._visit, scope, again, send)


def _request_id(value: Mapping[str, Any]) -> jsonrpc.RequestId | None:
    """The id of a request. An answer has one too, of a question of ours: that is no request's."""
    given = value.get("id")
    is_id = isinstance(given, str | int) and not isinstance(given, bool)
    return given if is_id and "method" in value else None


def _object(value: Any) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _unheard(message: Message) -> None:
    del message
