"""One leg of a task's call: what is sent, and what its answer is."""

from collections.abc import Mapping
from typing import Any, cast

from ..domain.ports import Faulted, ToolCall
from ..domain.task import Task

PENDING_KEY = "dev.outlast/pending"  # in a result's `_meta`: a job elsewhere will tell the rest


def tool_call(
    task: Task, callback: Mapping[str, str] | None = None, *, takes_task: bool = False
) -> ToolCall:
    """The call of the task's next leg."""
    opened = task.opened
    return ToolCall(
        upstream=opened.upstream,
        tool=opened.tool,
        arguments=opened.arguments,
        client_capabilities=opened.client_capabilities,
        answers=task.leg_answers,
        request_state=opened.carried_state if task.leg == 0 else task.request_state,
        trace=opened.trace,
        callback=callback,
        takes_task=takes_task,
    )


def is_pending(result: Mapping[str, Any]) -> bool:
    """Whether the upstream says that a job elsewhere will tell the outcome; an error is one."""
    meta = result.get("_meta")
    given = isinstance(meta, dict) and cast(dict[str, Any], meta).get(PENDING_KEY) is True
    return given and result.get("isError") is not True


def is_task(result: Mapping[str, Any]) -> bool:
    """Whether the upstream made a task of its own of the call."""
    return result.get("resultType") == "task"


def merged_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """The upstream's result as this revision sends it: a legacy one brings no `resultType`."""
    return {"resultType": "complete", **result}


def error_of(fault: Faulted) -> dict[str, Any]:
    """The upstream's error as a task ends with it, without data where it gave none."""
    error: dict[str, Any] = {"code": fault.code, "message": fault.message}
    return error if fault.data is None else {**error, "data": fault.data}
