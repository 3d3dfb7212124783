"""Every seam of Outlast on one page, in words that an adapter can be built from (push: `push.py`,
audit: `audit.py`, retention: `retaining.py`, what passes through: `passing.py`, the list of tasks:
`searching.py`).

Each port has a PostgreSQL, HTTP or file implementation and, where it is a store, an in-memory twin;
one contract suite (`tests/contracts/`) holds both to these sentences. All methods may raise
`StoreUnavailable`, or `UpstreamUnavailable` where an upstream is spoken to; nothing here retries
for ever.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from .decisions import Ask, Events
from .events import Json, TaskEvent
from .owner import Caller
from .task import Task

Clock = Callable[[], datetime]


class EventLog(Protocol):
    """The streams of all tasks: the truth that everything else is derived from."""

    async def append(self, before: Task | None, events: Events) -> Task:
        """Record `events` and all that follows from them, or nothing; return the task after them.

        In one commit: the events, the view row, the run-queue row (there while the task wants a
        worker, gone when it does not) and the signal. Once this has returned, every reader on every
        replica sees it. `before` is the task as it was read (None to open one). Raises StaleVersion
        when somebody else appended first, DuplicateOpening when the owner already used the
        idempotency key. A commit whose reply was lost is found again and is a success.
        """
        ...

    async def read(self, task_id: str) -> Sequence[TaskEvent]:
        """The events of one task, first to last; empty for an unknown one.

        Raises PayloadError when what is stored cannot be opened.
        """
        ...

    async def tail(
        self, task_id: str, version: int | None = None
    ) -> tuple[Task | None, Sequence[TaskEvent]]:
        """A task as it once was, and its events since then: folded on, they make the task of now.

        Of a short stream, or where nothing better is known: None, and all of them. With `version`
        the task is none after that version. Raises as `read` does.
        """
        ...


@dataclass(frozen=True)
class TaskView:
    """What is known of a task without its history. `wire` is the JSON of `detailed_task`.

    It is what the task holds for its owner: read where it is told, and else left empty.
    """

    task_id: str
    version: int
    owner: str
    is_terminal: bool
    expires_at: datetime | None
    wire: bytes


class TaskViews(Protocol):
    """One row a task, as of its last append; read without locks, never stale."""

    async def get(self, task_id: str, owner: str | None = None) -> TaskView | None:
        """The row, or None for a task that is not stored, or not this owner's if one is named.

        Raises PayloadError when what is stored cannot be opened.
        """
        ...

    async def opened_with(self, owner: str, idempotency_key: str) -> TaskView | None:
        """The task that this owner opened with this key, or None; without `wire`."""
        ...

    async def due(self, now: datetime, limit: int) -> Sequence[TaskView]:
        """Tasks whose time to live has ended, oldest first, at most `limit`; without `wire`."""
        ...

    async def next_end(self) -> datetime | None:
        """When the next time to live ends, or the first one did; None when none ever will."""
        ...

    async def forget(self, task_ids: Sequence[str]) -> None:
        """Let no client have these tasks any more. Unknown ids are ignored.

        What is left of them is for the audit alone, until it is erased; see `retaining.py`.
        """
        ...


class Dispatcher(Protocol):
    """Who may try to run what. A wake-up, not an authority: `WorkStarted` in the event log decides.

    A task is queued by the append that makes it runnable and leaves the queue by the append that
    parks or ends it. A lease that runs out makes the task claimable again: its worker is lost. Who
    has just come, or come back, first lets the living renew: an outage ends leases, not workers.
    """

    async def claim(self, worker: str, limit: int, lease_s: float) -> Sequence[str]:
        """Lease up to `limit` due tasks to `worker`: in turn of the owners, of each oldest first.

        No task is leased to two at once, no owner waits for more than a turn of each other one.
        Never blocks.
        """
        ...

    async def claim_looks(self, worker: str, limit: int, lease_s: float) -> Sequence[str]:
        """The same for tasks whose job is looked at, and for those alone: a look needs no slot.

        `claim` finds them too. Here they come oldest first, whoever owns them.
        """
        ...

    async def renew(self, worker: str, task_ids: Sequence[str], lease_s: float) -> Sequence[str]:
        """Prolong these leases in one step; returns the ids that `worker` still holds."""
        ...

    async def release(self, worker: str, task_ids: Sequence[str], delay_s: float) -> None:
        """Give these leases back, due again after `delay_s`. Those not held are ignored."""
        ...

    async def quiet_s(self, worker: str) -> float:
        """How long a claim of `worker` finds no more than now, unless the signal tells of it.

        Until the next waiting task is due, `inf` if none is; 0 while another worker holds a lease:
        that one may run out, and only who goes on asking may take it. So it is with one of
        `worker`'s own that has run out.
        """
        ...

    async def depth(self) -> int:
        """How many tasks wait for a worker: due, and leased to none."""
        ...


class Signal(Protocol):
    """Names who moved; carries no news. It may be lost, doubled, late: readers have own numbers."""

    def watching(self, *task_ids: str) -> AbstractAsyncContextManager["Wakeup"]:
        """From here on until the exit, moves of these tasks wake the yielded waiter."""
        ...

    def watching_owner(self, owner: str) -> AbstractAsyncContextManager["Wakeup"]:
        """From here on until the exit, moves of any task of this owner wake the yielded waiter."""
        ...

    def watching_queue(self) -> AbstractAsyncContextManager["Wakeup"]:
        """From here on until the exit, what may be claimed from now on wakes the yielded waiter.

        A task that becomes runnable, a lease that is given up, room that an owner gets for one
        more. What only time makes claimable wakes nobody: `Dispatcher.quiet_s` says when that is.
        """
        ...

    def watching_outbox(self) -> AbstractAsyncContextManager["Wakeup"]:
        """From here on until the exit, deliveries that are queued wake the yielded waiter."""
        ...


class Wakeup(Protocol):
    """One waiter. A move between two waits is not missed: the next wait returns at once."""

    async def wait(self, seconds: float) -> bool:
        """Return True once something moved, or False when the time is up. May return early."""
        ...

    def take(self) -> Mapping[str, int]:
        """Who moved since the last take, and to which version; 0 where news may be missing."""
        ...


class Announcements(Protocol):
    """What upstreams announce of themselves: changes of their lists and resources.

    A topic is a list's name in a subscription filter (`toolsListChanged`, `promptsListChanged`,
    `resourcesListChanged`), or a resource's URI. Like the signal it may come late or twice.
    """

    async def offered(self) -> frozenset[str]:
        """The lists that some upstream announces, and `resourceSubscriptions` if one does those."""
        ...

    def listening(self, topics: frozenset[str]) -> AbstractAsyncContextManager[Wakeup]:
        """From here on until the exit, announcements of these topics wake; `take` names them."""
        ...


@dataclass(frozen=True)
class Tool:
    """One tool of one upstream. `definition` is its `tools/list` entry but for the name."""

    name: str
    upstream: str
    upstream_name: str
    definition: Mapping[str, Json]


@dataclass(frozen=True)
class ToolCall:
    """One leg of one call, complete in itself.

    `callback` is the `url` and `secret` by which a job that the tool starts elsewhere may report.
    `meta` is the client's own `_meta`, of which the adapter passes on what is the client's; with
    `io.modelcontextprotocol/logLevel` in it, `Logged` is told. With `takes_task` an upstream that
    has tasks itself may answer with one: `Returned` with the `resultType` `task`. `more` are
    parameters that this revision does not name.
    """

    upstream: str
    tool: str
    arguments: Mapping[str, Json]
    client_capabilities: Mapping[str, Json]
    answers: Mapping[str, Json] | None = None
    request_state: str | None = None
    trace: Mapping[str, str] | None = None
    callback: Mapping[str, str] | None = None
    meta: Mapping[str, Json] | None = None
    takes_task: bool = False
    more: Mapping[str, Json] | None = None


@dataclass(frozen=True)
class Progress:
    """A progress notification of the running call."""

    progress: float
    total: float | None
    message: str | None


@dataclass(frozen=True)
class Logged:
    """A `notifications/message` of the running call, told only to who asked for a log level."""

    params: Mapping[str, Json]


@dataclass(frozen=True)
class HeldAsk:
    """A legacy upstream asks mid-call.

    `reply` takes the client's result, `refuse` a JSON-RPC code and message.
    """

    ask: Ask
    reply: Callable[[Mapping[str, Json]], None]
    refuse: Callable[[int, str], None]


@dataclass(frozen=True)
class LegEnded:
    """The upstream answered with an InputRequiredResult."""

    asks: Sequence[Ask]
    request_state: str | None


@dataclass(frozen=True)
class Returned:
    """The upstream answered with a result, `isError` or not, exactly as it came."""

    result: Mapping[str, Json]


@dataclass(frozen=True)
class Faulted:
    """The upstream answered with a JSON-RPC error, exactly as it came."""

    code: int
    message: str
    data: Json = None


CallNews = Progress | Logged | HeldAsk | LegEnded | Returned | Faulted


class RunningCall(Protocol):
    """An upstream call in flight.

    It belongs to nobody's request: it may be handed from one reader to the next.
    """

    def news(self) -> AsyncIterator[CallNews]:
        """What the call has to say, in order; ends after LegEnded, Returned or Faulted.

        Raises UpstreamUnavailable when the connection is lost before the outcome. One reader at a
        time.
        """
        ...

    async def cancel(self) -> None:
        """Tell the upstream to stop, and wait (bounded) until the call is over. Idempotent."""
        ...


class Upstreams(Protocol):
    """The MCP servers that Outlast stands in front of, connected at need, with a back-off."""

    async def tools(self) -> Sequence[Tool]:
        """The merged catalogue; names are prefixed by upstream when there are several.

        It is the same object until something has changed, and is itself never changed. An upstream
        that is down is left out; raises UpstreamUnavailable when all are.
        """
        ...

    async def ready(self, upstream: str, capabilities: Mapping[str, Json] | None = None) -> None:
        """Return once this upstream is connected, and would take a call of a client with these.

        Raises UpstreamUnavailable, also when unknown.
        """
        ...

    async def call(self, call: ToolCall) -> RunningCall:
        """Begin the call. Raises UpstreamUnavailable when it was certainly not sent."""
        ...

    async def close(self) -> None:
        """Cancel what runs and end every connection and child process. Idempotent."""
        ...


class Identity(Protocol):
    """Who is asking."""

    async def authenticate(self, authorization: str | None) -> Caller:
        """Who an Authorization header's value stands for. Raises Unauthenticated."""
        ...

    def knows(self, owner: str) -> bool:
        """Whether this owner, by its key, may still be told things while it does not ask."""
        ...
