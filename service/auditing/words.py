"""What happened, in words: one sentence for each event, also where its payload is gone."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from ...domain.history import Doing, Step
from ...domain.task import amount

Payload = Mapping[str, Any]

_WITHOUT: Mapping[str, str] = {
    "task.opened": "opened",
    "task.work_started": "an attempt began",
    "task.work_delegated": "the tool returned, and a job elsewhere goes on",
    "task.work_followed": "the tool returned, and its job is looked at from now on",
    "task.job_seen": "a look found news of the job",
    "task.progress_reported": "told its progress",
    "task.checkpoint_reached": "a leg is done, and its state kept",
    "task.input_requested": "asked the client",
    "task.input_received": "the client answered",
    "task.cancel_requested": "the owner wants it cancelled",
    "task.work_lost": "an attempt was lost",
    "task.ttl_changed": "time to live was changed",
    "task.completed": "completed",
    "task.failed": "failed",
    "task.cancelled": "cancelled",
    "task.expired": "expired",
    "task.erased": "all payloads were erased",
}

DOING: Mapping[Doing, str] = {
    Doing.WAITING: "waiting for a worker",
    Doing.WORKING: "working",
    Doing.ASKING: "waiting for input",
}


def sentence(step: Step) -> str:
    """What this event says."""
    return sentence_of(step.row.topic, step.told.payload, step.told.absent)


def sentence_of(topic: str, payload: Payload | None, absent: str | None = None) -> str:
    """The same of its name and payload, or of why there is none."""
    plain = _WITHOUT.get(topic, topic)
    if payload is None:
        return f"{plain} ({absent})"
    told = _WITH_PAYLOAD.get(topic)
    if told is None:
        return plain
    try:
        return told(payload)
    except (LookupError, TypeError, AttributeError, ValueError):
        return plain


def length(spent: timedelta) -> str:
    """A duration as people say it: 340 ms, 12.5 s, 3 min 20 s, 5 h 03 min, 2 d 04 h."""
    seconds = spent.total_seconds()
    if abs(seconds) < 1:
        return f"{seconds * 1000:.0f} ms"
    if abs(seconds) < _MINUTE:
        return f"{seconds:.1f} s"
    for unit, name, smaller, rest in _UNITS:
        if abs(seconds) >= unit:
            return f"{seconds // unit:.0f} {name} {seconds % unit // smaller:02.0f} {rest}"
    return f"{seconds:.0f} s"


_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_UNITS = ((_DAY, "d", _HOUR, "h"), (_HOUR, "h", _MINUTE, "min"), (_MINUTE, "min", 1, "s"))


def _delegated(until: str | None) -> str:
    job = "the tool returned, and a job elsewhere goes on"
    return job if until is None else f"{job}, with time until {until}"


def _followed(payload: Payload) -> str:
    job = f"the tool returned, and its job {payload['job']['id']} is looked at from now on"
    until = payload.get("until")
    return job if until is None else f"{job}, with time until {until}"


def _seen(message: str | None) -> str:
    return "a look found news of the job" if message is None else f"the job was seen: {message}"


def _progress(payload: Payload) -> str:
    done = amount(payload["progress"], payload.get("total"))
    message, by = payload.get("message"), payload.get("callback_id")
    told = f"progress {done}" if message is None else f"progress {done}: {message}"
    return told if by is None else f"{told} (called back)"


def _asked(questions: Mapping[str, Any]) -> str:
    each = [f"{key} ({asked['request']['method']})" for key, asked in questions.items()]
    return ", ".join(each)


def _answered(payload: Payload) -> str:
    by = payload.get("by")
    who = "the client" if by is None else f"{by} in the console"
    return f"{who} answered {', '.join(payload['answers'])}"


def _ttl(ttl_ms: int | None) -> str:
    return "unlimited" if ttl_ms is None else length(timedelta(milliseconds=ttl_ms))


def _completed(result: Payload) -> str:
    return "completed, with an error as its result" if result.get("isError") else "completed"


# With what the payload says; each may meet a payload that a newer or a hostile release wrote.
_WITH_PAYLOAD: Mapping[str, Callable[[Payload], str]] = {
    "task.opened": lambda p: f"opened: {p['tool']} on {p['upstream']}, by {p['owner']}",
    "task.work_started": lambda p: f"attempt {p['attempt']} began",
    "task.work_delegated": lambda p: _delegated(p.get("until")),
    "task.work_followed": _followed,
    "task.job_seen": lambda p: _seen(p["message"]),
    "task.progress_reported": _progress,
    "task.checkpoint_reached": lambda p: f"leg {p['leg']} is done, and its state kept",
    "task.input_requested": lambda p: f"asked the client: {_asked(p['questions'])}",
    "task.input_received": _answered,
    "task.work_lost": lambda p: f"attempt {p['attempt']} was lost: {p['why']}",
    "task.ttl_changed": lambda p: f"time to live is now {_ttl(p['ttl_ms'])}",
    "task.completed": lambda p: _completed(p["result"]),
    "task.failed": lambda p: f"failed: {p['error']['code']} {p['error']['message']}",
    "task.expired": lambda p: f"expired: {p['error']['message']}",
    "task.erased": lambda p: f"all payloads were erased: {p['why']}",
}
