"""How each tool is run: the policy table of `outlast.toml`, checked at start."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_DURATION = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)(ms|s|m|h|d)", re.ASCII)
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

POLL_INTERVAL_MS_MIN = 10
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
