"""Who is at the door: a request of a session, and what is kept of the session meanwhile."""

import asyncio
import hashlib
import json
import logging
from collections.abc import Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio

from ...domain.owner import Caller
from ..jsonrpc import RequestId
from ..waits import outlasting

KEY_PREFIX = "session:"
SETTLE_S_MAX = 15.0  # what a session has begun gets so long to be done once the session has ended

T = TypeVar("T")

_log = logging.getLogger("outlast.endpoint")


@dataclass
class Running:
    """A `tools/call` that is being served. `work` ends with its plain result, or with its task."""

    work: "asyncio.Future[dict[str, Any]]"
    is_direct: bool


@dataclass(eq=False)
class Carried:
    """A request whose answer is being sent. `gone` is set once nothing of it is left."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    gone: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class Session:
    """What this process keeps of one client between its requests. `id` is the SDK's.

    `stopping` is stopped with the session: what can never become a task. `going_on` is not: what
    its client has said to a task.
    """

    owner: str
    id: str | None = None
    used_at: float = 0.0
    in_flight: int = 0
    log_level: str = "info"
    first_event: str | None = None
    open: "dict[RequestId, Carried]" = field(default_factory=dict[RequestId, "Carried"])
    calls: dict[RequestId, Running] = field(default_factory=dict[RequestId, Running])
    listening: "asyncio.Task[None] | None" = None
    uris: set[str] = field(default_factory=set[str])
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_closed: bool = False
    stopping: "set[asyncio.Future[Any]]" = field(default_factory=set["asyncio.Future[Any]"])
    going_on: "set[asyncio.Future[Any]]" = field(default_factory=set["asyncio.Future[Any]"])

    @property
    def is_idle(self) -> bool:
        """True while no request is open and no call waits for its result."""
        return not self.in_flight and not self.calls

    def key_of(self, request_id: RequestId) -> str | None:
        """The idempotency key of a request: no session uses an id twice. None without a session."""
        if self.id is None:
            return None
        named = json.dumps([self.id, request_id]).encode()
        return KEY_PREFIX + hashlib.sha256(named).hexdigest()

    def stops(self, work: "asyncio.Future[Any]") -> None:
        """Stop this with the session; now, if that has ended."""
        if self.is_closed:
            work.cancel()
            return
        self.stopping.add(work)
        work.add_done_callback(self.stopping.discard)

    def close(self) -> None:
        """Stop what only this session could have had. Tasks go on: they outlast who began them."""
        self.is_closed = True
        if self.listening is not None:
            self.listening.cancel()
        for work in self.stopping:
            work.cancel()
        self.calls.clear()

    async def settled(self) -> None:
        """Return once what its client has said to tasks has reached them, or could not for long."""
        if self.going_on:
            await asyncio.wait(self.going_on, timeout=SETTLE_S_MAX)


@dataclass(frozen=True)
class Visit:
    """One HTTP request of a session, admitted."""

    caller: Caller
    session: Session
    request_id: RequestId | None = None


# The SDK runs each handler, and the writer of a session's streams, in the context of the request
# that it serves; so this reaches where none of its signatures would take it.
HERE: ContextVar[Visit] = ContextVar("outlast_visit")


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Do this, also when the request that it belongs to is cut off, or its session ends."""
    doing, visit = asyncio.ensure_future(work), HERE.get(None)
    if visit is not None:
        visit.session.going_on.add(doing)
        doing.add_done_callback(visit.session.going_on.discard)
    return await outlasting(doing, _log, "what a client said before it left was not done")
