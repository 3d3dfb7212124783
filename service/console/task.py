"""One task's page: its timeline, its state at every version, what was asked and what came of it.

The state of a version is folded from the events by what also makes the view rows, so it is to the
byte what `tasks/get` answered then. Its owner sees the task as `tasks/get` tells it; who operates
sees every owner's, with secrets hidden and nothing to download. What clients know no more is shown
to who may read the audit log.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ...domain import errors
from ...domain.change import detailed_task
from ...domain.events import TaskEvent
from ...domain.owner import Scope
from ...domain.ports import TaskView, TaskViews
from ...domain.task import Task
from ..auditing.history import Historian, UnknownTask
from ..jsonrpc import dumps
from .frame import Frame
from .pages import NotThere, Page
from .past import Live, Past, State, Stream
from .redaction import Redactor, Shown, printable, size
from .session import Visit
from .timeline import Teller, Window, person, window

PATH = "/console/tasks/{id}"
PARTS = ("arguments", "result")
EXACT_BYTES_MAX = 16_384  # of a state whose very bytes stand on the page

_ID = re.compile(r"[^\x00]{1,128}")
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")

Cancel = Callable[[str, str], Awaitable[None]]


class Changes(Protocol):
    """The changes of tasks: what every way of delivery reads from."""

    async def owned(self, owner: str, task_id: str) -> TaskView | None:
        """The view of a task of this owner; None where clients are told of none."""
        ...

    async def moments(
        self, task_id: str, versions: Collection[int]
    ) -> Mapping[int, tuple[TaskEvent, Task]]:
        """These events, each with the task after it."""
        ...

    def wire_of(self, task: Task) -> bytes:
        """The JSON text of its DetailedTask."""
        ...


@dataclass(frozen=True)
class Sources:
    """Where tasks are read, and by what they are cancelled."""

    changes: Changes
    views: TaskViews
    historian: Historian
    cancel: Cancel


@dataclass(frozen=True)
class Seen:
    """One task that this visit may see. `may_have_all`: unredacted, as a download."""

    id: str
    stream: Stream
    is_own: bool
    may_have_all: bool
    names_workers: bool
    may_act: bool = False

    @property
    def url(self) -> str:
        """Its page."""
        return f"/console/tasks/{self.id}"


@dataclass(frozen=True)
class Value:
    """One value on the page, and where the whole of it is offered."""

    name: str
    shown: Shown
    size: str
    download: str | None


class TaskPages:
    """The pages of one task."""

    def __init__(self, frame: Frame, sources: Sources, redactor: Redactor) -> None:
        self._frame, self._sources, self._redactor = frame, sources, redactor

    def pages(self) -> list[Page]:
        """What to mount."""
        shown = {
            PATH: self._task,
            f"{PATH}/versions": self._chosen,
            f"{PATH}/versions/{{n}}": self._version,
            f"{PATH}/versions/{{n}}/state.json": self._state_file,
            **{f"{PATH}/{part}.json": self._value_file(part) for part in PARTS},
        }
        return [
            # Who audits reads the same at `/audit/tasks/{id}`, of every task whose id they know.
            *(Page(path, handler, other=Scope.AUDIT) for path, handler in shown.items()),
            Page(f"{PATH}/cancel", self._cancel, ("POST",), Scope.CALL),
        ]

    # --- pages

    async def _task(self, request: Request, visit: Visit) -> Response:
        seen = await self._seen(request, visit)
        newest = seen.stream.newest
        shown = window(newest, _number(request.query_params.get("upto")))
        await seen.stream.load({*shown.versions, shown.first - 1, newest})
        context = {**self._state(seen, newest), **self._lines(seen, shown)}
        if request.query_params.get("part") == "1":
            return self._frame.part(visit, "task_parts.html", **context)
        return self._frame.page(request, visit, "task.html", **context)

    async def _version(self, request: Request, visit: Visit) -> Response:
        seen = await self._seen(request, visit)
        version = _number(request.path_params["n"])
        if version is None or version > seen.stream.newest:
            raise NotThere
        await seen.stream.load({version - 1, version, seen.stream.newest})
        lines = self._lines(seen, Window(version, version, seen.stream.newest))
        context = {**self._state(seen, version), **lines}
        if request.query_params.get("part") == "1":
            return self._frame.part(visit, "task_state.html", **context)
        return self._frame.page(request, visit, "task_version.html", **context)

    async def _chosen(self, request: Request, visit: Visit) -> Response:
        """The slider's form, where no script moves it."""
        seen = await self._seen(request, visit)
        version = _number(request.query_params.get("n")) or seen.stream.newest
        version = min(version, seen.stream.newest)
        return RedirectResponse(f"{seen.url}/versions/{version}", 303)

    # --- what is offered whole

    async def _state_file(self, request: Request, visit: Visit) -> Response:
        """The very bytes that `tasks/get` answered with."""
        seen = await self._whole(request, visit)
        version = _number(request.path_params["n"])
        state = None if version is None else await self._loaded(seen, version)
        if state is None or state.wire is None:
            raise NotThere
        return _file(state.wire, f"state-{version}")

    def _value_file(self, part: str) -> Callable[[Request, Visit], Awaitable[Response]]:
        async def answer(request: Request, visit: Visit) -> Response:
            seen = await self._whole(request, visit)
            state = await self._loaded(seen, seen.stream.newest)
            value = None if state.task is None else _values(state.task).get(part)
            if value is None:
                raise NotThere
            return _file(dumps(value), part)

        return answer

    async def _whole(self, request: Request, visit: Visit) -> Seen:
        seen = await self._seen(request, visit)
        if not seen.may_have_all:
            raise NotThere
        return seen

    @staticmethod
    async def _loaded(seen: Seen, version: int) -> State:
        await seen.stream.load({version})
        return seen.stream.state(version)

    # --- what is done

    async def _cancel(self, request: Request, visit: Visit) -> Response:
        seen = await self._seen(request, visit)
        try:  # as the visitor's own task: the event says that the owner asked
            await self._sources.cancel(visit.caller.owner.key, seen.id)
        except errors.TaskNotFound:
            raise NotThere from None
        return self._frame.back(request, seen.url, "Cancellation was requested.")

    # --- whose task it is

    async def _seen(self, request: Request, visit: Visit) -> Seen:
        """The task of this address. Raises NotThere for one that this visit may not see."""
        task_id, scopes = request.path_params["id"], visit.caller.scopes
        if not _ID.fullmatch(task_id):
            raise NotThere
        audits, sources = Scope.AUDIT in scopes, self._sources
        try:
            view = await sources.changes.owned(visit.caller.owner.key, task_id)
            is_own = view is not None
            if view is None and (audits or visit.operates):
                view = await sources.views.get(task_id)
        except errors.PayloadError:
            view, is_own = None, False
        names = audits or visit.operates
        if view is not None:
            stream = Live(sources.changes, task_id, view.version)
            may_act = is_own and Scope.CALL in scopes
            return Seen(task_id, stream, is_own, is_own or audits, names, may_act)
        if not audits:
            raise NotThere
        try:
            history = await sources.historian.history(task_id)
        except UnknownTask:
            raise NotThere from None
        return Seen(task_id, Past(history, sources.historian), False, True, True)

    # --- what the templates are given

    def _lines(self, seen: Seen, shown: Window) -> dict[str, Any]:
        teller = Teller(self._redactor, names_workers=seen.names_workers)
        return {"entries": seen.stream.entries(teller, shown), "window": shown}

    def _state(self, seen: Seen, version: int) -> dict[str, Any]:
        stream = seen.stream
        state, now = stream.state(version), stream.state(stream.newest)
        known = now.task or state.task
        opened = None if known is None else known.opened
        return {
            "task_id": seen.id,
            "task_url": seen.url,
            "tool": printable(opened.tool if opened else stream.tool or "a task"),
            "upstream": None if opened is None else printable(opened.upstream),
            "owner": None if opened is None else person(opened.owner),
            "status_now": now.status,
            "message_now": self._message(now.task),
            "version": version,
            "newest": stream.newest,
            "status_then": state.status,
            "problem": state.problem,
            "is_past": stream.is_past,
            "is_own": seen.is_own,
            "may_cancel": seen.may_act and now.task is not None and _may_be_cancelled(now.task),
            **self._wire(seen, version, state),
            "values": self._values(seen, now),
        }

    def _message(self, task: Task | None) -> str | None:
        has_one = task is not None and task.status_message is not None
        return self._redactor.text(task.status_message or "") if task and has_one else None

    def _wire(self, seen: Seen, version: int, state: State) -> dict[str, Any]:
        """What the client saw, and its very bytes as long as nothing in them is to be hidden."""
        if state.task is None or state.wire is None:
            return {"state": None, "exact": None}
        shown = self._redactor.show(detailed_task(state.task))
        whole = f"{seen.url}/versions/{version}/state.json" if seen.may_have_all else None
        is_exact = shown.is_whole and len(state.wire) <= EXACT_BYTES_MAX
        return {
            "state": Value("state", shown, size(len(state.wire)), whole),
            "exact": state.wire.decode() if is_exact else None,
        }

    def _values(self, seen: Seen, state: State) -> Sequence[Value]:
        if state.task is None:
            return ()
        return [
            Value(
                name,
                self._redactor.show(value, name),
                size(len(dumps(value))),
                f"{seen.url}/{name}.json" if seen.may_have_all and name in PARTS else None,
            )
            for name, value in _values(state.task).items()
        ]


def _values(task: Task) -> Mapping[str, Any]:
    given = {"arguments": task.opened.arguments, "result": task.result, "error": task.error}
    return {name: value for name, value in given.items() if value is not None}


def _may_be_cancelled(task: Task) -> bool:
    return not (task.status.is_terminal or task.cancel_requested)


def _number(given: str | None) -> int | None:
    return int(given) if given is not None and _NUMBER.fullmatch(given) else None


def _file(body: bytes, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}.json"'}
    return Response(body, headers=headers, media_type="application/json")
