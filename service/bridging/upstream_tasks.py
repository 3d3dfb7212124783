"""The bridge to servers that have tasks themselves: a handle that a call is answered with is asked
after by `tasks/get`, answered by `tasks/update`, stopped by `tasks/cancel`.

Nobody but us knows the handle. Our client has a task of ours, so it is told of by every way there
is, though the upstream may know polling alone. Polling is all that is asked of an upstream here.
"""

from collections.abc import Mapping
from typing import Any, cast

from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY

from ...domain.decisions import INTERNAL_ERROR
from ...domain.jobs import Sight
from ...domain.passing import Forward, PassThrough
from ...domain.ports import Faulted, LegEnded, Returned
from ...domain.task import Task
from ..legs import error_of, is_task, merged_result
from .answering import MESSAGE_CHARS_MAX, Answer, answer_of
from .port import Asks, Away, Cancelled, Completed, Failed, Job, Pace, Seen, Unknown, Working

KIND = "upstream_task"
POLL_MS = 1_000  # where the upstream names no interval
POLL_MS_MIN, POLL_MS_MAX = 100, 300_000  # of the interval that it may name
PAUSE_MS_MAX = 60_000  # between two looks at an old task, unless it names a longer interval
LOST_AFTER_MS = 5_000  # the upstream says, more than once, that there is no such task
TIME_MS_MAX = 366 * 86_400_000  # what is longer counts as not said

# There is no such task, or there are no tasks at all: no other look will find it.
_NO_SUCH_TASK = (INVALID_PARAMS, METHOD_NOT_FOUND)


class UpstreamTasks:
    """`Bridge` for all tasks of all upstreams."""

    kind = KIND

    def __init__(self, passing: PassThrough) -> None:
        self._passing = passing

    def job_in(self, task: Task, result: Mapping[str, Any]) -> Job | None:
        """See Bridge. The interval and the time to live are those that it begins with."""
        del task
        if not is_task(result):
            return None
        times = {key: _ms(result, key) for key in ("pollIntervalMs", "ttlMs")}
        told = {key: ms for key, ms in times.items() if ms is not None}
        return {"kind": KIND, "id": result["taskId"], **told}

    def pace(self, task: Task) -> Pace:
        """See Bridge."""
        return _pace(task.job or {})

    async def look(self, task: Task) -> Seen:
        """See Bridge."""
        answer = await self._asked(task, "tasks/get")
        match answer:
            case Away():
                return answer
            case LegEnded(asks):
                return Asks(asks)
            case Returned(result):
                return _seen(result)
            case Faulted():
                return await self._refused(task, answer)

    async def _refused(self, task: Task, fault: Faulted) -> Seen:
        said = f"The upstream answered: {fault.message}"[:MESSAGE_CHARS_MAX]
        if fault.code in _NO_SUCH_TASK:
            # One that was told to stop may as well be gone.
            return Cancelled() if task.cancel_requested else Unknown(said)
        if fault.code != MISSING_REQUIRED_CLIENT_CAPABILITY:
            return Away(said)
        # It waits for what this client can never give.
        return Failed(error_of(fault), is_to_stop=True)

    async def answer(self, task: Task, answers: Mapping[str, Mapping[str, Any]]) -> bool:
        """See Bridge."""
        return await self._is_told(task, "tasks/update", {"inputResponses": dict(answers)})

    async def cancel(self, task: Task) -> bool | None:
        """See Bridge."""
        return await self._is_told(task, "tasks/cancel")

    async def _is_told(
        self, task: Task, method: str, more: Mapping[str, Any] | None = None
    ) -> bool:
        """An upstream that does not know the task will not know it later either."""
        answer = await self._asked(task, method, more)
        refused = isinstance(answer, Faulted) and answer.code not in _NO_SUCH_TASK
        return not (refused or isinstance(answer, Away))

    async def _asked(
        self, task: Task, method: str, more: Mapping[str, Any] | None = None
    ) -> Answer | Away:
        opened = task.opened
        params = {"taskId": (task.job or {}).get("id"), **(more or {}), "_meta": opened.trace or {}}
        request = Forward(method, params, opened.client_capabilities, opened.upstream)
        late = f"The upstream did not answer {method}"
        answer = await answer_of(self._passing.forward(request), late)
        return answer or Away(f"The upstream left {method} without an answer")


def _seen(told: Mapping[str, Any]) -> Seen:
    """What a `tasks/get` has told."""
    match told.get("status"), told.get("result"):
        case "working", _:
            message = told.get("statusMessage")
            said = message[:MESSAGE_CHARS_MAX] if isinstance(message, str) else None
            return Working(Sight(said), _pace(told))
        case "completed", dict():
            return Completed(merged_result(told["result"]))
        case "failed", _:
            return Failed(_error(told))
        case "cancelled", _:
            return Cancelled()
        case status, _:
            said = f"The upstream answered with no task that makes sense: it is {status}"
            return Unknown(said[:MESSAGE_CHARS_MAX])


def _error(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """The upstream's own error, as it came if it is one."""
    match told.get("error"):
        case {"code": int(), "message": str()} as error:
            return cast(Mapping[str, Any], error)
        case other:
            message = told.get("statusMessage") or "The task failed at its upstream"
            error = {"code": INTERNAL_ERROR, "message": str(message)[:MESSAGE_CHARS_MAX]}
            return error if other is None else {**error, "data": other}


def _pace(told: Mapping[str, Any]) -> Pace:
    """The upstream's own interval, as far as it is reasonable; slower as the task grows old."""
    asked_ms = _ms(told, "pollIntervalMs")
    shortest_ms = min(max(POLL_MS if asked_ms is None else asked_ms, POLL_MS_MIN), POLL_MS_MAX)
    return Pace(
        shortest_ms=shortest_ms,
        longest_ms=max(shortest_ms, PAUSE_MS_MAX),
        lost_after_ms=LOST_AFTER_MS,
        kept_ms=_ms(told, "ttlMs"),
    )


def _ms(told: Mapping[str, Any], key: str) -> int | None:
    """A length of time; None where there is none that makes sense."""
    given = told.get(key)
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    return round(given) if 0 <= given <= TIME_MS_MAX else None
