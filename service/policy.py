"""How each tool is run: the policy table of `outlast.toml`, checked at start."""

import math
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from .bridging.places import Place

_DURATION = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)(ms|s|m|h|d)", re.ASCII)
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

POLL_INTERVAL_MS_MIN = 10
LOOK_INTERVAL_MS_MIN = 100
DURATION_MS_MAX = 366 * _UNIT_MS["d"]


def milliseconds(value: Any) -> int:
    """`"250ms"`, `"2s"`, `"30m"`, `"24h"`, `"7d"` in milliseconds. Raises ValueError."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError('a duration is written like "250ms", "2s", "30m", "24h" or "7d"')
    length_ms = round(float(match[1]) * _UNIT_MS[match[2]])
    if length_ms > DURATION_MS_MAX:
        raise ValueError("a duration is at most 366d")
    return length_ms


def _milliseconds_or_none(value: Any) -> int | None:
    return None if value == "unlimited" else milliseconds(value)


def _positive(length_ms: int | None) -> int | None:
    if length_ms is not None and length_ms <= 0:
        raise ValueError("must be longer than nothing")
    return length_ms


Duration = Annotated[int, BeforeValidator(milliseconds)]
Limit = Annotated[
    int | None, BeforeValidator(lambda value: _positive(_milliseconds_or_none(value)))
]
PollInterval = Annotated[Duration, Field(ge=POLL_INTERVAL_MS_MIN)]


class Run(StrEnum):
    """When a call becomes a task, for a client that declared the extension."""

    DIRECT = "direct"  # never
    AUTO = "auto"  # if it outlives `grace`
    TASK = "task"  # always
    TASK_ONLY = "task-only"  # always, and a client that did not declare it is refused


class Ask(StrEnum):
    """Where the questions of a tool go."""

    DURING = "during"  # into the task, answered with tasks/update
    BEFORE = "before"  # to the caller, as multi round-trip on the call; then the task is created


class OnWorkerLoss(StrEnum):
    """What becomes of a task whose worker is gone."""

    RERUN = "rerun"
    FAIL = "fail"
    RERUN_IF_SAFE = "rerun-if-safe"


def _place(text: str) -> str:
    """Raises ValueError for what is no place in an answer."""
    return Place(text).text


def _place_or_number(value: Any) -> str | float:
    """Raises ValueError for what is neither."""
    if isinstance(value, str):
        return _place(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError("must be a number above 0, or a place")
    return float(value)


PlaceText = Annotated[str, AfterValidator(_place)]
Name = Annotated[str, Field(min_length=1)]
LookInterval = Annotated[Duration, Field(ge=LOOK_INTERVAL_MS_MIN)]


class StatusBridge(BaseModel):
    """A tool that starts a job, and the other tools of its upstream, by the upstream's own names.

    A job is called by what stands at `job_id` of the tool's answer. An answer without it is the
    result. A state that is in none of the lists means that the job goes on.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    job_id: PlaceText
    job_argument: Name = "job_id"  # of the other tools
    repeat: tuple[Name, ...] = ()  # arguments of the call that the other tools take as well
    status_tool: Name
    status: PlaceText
    working: tuple[str, ...] = ()
    completed: tuple[str, ...] = Field(min_length=1)
    failed: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()
    message: PlaceText | None = None  # default: the state itself
    progress: PlaceText | None = None
    total: Annotated[str | float | None, BeforeValidator(_place_or_number)] = None
    result_tool: Name | None = None  # default: the last answer of the status tool is the result
    cancel_tool: Name | None = None
    poll_min: LookInterval = 1_000
    poll_max: LookInterval = 60_000
    lost_after: Duration = 120_000
    cancel_wait: Duration = 60_000

    @model_validator(mode="after")
    def _sound(self) -> "StatusBridge":
        states = [*self.working, *self.completed, *self.failed, *self.cancelled]
        if len(set(states)) < len(states):
            raise ValueError("a state stands in two lists, or twice in one")
        if self.poll_min > self.poll_max:
            raise ValueError("poll_min is longer than poll_max")
        if self.job_argument in self.repeat:
            raise ValueError("job_argument stands in repeat as well")
        return self


class Policy(BaseModel):
    """One row of the table. Every length of time is in milliseconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: Run = Run.AUTO
    grace: Duration = 1_000
    ask: Ask = Ask.DURING
    ttl: Limit = _UNIT_MS["d"]
    poll_interval: PollInterval = 2_000
    timeout: Limit = 30 * _UNIT_MS["m"]
    on_worker_loss: OnWorkerLoss = OnWorkerLoss.RERUN_IF_SAFE
    bridge: StatusBridge | None = None

    def rerun_is_safe(self, annotations: Mapping[str, Any]) -> bool:
        """Whether a call that may have begun may be sent again. Only a true hint counts."""
        if self.on_worker_loss is OnWorkerLoss.RERUN_IF_SAFE:
            return (
                annotations.get("readOnlyHint") is True or annotations.get("idempotentHint") is True
            )
        return self.on_worker_loss is OnWorkerLoss.RERUN


class Policies:
    """The policy of every tool: its own table over the defaults."""

    def __init__(self, defaults: Policy, tools: Mapping[str, Policy]) -> None:
        self._defaults, self._tools = defaults, tools

    @property
    def poll_interval_min(self) -> int:
        """The shortest interval that any client is told, in milliseconds."""
        policies = (self._defaults, *self._tools.values())
        return min(policy.poll_interval for policy in policies)

    def of(self, tool: str) -> Policy:
        """The policy of a tool by the name that clients use."""
        return self._tools.get(tool, self._defaults)
