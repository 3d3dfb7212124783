"""Callbacks in: a job that a tool started elsewhere tells how it goes, and how it ended.

Each attempt has a URL and a secret of its own, and nothing of them is stored: the URL's token is
the task and the attempt, sealed; the secret is derived from both. What a job sends is signed as
Standard Webhooks say, and counts once for each `webhook-id`. The answers:

    204  taken; or there is nothing to take: the id was heard before, the progress is behind what is
         recorded, or the task's stream has no room for more progress
    400  malformed, or no result of this tool: the task is as it was, the job may correct itself
    401  not signed by this attempt's secret, or signed too long ago
    404  no callback has this URL
    408  the body came too slowly; 413: it is too large
    409  another attempt runs the task now, or has to
    410  the task has ended
    425  the tool has not returned yet; 429: progress came less than a second after the last
    503  the store or the upstream is away

After 425, 429 and 503 the same callback may be sent again, and should be: `Retry-After` says when.
"""

import asyncio
import base64
import hmac
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import orjson
from mcp.server.request_state import AESGCMRequestStateCodec, InvalidRequestState
from mcp_types import CallToolResult
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from ..domain import decisions, errors, jobs
from ..domain.decisions import Events
from ..domain.ports import Upstreams
from ..domain.task import Task
from . import bodies, schemas
from .commands import Commands
from .legs import merged_result

PATH = "/callbacks/{token}"
BODY_BYTES_MAX = 4 * 1024 * 1024
BODY_S_MAX = 30.0  # a body that takes longer to arrive is given up: 408
TOKEN_CHARS_MAX = 512
MESSAGE_CHARS_MAX = 4_096
DEPTH_MAX = 64  # no honest result nests deeper
RETRY_S = 1  # what Retry-After says
UPSTREAM_S_MAX = 10.0  # an upstream that does not tell its tools within this counts as away
REASON_CHARS_MAX = 500  # of what we say about a body that we refuse

_log = logging.getLogger("outlast.callbacks")

# Whether a body is signed: by this secret, under these headers, lately.
IsSigned = Callable[[bytes, Mapping[str, str], bytes], bool]


@dataclass(frozen=True)
class Ticket:
    """What a callback URL stands for."""

    task_id: str
    attempt: int


class Tickets:
    """Makes the callback of an attempt, and knows it again; on any replica with the same key."""

    def __init__(self, key: str, public_url: str | None) -> None:
        self._key = key.encode()
        self._codec = AESGCMRequestStateCodec([self._derived(b"token")])
        self._public_url = None if public_url is None else public_url.rstrip("/")

    def offer(self, task: Task) -> Mapping[str, str] | None:
        """The `url` and `secret` of the running attempt; None when we have no public URL."""
        if self._public_url is None:
            return None
        ticket = Ticket(task.id, task.attempt)
        url = self._public_url + PATH.format(token=self._codec.seal(_claims(ticket)))
        secret = base64.b64encode(self.secret(ticket)).decode()
        return {"url": url, "secret": f"whsec_{secret}"}

    def open(self, token: str) -> Ticket | None:
        """What the token of a URL stands for; None for one that we did not make."""
        if len(token) > TOKEN_CHARS_MAX:
            return None
        try:
            task_id, attempt = json.loads(self._codec.unseal(token))
        except InvalidRequestState:
            return None
        return Ticket(task_id, attempt)

    def secret(self, ticket: Ticket) -> bytes:
        """The key of this attempt's signatures."""
        return self._derived(b"secret " + _claims(ticket))

    def _derived(self, purpose: bytes) -> bytes:
        return hmac.digest(self._key, b"outlast callback " + purpose, "sha256")


def _claims(ticket: Ticket) -> bytes:
    return json.dumps([ticket.task_id, ticket.attempt]).encode()


class _Told(BaseModel):
    model_config = ConfigDict(strict=True)


class Progressed(_Told):
    """The job tells how far it is."""

    type: Literal["progress"]
    progress: FiniteFloat
    total: FiniteFloat | None = None
    message: Annotated[str, Field(max_length=MESSAGE_CHARS_MAX)] | None = None


class Completed(_Told):
    """The job has a result, `isError` or not."""

    type: Literal["completed"]
    result: dict[str, Any]


class JobError(_Told):
    """A JSON-RPC error."""

    code: int
    message: str
    data: Any = None


class Failed(_Told):
    """The job ended in a JSON-RPC error."""

    type: Literal["failed"]
    error: JobError


Told = Progressed | Completed | Failed
_TOLD: TypeAdapter[Told] = TypeAdapter(Annotated[Told, Field(discriminator="type")])


class Refused(Exception):
    """This callback is not taken, for a reason that the job is told."""

    def __init__(self, status: int, message: str, *, again: bool = False) -> None:
        super().__init__(message)
        self.status, self.message, self.again = status, message, again


class Callbacks:
    """The endpoint that jobs call back."""

    def __init__(
        self, tickets: Tickets, commands: Commands, upstreams: Upstreams, is_signed: IsSigned
    ) -> None:
        self._tickets, self._commands = tickets, commands
        self._upstreams, self._is_signed = upstreams, is_signed

    async def post(self, request: Request) -> Response:
        """Answer one callback. Never raises."""
        ticket = self._tickets.open(request.path_params["token"])
        if ticket is None:
            return _refusal(Refused(404, "No callback has this URL"))
        try:
            await self._hear(request, ticket)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:  # noqa: BLE001 - the edge: every failure has an answer
            refused = _judged(error)
            facts = {"task": ticket.task_id, "attempt": ticket.attempt, "status": refused.status}
            _log.info("a callback was not taken: %s", refused.message, extra=facts)
            return _refusal(refused)
        return Response(status_code=204)

    async def _hear(self, request: Request, ticket: Ticket) -> None:
        body = await bodies.read(request, BODY_BYTES_MAX, BODY_S_MAX)
        # One value a name: what was verified is what is read.
        headers = dict(request.headers.items())
        if not self._is_signed(self._tickets.secret(ticket), headers, body):
            raise Refused(401, "The callback carries no valid signature of its secret")
        told = _parsed(body)
        callback_id = headers["webhook-id"]

        def wish(task: Task) -> Events:
            return self._events(task, ticket, told, callback_id)

        task = await self._commands.load(ticket.task_id)
        if not wish(task):
            return
        if isinstance(told, Completed):
            await self._check_output(task, told.result)
        await self._commands.change(ticket.task_id, wish, task)

    def _events(self, task: Task, ticket: Ticket, told: Told, callback_id: str) -> Events:
        """What follows from it. A fast job can be back before its tool has returned: not yet."""
        if task.is_running and task.attempt == ticket.attempt:
            raise Refused(425, "The tool has not returned yet", again=True)
        now = self._commands.now()
        if isinstance(told, Completed):
            result = merged_result(told.result)
            return decisions.complete(task, ticket.attempt, result, now, callback_id)
        if isinstance(told, Failed):
            error = told.error.model_dump(exclude_unset=True)
            return decisions.fail(task, ticket.attempt, error, now, callback_id)
        news = decisions.report_progress(
            task, ticket.attempt, told.progress, told.total, told.message, now, callback_id
        )
        if news and jobs.is_too_soon(task, now):
            raise Refused(429, "Progress is recorded once a second", again=True)
        return news

    async def _check_output(self, task: Task, result: Mapping[str, Any]) -> None:
        """Hold a result against the tool's `outputSchema`, as the upstream has it now."""
        if result.get("isError") is True:
            return
        try:
            async with asyncio.timeout(UPSTREAM_S_MAX):
                schema = await self._output_schema(task)
        except TimeoutError:
            raise errors.UpstreamUnavailable(task.opened.upstream, "no answer in time") from None
        if schema is None:
            return
        if "structuredContent" not in result:
            raise Refused(400, "The tool has an outputSchema: structuredContent is missing")
        # In a thread: a large result takes a while.
        misfit = await asyncio.to_thread(schemas.misfit, schema, result["structuredContent"])
        if misfit is not None:
            raise Refused(400, f"structuredContent does not fit the outputSchema: {misfit}")

    async def _output_schema(self, task: Task) -> dict[str, Any] | None:
        """None for a tool without one, and for a tool that the upstream has no more."""
        wanted = (task.opened.upstream, task.opened.tool)
        for _ in range(2):
            for tool in await self._upstreams.tools():
                if (tool.upstream, tool.upstream_name) == wanted:
                    return cast("dict[str, Any] | None", tool.definition.get("outputSchema"))
            # An upstream that is away is left out of the list: that is no word on its tools. It
            # has to be there before the second look, and after it.
            await self._upstreams.ready(task.opened.upstream)
        return None


def _parsed(body: bytes) -> Told:
    try:
        value = orjson.loads(body)
        if _nests_deeper(value, DEPTH_MAX):
            raise Refused(400, f"The body nests deeper than {DEPTH_MAX} levels")
        told = _TOLD.validate_python(value)
        if isinstance(told, Completed):
            _check_result(told.result)
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"The body is not JSON: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Refused(400, f"{where or 'the body'}: {first['msg']}") from None
    return told


def _check_result(result: Mapping[str, Any]) -> None:
    """Raises ValidationError, Refused."""
    if result.get("resultType", "complete") != "complete":
        raise Refused(400, "A job ends with a complete result: nobody can be asked from here")
    if not isinstance(result.get("isError", False), bool):
        raise Refused(400, "result.isError: it must be true or false")
    CallToolResult.model_validate(result)


def _nests_deeper(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        level = [child for node in level for child in _children(node)]
        if not level:
            return False
    return True


def _children(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(cast(dict[str, Any], node).values())
    return cast(list[Any], node) if isinstance(node, list) else []


def _judged(error: Exception) -> Refused:
    """The answer to a callback that failed. Unknown errors are logged, and tell the job nothing."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, bodies.BodyRefused):
        return Refused(error.status, error.message)
    if isinstance(error, errors.StaleAttempt):
        return Refused(409, str(error))
    if isinstance(error, errors.TaskAlreadyEnded | errors.TaskNotFound):
        # A task that is stored no more has ended, and long ago: the token says that it was there.
        return Refused(410, str(errors.TaskAlreadyEnded()))
    if isinstance(error, errors.StoreUnavailable | errors.UpstreamUnavailable):
        return Refused(503, str(error), again=True)
    _log.error("a callback failed for an unexpected reason", exc_info=error)
    return Refused(500, "Internal error", again=True)


def _refusal(refused: Refused) -> Response:
    headers = {"Retry-After": str(RETRY_S)} if refused.again else None
    message = refused.message[:REASON_CHARS_MAX]
    return JSONResponse({"error": message}, status_code=refused.status, headers=headers)
