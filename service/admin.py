"""`/admin/webhooks`: what operators do, over HTTP. JSON in and out, for the scope `operate`.

    GET  /admin/webhooks                 ?owner= &only=suspended|failing &after= &limit=
    GET  /admin/webhooks/{id}
    GET  /admin/webhooks/{id}/attempts   ?event= &limit=
    POST /admin/webhooks/{id}/resend     {"event"}, {"task", "version"} or {"since"}
    POST /admin/webhooks/{id}/resume
    POST /admin/webhooks/{id}/test

A refusal is `{"error": "a sentence"}`: 400 for what was asked wrongly, 401 without a token, 403 for
one without the scope, 404 for what is not there, 409 for what cannot be done as things are, 503
while the store is away.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ..domain import errors
from ..domain.owner import Owner, Scope
from ..domain.push import Trouble
from . import bodies
from .access import Access
from .jsonrpc import Rejection, dumps
from .operators import (
    PAGE_MAX,
    Json,
    Listing,
    NotNow,
    Operators,
    UnknownEvent,
    UnknownSubscription,
)

PATH = "/admin/webhooks"
BODY_BYTES_MAX = 16 * 1024
BODY_S_MAX = 10.0  # a body that takes longer to arrive is given up
VERSION_MAX = 2**31
RETRY_S = 1  # what Retry-After says while the store is away

JSON = "application/json"
UNAVAILABLE = 503

_STATUSES: dict[type[errors.OutlastError], int] = {
    errors.CallError: 400,
    UnknownSubscription: 404,
    UnknownEvent: 404,
    NotNow: 409,
    errors.StoreUnavailable: UNAVAILABLE,
}

M = TypeVar("M", bound=BaseModel)
Handler = Callable[[Request], Awaitable[Json]]

_log = logging.getLogger("outlast.admin")


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Limit = Annotated[int, Field(ge=1, le=PAGE_MAX)]


class _List(_Asked):
    owner: str | None = None
    only: Trouble | None = None
    after: str = ""
    limit: Limit = 100


class _Attempts(_Asked):
    event: str | None = None
    limit: Limit = 100


class _Resend(_Asked):
    event: Annotated[str, Field(min_length=1)] | None = None
    task: Annotated[str, Field(min_length=1)] | None = None
    version: Annotated[int, Field(ge=1, le=VERSION_MAX, strict=True)] | None = None
    since: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> "_Resend":
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if given not in (["event"], ["task", "version"], ["since"]):
            raise ValueError("give event, or task and version, or since")
        return self


class _Nothing(_Asked):
    """A body that holds nothing."""


class _Refused(Exception):
    """The answer is this error."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers


class Admin:
    """The routes, for whoever may operate the service."""

    def __init__(self, operators: Operators, access: Access) -> None:
        self._operators, self._access = operators, access

    def routes(self) -> list[Route]:
        """What to mount."""
        one = PATH + "/{id}"
        return [
            self._route("GET", PATH, self._list),
            self._route("GET", one, self._show),
            self._route("GET", f"{one}/attempts", self._attempts),
            self._route("POST", f"{one}/resend", self._resend),
            self._route("POST", f"{one}/resume", self._resume),
            self._route("POST", f"{one}/test", self._test),
        ]

    async def _list(self, request: Request) -> Json:
        asked = _query(_List, request)
        owner = None if asked.owner is None else _owner_key(asked.owner)
        return await self._operators.list(Listing(owner, asked.only, asked.after, asked.limit))

    async def _show(self, request: Request) -> Json:
        _query(_Nothing, request)
        return await self._operators.show(request.path_params["id"])

    async def _attempts(self, request: Request) -> Json:
        asked = _query(_Attempts, request)
        found = self._operators.attempts(request.path_params["id"], asked.event, asked.limit)
        return await found

    async def _resend(self, request: Request) -> Json:
        asked, subscription_id = await _body(_Resend, request), request.path_params["id"]
        if asked.since is not None:
            queued = await self._operators.resend_since(subscription_id, asked.since)
        elif asked.event is not None:
            queued = await self._operators.resend_sent(subscription_id, asked.event)
        else:
            task_id, version = asked.task or "", asked.version or 0
            queued = await self._operators.resend_version(subscription_id, task_id, version)
        return {"queued": queued}

    async def _resume(self, request: Request) -> Json:
        await _body(_Nothing, request)
        return await self._operators.resume(request.path_params["id"])

    async def _test(self, request: Request) -> Json:
        await _body(_Nothing, request)
        return await self._operators.test(request.path_params["id"])

    def _route(self, method: str, path: str, handler: Handler) -> Route:
        async def answer(request: Request) -> Response:
            try:
                await self._access.admit(request.headers, Scope.OPERATE)
                return _json(200, await handler(request))
            except ClientDisconnect:
                return Response(status_code=400)
            except Exception as error:  # noqa: BLE001 - the edge: every failure has an answer
                refused = _judged(error)
                return _json(refused.status, {"error": refused.message}, refused.headers)

        return Route(path, answer, methods=[method])


def _owner_key(text: str) -> str:
    """The key of an owner that is given as in our answers."""
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError):
        parts = None
    match parts:
        case [str(issuer), str(subject), str(client)]:
            return Owner(issuer, subject, client).key
        case _:
            raise _Refused(
                400, 'owner must be written as in the answers: ["issuer", "subject", "client"]'
            )


def _query(model: type[M], request: Request) -> M:
    return _valid(model, dict(request.query_params))


async def _body(model: type[M], request: Request) -> M:
    """The request's body, which may be missing where it holds nothing. Raises _Refused."""
    try:
        text = await bodies.read(request, BODY_BYTES_MAX, BODY_S_MAX)
    except bodies.BodyRefused as refused:
        raise _Refused(refused.status, refused.message) from None
    if not text:
        return _valid(model, {})
    if not bodies.is_json(request):
        raise _Refused(415, f"The Content-Type must be {JSON}")
    try:
        return _valid(model, orjson.loads(text))
    except orjson.JSONDecodeError as error:
        raise _Refused(400, f"The body is not JSON: {error}") from None


def _valid(model: type[M], given: Any) -> M:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = f"unknown; there are: {', '.join(model.model_fields) or 'none'}"
        raise _Refused(400, f"{where}: {message}" if where else message) from None


def _judged(error: Exception) -> _Refused:
    """The answer to a failed request. Unknown errors are logged, and tell the caller nothing."""
    if isinstance(error, _Refused):
        return error
    if isinstance(error, Rejection):
        return _Refused(error.status, error.message, **error.headers)
    for kind, status in _STATUSES.items():
        if isinstance(error, kind):
            again = {"Retry-After": str(RETRY_S)} if status == UNAVAILABLE else {}
            return _Refused(status, str(error), **again)
    _log.error("an operator's request failed for an unexpected reason", exc_info=error)
    return _Refused(500, "Internal error")


def _json(status: int, value: Json, headers: dict[str, str] | None = None) -> Response:
    own = {"Cache-Control": "no-store", **(headers or {})}
    return Response(dumps(value), status_code=status, media_type=JSON, headers=own)
