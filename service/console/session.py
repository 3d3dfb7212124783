"""Who looks at the console: a sealed cookie says it. No token is in it, and nothing is stored.

The cookie ends with the token that it was made from, and after `length_s` at the latest. What ends
all of them at once is another `secret_key`, or another `admin_token`.
"""

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from ...domain import errors
from ...domain.owner import Caller, Owner, Scope
from ...domain.ports import Identity
from ..guard import Guard
from ..settings import LOOPBACK_HOSTS
from .signing import Seal

COOKIE = "outlast_console"
PURPOSE = "session"
LOCAL = "local"  # the CSRF token of who needs no session is sealed over this
LENGTH_S = 8 * 3600.0


@dataclass(frozen=True)
class Visit:
    """One request's visitor. `csrf` must come back with every form."""

    caller: Caller
    csrf: str
    until: datetime
    is_signed_in: bool = True

    @property
    def operates(self) -> bool:
        """Whether every owner's tasks may be seen, and not the visitor's own alone."""
        return Scope.OPERATE in self.caller.scopes

    @property
    def watches(self) -> bool:
        """Whether there are tasks that may be seen, in lists and in the inbox."""
        return self.operates or Scope.WATCH in self.caller.scopes


class Sessions:
    """Makes visits of cookies, and cookies of callers.

    `knows` says whether somebody who was let in is still one of ours.
    """

    def __init__(
        self,
        seal: Seal,
        identity: Identity,
        guard: Guard,
        knows: Callable[[Owner], bool],
        length_s: float = LENGTH_S,
    ) -> None:
        self._seal, self._identity, self._guard = seal, identity, guard
        self._knows, self._length_s = knows, length_s

    def check_host(self, request: HTTPConnection) -> None:
        """Raises Rejection for a request that was meant for another name."""
        self._guard.check(request.headers.get("host"), None)

    async def visit(self, request: HTTPConnection) -> Visit | None:
        """The visitor by the cookie, or else who needs none; None for who must sign in."""
        return self._kept(request) or await self._unasked()

    def socket_caller(self, request: HTTPConnection) -> Caller | None:
        """Who opens a WebSocket from a page of ours; None for all others. Raises Rejection."""
        visit = self._kept(request)
        if visit is None or "authorization" in request.headers or not is_own_page(request):
            return None
        self.check_host(request)
        return visit.caller

    async def caller_of(self, token: str) -> Caller:
        """Who holds this token. Raises Unauthenticated, IdentityUnavailable."""
        return await self._identity.authenticate(f"Bearer {token}")

    def begin(self, request: Request, response: Response, caller: Caller) -> None:
        """Let the browser keep who has signed in."""
        now = datetime.now(UTC).timestamp()
        until = now + self._length_s
        if caller.until is not None:
            until = min(until, caller.until.timestamp())
        owner = caller.owner
        said = {
            "owner": [owner.issuer, owner.subject, owner.client],
            "scopes": sorted(caller.scopes),
            "csrf": secrets.token_urlsafe(24),
            "until": until,
        }
        sealed = self._seal.seal(PURPOSE, said, until)
        keep(request, response, COOKIE, sealed, until - now)

    def end(self, request: Request, response: Response) -> None:
        """Let the browser forget."""
        drop(request, response, COOKIE)

    def _kept(self, request: HTTPConnection) -> Visit | None:
        said = self._seal.open(PURPOSE, request.cookies.get(COOKIE))
        if said is None:
            return None
        owner = Owner(*said["owner"])
        if not self._knows(owner):
            return None
        scopes = frozenset(Scope(name) for name in said["scopes"])
        until = datetime.fromtimestamp(said["until"], UTC)
        return Visit(Caller(owner, scopes, until), said["csrf"], until)

    async def _unasked(self) -> Visit | None:
        try:
            caller = await self._identity.authenticate(None)
        except errors.Unauthenticated:
            return None
        until = datetime.now(UTC).timestamp() + self._length_s
        csrf = self._seal.seal(LOCAL, {}, until)
        return Visit(caller, csrf, datetime.fromtimestamp(until, UTC), is_signed_in=False)

    def is_meant(self, visit: Visit, given: Any) -> bool:
        """Whether this CSRF token came from a page that was made for this visit."""
        if not isinstance(given, str) or not given:
            return False
        if not visit.is_signed_in:
            return self._seal.open(LOCAL, given) is not None
        return hmac.compare_digest(given.encode(), visit.csrf.encode())


def is_own_page(request: HTTPConnection) -> bool:
    """Whether a page of ours sent this: both headers agree, and one of them is there.

    The scheme is not compared: who ends TLS before us speaks http with us.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site not in (None, "same-origin") or (site is None and origin is None):
        return False
    return origin is None or _place_of(origin) == request.headers.get("host", "").lower()


def is_secure(request: HTTPConnection) -> bool:
    """Whether the browser reached us by https, as far as it or we can tell.

    Browsers say where a request comes from (`Sec-Fetch-Site`) under https and on loopback alone.
    """
    if request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://"):
        return True
    return "sec-fetch-site" in request.headers and request.url.hostname not in LOOPBACK_HOSTS


def keep(request: Request, response: Response, name: str, value: str, seconds: float) -> None:
    """A cookie that no script reads and no other site's form brings."""
    response.set_cookie(
        name,
        value,
        max_age=max(0, int(seconds)),
        path="/",
        secure=is_secure(request),
        httponly=True,
        samesite="lax",
    )


def drop(request: Request, response: Response, name: str) -> None:
    """The same, taken back."""
    response.delete_cookie(name, path="/", secure=is_secure(request), httponly=True, samesite="lax")


def _place_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None
