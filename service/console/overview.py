"""The overview: every page that the visitor may see, and what on it calls for somebody now.

Who is on call looks here first, so a figure is a link to where something can be done about it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...domain import errors
from ...domain.inbox import OpenRequests
from ...domain.owner import Scope
from ...domain.push import Trouble
from ..operators import Listing, Operators
from . import inbox, webhooks
from .frame import ROOT, Frame, places_of
from .pages import Page
from .session import Visit
from .workers import BAD, LATE, LATE_S, OK, Instruments, tree_line

INBOX, WEBHOOKS = inbox.PATH, webhooks.PATH
WORKERS, PROOFS = f"{ROOT}/workers", f"{ROOT}/proofs"
COUNTED_MAX = 99  # of what is found by reading it; more is said to be more
CALM = "working"  # as a badge is coloured

_TOLD: Mapping[str, str] = {
    f"{ROOT}/tasks": "What runs, waits and has ended, with filters and search.",
    INBOX: "Questions of tools that wait for a person's answer.",
    WEBHOOKS: "Endpoints that are told of tasks, how they fare, and sending again.",
    WORKERS: "Who works on what, what waits, and what lags behind.",
    PROOFS: "The signed log of events, and proofs that nothing was changed.",
}
_SCOPES: Mapping[Scope, str] = {
    Scope.CALL: "start work, answer questions, cancel",
    Scope.WATCH: "see how tasks stand",
    Scope.OPERATE: "see every owner's tasks, mend webhooks, look at workers and proofs",
    Scope.AUDIT: "read what happened to a task, of every owner, at /console/tasks/ and its id",
}


@dataclass(frozen=True)
class Sign:
    """One figure: a badge, and the page where it is dealt with."""

    status: str
    told: str
    href: str


Signs = Mapping[str, Sequence[Sign]]


@dataclass(frozen=True)
class Sources:
    """What the figures are read from."""

    requests: OpenRequests
    operators: Operators
    instruments: Instruments


class Overview:
    """The page, for every visitor."""

    def __init__(self, frame: Frame, sources: Sources) -> None:
        self._frame, self._sources = frame, sources

    def pages(self) -> list[Page]:
        """What to mount."""
        return [Page(ROOT, self._show, scope=None)]

    async def _show(self, request: Request, visit: Visit) -> Response:
        signs, is_away = dict[str, Sequence[Sign]](), False
        try:
            signs = await self._signs(visit)
        except errors.StoreUnavailable:
            is_away = True  # the ways to all pages are shown all the same
        shown: dict[str, Any] = {"places": _places(visit, signs), "is_away": is_away}
        if "part" in request.query_params:
            return self._frame.part(visit, "overview_places.html", **shown)
        held = visit.caller.scopes
        shown["scopes"] = [(scope, told) for scope, told in _SCOPES.items() if scope in held]
        return self._frame.page(request, visit, "overview.html", **shown)

    async def _signs(self, visit: Visit) -> dict[str, Sequence[Sign]]:
        signs: dict[str, Sequence[Sign]] = {}
        if visit.watches:
            owner = None if visit.operates else visit.caller.owner.key
            signs[INBOX] = await self._waiting(owner)
        if visit.operates:
            signs[WEBHOOKS] = await self._troubled()
            signs[WORKERS] = await self._at_work()
            signs[PROOFS] = await self._signed()
        return signs

    async def _waiting(self, owner: str | None) -> Sequence[Sign]:
        found = len(await self._sources.requests.waiting(owner, None, COUNTED_MAX + 1))
        if not found:
            return [Sign(OK, "nobody waits", INBOX)]
        return [Sign(LATE, f"{_counted(found)} {'waits' if found == 1 else 'wait'}", INBOX)]

    async def _troubled(self) -> Sequence[Sign]:
        signs: list[Sign] = []
        troubles: tuple[tuple[Trouble, str], ...] = (("failing", LATE), ("suspended", BAD))
        for trouble, status in troubles:
            wanted = Listing(None, trouble, "", COUNTED_MAX)
            found = await self._sources.operators.list(wanted)
            count = len(found["webhooks"]) + (found["next"] is not None)
            if count:
                told = f"{_counted(count)} {trouble}"
                signs.append(Sign(status, told, f"{WEBHOOKS}?only={trouble}"))
        return signs or [Sign(OK, "none fails", WEBHOOKS)]

    async def _at_work(self) -> Sequence[Sign]:
        operations = self._sources.instruments.operations
        load, first = await operations.load(), await operations.leases(1)
        signs = [Sign(CALM, f"{load.held:,} held", WORKERS)]
        if load.queue.oldest_s is not None:
            is_late = load.queue.oldest_s > LATE_S
            signs.append(Sign(LATE if is_late else CALM, f"{load.queue.due:,} queued", WORKERS))
        if first and first[0].left_s < 0:  # those that have run out come first
            signs.append(Sign(BAD, "a worker is silent", WORKERS))
        if not self._sources.instruments.hears():
            signs.append(Sign(BAD, "the signal is deaf", WORKERS))
        return signs

    async def _signed(self) -> Sequence[Sign]:
        given = self._sources.instruments
        line = tree_line(await given.standing(), follows=given.follows)
        return [Sign(line.status, line.word, PROOFS)]


def _places(visit: Visit, signs: Signs) -> list[dict[str, Any]]:
    return [
        {"href": href, "title": title, "told": _TOLD[href], "signs": signs.get(href, ())}
        for title, href in places_of(visit)
        if href != ROOT
    ]


def _counted(found: int) -> str:
    return str(found) if found <= COUNTED_MAX else f"{COUNTED_MAX}+"
