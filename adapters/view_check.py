"""What a task's rows should be, by its events, and where they are otherwise."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from ..domain import errors
from ..domain.audit import ERASED
from ..domain.events import TaskEvent
from ..domain.queueing import Queueing, queueing
from ..domain.task import Task, evolve
from ..domain.views import Difference
from . import codec
from .event_reader import EventReader
from .sealing import VIEW, Sealer
from .view_rows import EventRow, TaskRows, ViewRow

OWNER_HASH_BYTES = 16


@dataclass(frozen=True)
class Folded:
    """A task by its events. `statuses` has one for each."""

    task: Task
    statuses: Sequence[str]
    owner_hash: bytes
    tool: str


class Unfoldable(Exception):
    """The events make no task; `difference` says why."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(str(difference))
        self.difference = difference


class Folder:
    """Folds stored events, with the keys of this process."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer, self._reader = sealer, EventReader(sealer)

    async def key_of(self, rows: TaskRows) -> bytes | None:
        """The data key of the task; None for one without. Raises Unfoldable."""
        if rows.wrapped is None:
            return None
        try:
            return await self._sealer.unwrap(rows.task_id, *rows.wrapped)
        except errors.KeyMissing as error:
            what = f"is wrapped under {error.key_name!r}, which is not among the data_keys"
        except errors.PayloadError:
            what = "does not open: it was changed"
        raise Unfoldable(Difference(rows.task_id, "data_keys.wrapped", what))

    def fold(self, task_id: str, stored: Sequence[EventRow], key: bytes | None) -> Folded:
        """The task after these events, which are to be all there are. Raises Unfoldable."""
        task: Task | None = None
        statuses: list[str] = []
        for place, row in enumerate(stored, 1):
            if row.version != place:
                what = "is there twice" if row.version < place else f"follows no version {place}"
                raise Unfoldable(_at(row, "task_events", what))
            try:
                task = evolve(task, self._event(row, key))
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
                what = "cannot follow what is before it"
                raise Unfoldable(_at(row, "task_events.state", what)) from error
            statuses.append(task.status.value)
        if task is None:
            raise Unfoldable(Difference(task_id, "task_events", "has no event of it"))
        return Folded(task, statuses, owner_hash(task.owner), codec.storable(task.opened.tool))

    def _event(self, row: EventRow, key: bytes | None) -> TaskEvent:
        place = (row.task_id, row.version, row.topic)
        try:
            plain = self._sealer.open(key, *place, row.state)
        except errors.PayloadError as error:
            is_gone = isinstance(error, errors.PayloadErased)
            what = "is sealed, and its data key is gone" if is_gone else "does not open"
            raise Unfoldable(_at(row, "task_events.state", what)) from error
        event = self._reader.event_of(*place, plain)
        if event is None:
            what = f"is no {row.topic} of this release"
            raise Unfoldable(_at(row, "task_events.state", what))
        return event

    def opened_wire(self, view: ViewRow, key: bytes | None) -> bytes | None:
        """What the view row tells clients; None when it does not open."""
        try:
            return self._sealer.open(key, view.task_id, view.version, VIEW, view.wire)
        except errors.PayloadError:
            return None

    async def names_of(self, task: Task, key: bytes | None) -> Sequence[str | None]:
        """What may stand in the row for the task's idempotency key; first what is to be written."""
        given = task.opened.idempotency_key
        if given is None:
            return [None]
        keyed_first = await self._sealer.names_of(given)
        return keyed_first if key is not None else keyed_first[::-1]

    def sealed_wire(self, task: Task, key: bytes | None) -> bytes:
        """What a view row has to say, as it is stored."""
        return self._sealer.seal(key, task.id, task.version, VIEW, codec.wire_of(task))


def _at(row: EventRow, column: str, what: str) -> Difference:
    return Difference(row.task_id, column, what, row.version, row.position)


def owner_hash(owner: str) -> bytes:
    """As `outlast.owner_hash` has it."""
    return hashlib.sha256(owner.encode()).digest()[:OWNER_HASH_BYTES]


def wants_queue(task: Task) -> bool:
    """Whether a task stands in the run queue, whoever holds it there."""
    return queueing(None, task) is not Queueing.DROP


def event_differences(
    stored: Sequence[EventRow], folded: Folded, table: str
) -> Iterator[Difference]:
    """Columns of events that are not what the fold says."""
    owner, tool = folded.owner_hash, folded.tool
    for row, status in zip(stored, folded.statuses, strict=True):
        if row.owner == owner and row.tool == tool and row.status == status:
            continue
        for column, is_so in (
            ("owner", row.owner == owner),
            ("tool", row.tool == tool),
            ("status", row.status == status),
        ):
            if not is_so:
                what = "is not what the event says" if column != "status" else f"is not {status!r}"
                yield _at(row, f"{table}.{column}", what)


def view_differences(
    view: ViewRow, wire: bytes | None, folded: Folded, names: Sequence[str | None]
) -> Iterator[Difference]:
    """Columns of the view row that are not what the fold says. `wire` is opened."""
    task = folded.task
    wanted = (
        ("version", view.version == task.version),
        ("owner", view.owner == task.owner),
        ("tool", view.tool == folded.tool),
        ("status", view.status == task.status.value),
        ("created_at", view.created_at == datetime.fromisoformat(task.created_at)),
        ("expires_at", view.expires_at == task.expires_at),
        ("idempotency_key", view.idempotency_key in names),
        # Releases before this one kept it in the clear as well.
        ("call_digest", view.call_digest in {None, task.opened.call_digest}),
        ("wire", wire == codec.wire_of(task)),
    )
    for column, is_so in wanted:
        if not is_so:
            what = "does not open" if column == "wire" and wire is None else "is not the fold's"
            yield Difference(view.task_id, f"task_view.{column}", what)


def queue_differences(rows: TaskRows, folded: Folded) -> Iterator[Difference]:
    """A queue row that is lacking, left over, or another owner's."""
    wants = wants_queue(folded.task)
    if wants and not rows.is_queued:
        yield Difference(rows.task_id, "run_queue", "has no row, and the task wants a worker")
    if rows.is_queued and not wants:
        yield Difference(rows.task_id, "run_queue", "has a row, and the task wants no worker")
    if wants and rows.is_queued and rows.queue_owner != folded.owner_hash:
        yield Difference(rows.task_id, "run_queue.owner", "is not the task's")


def stray_differences(rows: TaskRows) -> Iterator[Difference]:
    """Rows of a task that lie where none of it may be."""
    task_id = rows.task_id
    is_here, is_past = bool(rows.events), bool(rows.past_events or rows.past)
    if is_here and is_past:
        yield Difference(task_id, "past_events", "and task_events both have the task")
    if is_here and rows.view is None:
        yield Difference(task_id, "task_view", "has no row, and the task has events")
    if not is_here and rows.view is not None:
        yield Difference(task_id, "task_view", "has a row, and task_events none of the task")
    if not is_here and rows.is_queued:
        yield Difference(task_id, "run_queue", "has a row, and task_events none of the task")
    if rows.past_events and rows.past is None:
        yield Difference(task_id, "past_tasks", "has no row, and the task has past events")
    if rows.past is not None and not rows.past_events:
        yield Difference(task_id, "past_tasks", "has a row, and past_events none of the task")


def past_differences(rows: TaskRows, folded: Folded) -> Iterator[Difference]:
    """Columns of the row of a past task that are not what the fold says."""
    past, task = rows.past, folded.task
    if past is None:
        return
    wanted = (
        ("owner", past.owner == folded.owner_hash),
        ("tool", past.tool == folded.tool),
        ("status", past.status == task.status.value),
        ("created_at", past.created_at == datetime.fromisoformat(task.created_at)),
    )
    for column, is_so in wanted:
        if not is_so:
            yield Difference(rows.task_id, f"past_tasks.{column}", "is not the fold's")


def gap_in(stored: Sequence[EventRow]) -> Difference | None:
    """The first version that is missing of an erased task, whose events can be no longer folded."""
    for place, row in enumerate(stored, 1):
        if row.version != place:
            return _at(row, "past_events", f"follows no version {place}")
    last = stored[-1]
    if last.topic != ERASED:
        return _at(last, "past_events", "is not the erasure, which should come last")
    return None
