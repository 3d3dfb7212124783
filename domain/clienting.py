"""What a client of a server is made of: its seams, where a watcher stands, and how a task can end.

OutlastError
└── ClientError
    ├── TaskFailed          the error that the server stored, as it came
    ├── TaskCancelled       the task ended as cancelled
    ├── TaskExpired         the server has no such task (any more), or its time is long over
    ├── InputRequired       the call asks, and nobody here may answer
    ├── ClientTimeout       the caller's own deadline has passed; the task lives on
    └── InvalidAnswer       the server's answer is none that its specification knows
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, cast

from . import errors

INVALID_PARAMS = -32602
IDEMPOTENCY_META_KEY = "dev.outlast/idempotencyKey"
STATUSES = frozenset({"working", "input_required", "completed", "failed", "cancelled"})
TERMINAL = frozenset({"completed", "failed", "cancelled"})
WITHOUT_TASK = frozenset({"answered", "refused", "lost"})  # how a call ends that became none
BACKSTOP_GRACE_S = 5.0  # what a server may be late with ending a task whose time is over


def is_answer(message: Mapping[str, Any]) -> bool:
    """Whether this is a JSON-RPC response, and so the word of the server itself.

    Gateways on the way have JSON of their own, `{"error": "Service Unavailable"}` or an object with
    a code among it, which says nothing of whether the request arrived.
    """
    if message.get("jsonrpc") != "2.0":
        return False
    if "error" not in message:
        return isinstance(message.get("result"), dict)
    error = message["error"]
    code = cast(Mapping[str, Any], error).get("code") if isinstance(error, dict) else None
    return isinstance(code, int) and not isinstance(code, bool)


class ClientError(errors.OutlastError):
    """The task gave no result."""


class TaskFailed(ClientError):
    """The task failed."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data


class TaskCancelled(ClientError):
    """The task was cancelled."""


class TaskExpired(ClientError):
    """The server knows no such task: it has expired, or it never was ours."""


class InputRequired(ClientError):
    """The call needs input first, and there is no handler that may give it."""

    def __init__(self, requests: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__()
        self.requests = requests


class ClientTimeout(ClientError):
    """The time that the caller gave is over; the task goes on."""


class InvalidAnswer(ClientError):
    """The server answered with something that is neither a result nor a task."""


class TaskState(Protocol):
    """A task at one moment: the whole `DetailedTask`, and its version if the server tells one."""

    @property
    def task(self) -> Mapping[str, Any]:
        """The task as `tasks/get` would have answered at that moment."""
        ...

    @property
    def version(self) -> int | None:
        """Outlast counts the changes of a task; None from a server that does not."""
        ...

    @property
    def task_id(self) -> str:
        """The id of the task."""
        ...

    @property
    def is_terminal(self) -> bool:
        """True once nothing more follows."""
        ...


class StatusSource(Protocol):
    """One way to learn of a task's changes."""

    def watch(self, task_id: str, after: int = 0) -> AsyncGenerator[TaskState]:
        """Every state after the version, in order, none older than one already given; then the end.

        Reconnects by itself, for ever, with a capped back-off, and reads the present state after
        each reconnect. Close it (`aclosing`) to stop earlier. Raises RequestRefused when the server
        says that there is no such task, or that we may not ask.
        """
        ...


class Server(Protocol):
    """The MCP endpoint that a client speaks to."""

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The result. Raises RequestRefused for a JSON-RPC error, ConnectionLost for no answer."""
        ...


class ToolServer(Server, Protocol):
    """The same, for whoever calls tools."""

    async def call(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The result of a `tools/call`, however long it takes. Raises as `request` does."""
        ...


@dataclass(frozen=True)
class Entry:
    """What a journal holds of one call.

    Without a `task_id` the call may or may not have reached the server; until one is known, or the
    call has ended, `arguments` are kept to send the very same call again. `is_keyed`: the server
    runs what comes twice under one key only once. `answers` maps input keys to what was answered.
    `ended` is None, or how it ended: a status, or `answered`, `refused`, `expired`, `lost`.
    """

    id: str
    server: str
    owner: str
    made_at: datetime
    tool: str | None = None
    digest: str | None = None
    idempotency_key: str | None = None
    is_keyed: bool = False
    arguments: Mapping[str, Any] | None = field(default=None, repr=False)
    task_id: str | None = None
    answers: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict[str, Mapping[str, Any]], repr=False
    )
    ended: str | None = None


class Journal(Protocol):
    """What a client must not forget, one entry a call. All methods raise StoreUnavailable.

    Each change is durable, also against a loss of power, once its method returns; several processes
    may share a journal. Nobody but its owner can read it.
    """

    async def begin(self, entry: Entry) -> None:
        """Keep a new entry."""
        ...

    async def accept(self, entry_id: str, task_id: str) -> None:
        """The call became this task, which goes on. Its arguments are forgotten."""
        ...

    async def answer(self, entry_id: str, answers: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Keep these answers beside those kept already; None takes one back."""
        ...

    async def end(self, entry_id: str, how: str) -> bool | None:
        """Nothing is owed any more. Arguments and answers are forgotten. Idempotent.

        An entry with a task id does not end in one of `WITHOUT_TASK`: another process, sharing the
        journal, has learned of the task. Returns whether this very call ended the entry. A journal
        that cannot tell returns None, which is taken for yes: a call may then be called lost
        although it became a task in another process at that moment.
        """
        ...

    async def entries(self) -> Sequence[Entry]:
        """All of them, oldest first."""
        ...


class Place:
    """Where a watcher is in a task: drops what is repeated, and what is older than what it saw."""

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self._updated_at: datetime | None = None
        self._task: Mapping[str, Any] | None = None

    def is_new(self, state: TaskState) -> bool:
        """Whether the state moves the watcher on; if so, it is there now."""
        if state.version is not None:
            if state.version <= self.version:
                return False
            self.version = state.version
            return True
        # A server that tells no versions: a state is as old as its stamp. Instants are compared,
        # not their spelling, which two replicas need not share.
        updated_at = instant_of(state.task.get("lastUpdatedAt"))
        if self._updated_at is not None:
            if updated_at < self._updated_at:
                return False
            if updated_at == self._updated_at and self._is_known(state.task):
                return False
        self._updated_at, self._task = updated_at, state.task
        return True

    def _is_known(self, task: Mapping[str, Any]) -> bool:
        return self._task is not None and _unstamped(task) == _unstamped(self._task)


class Backstop:
    """When a task is certainly over: its time to live, counted so that no two clocks are compared.

    Its age when it was last told, by the server's stamps alone, and what has passed here since.
    """

    def __init__(self) -> None:
        self._ends_at: float | None = None
        self._heard: tuple[datetime, Any] | None = None

    def told(self, task: Mapping[str, Any], now_s: float) -> None:
        """The server told this at the reading `now_s` of a clock that never jumps."""
        ttl_ms = task.get("ttlMs")
        heard = instant_of(task.get("lastUpdatedAt")), ttl_ms
        if heard == self._heard:  # nothing has changed, so that the time goes on running out
            return
        self._heard = heard
        if not isinstance(ttl_ms, int | float) or isinstance(ttl_ms, bool):
            self._ends_at = None
            return
        age = instant_of(task.get("lastUpdatedAt")) - instant_of(task.get("createdAt"))
        left_s = ttl_ms / 1000 - max(age, timedelta(0)).total_seconds()
        self._ends_at = now_s + max(left_s, 0.0) + BACKSTOP_GRACE_S

    def left_s(self, now_s: float) -> float | None:
        """How long there is still hope; None for ever."""
        return None if self._ends_at is None else max(0.0, self._ends_at - now_s)

    def is_over(self, now_s: float) -> bool:
        """Whether the task is beyond its time."""
        return self._ends_at is not None and now_s >= self._ends_at


def instant_of(stamp: Any) -> datetime:
    """The instant in a time stamp, UTC if it names no zone. Raises ConnectionLost for none."""
    try:
        instant = datetime.fromisoformat(stamp)
    except (TypeError, ValueError):
        raise errors.ConnectionLost(f"the server sent no valid time stamp: {stamp!r}") from None
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)


def _unstamped(task: Mapping[str, Any]) -> dict[str, Any]:
    stamps = ("createdAt", "lastUpdatedAt")
    return {name: value for name, value in task.items() if name not in stamps}
