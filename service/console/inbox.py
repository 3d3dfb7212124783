"""`/console/inbox`: what waits for somebody's answer, and the forms to give it.

Who watches sees the requests of their own tasks, who operates those of all owners; to answer needs
the scope `call` as `tasks/update` does. The event that records an answer says who gave it.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response

from ...domain import errors
from ...domain.inbox import OpenRequest, OpenRequests, Place
from ...domain.owner import Owner, Scope
from ...domain.ports import TaskViews
from ..answering import Answering, Asked, Given, NotOpen
from . import pages
from .forms import PREFIX, Form, Typed
from .frame import Frame
from .pages import NotThere, Page
from .redaction import printable
from .session import Visit
from .timeline import person

PATH = "/console/inbox"
TASKS_SHOWN = 20  # waiting tasks on a page; each may ask several things
TEXT_CHARACTERS_MAX = 4_000  # of a message that a server wrote
ACTIONS = {
    "accept": "Your approval was recorded.",
    "decline": "Recorded: you declined.",
    "cancel": "Recorded: the question was dismissed without an answer.",
}
_DONE = {"accept": "approved it", "decline": "declined it", "cancel": "dismissed it"}
CONFLICT, UNFIT = 409, 422


@dataclass(frozen=True)
class Card:
    """One request in the list."""

    task_id: str
    key: str
    message: str
    tool: str
    owner: str | None
    since: datetime
    url: str
    is_answerable: bool


class Inbox:
    """The pages."""

    def __init__(
        self, frame: Frame, requests: OpenRequests, views: TaskViews, answering: Answering
    ) -> None:
        self._frame, self._requests = frame, requests
        self._views, self._answering = views, answering

    def pages(self) -> list[Page]:
        """What to mount."""
        one = f"{PATH}/{{task}}/{{key}}"
        return [
            Page(PATH, self._list, scope=None),
            Page(one, self._show, scope=None),
            Page(one, self._answer, ("POST",), Scope.CALL),
        ]

    async def _list(self, request: Request, visit: Visit) -> Response:
        after = _place(request.query_params.get("since"), request.query_params.get("task"))
        owner = _whose(visit)
        found = await self._requests.waiting(owner, after, TASKS_SHOWN + 1)
        shown = found[:TASKS_SHOWN]
        cards = await self._cards(shown, with_owner=owner is None)
        context: dict[str, Any] = {
            "cards": cards,
            "is_first": after is None,
            "next": _next(shown[-1].place) if len(found) > len(shown) else None,
            "of_all": owner is None,
        }
        if "part" in request.query_params:
            return self._frame.part(visit, "inbox_rows.html", **context)
        return self._frame.page(request, visit, "inbox.html", **context)

    async def _show(self, request: Request, visit: Visit) -> Response:
        asked = await self._asked(request, visit)
        return self._page(request, visit, asked)

    async def _answer(self, request: Request, visit: Visit) -> Response:
        asked = await self._asked(request, visit)
        given = await pages.form(request)
        typed, action = _typed(given), str(given.get("action") or "")
        if not asked.question.is_outstanding:
            return self._page(request, visit, asked, typed, status=CONFLICT)
        form = Form(asked.question.request)
        if form.unanswerable or action not in ACTIONS:
            return self._page(request, visit, asked, typed, status=UNFIT)
        problems: Mapping[str, str] = {}
        refused = ""
        result: dict[str, Any] | None = {"action": action}
        if action == "accept":
            answered = form.accepted(typed)
            result, problems = answered.result, answered.errors
        if result is not None:
            try:
                await self._record(request, visit, result)
            except NotOpen as late:
                return self._page(request, visit, late.asked, typed, status=CONFLICT)
            except errors.MalformedAnswer as error:
                refused = error.reason
            else:
                return self._frame.back(request, PATH, ACTIONS[action])
        return self._page(
            request, visit, asked, typed, status=UNFIT, problems=problems, refused=refused
        )

    async def _record(self, request: Request, visit: Visit, result: Mapping[str, Any]) -> None:
        task_id, key = _named(request)
        try:
            owner, by = _whose(visit), visit.caller.owner
            await self._answering.answer(owner, task_id, key, result, by)
        except errors.TaskNotFound:
            raise NotThere from None

    async def _asked(self, request: Request, visit: Visit) -> Asked:
        task_id, key = _named(request)
        try:
            return await self._answering.look(_whose(visit), task_id, key)
        except errors.TaskNotFound:
            raise NotThere from None

    def _page(  # noqa: PLR0913 - what the page shows beside the question
        self,
        request: Request,
        visit: Visit,
        asked: Asked,
        typed: Typed | None = None,
        *,
        status: int = 200,
        problems: Mapping[str, str] | None = None,
        refused: str = "",
    ) -> Response:
        task, form = asked.task, Form(asked.question.request)
        is_own = task.owner == visit.caller.owner.key
        return self._frame.page(
            request,
            visit,
            "inbox_request.html",
            status=status,
            task_id=task.id,
            key=asked.question.key,
            tool=printable(task.opened.tool),
            upstream=printable(task.opened.upstream),
            owner=None if is_own else person(task.owner),
            message=cut(form.message),
            form=form,
            controls=form.controls(typed, problems),
            problems=problems or {},
            refused=refused,
            is_open=asked.question.is_outstanding,
            may_answer=Scope.CALL in visit.caller.scopes,
            given=asked.given,
            outcome=None if asked.given is None else outcome(asked.given, visit.caller.owner),
            withdrawn_at=asked.withdrawn_at,
            task_status=task.status,
            was_late=status == CONFLICT,
            typed=_kept(form, typed) if status == CONFLICT else [],
            url=_url(task.id, asked.question.key),
        )

    async def _cards(self, waiting: Sequence[OpenRequest], *, with_owner: bool) -> list[Card]:
        read = [self._of(each, with_owner=with_owner) for each in waiting]
        return [card for cards in await asyncio.gather(*read) for card in cards]

    async def _of(self, waiting: OpenRequest, *, with_owner: bool) -> list[Card]:
        try:
            view = await self._views.get(waiting.task_id)
        except errors.PayloadError as error:
            return [_card(waiting, "", {"params": {"message": str(error)}}, with_owner=with_owner)]
        wire: dict[str, Any] = {} if view is None else json.loads(view.wire)
        asked: Mapping[str, Any] = wire.get("inputRequests") or {}
        return [
            _card(waiting, key, question, with_owner=with_owner) for key, question in asked.items()
        ]


def outcome(given: Given, reader: Owner) -> str:
    """Who was first and with what, as a person says it."""
    did = _DONE.get(given.action, "answered it")
    if given.by == reader:
        return f"You {did}"
    if given.by is None:
        return f"The task's own client {did}"
    return f"{person(given.by.key)} {did}"


def cut(text: str) -> str:
    """A server's text, no longer than a page can bear."""
    is_long = len(text) > TEXT_CHARACTERS_MAX
    return printable(text[:TEXT_CHARACTERS_MAX] + " …" if is_long else text)


def _card(waiting: OpenRequest, key: str, question: Mapping[str, Any], *, with_owner: bool) -> Card:
    form = Form(question)
    return Card(
        waiting.task_id,
        key,
        cut(form.message) or str(question.get("method") or ""),
        printable(waiting.tool),
        person(waiting.owner) if with_owner else None,
        waiting.since,
        _url(waiting.task_id, key) if key else "",
        not form.unanswerable,
    )


def _whose(visit: Visit) -> str | None:
    """The owner whose requests are seen; None for all. Raises NotThere for who may see none."""
    if visit.operates:
        return None
    if not visit.watches:
        raise NotThere
    return visit.caller.owner.key


def _named(request: Request) -> tuple[str, str]:
    task_id, key = request.path_params["task"], request.path_params["key"]
    if "\0" in task_id + key:
        raise NotThere
    return task_id, key


def _typed(given: FormData) -> Typed:
    names = {name for name in given if name.startswith(PREFIX)}
    return {name: [str(text) for text in given.getlist(name)] for name in names}


def _kept(form: Form, typed: Typed | None) -> list[tuple[str, str]]:
    """What was typed in vain, to be copied from the page."""
    told: list[tuple[str, str]] = []
    for control in form.controls(typed or {}):
        chosen = ", ".join(choice.title for choice in control.choices if choice.is_chosen)
        if text := chosen or control.value:
            told.append((control.title, text))
    return told


def _place(since: str | None, task_id: str | None) -> Place | None:
    try:
        at = datetime.fromisoformat(since or "")
    except ValueError:
        return None
    return None if at.tzinfo is None else Place(at, task_id or "")


def _next(place: Place) -> str:
    return f"{PATH}?" + urlencode({"since": place.since.isoformat(), "task": place.task_id})


def _url(task_id: str, key: str) -> str:
    return f"{PATH}/{quote(task_id, safe='')}/{quote(key, safe='')}"
