"""`/console/tasks`: the list of tasks, newest first, narrowed by what the address says.

Who watches sees their own tasks, who operates those of all owners; the store is asked so, and
nobody else's task ever reaches this process. The address holds the filters and the place, so a
page may be kept and sent on.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from urllib.parse import quote, urlencode

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from ...domain import base64url
from ...domain.searching import (
    EVERY_STATUS,
    ListedTask,
    TaskFilter,
    TaskPage,
    TaskPlace,
    TaskSearch,
)
from ...domain.task import TaskStatus
from .frame import Frame
from .pages import Page
from .redaction import Redactor, printable
from .session import Visit
from .timeline import person

PATH = "/console/tasks"
TASKS_SHOWN = 50
MESSAGE_CHARACTERS_MAX = 300
SEARCHES = {"id": "Task id", "message": "Last message", "key": "Idempotency key"}
_NAMES = ("status", "tool", "owner", "since", "until", "question", "q", "by")


@dataclass(frozen=True)
class Row:
    """One task as the list shows it."""

    task_id: str
    url: str
    status: str
    tool: str
    tool_url: str
    owner: str
    owner_url: str
    created_at: datetime
    message: str


@dataclass
class _Asked:
    """What the address asks for. `problems` are told beside the fields; `typed` fills them."""

    wanted: TaskFilter
    typed: dict[str, str]
    statuses: frozenset[str]
    query: list[tuple[str, str]]
    problems: dict[str, str] = field(default_factory=dict[str, str])
    before: TaskPlace | None = None
    after: TaskPlace | None = None


class Tasks:
    """The page, and its rows alone for who refreshes them."""

    def __init__(self, frame: Frame, search: TaskSearch, redactor: Redactor) -> None:
        self._frame, self._search, self._redactor = frame, search, redactor

    def pages(self) -> list[Page]:
        """What to mount."""
        return [Page(PATH, self._list)]

    async def _list(self, request: Request, visit: Visit) -> Response:
        asked = _asked(request.query_params, visit)
        page = TaskPage([])
        if not asked.problems:
            page = await self._search.page(
                asked.wanted, TASKS_SHOWN, before=asked.before, after=asked.after
            )
        is_first = asked.before is None and asked.after is None
        older, newer = _link(asked, "o", page.older), _link(asked, "n", page.newer)
        context: Mapping[str, Any] = {
            "rows": [self._row(task) for task in page.tasks],
            "older": older,
            "newer": newer,
            "first": None if is_first else _url(asked.query),
            "is_cut": page.is_cut,
            "is_narrowed": bool(asked.query),
            "is_first": is_first,
            "of_all": visit.operates,
            "problems": asked.problems,
        }
        if "part" in request.query_params:
            return self._frame.part(visit, "tasks_rows.html", **context)
        part = [*asked.query, ("part", "1")]
        at = request.query_params.get("at")
        return self._frame.page(
            request,
            visit,
            "tasks.html",
            **context,
            typed=asked.typed,
            chosen=asked.statuses,
            statuses=[status.value for status in TaskStatus],
            searches=SEARCHES,
            part=_url([*part, ("at", at)] if at and not is_first else part),
        )

    def _row(self, task: ListedTask) -> Row:
        message = self._redactor.text(task.message or "")
        if len(message) > MESSAGE_CHARACTERS_MAX:
            message = message[:MESSAGE_CHARACTERS_MAX] + "…"
        return Row(
            task.task_id,
            f"{PATH}/{quote(task.task_id, safe='')}",
            task.status.value,
            printable(task.tool),
            _url([("tool", task.tool)]),
            person(task.owner),
            _url([("owner", task.owner)]),
            task.created_at,
            printable(message),
        )


def _asked(given: QueryParams, visit: Visit) -> _Asked:
    typed = {name: given.get(name, "").strip() for name in _NAMES}
    if typed["by"] not in SEARCHES:
        typed["by"] = "id"
    statuses = frozenset(given.getlist("status")) & {status.value for status in TaskStatus}
    asked = _Asked(TaskFilter(), typed, statuses, _query(typed, statuses, visit))
    wanted = TaskFilter(
        owner=(typed["owner"] or None) if visit.operates else visit.caller.owner.key,
        statuses=frozenset(map(TaskStatus, statuses)) or EVERY_STATUS,
        tool=typed["tool"] or None,
        since=_day(asked, "since"),
        until=_day(asked, "until", timedelta(days=1)),
    )
    if typed["question"]:
        wanted = replace(wanted, statuses=wanted.statuses & {TaskStatus.INPUT_REQUIRED})
    asked.wanted = _searching(wanted, typed)
    if asked.wanted.key is not None and asked.wanted.owner is None:
        asked.problems["owner"] = "Name the owner too: a key belongs to its owner."
    way, place = _place(given.get("at", ""))
    asked.before, asked.after = (place, None) if way == "o" else (None, place)
    return asked


def _searching(wanted: TaskFilter, typed: Mapping[str, str]) -> TaskFilter:
    text = typed["q"]
    if not text:
        return wanted
    if typed["by"] == "message":
        return replace(wanted, message=text)
    return replace(wanted, key=text) if typed["by"] == "key" else replace(wanted, id_prefix=text)


def _query(
    typed: Mapping[str, str], statuses: frozenset[str], visit: Visit
) -> list[tuple[str, str]]:
    """The filters as an address has them, without what is not set."""
    kept = [
        (name, typed[name])
        for name in ("tool", "owner", "since", "until", "question", "q")
        if typed[name] and (name != "owner" or visit.operates)
    ]
    by = [("by", typed["by"])] if typed["q"] else []
    return [*(("status", status) for status in sorted(statuses)), *kept, *by]


def _day(asked: _Asked, name: str, plus: timedelta = timedelta()) -> datetime | None:
    text = asked.typed[name]
    if not text:
        return None
    try:
        return datetime.combine(date.fromisoformat(text), time(), UTC) + plus
    except (ValueError, OverflowError):
        asked.problems[name] = "Give a day like 2026-07-28."
        return None


def _link(asked: _Asked, way: str, place: TaskPlace | None) -> str | None:
    if place is None:
        return None
    told = json.dumps([way, place.created_at.isoformat(), place.task_id]).encode()
    return _url([*asked.query, ("at", base64url.encoded(told))])


def _place(cursor: str) -> tuple[str, TaskPlace | None]:
    """Where the address says that the list goes on; its beginning for what is no place."""
    try:
        way, instant, task_id = json.loads(base64url.decoded(cursor))
        place = TaskPlace(datetime.fromisoformat(instant), str(task_id))
    except (ValueError, TypeError, RecursionError):
        return "", None
    is_one = way in ("o", "n") and place.created_at.tzinfo is not None
    return (way, place) if is_one else ("", None)


def _url(query: list[tuple[str, str]]) -> str:
    return f"{PATH}?{urlencode(query)}" if query else PATH
