"""What a client may know of a task: the specification's `DetailedTask`, and nothing else.

Worker names, attempts and the upstream's own keys and state never leave through here.
"""

from .events import Json
from .task import Task, TaskStatus


def detailed_task(task: Task) -> dict[str, Json]:
    """What `tasks/get` and `notifications/tasks` carry, without `resultType` and `_meta`."""
    wire: dict[str, Json] = {"taskId": task.id, "status": task.status.value}
    if task.status_message is not None:
        wire["statusMessage"] = task.status_message
    wire["createdAt"] = task.created_at
    wire["lastUpdatedAt"] = task.updated_at
    wire["ttlMs"] = task.ttl_ms
    wire["pollIntervalMs"] = task.opened.poll_interval_ms
    if task.status is TaskStatus.INPUT_REQUIRED:
        wire["inputRequests"] = {question.key: question.request for question in task.outstanding}
    elif task.status is TaskStatus.COMPLETED:
        wire["result"] = task.result
    elif task.status is TaskStatus.FAILED:
        wire["error"] = task.error
    return wire


def created_task(task: Task) -> dict[str, Json]:
    """The wire form of `CreateTaskResult`: the task's own fields, no outcome and no questions."""
    told = detailed_task(task)
    for outcome in ("inputRequests", "result", "error"):
        told.pop(outcome, None)
    return {"resultType": "task", **told}
