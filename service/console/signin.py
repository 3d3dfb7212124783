"""How people come in and go: by a token, or by an issuer that they know.

By an issuer it is the authorization code flow with PKCE. The access token that comes of it is
judged as every client's is, and then forgotten. What the flow must remember is in a sealed cookie.
"""

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ...domain import base64url, errors
from ...domain.owner import Caller
from .frame import ROOT, SEE_OTHER, Frame, own_path
from .pages import FORBIDDEN, SIGN_IN, UNAUTHORIZED, OpenHandler, Page, form
from .session import Sessions, Visit, drop, is_own_page, keep
from .signing import Seal

OIDC = f"{SIGN_IN}/oidc"
CALLBACK = f"{SIGN_IN}/oidc/callback"
FLOW = "outlast_console_flow"
FLOW_S = 600.0  # how long somebody may take at the issuer
TOKEN_CHARS_MAX = 16 * 1024
NEXT_CHARS_MAX = 1024  # a cookie holds it while somebody is at the issuer
REFUSED = "This token does not open this service. It may have ended, or be another service's."

_log = logging.getLogger("outlast.console")


class FlowFailed(errors.OutlastError):
    """The issuer did not let this person in."""


class CodeFlow(Protocol):
    """An issuer that sends people back with a code, and takes it for an access token."""

    @property
    def issuer(self) -> str:
        """Its name, as its metadata and its answers have it."""
        ...

    async def address(self, state: str, challenge: str) -> str:
        """Where to send somebody. Raises IdentityUnavailable."""
        ...

    async def token(self, code: str, verifier: str) -> str:
        """The access token for a code. Raises Unauthenticated, IdentityUnavailable."""
        ...


class SignIn:
    """The pages. `flow` is None where no issuer is configured for the console."""

    def __init__(
        self, frame: Frame, sessions: Sessions, seal: Seal, flow: CodeFlow | None = None
    ) -> None:
        self._frame, self._sessions, self._seal, self._flow = frame, sessions, seal, flow

    def pages(self) -> list[Page]:
        """What is for visitors."""
        return [Page(f"{ROOT}/sign-out", self._sign_out, ("POST",), scope=None)]

    def open_pages(self) -> Mapping[str, OpenHandler]:
        """What is for everybody."""
        ways: dict[str, OpenHandler] = {
            f"GET {SIGN_IN}": self._ask,
            f"POST {SIGN_IN}": self._by_token,
        }
        if self._flow is not None:
            ways[f"GET {OIDC}"] = self._to_issuer
            ways[f"GET {CALLBACK}"] = self._from_issuer
        return ways

    async def _ask(self, request: Request) -> Response:
        return self._form(request, own_path(request.query_params.get("next")))

    def _form(self, request: Request, then: str, refused: str = "", status: int = 200) -> Response:
        issuer = None if self._flow is None else urlsplit(self._flow.issuer).netloc
        context = {"next": then, "refused": refused, "issuer": issuer}
        return self._frame.page(request, None, "signin.html", status, **context)

    async def _by_token(self, request: Request) -> Response:
        given = await form(request)
        then = own_path(_text(given.get("next")))
        if not is_own_page(request):  # nobody is signed in as somebody else by another site
            return self._form(request, then, "Please send this form once more.", FORBIDDEN)
        token = _text(given.get("token")).strip()
        try:
            if not token.isascii() or not token.isprintable() or len(token) > TOKEN_CHARS_MAX:
                raise errors.Unauthenticated
            caller = await self._sessions.caller_of(token)
        except errors.Unauthenticated:
            _log.info("a sign-in by token is refused")
            return self._form(request, then, REFUSED, UNAUTHORIZED)
        return self._let_in(request, caller, then)

    def _let_in(self, request: Request, caller: Caller, then: str) -> Response:
        response = RedirectResponse(then, SEE_OTHER)
        self._sessions.begin(request, response, caller)
        return response

    async def _sign_out(self, request: Request, _visit: Visit) -> Response:
        response = self._frame.back(request, ROOT, "You have signed out.")
        response.headers["Location"] = SIGN_IN
        self._sessions.end(request, response)
        return response

    async def _to_issuer(self, request: Request) -> Response:
        assert self._flow is not None  # noqa: S101 - the route is not there without it
        verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(24)
        then = own_path(request.query_params.get("next"))[:NEXT_CHARS_MAX]
        address = await self._flow.address(state, challenge_of(verifier))
        said = {"state": state, "verifier": verifier, "next": then}
        response = RedirectResponse(address, SEE_OTHER)
        sealed = self._seal.seal(FLOW, said, time.time() + FLOW_S)
        keep(request, response, FLOW, sealed, FLOW_S)
        return response

    async def _from_issuer(self, request: Request) -> Response:
        said = self._seal.open(FLOW, request.cookies.get(FLOW))
        then = ROOT if said is None else own_path(said["next"])
        try:
            caller = await self._proven(request, said)
        except (FlowFailed, errors.Unauthenticated) as error:
            _log.info("a sign-in by an issuer is refused: %s", type(error).__name__)
            response = self._form(request, then, str(error), UNAUTHORIZED)
        else:
            response = self._let_in(request, caller, then)
        drop(request, response, FLOW)
        return response

    async def _proven(self, request: Request, said: Mapping[str, str] | None) -> Caller:
        """Whoever the issuer has sent back. Raises FlowFailed, Unauthenticated and others."""
        assert self._flow is not None  # noqa: S101 - the route is not there without it
        given = request.query_params
        if said is None or not hmac.compare_digest(
            given.get("state", "").encode(), said["state"].encode()
        ):
            raise FlowFailed("This sign-in was not begun here, or took too long. Begin again.")
        if given.get("iss", self._flow.issuer) != self._flow.issuer:
            raise FlowFailed("Another issuer has answered than was asked. Begin again.")
        code = given.get("code")
        if "error" in given or not code:
            raise FlowFailed("The issuer did not let you in, or you did not agree.")
        token = await self._flow.token(code, said["verifier"])
        try:
            return await self._sessions.caller_of(token)
        except errors.Unauthenticated:
            raise FlowFailed("The issuer let you in, but its token is not for here.") from None


def challenge_of(verifier: str) -> str:
    """What is shown of a verifier at first (RFC 7636, S256)."""
    return base64url.encoded(hashlib.sha256(verifier.encode()).digest())


def _text(given: object) -> str:
    return given if isinstance(given, str) else ""
