"""What a client may know of a task: the `DetailedTask` of the tasks specification, and nothing else.

Worker names, attempts and the upstream's own keys and state never leave through here.
"""

from .events import Json
from .task import Task, TaskStatus


def detailed_task(task: Task) -> dict[str, Json]:
    """The wire form that `tasks/get` answers and `notifications/tasks` carries, without `resultType` and `_meta`."""
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
