"""How a change reaches a client: the one interface, and the promise that every way keeps.

The promise: every change of the watched tasks after the versions given, in order per task, at
least once, each with its version to drop repeats by, and then the end once every watched task has
ended. A watch that opens after a task has ended still gets its final state. Nothing of another
owner, ever.

A change is one event of a task's stream, told as the whole task after it: what `tasks/get` would
have answered at that moment.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from ..domain import errors
from ..domain.ports import TaskView

VERSION_META_KEY = "dev.outlast/version"  # beside each task: its version, to drop repeats by
AFTER_META_KEY = "dev.outlast/after"  # on a request: task id to the version that the client knows
KEEP_ALIVE = b""  # the empty frame: nothing to tell, and the carrier shows that it lives


@dataclass(frozen=True)
class Change:
    """One task after one of its events. `wire` is the JSON text of its DetailedTask."""

    task_id: str
    version: int
    is_terminal: bool
    wire: bytes


@dataclass(frozen=True)
class Watch:
    """Which tasks, for whom, and where the client is: the version that it knows, 0 for none.

    From 0 the first change is the task's present state, whatever its version; what came before it
    is history, and nothing that the watcher could have missed.
    """

    owner: str
    after: Mapping[str, int]


@dataclass(frozen=True)
class Receipt:
    """What was agreed to: the tasks of this watch that exist and belong to its owner.

    The others are absent without a word, so that nobody learns which of them exist.
    """

    task_ids: tuple[str, ...]


class OpenWatch(Protocol):
    """A watch that has been agreed to."""

    @property
    def receipt(self) -> Receipt:
        """What was agreed to."""
        ...

    def frames(self) -> AsyncGenerator[bytes]:
        """What goes to the client, in order; ends when the watch does.

        Pulled: the next change is read only when the last frame has been taken, so a slow reader
        holds one frame and no queue. Raises StoreUnavailable when the store stays away.
        """
        ...

    async def close(self) -> None:
        """Let go of the watch. Idempotent; safe while `frames` is being read."""
        ...


@dataclass(frozen=True)
class ListenRequest:
    """A `subscriptions/listen` request as any carrier hands it on: its envelope is judged."""

    owner: str
    request_id: str | int
    params: Mapping[str, Any]
    declares_tasks: bool


class Listener(Protocol):
    """Turns a request into a watch."""

    async def open(self, request: ListenRequest) -> OpenWatch:
        """The watch. Raises InvalidCall, MissingCapability, TooManyWatches, and store errors."""
        ...


class Poller(Protocol):
    """Answers a client that asks by itself."""

    async def owned(self, owner: str, task_id: str) -> TaskView | None:
        """The task as it is now; None for another's, an expired one, or none at all."""
        ...

    async def answer(self, view: TaskView, after: int) -> dict[str, Any]:
        """The task of the view with every change since `after` in its `_meta`."""
        ...


class Connection(Protocol):
    """A two-way connection that carries several watches."""

    @property
    def is_idle(self) -> bool:
        """True while nothing is watched on it."""
        ...

    async def received(self, request: ListenRequest) -> None:
        """Open a watch and let its frames flow; a refusal is answered, never raised."""
        ...

    async def carry(
        self, request_id: str | int, opening: Callable[[], Awaitable[OpenWatch]]
    ) -> None:
        """Open a watch of any kind and let its frames flow; a refusal is answered, never raised."""
        ...

    async def cancelled(self, request_id: Any) -> None:
        """End the watch of this request; an unknown one is ignored."""
        ...

    async def close(self) -> None:
        """End every watch."""
        ...


@dataclass(frozen=True)
class EventsRequest:
    """An `events/*` request as any carrier hands it on: its envelope is judged.

    `is_authenticated` is False for a caller that could be anybody; it may poll and stream alone.
    The parameters may hold a secret, and show in no repr.
    """

    owner: str
    is_authenticated: bool
    request_id: str | int
    params: Mapping[str, Any] = field(repr=False)


class EventsDesk(Protocol):
    """The `events/*` methods. Each may raise InvalidCall, EventsError, and store errors."""

    async def list(self, request: EventsRequest) -> dict[str, Any]:
        """The event types that this caller may have, and how."""
        ...

    async def poll(self, request: EventsRequest) -> dict[str, Any]:
        """A batch of events after a cursor."""
        ...

    async def stream(self, request: EventsRequest) -> OpenWatch:
        """The events from a cursor on, as frames."""
        ...

    async def subscribe(self, request: EventsRequest) -> dict[str, Any]:
        """Make or refresh a webhook subscription."""
        ...

    async def unsubscribe(self, request: EventsRequest) -> dict[str, Any]:
        """End a webhook subscription."""
        ...

    def source_of(self, owner: str, task_id: str) -> dict[str, Any]:
        """The `eventSource` of a task that was just created (task event sources)."""
        ...

    async def judge_webhook(self, request: EventsRequest, given: Any) -> "CallWebhook":
        """What a call's `dev.outlast/webhook` asks for, its endpoint verified.

        Before the call is accepted: a refusal has created nothing.
        """
        ...


class CallWebhook(Protocol):
    """A webhook that was given with a call, good for the task that comes of it."""

    async def follow(self, task_id: str) -> None:
        """Subscribe it to every change of this task. Idempotent."""
        ...


class Delivery(Protocol):
    """One way to reach a client."""

    async def open(self, watch: Watch) -> OpenWatch:
        """Agree to a watch. Raises TooManyWatches, StoreUnavailable."""
        ...


def places_of(params: Mapping[str, Any]) -> Mapping[str, int]:
    """The versions that the client says it knows, by task. Raises InvalidCall."""
    meta = cast(Mapping[str, Any], params.get("_meta") or {})
    given = meta.get(AFTER_META_KEY, {})
    places = cast(Mapping[str, Any], given if isinstance(given, dict) else {"": None})
    for version in places.values():
        if not isinstance(version, int) or isinstance(version, bool) or version < 0:
            raise errors.InvalidCall(f"{AFTER_META_KEY} must map task ids to versions")
    return places
