"""The client: a result or a task from any server of the tasks extension, and never a task lost."""

from .client import Resumed, TaskClient, Via, Wanted, Webhook
from .handle import TaskHandle
from .inputs import Handlers
from .sync import SyncTaskClient, SyncTaskHandle

__all__ = [
    "Handlers",
    "Resumed",
    "SyncTaskClient",
    "SyncTaskHandle",
    "TaskClient",
    "TaskHandle",
    "Via",
    "Wanted",
    "Webhook",
]
