"""How following a task went, and its words on the way: what every screen shows from."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ... import forms
from . import codes
from .text import line, plain

Json = Mapping[str, Any]
Requests = Mapping[str, Json]  # what is asked, by key

_AMOUNTS = (
    re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s*(?:of|/)\s*(\d+(?:\.\d+)?)(?![\d.])"),
    re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s?(%)"),
)


@dataclass(frozen=True)
class Outcome:
    """How it ended for this command, which is not always the end of the task."""

    kind: str  # result, failed, cancelled, left_running, waiting, unknown
    code: int
    task_id: str | None = None
    tool: str | None = None
    detail: Json = field(default_factory=dict[str, Any])

    def told(self) -> dict[str, Any]:
        """The last line of `--json`."""
        known = {"taskId": self.task_id, "tool": self.tool}
        facts = {name: value for name, value in known.items() if value is not None}
        return {"kind": self.kind, **facts, **self.detail, "exitCode": self.code}


@dataclass(frozen=True)
class Seen:
    """A state of a task. `version` is the server's number, where it tells one."""

    task: Json
    version: int | None = None
    tool: str | None = None

    @property
    def task_id(self) -> str:
        """The id of the task."""
        return str(self.task["taskId"])


def of_result(result: Json, task_id: str | None = None, tool: str | None = None) -> Outcome:
    """The tool has answered."""
    code = codes.FAILED if result.get("isError") is True else codes.DONE
    return Outcome("result", code, task_id, tool, {"result": result})


def of_end(task: Json, tool: str | None) -> Outcome:
    """The task as it ended."""
    task_id = str(task["taskId"])
    if task["status"] == "completed":
        return of_result(mapping(task.get("result")), task_id, tool)
    if task["status"] == "cancelled":
        return Outcome("cancelled", codes.CANCELLED, task_id, tool)
    error = mapping(task.get("error")) or {
        "message": task.get("statusMessage") or "no reason given"
    }
    return Outcome("failed", codes.FAILED, task_id, tool, {"error": error})


def amount(message: str) -> tuple[float, float] | None:
    """Done and whole, where a status message says so; a task's status has no place for them."""
    for pattern in _AMOUNTS:
        if found := pattern.search(message[:500]):
            done = float(found[1])
            whole = 100.0 if found[2] == "%" else float(found[2])
            if 0 <= done <= whole and whole > 0:
                return done, whole
    return None


def shown(result: Json) -> str:
    """A tool's result as text for a person."""
    blocks = [_block(mapping(each)) for each in _list(result.get("content"))]
    if not blocks and "structuredContent" in result:
        return plain(json.dumps(result["structuredContent"], indent=2, ensure_ascii=False))
    return "\n".join(blocks)


def asked(requests: Json, task_id: str | None) -> list[str]:
    """What is asked, and how to answer it, for somebody who reads it later."""
    lines: list[str] = []
    for key, value in requests.items():
        request = mapping(value)
        params, method = mapping(request.get("params")), line(request.get("method", ""))
        if method != "elicitation/create":
            lines.append(f"  {line(key)}: {method}, which this command cannot do and did not offer")
            continue
        lines.append(f"  {line(key)}: {line(params.get('message', ''), 2000)}")
        if params.get("mode") == "url":
            lines.append(f"    at {line(params.get('url', ''), 2000)}")
        fields = forms.fields_of(mapping(params.get("requestedSchema")))
        lines += [f"    {_field(field)}" for field in fields]
        if task_id is not None:
            words = " ".join(f"{line(field.name)}=…" for field in fields) or "--accept"
            lines.append(f"  answer: outlast answer {line(task_id)} {words}, or --decline")
    return lines


def _field(field: forms.Field) -> str:
    name = line(field.name) if field.is_required else f"{line(field.name)} (optional)"
    about = f": {line(field.description)}" if field.description else ""
    return f"{name}{about} [{line(forms.hint(field))}]"


def questions(task: Json) -> dict[str, Json]:
    """What the task waits for, by key."""
    if task.get("status") != "input_required":
        return {}
    return {key: mapping(value) for key, value in mapping(task.get("inputRequests")).items()}


def reason(error: Json) -> str:
    """A JSON-RPC error as a person reads it."""
    words = plain(error.get("message", "no reason given"))
    code = f" ({error['code']})" if isinstance(error.get("code"), int) else ""
    data = error.get("data")
    return f"{words}{code}" if data is None else f"{words}{code} {line(json.dumps(data))}"


def mapping(value: object) -> Json:
    """The value, if it is a JSON object; else an empty one."""
    return cast(Json, value) if isinstance(value, Mapping) else {}


def _block(block: Json) -> str:
    kind = block.get("type")
    if kind == "text":
        return plain(block.get("text", ""))
    if kind == "resource_link":
        return f"[{line(block.get('name', 'resource'))}: {line(block.get('uri', ''))}]"
    if kind == "resource":
        resource = mapping(block.get("resource"))
        if "text" in resource:
            return plain(resource["text"])
        return f"[resource {line(resource.get('uri', ''))}]"
    size = len(str(block.get("data", ""))) * 3 // 4
    return f"[{line(kind)} {line(block.get('mimeType', ''))}, {size} bytes]"


def _list(value: Any) -> Sequence[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []
