"""What can happen to a task: past-tense facts, each with a fixed stored name.

Every event carries its task's id, its own number in that task (the version that the task has after
it) and the instant it was recorded (`at`, RFC 3339 in UTC with milliseconds). Fields hold plain
JSON values only, so that a stored event can be read by anything. To change a shape, raise
`class_version` and add `upcast_vN_vM(state)`, which mutates the decoded dict; never edit what is
stored, and never reuse a `TOPIC`. `tests/domain/golden_events.jsonl` keeps one line of every
version ever released.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

Json = Any


@dataclass(frozen=True)
class TaskEvent:
    """One fact about one task."""

    TOPIC: ClassVar[str]
    class_version: ClassVar[int] = 1

    task_id: str
    version: int
    at: str

    def lower(self, state: dict[str, Json]) -> int:  # noqa: ARG002 - most have one shape to write
        """The oldest class version that can say this; `state` is changed to that shape."""
        return self.class_version


@dataclass(frozen=True)
class TaskOpened(TaskEvent):
    """The call was accepted. Holds all that is needed to run it, on any worker, at any time."""

    TOPIC: ClassVar[str] = "task.opened"

    owner: str
    upstream: str
    tool: str
    arguments: Mapping[str, Json]
    client_capabilities: Mapping[str, Json]
    ttl_ms: int | None
    poll_interval_ms: int
    timeout_ms: int | None
    rerun_is_safe: bool
    idempotency_key: str | None = None
    call_digest: str | None = None
    trace: Mapping[str, str] | None = None
    carried_answers: Mapping[str, Json] | None = None
    carried_state: str | None = None


@dataclass(frozen=True)
class WorkStarted(TaskEvent):
    """A worker began an attempt. The attempt number is the fence: only its holder may report."""

    TOPIC: ClassVar[str] = "task.work_started"

    attempt: int
    worker: str


@dataclass(frozen=True)
class ProgressReported(TaskEvent):
    """The tool told how far it is; `callback_id` is set when a job elsewhere told it."""

    TOPIC: ClassVar[str] = "task.progress_reported"
    class_version: ClassVar[int] = 2

    attempt: int
    progress: float
    total: float | None
    message: str | None
    callback_id: str | None = None

    @staticmethod
    def upcast_v1_v2(state: dict[str, Json]) -> None:
        """Before, only a worker could say so."""
        state["callback_id"] = None


@dataclass(frozen=True)
class WorkDelegated(TaskEvent):
    """The tool started a job elsewhere and returned; the job tells the rest by callbacks.

    No worker holds the attempt any more. `until` is the instant when the tool's time is up.
    """

    TOPIC: ClassVar[str] = "task.work_delegated"

    attempt: int
    until: str | None


@dataclass(frozen=True)
class WorkFollowed(TaskEvent):
    """The tool started a job at its upstream and returned; we look at it until it has ended.

    No worker holds the attempt any more. `job` is what must be known to look, `kind` and `id` at
    least. `until` is the instant when the tool's time is up, `look_at` that of the first look.
    """

    TOPIC: ClassVar[str] = "task.work_followed"

    attempt: int
    job: Mapping[str, Json]
    until: str | None
    look_at: str


@dataclass(frozen=True)
class JobSeen(TaskEvent):
    """A look at the followed job found something new: `message` for the owner, or none.

    `job` is all that is to be known at the next look; it replaces what was known.
    """

    TOPIC: ClassVar[str] = "task.job_seen"

    attempt: int
    job: Mapping[str, Json]
    message: str | None


@dataclass(frozen=True)
class CheckpointReached(TaskEvent):
    """A leg of the call ended with state to resume from (multi round-trip `requestState`)."""

    TOPIC: ClassVar[str] = "task.checkpoint_reached"

    attempt: int
    leg: int
    request_state: str | None


@dataclass(frozen=True)
class InputRequested(TaskEvent):
    """The tool asked the client for something.

    `questions` maps our key to `{"name": the upstream's own key, "request": {"method", "params"}}`.
    With `held` the upstream call stays open and waits for the answer (a legacy server); without,
    the leg is over and the task parks.
    """

    TOPIC: ClassVar[str] = "task.input_requested"

    attempt: int
    held: bool
    questions: Mapping[str, Json]


@dataclass(frozen=True)
class InputReceived(TaskEvent):
    """The client answered; `answers` maps our key to the client's result.

    `by` is the key of who answered in the console; None when the owner's own client did.
    """

    TOPIC: ClassVar[str] = "task.input_received"
    class_version: ClassVar[int] = 2

    answers: Mapping[str, Json]
    by: str | None = None

    @staticmethod
    def upcast_v1_v2(state: dict[str, Json]) -> None:
        """Before, only the owner's client could answer."""
        state["by"] = None

    def lower(self, state: dict[str, Json]) -> int:
        """Without a name it says what it always said, so replicas of an older release read it."""
        if self.by is not None:
            return self.class_version
        del state["by"]
        return 1


@dataclass(frozen=True)
class CancelRequested(TaskEvent):
    """The owner asked for the work to stop; the running attempt decides what comes of it."""

    TOPIC: ClassVar[str] = "task.cancel_requested"


@dataclass(frozen=True)
class WorkLost(TaskEvent):
    """An attempt ended without an outcome: its worker died, stalled or was shut down.

    `was_sent` is False when the call certainly never reached the upstream; `was_told` is True when
    the worker was told to stop, so that the task cannot have been what ended it.
    """

    TOPIC: ClassVar[str] = "task.work_lost"

    attempt: int
    why: str
    was_sent: bool = True
    was_told: bool = False


@dataclass(frozen=True)
class TtlChanged(TaskEvent):
    """The time to live was extended because the work still runs."""

    TOPIC: ClassVar[str] = "task.ttl_changed"

    ttl_ms: int | None


@dataclass(frozen=True)
class TaskCompleted(TaskEvent):
    """The call returned a result, be it with `isError` or without."""

    TOPIC: ClassVar[str] = "task.completed"
    class_version: ClassVar[int] = 2

    ttl_ms: int | None
    result: Mapping[str, Json]
    callback_id: str | None = None

    @staticmethod
    def upcast_v1_v2(state: dict[str, Json]) -> None:
        """Before, only a worker could say so."""
        state["callback_id"] = None


@dataclass(frozen=True)
class TaskFailed(TaskEvent):
    """The call ended in a JSON-RPC error (`code`, `message`, optional `data`)."""

    TOPIC: ClassVar[str] = "task.failed"
    class_version: ClassVar[int] = 2

    ttl_ms: int | None
    error: Mapping[str, Json]
    callback_id: str | None = None

    @staticmethod
    def upcast_v1_v2(state: dict[str, Json]) -> None:
        """Before, only a worker could say so."""
        state["callback_id"] = None


@dataclass(frozen=True)
class TaskCancelled(TaskEvent):
    """The work stopped because the owner asked for it."""

    TOPIC: ClassVar[str] = "task.cancelled"

    ttl_ms: int | None


@dataclass(frozen=True)
class TaskExpired(TaskEvent):
    """The time to live ran out before the call ended: nobody answered, or no worker came.

    Or the task was removed with all that its owner had stored; `error` says which.
    """

    TOPIC: ClassVar[str] = "task.expired"

    ttl_ms: int | None
    error: Mapping[str, Json]


EVENT_TYPES: tuple[type[TaskEvent], ...] = (
    TaskOpened,
    WorkStarted,
    WorkDelegated,
    WorkFollowed,
    JobSeen,
    ProgressReported,
    CheckpointReached,
    InputRequested,
    InputReceived,
    CancelRequested,
    WorkLost,
    TtlChanged,
    TaskCompleted,
    TaskFailed,
    TaskCancelled,
    TaskExpired,
)


@dataclass(frozen=True)
class TaskErased(TaskEvent):
    """What the task's events held is gone for good; that they happened is not.

    The store itself records it, and after the end: it is for auditors, and no client is ever told.
    """

    TOPIC: ClassVar[str] = "task.erased"

    why: str


# What may stand in the log beside the events of a task's own life, which alone are folded.
AUDIT_EVENT_TYPES: tuple[type[TaskEvent], ...] = (TaskErased,)
