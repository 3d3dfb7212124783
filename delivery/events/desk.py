"""The `events/*` methods behind one door, with or without webhooks."""

from typing import Any, Protocol

from ...domain import draft, errors
from ..port import CallWebhook, EventsRequest, OpenWatch
from . import types
from .cursors import Cursors
from .poll import PollMethod
from .stream import StreamMethod


class Subscribing(Protocol):
    """The webhook part. Each call comes from an authenticated owner, for a type that exists."""

    async def subscribe(self, request: EventsRequest) -> dict[str, Any]:
        """See `EventsDesk.subscribe`."""
        ...

    async def unsubscribe(self, request: EventsRequest) -> dict[str, Any]:
        """See `EventsDesk.unsubscribe`."""
        ...

    async def judge(self, request: EventsRequest, given: Any) -> CallWebhook:
        """See `EventsDesk.judge_webhook`."""
        ...


class Desk:
    """`EventsDesk`. Without `subscribing` there are no webhooks here."""

    def __init__(
        self,
        polling: PollMethod,
        streaming: StreamMethod,
        cursors: Cursors,
        subscribing: Subscribing | None,
    ) -> None:
        self._polling, self._streaming = polling, streaming
        self._cursors, self._subscribing = cursors, subscribing

    async def list(self, request: EventsRequest) -> dict[str, Any]:
        """See `EventsDesk.list`. There is one page."""
        if request.params.get("cursor") is not None:
            raise errors.InvalidCall("The cursor is not valid")
        modes = [draft.BY_POLL, draft.BY_PUSH]
        if self._subscribing is not None and request.is_authenticated:
            modes.append(draft.BY_WEBHOOK)
        return {"events": [kind.listed(modes) for kind in types.TYPES.values()]}

    async def poll(self, request: EventsRequest) -> dict[str, Any]:
        """See `EventsDesk.poll`."""
        return await self._polling.poll(request)

    async def stream(self, request: EventsRequest) -> OpenWatch:
        """See `EventsDesk.stream`."""
        return await self._streaming.open(request)

    async def subscribe(self, request: EventsRequest) -> dict[str, Any]:
        """See `EventsDesk.subscribe`."""
        return await self._webhooks_for(request, request.params.get("name")).subscribe(request)

    async def unsubscribe(self, request: EventsRequest) -> dict[str, Any]:
        """See `EventsDesk.unsubscribe`."""
        return await self._webhooks_for(request, request.params.get("name")).unsubscribe(request)

    def source_of(self, owner: str, task_id: str) -> dict[str, Any]:
        """See `EventsDesk.source_of`. For one task, the beginning of the log is its own."""
        return {
            "name": draft.TASK_PROGRESS,
            "input": {"taskId": task_id},
            "initialCursor": self._cursors.seal(owner, 0),
        }

    async def judge_webhook(self, request: EventsRequest, given: Any) -> CallWebhook:
        """See `EventsDesk.judge_webhook`."""
        return await self._webhooks_for(request, draft.TASK_UPDATED).judge(request, given)

    def _webhooks_for(self, request: EventsRequest, name: Any) -> Subscribing:
        """In this order, so that a stranger's probe learns least."""
        if not request.is_authenticated:
            raise errors.Forbidden("Webhooks need a caller who is known", reason="unauthenticated")
        types.known(name)
        if self._subscribing is None:
            raise errors.Unsupported("deliveryMode", draft.BY_WEBHOOK)
        return self._subscribing
