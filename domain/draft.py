"""The Triggers & Events draft by its names and numbers. It moves, so this one module knows them."""

from collections.abc import Mapping
from typing import Any, cast

EVENTS_EXTENSION = "io.modelcontextprotocol/events"

LIST = "events/list"
POLL = "events/poll"
STREAM = "events/stream"
SUBSCRIBE = "events/subscribe"
UNSUBSCRIBE = "events/unsubscribe"

ACTIVE = "notifications/events/active"
EVENT = "notifications/events/event"
HEARTBEAT = "notifications/events/heartbeat"
ERROR = "notifications/events/error"
TERMINATED = "notifications/events/terminated"

NOT_FOUND = -32011
FORBIDDEN = -32012
RESOURCE_EXHAUSTED = -32013
UNSUPPORTED = -32014
CALLBACK_ENDPOINT = -32015

# The modes of delivery, and the types of control envelopes.
BY_POLL, BY_PUSH, BY_WEBHOOK = "poll", "push", "webhook"
VERIFICATION, GAP, ENDED = "verification", "gap", "terminated"

# Our event types.
TASK_UPDATED = "task.updated"
TASK_FINISHED = "task.finished"
TASK_PROGRESS = "task.progress"

HEARTBEAT_S = 15.0  # 30 s at most are asked for, and 60 s of silence may be taken for death
POLL_EVENTS_DEFAULT = 100
POLL_EVENTS_MAX = 1_000
NEXT_POLL_MS = 5_000

WEBHOOK_META_KEY = "dev.outlast/webhook"  # on tools/call: a subscription to the task that it makes


def declares_events(capabilities: Mapping[str, Any]) -> bool:
    """Whether these client capabilities declare Events.

    The draft names no client capability, so both forms that a server declares are taken.
    """
    extensions = capabilities.get("extensions")
    declared = cast(dict[str, Any], extensions) if isinstance(extensions, dict) else {}
    return isinstance(declared.get(EVENTS_EXTENSION), dict) or isinstance(
        capabilities.get("events"), dict
    )
