"""The routes of the console, and what holds for all of them: who may, from where, and with what.

A visitor without a session is sent to sign in. A form counts only from a page of ours and with the
token that was put into it. Every failure has a page that says what can be done.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote

from starlette.datastructures import FormData
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ...domain import errors
from ...domain.owner import Scope
from .. import bodies
from ..jsonrpc import Rejection
from .frame import HEADERS, ROOT, SEE_OTHER, STATIC, Frame
from .session import Sessions, Visit, is_own_page

SIGN_IN = f"{ROOT}/sign-in"
FORM_BYTES_MAX = 1024 * 1024
FORM_FIELDS_MAX = 1000
FORM_S_MAX = 10.0
RETRY_S = 5
FORM_TYPE = "application/x-www-form-urlencoded"
CSRF = "csrf"
BAD, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, WRONG_METHOD = 400, 401, 403, 404, 405
GONE, CONFLICT, TOO_OFTEN, BROKEN, UNAVAILABLE = 410, 409, 429, 500, 503

Handler = Callable[[Request, Visit], Awaitable[Response]]
OpenHandler = Callable[[Request], Awaitable[Response]]

_log = logging.getLogger("outlast.console")


class NotThere(errors.OutlastError):
    """There is no such page, or it is not for you."""


class BadForm(errors.OutlastError):
    """The form cannot be read."""


@dataclass(frozen=True)
class Page:
    """One route. The visitor must hold `scope`, or else `other`; operators may watch everything."""

    path: str
    handler: Handler
    methods: Sequence[str] = ("GET",)
    scope: Scope | None = Scope.WATCH
    other: Scope | None = None

    def is_for(self, visit: Visit) -> bool:
        """Whether this visitor may have it."""
        held = visit.caller.scopes
        if self.scope is None or self.scope in held or self.other in held:
            return True
        return self.scope is Scope.WATCH and visit.watches


# What is told of a failure: status, title, hint.
_TROUBLES: Mapping[type[Exception], tuple[int, str, str]] = {
    NotThere: (NOT_FOUND, "Nothing here", "There is no such page, or it is not yours to see."),
    errors.TaskNotFound: (
        NOT_FOUND,
        "No such task",
        "It never was, its time is over, or it is another owner's.",
    ),
    errors.StoreUnavailable: (
        UNAVAILABLE,
        "The store cannot be reached",
        "Nothing was changed. Try again in a moment.",
    ),
    errors.IdentityUnavailable: (
        UNAVAILABLE,
        "Who you are cannot be checked now",
        "The issuer of your token does not answer. Try again in a moment.",
    ),
    errors.PayloadErased: (GONE, "Erased", "What this task held was erased."),
    errors.PayloadError: (GONE, "Cannot be opened", "What is stored of this task does not open."),
    errors.TooManyRequests: (TOO_OFTEN, "Too often", "Wait a little, then try again."),
    errors.TaskError: (CONFLICT, "The task has moved on", "Look at it again before you act."),
    BadForm: (BAD, "This form cannot be read", "Go back, load the page anew, and try again."),
    errors.CallError: (BAD, "This was not understood", "Look at what was sent, and try again."),
}


class Console:
    """All pages as routes."""

    def __init__(
        self,
        frame: Frame,
        sessions: Sessions,
        pages: Sequence[Page],
        open_pages: Mapping[str, OpenHandler],
    ) -> None:
        self._frame, self._sessions, self._pages = frame, sessions, pages
        self._open = open_pages

    def routes(self) -> list[Route]:
        """What to mount. `open_pages` are for who has not signed in; `GET /path` each."""
        by_path: dict[str, list[Page]] = {}
        for page in self._pages:
            by_path.setdefault(page.path, []).append(page)
        routes = [Route(f"{STATIC}/{{name}}", self._frame.static.get, methods=["GET"])]
        for named, handler in self._open.items():
            method, _, path = named.partition(" ")
            routes.append(Route(path, self._opened(handler), methods=[method]))
        # A path without a hole in it comes first: `/tasks/new` is not the task `new`.
        for path, pages in sorted(by_path.items(), key=lambda item: item[0].count("{")):
            routes.append(Route(path, self._served(pages), methods=_methods(pages)))
        routes.append(Route(f"{ROOT}/", self._served([_WITHOUT_SLASH]), methods=["GET"]))
        routes.append(Route(ROOT + "/{rest:path}", self._served([]), methods=["GET", "POST"]))
        return routes

    def _opened(self, handler: OpenHandler) -> OpenHandler:
        async def answer(request: Request) -> Response:
            return await self._guarded(request, lambda: handler(request))

        return answer

    def _served(self, pages: Sequence[Page]) -> OpenHandler:
        async def answer(request: Request) -> Response:
            return await self._guarded(request, lambda: self._answer(request, pages))

        return answer

    async def _answer(self, request: Request, pages: Sequence[Page]) -> Response:
        visit = await self._sessions.visit(request)
        if visit is None:
            return self._unknown(request)
        request.state.visit = visit
        method = "GET" if request.method == "HEAD" else request.method
        page = next((one for one in pages if method in one.methods), None)
        if page is None:
            raise NotThere
        if not page.is_for(visit):
            return self._forbidden(request, visit, page)
        if method == "POST" and not await self._is_meant(request, visit):
            return self._frame.error(
                request,
                visit,
                FORBIDDEN,
                "Not accepted",
                "The form did not come from a page of this console. Load it anew and try again.",
            )
        return await page.handler(request, visit)

    async def _is_meant(self, request: Request, visit: Visit) -> bool:
        if not is_own_page(request):
            return False
        given = await form(request)
        return self._sessions.is_meant(visit, given.get(CSRF))

    def _forbidden(self, request: Request, visit: Visit, page: Page) -> Response:
        wanted = " or ".join(f"“{scope}”" for scope in (page.scope, page.other) if scope)
        hint = f"It needs the scope {wanted}, which you did not sign in with."
        return self._frame.error(request, visit, FORBIDDEN, "Not for you", hint)

    def _unknown(self, request: Request) -> Response:
        is_fragment = request.headers.get("sec-fetch-mode") in ("cors", "same-origin")
        if request.method == "POST" or is_fragment or "part" in request.query_params:
            hint = "Sign in again; what you had typed was not sent."
            return self._frame.error(request, None, UNAUTHORIZED, "You are not signed in", hint)
        asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"{SIGN_IN}?next={quote(asked, safe='')}", SEE_OTHER)

    async def _guarded(
        self, request: Request, serve: Callable[[], Awaitable[Response]]
    ) -> Response:
        """The answer with the headers of all pages; a page for every failure."""
        try:
            self._sessions.check_host(request)
            response = await serve()
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001 - the edge: every failure has a page
            response = self._trouble(request, error)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    def _trouble(self, request: Request, error: Exception) -> Response:
        visit: Visit | None = getattr(request.state, "visit", None)
        if isinstance(error, Rejection):
            return Response(error.message, error.status, {}, "text/plain; charset=utf-8")
        if isinstance(error, bodies.BodyRefused):
            title, hint = "Too much at once", f"{error.message}."
            return self._frame.error(request, visit, error.status, title, hint)
        for kind, (status, title, hint) in _TROUBLES.items():
            if isinstance(error, kind):
                response = self._frame.error(request, visit, status, title, hint)
                if status == UNAVAILABLE:
                    response.headers["Retry-After"] = str(RETRY_S)
                return response
        _log.error("a page of the console failed for an unexpected reason", exc_info=error)
        hint = "That is our fault; the log of the service says more."
        return self._frame.error(request, visit, BROKEN, "Something went wrong", hint)


async def form(request: Request) -> FormData:
    """The fields of the form that was sent, read once. Raises BadForm, BodyRefused."""
    known: FormData | None = getattr(request.state, "form", None)
    if known is not None:
        return known
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM_TYPE:
        raise BadForm
    body = await bodies.read(request, FORM_BYTES_MAX, FORM_S_MAX)
    try:
        fields = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=FORM_FIELDS_MAX,
        )
    except ValueError:
        raise BadForm from None
    read = FormData([*fields])
    request.state.form = read
    return read


async def _without_slash(_request: Request, _visit: Visit) -> Response:
    return RedirectResponse(ROOT, SEE_OTHER)


_WITHOUT_SLASH = Page(f"{ROOT}/", _without_slash, scope=None)


def _methods(pages: Sequence[Page]) -> list[str]:
    """The methods of all pages at one path; a GET for the error page of who opens a form's."""
    return sorted({"GET"}.union(*(page.methods for page in pages)))
