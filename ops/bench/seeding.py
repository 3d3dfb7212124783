"""A store that has been in use for long: very many tasks of several owners, told by SQL.

A few dozen true histories of about four events each serve any number of tasks: the domain decides
them, the product's own mapper and codec write them, and SQL puts in what is a task's own: its id,
its idempotency key, and the number of its time to live. So each task reads, folds and expires like
any other, and `outlast db rebuild` finds no difference. The oldest of them are past already.
"""

import asyncio
import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from outlast.adapters import codec
from outlast.adapters.event_log import PostgresEventLog, TaskEventMapper
from outlast.adapters.postgres import Database
from outlast.domain import decisions
from outlast.domain.decisions import Ask, Events
from outlast.domain.events import ProgressReported, TaskOpened
from outlast.domain.owner import LOCAL_OWNER, Owner
from outlast.domain.queueing import Queueing, queueing
from outlast.domain.task import Task, evolve
from outlast.service.auditing.following import Follower, Pace
from outlast.service.settings import load
from outlast.service.wiring.audit import auditing

SHAPES = 200
OWNERS = 40  # beside the one that asks without a name
PAST = 20  # one task in so many is past
CHUNK = 20_000
RUNNING_OF = 40_000  # of the later tasks none runs: workers do not grow with what is stored
FORGOTTEN_AT_ONCE = 500
ELSEWHERE = "bench:elsewhere"  # who runs what runs: a worker that is not here, and never tires
LONG_EVENTS = decisions.STREAM_EVENTS_MAX - decisions.STREAM_EVENTS_RESERVED
APPENDED_AT_ONCE = 1_000
PACE = Pace(100_000, 3_600.0)

ID, KEY = "x" * 43, "key-xxxxxxxxxx"  # what stands for a task's own in a shape
TTL_MS, TTL_SPREAD_MS = 2_592_000_000, 864_000_000  # of ten digits, the shortest and the longest

_TABLES = """
CREATE TEMP TABLE shapes (number integer PRIMARY KEY, owner text, tool text, status text,
    version bigint, created timestamptz, wire text, named boolean, queueing text, worker text);
CREATE TEMP TABLE told (number integer, version bigint, topic text, state text, status text);
"""
_SHAPE = "INSERT INTO shapes VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
_TOLD = "INSERT INTO told VALUES (%s, %s, %s, %s, %s)"
# Each task of a chunk, with what is its own.
_OWN = f"""
WITH own AS MATERIALIZED (
    SELECT n,
        CASE WHEN n %% {SHAPES} = 0 AND n >= {RUNNING_OF} THEN 2 ELSE n %% {SHAPES} END AS shape,
        translate(encode(sha256(convert_to('bench:' || n, 'UTF8')), 'base64'), '+/=', '-_') AS id,
        'key-' || lpad(n::text, 10, '0') AS key,
        {TTL_MS} + n * 7919 %% {TTL_SPREAD_MS} AS ttl
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) n
)"""
_VIEWS = f"""{_OWN}
INSERT INTO outlast.task_view (task_id, version, owner, tool, status, created_at, expires_at,
    idempotency_key, call_digest, wire)
SELECT o.id, s.version, s.owner, s.tool, s.status, s.created,
    s.created + o.ttl * interval '1 millisecond',
    CASE WHEN s.named THEN encode(sha256(convert_to(o.key, 'UTF8')), 'hex') END, NULL,
    convert_to(replace(replace(s.wire, '{ID}', o.id), '{TTL_MS}', o.ttl::text), 'UTF8')
FROM own o JOIN shapes s ON s.number = o.shape ORDER BY o.n"""
_QUEUE = f"""{_OWN}
INSERT INTO outlast.run_queue (task_id, owner, due, worker, lease_until)
SELECT o.id, outlast.owner_hash(s.owner), s.created, s.worker, now() + interval '100 days'
FROM own o JOIN shapes s ON s.number = o.shape WHERE s.queueing = 'lease'"""
# In the order in which a hundred tasks at once would have written them.
_EVENTS = f"""{_OWN}
INSERT INTO outlast.task_events (originator_id, originator_version, topic, state, event_id,
    recorded_at, owner, tool, status, digest)
SELECT o.id, t.version, t.topic, b.state, gen_random_uuid(),
    now() - interval '30 days' * (1 - o.n::float8 / %(tasks)s),
    outlast.owner_hash(s.owner), s.tool, t.status, sha256(b.state)
FROM own o JOIN shapes s ON s.number = o.shape JOIN told t ON t.number = o.shape
CROSS JOIN LATERAL (SELECT convert_to(
    replace(replace(t.state, '{KEY}', o.key), '{TTL_MS}', o.ttl::text), 'UTF8') AS state) b
ORDER BY o.n / 100, t.version, o.n"""


@dataclass(frozen=True)
class Seeded:
    """What was stored. `asked` are ended tasks of the local owner, spread over all of them."""

    tasks: int
    past: int
    asked: Sequence[str]
    long: Sequence[str]


def task_id(number: int) -> str:
    """The id of the task of this number."""
    return base64.urlsafe_b64encode(hashlib.sha256(b"bench:%d" % number).digest()).decode()[:43]


def fill(url: str, tasks: int, *, asked: int = 1_000, long: int = 1) -> Seeded:
    """Store so many tasks, with events, views, queue, counters and tree, and `long` very long ones.

    The database is migrated and empty.
    """
    shapes = [_shape(number) for number in range(SHAPES)]
    past = tasks // PAST
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_TABLES.encode())
        _put(connection, shapes)
        for first in range(0, tasks, CHUNK):
            own = {"first": first, "last": min(first + CHUNK, tasks) - 1, "tasks": tasks}
            for statement in (_VIEWS, _QUEUE, _EVENTS):
                connection.execute(statement.encode(), own)
        connection.execute("SELECT outlast.count_usage()")
        for first in range(0, past, FORGOTTEN_AT_ONCE):
            ids = [task_id(n) for n in range(first, min(first + FORGOTTEN_AT_ONCE, past))]
            connection.execute("SELECT outlast.forget_tasks(%s)", [ids])
        long_ids = asyncio.run(_finish(url, long))
        connection.execute("VACUUM ANALYZE")
    ended = [n for n in range(past, tasks) if shapes[n % SHAPES].is_asked_for]
    step = max(1, len(ended) // asked)
    return Seeded(tasks, past, [task_id(n) for n in ended[::step][:asked]], long_ids)


def _put(connection: psycopg.Connection, shapes: Sequence["_Shape"]) -> None:
    with connection.cursor() as cursor:
        cursor.executemany(_SHAPE, [shape.row for shape in shapes])
        cursor.executemany(_TOLD, [row for shape in shapes for row in shape.told])


async def _finish(url: str, long: int) -> list[str]:
    """The very long tasks, and the tree over all of it."""
    database = Database(url)
    await database.open()
    log = PostgresEventLog(database)
    try:
        ids = [await _long(log, database, number) for number in range(long)]
    finally:
        log.close()
        await database.close()
    async with auditing(load({"database_url": url}, {}), url) as found:
        await Follower(found.following, found.notary, PACE).follow()
    return ids


async def _long(log: PostgresEventLog, database: Database, number: int) -> str:
    """A task that has run for hours and tells of each second."""
    now = datetime.now(UTC)
    begun = opening(task_id(-1 - number), LOCAL_OWNER, now)
    first = (begun, *decisions.start_work(evolve(None, begun), ELSEWHERE, now))
    task = await log.append(None, first)
    while task.version < LONG_EVENTS:
        upto = min(task.version + APPENDED_AT_ONCE, LONG_EVENTS)
        task = await log.append(
            task,
            tuple(
                ProgressReported(task.id, version, begun.at, 1, version, LONG_EVENTS, f"{version}")
                for version in range(task.version + 1, upto + 1)
            ),
        )
    await database.rows(
        "UPDATE outlast.run_queue SET lease_until = now() + interval '100 days' WHERE task_id = %s",
        task.id,
    )
    return task.id


def opening(task_id: str, owner: Owner, now: datetime, key: str | None = None) -> TaskOpened:
    """A call of the benchmarks' tool that becomes a task."""
    return TaskOpened(
        task_id=task_id,
        version=1,
        at=decisions.instant(now),
        owner=owner.key,
        upstream="bench",
        tool="hold",
        arguments={"task": "feature/an-ordinary-branch", "commit": "0" * 40},
        client_capabilities={"elicitation": {}},
        ttl_ms=TTL_MS,
        poll_interval_ms=2_000,
        timeout_ms=600_000,
        rerun_is_safe=True,
        idempotency_key=key,
    )


class _Shape:
    """One history: nearly all have ended, of two hundred one runs and one waits for an answer."""

    def __init__(self, number: int, owner: Owner) -> None:
        self._number, self.now = number, datetime.now(UTC) - timedelta(minutes=3 * number + 10)
        self._owner, self._is_named = owner, number % 3 == 0
        self._mapper = TaskEventMapper()
        self.told: list[Sequence[Any]] = []
        begun = opening(ID, owner, self.now, KEY if self._is_named else None)
        self.task = evolve(None, begun)
        self._tell(begun, self.task)

    def happens(self, wish: Callable[[Task], Events]) -> None:
        """What follows from the wish, a second later."""
        self.now += timedelta(seconds=1)
        for event in wish(self.task):
            self.task = evolve(self.task, event)
            self._tell(event, self.task)

    def _tell(self, event: Any, after: Task) -> None:
        row = self._mapper.to_stored_event(event)
        place = (self._number, row.originator_version, row.topic)
        self.told.append((*place, row.state.decode(), after.status.value))

    @property
    def is_asked_for(self) -> bool:
        """Whether a benchmark may get it: it has ended, and is the local owner's."""
        return self.task.status.is_terminal and self._owner == LOCAL_OWNER

    @property
    def row(self) -> Sequence[Any]:
        """What is common to its tasks."""
        task = self.task
        own = (self._number, task.owner, task.opened.tool, task.status.value, task.version)
        queued = Queueing.LEASE if task.is_running else queueing(None, task)
        wire = codec.wire_of(task).decode()
        return (*own, task.created_at, wire, self._is_named, queued.value, task.worker)


def _shape(number: int) -> _Shape:
    is_over = number >= 2
    name = Owner("https://bench.example", f"user-{number % OWNERS}", "bench")
    shape = _Shape(number, LOCAL_OWNER if is_over and number % 2 else name)
    shape.happens(lambda task: decisions.start_work(task, ELSEWHERE, shape.now))
    shape.happens(
        lambda task: decisions.report_progress(task, 1, 3, 10, "compiled 3 of 10", shape.now)
    )
    if number == 0:
        return shape
    if number == 1 or number % 20 == 0:
        request = {"method": "elicitation/create", "params": {"message": "Deploy?"}}
        asks = [Ask("deploy", request)]
        shape.happens(lambda task: decisions.finish_leg(task, 1, asks, "leg", shape.now))
        if number == 1:
            return shape
        answer = {"action": "accept", "content": {"ok": True}}
        shape.happens(lambda task: decisions.receive_input(task, {"in-1": answer}, shape.now))
        shape.happens(lambda task: decisions.start_work(task, ELSEWHERE, shape.now))
    _end(shape)
    return shape


def _end(shape: _Shape) -> None:
    attempt = shape.task.attempt
    if shape.row[0] % 10 == 3:
        error = {"code": -32000, "message": "the tool gave up"}
        shape.happens(lambda task: decisions.fail(task, attempt, error, shape.now))
        return
    text = f"Pipeline {shape.row[0]} passed. " * (2 + shape.row[0] % 10)
    result = {"content": [{"type": "text", "text": text}], "isError": False}
    shape.happens(lambda task: decisions.complete(task, attempt, result, shape.now))
