"""A connection that stays: each message judged and handed on, whatever carries the bytes.

Its requests are served at the same time. Each has its frames, the last of which is its answer, and
ends early when a `notifications/cancelled` names it.
"""

from collections.abc import Awaitable, Callable

from ..delivery.port import Connection
from ..domain import errors
from ..domain.owner import Caller
from . import envelope, jsonrpc, problems
from .access import Access
from .exchange import Exchange
from .jsonrpc import Message, RequestId
from .throttle import Throttle

CANCELLED = "notifications/cancelled"

Send = Callable[[bytes], Awaitable[None]]
Refuse = Callable[[RequestId, Exception], bytes]
Connect = Callable[[Send, Refuse], Connection]
Opening = Callable[[Connection, Exchange], Awaitable[None]]


class Gate:
    """What every session of a process is held against."""

    def __init__(self, access: Access, throttle: Throttle | None = None) -> None:
        self.access, self.throttle = access, throttle or Throttle()


class Session:
    """What one caller sends on one connection. `opening` lets a request's frames flow on it."""

    def __init__(
        self, caller: Caller, connect: Connect, send: Send, opening: Opening, gate: Gate
    ) -> None:
        self._caller, self._opening, self._gate = caller, opening, gate
        self.connection = connect(send, self.refuse)

    async def take(self, text: bytes) -> bytes | None:
        """Hand a message on; the answer to what cannot be served. Raises ConnectionLost."""
        request_id: RequestId | None = None
        try:
            message = jsonrpc.parse(text)
            request_id = message.id
            if message.id is None:
                await self._notified(message)
            else:
                await self._open(message, message.id)
        except errors.ConnectionLost:
            raise
        except Exception as error:  # noqa: BLE001 - the edge: every failure has an answer
            if isinstance(error, jsonrpc.InvalidMessage):
                request_id = error.request_id
            return self.refuse(request_id, error)
        return None

    def refuse(self, request_id: RequestId | None, error: Exception) -> bytes:
        """The JSON-RPC error for a failure, which is counted."""
        self._gate.throttle.refused(error)
        return problems.message(request_id, error)

    async def _notified(self, message: Message) -> None:
        if message.method == CANCELLED:
            await self.connection.cancelled(message.params.get("requestId"))

    async def _open(self, message: Message, request_id: RequestId) -> None:
        caller, gate = self._caller, self._gate
        gate.throttle.called(caller.owner.key)
        envelope.check(message, None, require_task_name=False)
        gate.access.demand_method(caller, message.method, message.params["_meta"])
        exchange = Exchange(
            caller,
            request_id,
            message.method,
            message.params,
            envelope.capabilities_of(message),
            None,
        )
        await self._opening(self.connection, exchange)
