"""`/audit`: the log over HTTP, for whoever holds the scope `audit`. Nothing here changes anything.

    GET /audit/tasks/{id}            what happened to a task, of any owner, payloads included
    GET /audit/tasks/{id}?at=VERSION the very bytes that tasks/get answered with at that version
    GET /audit/checkpoint            the newest signed checkpoint, as text

A refusal is `{"error": "a sentence"}`: 400 for what was asked wrongly, 401 and 403 for who may not
ask, 404 for what is not there, 410 for what was erased, 503 while the store is away.
"""

import logging
import re
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..domain import errors
from ..domain.owner import Scope
from .access import JSON, Access
from .auditing.history import Historian, NoSuchVersion, UnknownTask, Unreadable, json_of
from .jsonrpc import dumps

PATH = "/audit"
TEXT = "text/plain; charset=utf-8"
RETRY_S = 1  # what Retry-After says while the store is away
VERSION = re.compile(r"[1-9][0-9]{0,8}")

Handler = Callable[[Request], Awaitable[Response]]
# The newest checkpoint's note; None before the first.
Newest = Callable[[], Awaitable[str | None]]

_log = logging.getLogger("outlast.audit")


class NoCheckpoint(errors.OutlastError):
    """No checkpoint has been signed yet."""


_STATUSES: dict[type[errors.OutlastError], int] = {
    errors.InvalidCall: 400,
    UnknownTask: 404,
    NoSuchVersion: 404,
    NoCheckpoint: 404,
    Unreadable: 410,
    errors.StoreUnavailable: 503,
}


class AuditPages:
    """The routes."""

    def __init__(self, historian: Historian, newest: Newest | None, access: Access) -> None:
        self._historian, self._newest, self._access = historian, newest, access

    def routes(self) -> list[Route]:
        """What to mount."""
        routes = [self._route("/tasks/{id}", self._task)]
        if self._newest is not None:
            routes.append(self._route("/checkpoint", self._checkpoint))
        return routes

    async def _task(self, request: Request) -> Response:
        wanted = _version(request)
        history = await self._historian.history(request.path_params["id"])
        if wanted is None:
            return _answer(200, dumps(json_of(history)))
        return _answer(200, self._historian.state_at(history, wanted))

    async def _checkpoint(self, request: Request) -> Response:
        _only(request, frozenset())
        note = None if self._newest is None else await self._newest()
        if note is None:
            raise NoCheckpoint
        return _answer(200, note.encode(), media=TEXT)

    def _route(self, path: str, handler: Handler) -> Route:
        async def answer(request: Request) -> Response:
            caller = await self._access.enter(request, Scope.AUDIT)
            if isinstance(caller, Response):
                return caller
            try:
                return await handler(request)
            except Exception as error:  # noqa: BLE001 - the edge: every failure has an answer
                return _refusal(error)

        return Route(PATH + path, answer, methods=["GET"])


def _version(request: Request) -> int | None:
    """The version asked for. Raises InvalidCall."""
    _only(request, frozenset({"at"}))
    given = request.query_params.getlist("at")
    if not given:
        return None
    if len(given) > 1 or not VERSION.fullmatch(given[0]):
        raise errors.InvalidCall("at must be one version: a number from 1 on")
    return int(given[0])


def _only(request: Request, known: frozenset[str]) -> None:
    if not known.issuperset(request.query_params):
        raise errors.InvalidCall(f"there are no parameters here but: {', '.join(known) or 'none'}")


def _refusal(error: Exception) -> Response:
    for kind, status in _STATUSES.items():
        if isinstance(error, kind):
            again = isinstance(error, errors.StoreUnavailable)
            headers = {"Retry-After": str(RETRY_S)} if again else {}
            return _answer(status, dumps({"error": str(error)}), headers)
    _log.error("an auditor's request failed for an unexpected reason", exc_info=error)
    return _answer(500, dumps({"error": "Internal error"}))


def _answer(
    status: int, body: bytes, headers: dict[str, str] | None = None, media: str = JSON
) -> Response:
    own = {"Cache-Control": "no-store", **(headers or {})}
    return Response(body, status, own, media)
