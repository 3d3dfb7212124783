"""`/console/workers`: who works on what, what waits, and who is behind by how much."""

import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...domain.audit import Standing
from ...domain.operating import Lease, Load, Operations
from ...domain.owner import Scope
from .frame import Frame
from .pages import Page
from .session import Visit

LEASES_MAX = 200  # shown at once; all are counted
LATE_S = 60.0  # a queue whose oldest waits longer is marked
UNSIGNED_S = 3_600.0  # so long may events stand in the tree before that is worth a mark
OK, LATE, BAD, OFF = "completed", "input_required", "failed", "cancelled"  # as badges are coloured


@dataclass(frozen=True)
class Instruments:
    """What the page is read from. `subscriptions` counts webhooks, None where nobody may have any.

    `hears` tells whether this process hears of changes at once, `follows` whether it has a tree.
    """

    operations: Operations
    standing: Callable[[], Awaitable[Standing]]
    hears: Callable[[], bool]
    subscriptions: Callable[[], Awaitable[int]] | None = None
    follows: bool = True


@dataclass(frozen=True)
class Holder:
    """One worker and the leases of it that are shown."""

    name: str
    leases: list[Lease]

    @property
    def is_lost(self) -> bool:
        """Whether one of its leases has run out: it beats no more."""
        return any(lease.left_s < 0 for lease in self.leases)


@dataclass(frozen=True)
class Follower:
    """One line of the table of lags: a word for a badge, and a sentence."""

    name: str
    status: str
    word: str
    told: str


class Workers:
    """The page, for operators."""

    def __init__(self, frame: Frame, instruments: Instruments) -> None:
        self._frame, self._instruments = frame, instruments

    def pages(self) -> list[Page]:
        """What to mount."""
        return [Page("/console/workers", self._show, scope=Scope.OPERATE)]

    async def _show(self, request: Request, visit: Visit) -> Response:
        given = self._instruments
        load = await given.operations.load()
        leases = await given.operations.leases(LEASES_MAX)
        shown: dict[str, Any] = {
            "load": load,
            "holders": holders(leases),
            "left_out": max(0, load.held - len(leases)),
            "followers": await self._followers(load),
            "late_s": LATE_S,
        }
        if "part" in request.query_params:
            return self._frame.part(visit, "workers_figures.html", **shown)
        return self._frame.page(request, visit, "workers.html", **shown)

    async def _followers(self, load: Load) -> list[Follower]:
        given = self._instruments
        found = [signal_line(given.hears())]
        found.append(tree_line(await given.standing(), follows=given.follows))
        if given.subscriptions is None:
            found.append(Follower("Webhooks", OFF, "off", "This service sends none."))
        else:
            found.append(outbox_line(load, await given.subscriptions()))
        return found


def holders(leases: Sequence[Lease]) -> list[Holder]:
    """The leases by their workers, those first whose worker is lost."""
    found = [
        Holder(name, list(group))
        for name, group in itertools.groupby(leases, key=lambda lease: lease.worker)
    ]
    return sorted(found, key=lambda holder: (not holder.is_lost, holder.name))


def signal_line(hears: bool) -> Follower:
    """How this process hears of changes."""
    if hears:
        return Follower("Signal", OK, "live", "Changes are heard of at once.")
    told = "Nothing is heard: waiters look for changes every second. Is LISTEN let through?"
    return Follower("Signal", BAD, "deaf", told)


def tree_line(standing: Standing, *, follows: bool) -> Follower:
    """How far the audit tree is behind the log, and the signature behind the tree."""
    name = "Audit tree"
    if not follows:
        return Follower(name, OFF, "off", "The log is not followed: audit is switched off.")
    behind = max(0, standing.head - standing.position)
    unsigned = standing.size - standing.checkpointed
    told = f"{behind:,} positions behind the log; {unsigned:,} events not signed yet."
    if behind == 0 and unsigned == 0:
        return Follower(name, OK, "level", "Every event is in the tree and signed.")
    is_late = standing.age_s is not None and standing.age_s > UNSIGNED_S
    return Follower(name, LATE if is_late else OK, "late" if is_late else "following", told)


def outbox_line(load: Load, subscriptions: int) -> Follower:
    """What webhooks have still to bring."""
    waits = load.outbox
    who = f"{subscriptions:,} subscription{'' if subscriptions == 1 else 's'}"
    if waits.oldest_s is None:
        told = f"{who}; nothing is due, {waits.later:,} wait for their next attempt."
        return Follower("Webhooks", OK, "level", told)
    is_late = waits.oldest_s > LATE_S
    oldest = f"the oldest for {waits.oldest_s:,.0f} s"
    told = f"{who}; {waits.due:,} due, {oldest}; {waits.later:,} later."
    return Follower("Webhooks", LATE if is_late else OK, "late" if is_late else "sending", told)
