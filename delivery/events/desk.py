"""The `events/*` methods behind one door, with or without webhooks."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ...domain import draft, errors
from ..port import CallWebhook, EventsRequest, OpenWatch
from . import types
from .cursors import Cursors
from .poll import PollMethod
from .stream import StreamMethod

SUSPENDED_META_KEY = "dev.outlast/suspended"  # beside what is listed or polled


class WebhookPart(Protocol):
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

    async def suspended(self, owner: str) -> Sequence[Mapping[str, Any]]:
        """The subscriptions of this owner to which nothing is delivered any more, and why."""
        ...


class Desk:
    """`EventsDesk`. Without `webhooks` there are none here.

    A suspended webhook cannot be told of at its own endpoint. So its owner, if it is still there,
    hears of it in the `_meta` of whatever it lists or polls.
    """

    def __init__(
        self,
        polling: PollMethod,
        streaming: StreamMethod,
        cursors: Cursors,
        webhooks: WebhookPart | None,
    ) -> None:
        self._polling, self._streaming = polling, streaming
        self._cursors, self._webhooks = cursors, webhooks

    async def list(self, request: EventsRequest) -> dict[str, Any]:
        """See `EventsDesk.list`. There is one page."""
        if request.params.get("cursor") is not None:
            raise errors.InvalidCall("The cursor is not valid")
        modes = [draft.BY_POLL, draft.BY_PUSH]
        if self._webhooks is not None and request.is_authenticated:
            modes.append(draft.BY_WEBHOOK)
        listed = {"events": [kind.listed(modes) for kind in types.TYPES.values()]}
        return await self._with_notices(request, listed)

    async def poll(self, request: EventsRequest) -> dict[str, Any]:
        """See `EventsDesk.poll`."""
        return await self._with_notices(request, await self._polling.poll(request))

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

    async def _with_notices(self, request: EventsRequest, result: dict[str, Any]) -> dict[str, Any]:
        if self._webhooks is None or not request.is_authenticated:
            return result
        suspended = await self._webhooks.suspended(request.owner)
        return {**result, "_meta": {SUSPENDED_META_KEY: suspended}} if suspended else result

    def _webhooks_for(self, request: EventsRequest, name: Any) -> WebhookPart:
        """In this order, so that a stranger's probe learns least."""
        if not request.is_authenticated:
            raise errors.Forbidden("Webhooks need a caller who is known", reason="unauthenticated")
        types.known(name)
        if self._webhooks is None:
            raise errors.Unsupported("deliveryMode", draft.BY_WEBHOOK)
        return self._webhooks
