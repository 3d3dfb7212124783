"""The event types of this server: what each tells, and what may be asked of it.

Both are shown by `events/list`, and a request is held against the very schemas that are shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import rfc8785
from jsonschema_rs import Draft202012Validator, ValidationError

from ...domain import draft, errors, jsonpath
from ...domain.push import Filter
from ...domain.task import TaskStatus
from ..limits import TASKS_PER_WATCH_MAX

NAME_LENGTH_MAX = 512
TOOLS_MAX = 100
FAULT_LENGTH_MAX = 300

# PostgreSQL text cannot hold a NUL, so no task and no tool has one in its name.
_NAME = {"type": "string", "pattern": "^[^\\u0000]*$", "maxLength": NAME_LENGTH_MAX}
_STATUSES = [status.value for status in TaskStatus]
_TERMINAL = [status.value for status in TaskStatus if status.is_terminal]

_OF_TASK: Mapping[str, Any] = {
    "taskId": {"type": "string"},
    "tool": {"type": "string", "description": "The tool whose call the task is."},
    "version": {"type": "integer", "minimum": 1, "description": "The task's own event number."},
    "omitted": {
        "type": "array",
        "items": {"type": "string"},
        "description": "Members that are too large to be told here: read them with tasks/get.",
    },
}


def _input_schema(statuses: list[str]) -> dict[str, Any]:
    def some(item: Mapping[str, Any], most: int, what: str) -> dict[str, Any]:
        return {
            "type": "array",
            "items": item,
            "minItems": 1,
            "maxItems": most,
            "description": what,
        }

    return {
        "type": "object",
        "properties": {
            "taskId": {**_NAME, "description": "Only this task."},
            "taskIds": some(_NAME, TASKS_PER_WATCH_MAX, "Only these tasks."),
            "tools": some(_NAME, TOOLS_MAX, "Only tasks of these tools."),
            "statuses": some(
                {"enum": statuses}, len(statuses), "Only events after which the task has this."
            ),
        },
        "not": {"required": ["taskId", "taskIds"]},
        "additionalProperties": False,
    }


def _task_schema(statuses: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            **_OF_TASK,
            "status": {"enum": statuses},
            "statusMessage": {"type": "string"},
            "createdAt": {"type": "string", "format": "date-time"},
            "lastUpdatedAt": {"type": "string", "format": "date-time"},
            "ttlMs": {"type": ["integer", "null"]},
            "pollIntervalMs": {"type": "integer"},
            "inputRequests": {"type": "object"},
            "result": {"type": "object"},
            "error": {"type": "object"},
        },
        "required": [
            *("taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "tool", "version")
        ],
    }


_PROGRESS_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        **_OF_TASK,
        "progress": {"type": "number"},
        "total": {"type": "number"},
        "message": {"type": "string"},
    },
    "required": ["taskId", "tool", "version", "progress"],
}


@dataclass(frozen=True)
class EventType:
    """One event type as it is listed."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    payload_schema: Mapping[str, Any]

    def listed(self, modes: list[str]) -> dict[str, Any]:
        """Its entry in `events/list`."""
        return {
            "name": self.name,
            "description": self.description,
            "delivery": modes,
            "inputSchema": self.input_schema,
            "payloadSchema": self.payload_schema,
        }


TYPES: Mapping[str, EventType] = {
    kind.name: kind
    for kind in (
        EventType(
            draft.TASK_UPDATED,
            "A task changed in whatever way. The data is the task after the change.",
            _input_schema(_STATUSES),
            _task_schema(_STATUSES),
        ),
        EventType(
            draft.TASK_FINISHED,
            "A task reached its last status. The data is the task with its outcome.",
            _input_schema(_TERMINAL),
            _task_schema(_TERMINAL),
        ),
        EventType(
            draft.TASK_PROGRESS,
            "The tool told how far it is.",
            _input_schema(_STATUSES),
            _PROGRESS_SCHEMA,
        ),
    )
}

_JUDGES: Mapping[str, Draft202012Validator] = {
    name: Draft202012Validator(dict(kind.input_schema), offline=True)
    for name, kind in TYPES.items()
}


def known(name: Any) -> EventType:
    """The event type of this name. Raises EventNotFound, InvalidCall."""
    if not isinstance(name, str):
        raise errors.InvalidCall("name must be a string: the name of an event type")
    kind = TYPES.get(name)
    if kind is None:
        raise errors.EventNotFound(kind="event")
    return kind


def wanted(name: Any, arguments: Any) -> Filter:
    """What a subscription with these arguments is about. Raises EventNotFound, InvalidCall."""
    kind = known(name)
    canonical(arguments)
    given = cast(Mapping[str, Any], {} if arguments is None else arguments)
    _judge(kind.name, given)
    one = given.get("taskId")
    return Filter(
        kind.name,
        task_ids=_each(given, "taskIds") if one is None else (one,),
        tools=_each(given, "tools"),
        statuses=_each(given, "statuses"),
    )


def canonical(arguments: Any) -> str:
    """The one text of equal arguments (RFC 8785); none at all are the empty ones.

    Raises InvalidCall for what has no such text: integers beyond 53 bits, NaN, lone surrogates.
    """
    try:
        return rfc8785.dumps({} if arguments is None else arguments).decode()
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError):
        raise errors.InvalidCall(
            "arguments must have a canonical form (RFC 8785): no integers beyond 53 bits, no NaN,"
            " and no lone surrogates"
        ) from None


def _each(given: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    return tuple(dict.fromkeys(given[name])) if name in given else None


def _judge(name: str, given: Any) -> None:
    fault = next(iter(_JUDGES[name].iter_errors(given)), None)
    if fault is not None:
        raise errors.InvalidCall(_told(fault))


def _told(fault: ValidationError) -> str:
    if fault.kind.name == "not":
        return "arguments: taskId and taskIds exclude each other"
    where = jsonpath.along("arguments", fault.instance_path)
    if fault.kind.name == "maxItems":  # its own words repeat the whole list
        return f"{where}: at most {fault.kind.value} items"
    return f"{where}: {fault.message}"[:FAULT_LENGTH_MAX]
