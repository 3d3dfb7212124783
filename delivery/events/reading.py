"""What poll and stream read from, and what both judge first."""

from dataclasses import dataclass

from ...domain import errors
from ...domain.ports import Clock
from ...domain.push import Filter, OwnerEvents
from ..feed import Feed
from ..port import EventsRequest
from . import types
from .begin import Begin, begin
from .cursors import Cursors
from .occurrences import Occurrences


@dataclass(frozen=True)
class Subscription:
    """A request that was judged: whose it is, what it wants, and from where.

    `running` are those of its tasks that had not ended, None when it names none. They were looked
    at before the position: all events of one that is missing are committed.
    """

    owner: str
    wanted: Filter
    begun: Begin
    running: frozenset[str] | None

    @property
    def has_ended(self) -> bool:
        """True when no event can come any more."""
        return self.running is not None and not self.running


@dataclass(frozen=True)
class Reading:
    """The stores, and what makes occurrences and cursors of what is in them."""

    events: OwnerEvents
    feed: Feed
    occurrences: Occurrences
    cursors: Cursors
    now: Clock

    async def judge(self, request: EventsRequest) -> Subscription:
        """The subscription of a request.

        Raises InvalidCall, EventNotFound (also when it begins now and nothing can come), and
        TaskNotFound as tasks/get does: unknown, expired or another owner's, nobody can tell.
        """
        params, owner = request.params, request.owner
        wanted = types.wanted(params.get("name"), params.get("arguments"))
        running = await self._running(owner, wanted)
        begun = await begin(self.events, self.cursors, owner, wanted, params, self.now())
        subscription = Subscription(owner, wanted, begun, running)
        if begun.is_fresh and subscription.has_ended:
            raise ended()
        return subscription

    async def _running(self, owner: str, wanted: Filter) -> frozenset[str] | None:
        if wanted.task_ids is None:
            return None
        running: set[str] = set()
        for task_id in wanted.task_ids:
            view = await self.feed.owned(owner, task_id)
            if view is None:
                raise errors.TaskNotFound
            if not view.is_terminal:
                running.add(task_id)
        return frozenset(running)


def ended() -> errors.EventNotFound:
    """Nothing more will come: the draft has no code for a good end, so this is the nearest."""
    return errors.EventNotFound(kind="subscription", reason="task_terminal")
