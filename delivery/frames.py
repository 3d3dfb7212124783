"""The JSON-RPC messages of a watch, written once for every carrier and for both ends.

Built by splicing: a task's JSON is stored ready for the wire and not parsed again on its way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson

from ..domain.jsontext import slow_dumps
from .port import VERSION_META_KEY, Change

SUBSCRIPTION_META_KEY = "io.modelcontextprotocol/subscriptionId"

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
TASK_CHANGED = "notifications/tasks"
LISTEN = "subscriptions/listen"

# What a filter may ask for beside tasks, and the notification that tells of it.
LIST_CHANGES: Mapping[str, str] = {
    "toolsListChanged": "notifications/tools/list_changed",
    "promptsListChanged": "notifications/prompts/list_changed",
    "resourcesListChanged": "notifications/resources/list_changed",
}
RESOURCE_UPDATED = "notifications/resources/updated"
RESOURCE_SUBSCRIPTIONS = "resourceSubscriptions"

RequestId = str | int


@dataclass(frozen=True)
class TaskState:
    """What a client reads out of a task message: the DetailedTask, and its version if told."""

    task: Mapping[str, Any]
    version: int | None

    @property
    def task_id(self) -> str:
        """The id of the task."""
        return str(self.task["taskId"])

    @property
    def is_terminal(self) -> bool:
        """True once nothing more follows."""
        return self.task["status"] in ("completed", "failed", "cancelled")


def dumps(value: Any) -> bytes:
    """JSON text, also of what the fast writer refuses: large integers and lone surrogates."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return slow_dumps(value)


class Frames:
    """The messages of one subscription. Its id keeps the JSON type that the client gave it."""

    def __init__(self, subscription: RequestId) -> None:
        # A copy: the encoder's own bytes keep its whole buffer, four kilobytes for each watch.
        self._id = bytes(memoryview(orjson.dumps(subscription)))
        self._meta = b'"' + SUBSCRIPTION_META_KEY.encode() + b'":' + self._id

    def acknowledged(self, agreed: Mapping[str, Any]) -> bytes:
        """What was agreed to; always the first."""
        return self._notification(ACKNOWLEDGED, b'"notifications":' + orjson.dumps(agreed))

    def changed(self, change: Change) -> bytes:
        """One task after one change."""
        extra = b',"%b":%d' % (VERSION_META_KEY.encode(), change.version)
        return self._notification(TASK_CHANGED, change.wire[1:-1], extra)

    def announced(self, method: str, params: Mapping[str, Any]) -> bytes:
        """A change of an upstream's list or resource."""
        return self._notification(method, orjson.dumps(params)[1:-1])

    def ended(self) -> bytes:
        """The answer to the request itself: a graceful end."""
        return b'{"jsonrpc":"2.0","id":%b,"result":{"resultType":"complete","_meta":{%b}}}' % (
            self._id,
            self._meta,
        )

    def _notification(self, method: str, members: bytes, meta: bytes = b"") -> bytes:
        comma = b"," if members else b""
        return b'{"jsonrpc":"2.0","method":"%b","params":{"_meta":{%b%b}%b%b}}' % (
            method.encode(),
            self._meta,
            meta,
            comma,
            members,
        )


def task_state(task: Mapping[str, Any]) -> TaskState:
    """The state in a task message's params, or in a `tasks/get` result: without its envelope."""
    meta = cast(Mapping[str, Any], task.get("_meta") or {})
    version = meta.get(VERSION_META_KEY)
    bare = {key: value for key, value in task.items() if key not in ("_meta", "resultType")}
    return TaskState(bare, version if isinstance(version, int) else None)


def strings(value: Any) -> Sequence[str] | None:
    """The value, if it is a list of strings."""
    if isinstance(value, list) and all(isinstance(v, str) for v in cast(list[Any], value)):
        return cast(list[str], value)
    return None
