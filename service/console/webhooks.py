"""`/console/webhooks`: endpoints, how they do, what was tried, and how to send again.

For operators, as `/admin/webhooks` is, and by the same use cases.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any
from urllib.parse import urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from ...domain import errors
from ...domain.owner import Scope
from ...domain.push import Trouble
from ..operators import Listing, NotNow, Operators, UnknownEvent, UnknownSubscription
from . import pages
from .frame import Frame
from .pages import NotThere, Page
from .session import Visit

PATH = "/console/webhooks"
SHOWN = 50
ATTEMPTS_SHOWN = 100
WINDOWS = {"15m": "15 minutes", "1h": "hour", "6h": "6 hours", "24h": "day", "72h": "3 days"}
REASONS = {
    "connection_refused": "no connection",
    "timeout": "no answer in time",
    "tls_error": "no secure connection: see its certificate",
    "http_4xx": "the endpoint refused it",
    "http_5xx": "the endpoint failed",
    "challenge_failed": "it answered, but did not echo the challenge",
}
# What an outcome looks like: the word of the status whose badge has that colour.
BADGES = {"delivered": "completed", "retry": "working", "abandoned": "failed", "gone": "failed"}

_TROUBLES: dict[str, Trouble] = {"suspended": "suspended", "failing": "failing"}

Json = dict[str, Any]
Deed = Callable[[Request, str], Awaitable[str]]


class Webhooks:
    """The pages."""

    def __init__(self, frame: Frame, operators: Operators) -> None:
        self._frame, self._operators = frame, operators

    def pages(self) -> list[Page]:
        """What to mount."""
        one = f"{PATH}/{{id}}"
        return [
            Page(PATH, self._list, scope=Scope.OPERATE),
            Page(one, self._show, scope=Scope.OPERATE),
            self._post(f"{one}/resend", self._resend),
            self._post(f"{one}/resume", self._resume),
            self._post(f"{one}/test", self._test),
        ]

    async def _list(self, request: Request, visit: Visit) -> Response:
        only = request.query_params.get("only", "")
        after = request.query_params.get("after", "")
        try:
            wanted = Listing(None, _TROUBLES.get(only), after, SHOWN)
            found = await self._operators.list(wanted)
        except errors.CallError:
            raise NotThere from None
        following = found["next"]
        more = {"after": following, **({"only": only} if only in _TROUBLES else {})}
        return self._frame.page(
            request,
            visit,
            "webhooks.html",
            webhooks=[row(each) for each in found["webhooks"]],
            only=only if only in _TROUBLES else "",
            is_first=not after,
            next=None if following is None else f"{PATH}?{urlencode(more)}",
        )

    async def _show(self, request: Request, visit: Visit) -> Response:
        subscription_id = request.path_params["id"]
        try:
            known = await self._operators.show(subscription_id)
            tried = await self._operators.attempts(subscription_id, limit=ATTEMPTS_SHOWN)
        except UnknownSubscription:
            raise NotThere from None
        return self._frame.page(
            request,
            visit,
            "webhook.html",
            webhook=row(known),
            breaker=known["breaker"],
            behind_since=_at(known["behindSince"]),
            next_attempt=_at(known["nextAttemptAt"]),
            open_until=_at(known["breaker"]["openUntil"]),
            attempts=[attempt(each) for each in tried["attempts"]],
            most=ATTEMPTS_SHOWN,
            windows=WINDOWS,
            url=f"{PATH}/{subscription_id}",
        )

    async def _resend(self, request: Request, subscription_id: str) -> str:
        given = await pages.form(request)
        if event := str(given.get("event") or ""):
            await self._operators.resend_sent(subscription_id, event)
            return "The event was queued once more, under the id that it had."
        since = str(given.get("since") or "")
        if given.get("which") == "all":
            queued = await self._operators.resend_since(subscription_id, since)
        else:
            queued = await self._operators.resend_failed(subscription_id, since)
        return "Nothing was to be sent again." if not queued else f"{_events(queued)} queued."

    async def _resume(self, _request: Request, subscription_id: str) -> str:
        await self._operators.resume(subscription_id)
        return "Resumed: what waits is delivered from where it stood."

    async def _test(self, _request: Request, subscription_id: str) -> str:
        told = await self._operators.test(subscription_id)
        if told["ok"]:
            return "The endpoint echoed the challenge: it is well."
        return f"The challenge failed: {REASONS.get(told['reason'], told['reason'])}."

    def _post(self, path: str, deed: Deed) -> Page:
        async def answer(request: Request, _visit: Visit) -> Response:
            subscription_id = request.path_params["id"]
            try:
                told = await deed(request, subscription_id)
            except UnknownSubscription:
                raise NotThere from None
            except (NotNow, UnknownEvent, errors.CallError) as refused:
                told = f"Not done. {refused}"
            return self._frame.back(request, f"{PATH}/{subscription_id}", told)

        return Page(path, answer, ("POST",), Scope.OPERATE)


def row(told: Json) -> Json:
    """A subscription as the templates read it: instants are instants, the state is one word."""
    issuer, subject, client = told["owner"]
    return {
        **told,
        "host": urlsplit(str(told["url"])).netloc or told["url"],
        "owner": subject,
        "ownerTitle": f"{subject}, client {client}, issuer {issuer}",
        "state": state_of(told),
        "badge": {"active": "completed", "failing": "input_required"}.get(state_of(told), "failed"),
        "reason": _reason(told["lastError"]),
        "createdAt": _at(told["createdAt"]),
        "lastDeliveryAt": _at(told["lastDeliveryAt"]),
        "failingSince": _at(told["failingSince"]),
        "refreshBefore": _at(told["refreshBefore"]),
    }


def state_of(told: Json) -> str:
    """`active`, `failing` or `suspended`."""
    if not told["active"]:
        return "suspended"
    return "active" if told["lastError"] is None else "failing"


def attempt(told: Json) -> Json:
    """An attempt as the templates read it."""
    return {
        **told,
        "at": _at(told["at"]),
        "badge": BADGES.get(told["outcome"], "working"),
        "why": _reason(told["reason"]),
    }


def _reason(word: str | None) -> str | None:
    return None if word is None else REASONS.get(word, word)


def _at(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _events(count: int) -> str:
    return "1 event was" if count == 1 else f"{count} events were"
