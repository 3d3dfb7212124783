"""A log of a million events to audit: a few hundred true histories, told of very many tasks.

What is stored of an event does not name its task, so one history serves any number of them; only
the view's `wire` does, and there the name is put in. Rows go in by COPY, in the order in which
so many tasks at once would have written them.
"""

import hashlib
import random
import secrets
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from outlast.adapters import codec
from outlast.adapters.event_log import TaskEventMapper
from outlast.adapters.postgres import Database
from outlast.adapters.sealing import VIEW, Sealer
from outlast.domain import decisions
from outlast.domain.decisions import Ask, Events
from outlast.domain.events import TaskOpened
from outlast.domain.owner import Owner
from outlast.domain.queueing import Queueing, queueing
from outlast.domain.task import Task, evolve

OWNERS = 50
TEMPLATES = 400
AT_ONCE = 100  # tasks whose events lie between each other's
BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
NEVER_MS = 10 * 365 * 86_400_000  # a benchmark's tasks outlive it

_EVENTS = (
    "COPY outlast.task_events (originator_id, originator_version, topic, state, event_id,"
    " recorded_at, owner, tool, status, digest) FROM STDIN (FORMAT binary)"
)
_EVENT_TYPES = (
    "text",
    "int8",
    "text",
    "bytea",
    "uuid",
    "timestamptz",
    "bytea",
    "text",
    "text",
    "bytea",
)
_VIEWS = (
    "COPY outlast.task_view (task_id, version, owner, tool, status, created_at, expires_at,"
    " idempotency_key, call_digest, wire) FROM STDIN (FORMAT binary)"
)
_VIEW_TYPES = (
    "text",
    "int8",
    "text",
    "text",
    "text",
    "timestamptz",
    "timestamptz",
    "text",
    "text",
    "bytea",
)
_QUEUE = "COPY outlast.run_queue (task_id, owner, due) FROM STDIN (FORMAT binary)"
_QUEUE_TYPES = ("text", "bytea", "timestamptz")

_KEYS = "COPY outlast.data_keys (task_id, wrapped, wrapped_by) FROM STDIN (FORMAT binary)"
_KEY_TYPES = ("text", "bytea", "text")

# The data key of a task, what is stored of it, and under which name.
Keys = Callable[[str], tuple[bytes, bytes, str]]


@dataclass(frozen=True)
class Stored:
    """One event of a template."""

    topic: str
    state: bytes
    status: str
    after_s: float


@dataclass(frozen=True)
class Template:
    """One history, and the task after it."""

    events: Sequence[Stored]
    task: Task
    owner: bytes
    wire: bytes


def templates(count: int, seed: int = 1) -> list[Template]:
    """Histories of about ten events each: most have ended, a few wait or run."""
    chance = random.Random(seed)
    return [_template(number, chance) for number in range(count)]


def _template(number: int, chance: random.Random) -> Template:
    told = _Telling(number, chance)
    told.happens(lambda task: decisions.start_work(task, f"bench:{number % 8}", told.now))
    for step in range(chance.randint(3, 9)):
        message = f"compiled {step * 40 + number % 40} of 400 files"
        told.happens(
            lambda task, step=step, message=message: decisions.report_progress(
                task, task.attempt, step, 10, message, told.now
            )
        )
    if number % 3 == 0:
        request = {"method": "elicitation/create", "params": {"message": f"Deploy {number}?"}}
        told.happens(
            lambda task: decisions.finish_leg(
                task, task.attempt, [Ask("deploy", request)], f"leg-{number}", told.now
            )
        )
        if number % 30 == 0:
            return told.template()
        answer = {"action": "accept", "content": {"ok": True}}
        told.happens(lambda task: decisions.receive_input(task, {"in-1": answer}, told.now))
        told.happens(lambda task: decisions.start_work(task, "bench:again", told.now))
    if number % 50 != 1:
        text = f"Pipeline {number} passed. " * chance.randint(2, 20)
        result = {"content": [{"type": "text", "text": text}], "isError": False}
        told.happens(lambda task: decisions.complete(task, task.attempt, result, told.now))
    return told.template()


class _Telling:
    """A task, moved on by wishes."""

    def __init__(self, number: int, chance: random.Random) -> None:
        self._chance = chance
        self.now = BEGUN + timedelta(seconds=number)
        owner = Owner("https://bench.example", f"user-{number % OWNERS}", "bench")
        opening = TaskOpened(
            task_id="x" * 43,
            version=1,
            at=decisions.instant(self.now),
            owner=owner.key,
            upstream="bench",
            tool="run_ci_pipeline",
            arguments={"branch": f"feature/{number}", "commit": f"{number:040x}"},
            client_capabilities={"elicitation": {}},
            ttl_ms=NEVER_MS,
            poll_interval_ms=2_000,
            timeout_ms=600_000,
            rerun_is_safe=True,
        )
        self._mapper = TaskEventMapper()
        self._stored: list[Stored] = []
        self._task: Task | None = None
        self._add(decisions.open_task(opening), 0.0)

    def happens(self, wish: Callable[[Task], Events]) -> None:
        """What follows from the wish, a while later."""
        assert self._task is not None
        after_s = self._chance.uniform(0.2, 8.0)
        self.now += timedelta(seconds=after_s)
        self._add(wish(self._task), after_s)

    def _add(self, events: Events, after_s: float) -> None:
        for event in events:
            self._task = evolve(self._task, event)
            row, status = self._mapper.to_stored_event(event), self._task.status.value
            self._stored.append(Stored(row.topic, row.state, status, after_s))

    def template(self) -> Template:
        """What has been told."""
        assert self._task is not None
        owner = hashlib.sha256(self._task.owner.encode()).digest()[:16]
        return Template(self._stored, self._task, owner, codec.wire_of(self._task))


@dataclass(frozen=True)
class Filled:
    """How much was stored."""

    events: int
    tasks: int


def fill(url: str, events: int, keys: Keys | None = None) -> Filled:
    """Store at least so many events, their views and queue rows, and count what owners use.

    With `keys` everything is sealed.
    """
    shapes = templates(TEMPLATES)
    total, tasks = 0, 0
    with psycopg.connect(url) as connection:
        while total < events:
            numbers = range(tasks, tasks + AT_ONCE * 10)
            wave = [_one(shapes[number % TEMPLATES], keys) for number in numbers]
            _store(connection, wave)
            total += sum(len(one.shape.events) for one in wave)
            tasks += len(wave)
        connection.execute("SELECT outlast.count_usage()")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE outlast.task_events, outlast.task_view")
    return Filled(total, tasks)


@dataclass(frozen=True)
class One:
    """One task: its name, its history, its data key and what is stored of that."""

    task_id: str
    shape: Template
    key: bytes | None = None
    stored_key: tuple[bytes, str] | None = None

    def sealed(self, version: int, topic: str, plain: bytes) -> bytes:
        """As it is stored."""
        return _SEALS.seal(self.key, self.task_id, version, topic, plain)


Wave = Sequence[One]
_SEALS = Sealer(Database(""))  # it is never opened: to seal with a given key needs no store


def _one(shape: Template, keys: Keys | None) -> One:
    task_id = secrets.token_urlsafe(32)
    if keys is None:
        return One(task_id, shape)
    key, wrapped, wrapped_by = keys(task_id)
    return One(task_id, shape, key, (wrapped, wrapped_by))


def _store(connection: psycopg.Connection, wave: Wave) -> None:
    _copy(connection, _EVENTS, _EVENT_TYPES, _events(wave))
    _copy(connection, _VIEWS, _VIEW_TYPES, map(_view, wave))
    _copy(connection, _QUEUE, _QUEUE_TYPES, _queued(wave))
    stored = ((one.task_id, *one.stored_key) for one in wave if one.stored_key)
    _copy(connection, _KEYS, _KEY_TYPES, stored)


def _copy(
    connection: psycopg.Connection, statement: str, types: Sequence[str], rows: Iterator[Any]
) -> None:
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        copy.set_types(types)
        for row in rows:
            copy.write_row(row)


def _events(wave: Wave) -> Iterator[Sequence[Any]]:
    """In the order in which these many tasks would have written them."""
    for begin in range(0, len(wave), AT_ONCE):
        together = wave[begin : begin + AT_ONCE]
        for place in range(max(len(one.shape.events) for one in together)):
            yield from (_event(one, place) for one in together if place < len(one.shape.events))


def _event(one: One, place: int) -> Sequence[Any]:
    event, version = one.shape.events[place], place + 1
    state = one.sealed(version, event.topic, event.state)
    return (
        one.task_id,
        version,
        event.topic,
        state,
        uuid.uuid4(),
        datetime.now(UTC),
        one.shape.owner,
        one.shape.task.opened.tool,
        event.status,
        hashlib.sha256(state).digest(),
    )


def _view(one: One) -> Sequence[Any]:
    task = one.shape.task
    wire = one.shape.wire.replace(task.id.encode(), one.task_id.encode())
    return (
        one.task_id,
        task.version,
        task.owner,
        task.opened.tool,
        task.status.value,
        datetime.fromisoformat(task.created_at),
        task.expires_at,
        None,
        None,
        one.sealed(task.version, VIEW, wire),
    )


def _queued(wave: Wave) -> Iterator[Sequence[Any]]:
    for one in wave:
        if queueing(None, one.shape.task) is not Queueing.DROP:
            yield one.task_id, one.shape.owner, BEGUN
