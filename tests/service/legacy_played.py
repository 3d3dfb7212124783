"""An older client and its watches, played: what comes when is up to the test."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

from mcp.shared.exceptions import MCPError
from mcp_types import ClientCapabilities

from outlast.delivery.port import ListenRequest, Receipt
from outlast.domain.owner import LOCAL_CALLER
from outlast.service.exchange import Exchange
from outlast.service.legacy.asking import Context

PATIENCE_S = 60.0

Frames = Callable[[ListenRequest], AsyncGenerator[bytes]]


class Watched:
    """A listener and its watches, whose frames are up to the test."""

    def __init__(self, frames: Frames) -> None:
        self._frames, self.opened, self.closed = frames, list[ListenRequest](), 0
        self.changed = asyncio.Event()

    async def open(self, request: ListenRequest) -> "_Watch":
        self.opened.append(request)
        return _Watch(self, self._frames(request))

    @property
    def left_open(self) -> int:
        return len(self.opened) - self.closed

    async def all_closed(self, but: int = 0) -> None:
        """Return once only so many watches are open. Those of a session are closed as it ends."""
        while self.left_open > but:
            self.changed.clear()
            await self.changed.wait()


class _Watch:
    receipt = Receipt(("t",))

    def __init__(self, of: Watched, frames: AsyncGenerator[bytes]) -> None:
        self._of, self._frames, self._is_open = of, frames, True

    def frames(self) -> AsyncGenerator[bytes]:
        return self._frames

    async def close(self) -> None:
        self._of.closed += self._is_open
        self._is_open = False
        self._of.changed.set()


class Refusing:
    """The session of a client that answers each question with an error, once it may."""

    can_send_request = True
    client_capabilities = ClientCapabilities.model_validate({"elicitation": {}})

    def __init__(self) -> None:
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_answer.set()

    async def send_request(self, *_given: Any, **_more: Any) -> Any:
        self.is_asked.set()
        await self.may_answer.wait()
        raise MCPError(-1, "no")


def asked(session: Any, **params: Any) -> Context:
    seen = SimpleNamespace(
        session=session,
        protocol_version="2025-11-25",
        request_id=1,
        method="tasks/cancel",
        params=params,
    )
    return cast(Context, seen)


def exchange(**params: Any) -> Exchange:
    return Exchange(LOCAL_CALLER, 1, "tools/call", params, {}, None)


def told(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, **({"params": params} if params else {})}


async def agreed(request: ListenRequest) -> AsyncGenerator[bytes]:
    """What any watch of a session begins with; then all is quiet."""
    params = {"notifications": request.params["notifications"]}
    yield json.dumps(told("notifications/subscriptions/acknowledged", **params)).encode()
    await asyncio.Event().wait()


def framed(state: Mapping[str, Any]) -> bytes:
    """A task as a watch tells of it."""
    message = {"method": "notifications/tasks", "params": {"taskId": "t", **state}}
    return json.dumps(message).encode()


async def no_moments(_task_id: str, _versions: Collection[int]) -> Mapping[int, Any]:
    return {}
