"""`events/poll`: a batch of events after a cursor. The client keeps its place, we keep nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...domain import draft, errors
from ..frames import dumps
from ..port import EventsRequest
from .begin import has_lost
from .occurrences import Occurrence
from .reading import Reading, Subscription, ended

BATCH_BYTES_MAX = 4 * 1024 * 1024  # a larger batch ends early, and says that there is more
SLICE = 100  # events that are made at a time, so that few are made for nothing


@dataclass(frozen=True)
class Batch:
    """What one poll tells.

    `has_gap` is True when an event was removed under our hands, or its task cannot be opened.
    """

    events: list[Occurrence]
    position: int
    has_more: bool = False
    has_gap: bool = False


class PollMethod:
    """See the module."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    async def poll(self, request: EventsRequest) -> dict[str, Any]:
        """See `EventsDesk.poll`.

        Tasks that have ended are polled to their last event; only then is it said that they have.
        """
        limit = _limit(request.params)
        subscription = await self._reading.judge(request)
        begun = subscription.begun
        batch = Batch([], begun.position)
        if begun.position < begun.newest:
            batch = await self._batch(subscription, limit)
        if subscription.has_ended and not (batch.events or batch.has_more):
            raise ended()
        return {
            "events": batch.events,
            "cursor": self._reading.cursors.seal(request.owner, batch.position),
            "truncated": begun.is_truncated or batch.has_gap,
            "hasMore": batch.has_more,
            "nextPollMs": draft.NEXT_POLL_MS,
        }

    async def _batch(self, subscription: Subscription, limit: int) -> Batch:
        owner, wanted, begun = subscription.owner, subscription.wanted, subscription.begun
        page = await self._reading.events.after(owner, wanted, begun.position, limit)
        told: list[Occurrence] = []
        place, size = begun.position, 0
        has_gap = await has_lost(self._reading.events, owner, wanted, begun)
        for first in range(0, len(page.events), SLICE):
            part = page.events[first : first + SLICE]
            made = await self._reading.occurrences.many(wanted.name, part)
            for event, occurrence in zip(part, made, strict=True):
                size += len(dumps(occurrence))
                if told and size > BATCH_BYTES_MAX:
                    return Batch(told, place, has_more=True, has_gap=has_gap)
                place = event.position
                if occurrence is None:
                    has_gap = True
                else:
                    told.append(occurrence)
        read_to = page.read_to if page.has_more else max(page.read_to, begun.newest)
        return Batch(told, read_to, page.has_more, has_gap)


def _limit(params: Mapping[str, Any]) -> int:
    given = params.get("maxEvents")
    if given is None:
        return draft.POLL_EVENTS_DEFAULT
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise errors.InvalidCall("maxEvents must be a number of events, 1 or more")
    return min(given, draft.POLL_EVENTS_MAX)
