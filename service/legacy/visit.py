"""Who is at the door: a request of a session, and what is kept of the session meanwhile."""

import asyncio
import hashlib
import json
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import anyio

from ...domain.owner import Caller
from ..jsonrpc import RequestId

KEY_PREFIX = "session:"


@dataclass
class Running:
    """A `tools/call` that is being served. `work` ends with its plain result, or with its task.

    Only what can never become a task is stopped with the session that asked for it.
    """

    work: "asyncio.Future[dict[str, Any]]"
    is_direct: bool


@dataclass(eq=False)
class Carried:
    """A request whose answer is being sent. `gone` is set once nothing of it is left."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    gone: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class Session:
    """What this process keeps of one client between its requests. `id` is the SDK's."""

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

    def close(self) -> None:
        """Stop what only this session could have had. Tasks go on: they outlast who began them."""
        if self.listening is not None:
            self.listening.cancel()
        for call in self.calls.values():
            if call.is_direct:
                call.work.cancel()
        self.calls.clear()


@dataclass(frozen=True)
class Visit:
    """One HTTP request of a session, admitted."""

    caller: Caller
    session: Session
    request_id: RequestId | None = None


# The SDK runs each handler, and the writer of a session's streams, in the context of the request
# that it serves; so this reaches where none of its signatures would take it.
HERE: ContextVar[Visit] = ContextVar("outlast_visit")
