"""The `events/*` methods, and what events have to do with a call that becomes a task."""

from collections.abc import Callable
from typing import Any

from ...delivery.port import CallWebhook, EventsDesk, EventsRequest, OpenWatch
from ...domain import draft
from ...domain.change import created_task
from ...domain.owner import Owner
from ...domain.task import Task
from ..exchange import Exchange

IsAuthenticated = Callable[[Owner], bool]


class EventMethods:
    """Hands each request on to the desk, with who it is that asks."""

    def __init__(self, desk: EventsDesk, is_authenticated: IsAuthenticated) -> None:
        self._desk, self._is_authenticated = desk, is_authenticated

    async def list(self, exchange: Exchange) -> dict[str, Any]:
        """The event types that this caller may have."""
        return await self._desk.list(self._request(exchange))

    async def poll(self, exchange: Exchange) -> dict[str, Any]:
        """A batch of events."""
        return await self._desk.poll(self._request(exchange))

    async def stream(self, exchange: Exchange) -> OpenWatch:
        """A stream of events."""
        return await self._desk.stream(self._request(exchange))

    async def subscribe(self, exchange: Exchange) -> dict[str, Any]:
        """Make or refresh a webhook subscription."""
        return await self._desk.subscribe(self._request(exchange))

    async def unsubscribe(self, exchange: Exchange) -> dict[str, Any]:
        """End a webhook subscription."""
        return await self._desk.unsubscribe(self._request(exchange))

    async def webhook_of(self, exchange: Exchange) -> CallWebhook | None:
        """The webhook that a call brought, verified; None when it brought none."""
        given = exchange.meta.get(draft.WEBHOOK_META_KEY)
        if given is None:
            return None
        return await self._desk.judge_webhook(self._request(exchange), given)

    def created(self, exchange: Exchange, task: Task) -> dict[str, Any]:
        """The CreateTaskResult, with an event source for a client that declared events."""
        created = created_task(task)
        if exchange.declares_events:
            created["eventSource"] = self._desk.source_of(exchange.owner.key, task.id)
        return created

    def _request(self, exchange: Exchange) -> EventsRequest:
        is_authenticated = self._is_authenticated(exchange.owner)
        return EventsRequest(
            exchange.owner.key, is_authenticated, exchange.request_id, exchange.params
        )
