"""Snapshots: where the fold of a long stream may begin, so that no wish reads ten thousand events.

A snapshot is a help and no truth: whoever had to fold very many events leaves one behind, and one
that cannot be used is as good as none. It is sealed like the events it is made of, and goes with
the task's view row, before anything is erased. What audits, verifies or rebuilds never reads it.
"""

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from ..domain import errors
from ..domain.events import EVENT_TYPES, TaskEvent, TaskOpened
from ..domain.task import Question, Task, TaskStatus, evolve
from . import codec, postgres
from .sealing import Sealer

EVERY = 250  # events: to fold so many takes some 3 ms
TOPIC = "snapshot"
NEWEST = 2**63 - 1

# Raise it when `evolve` makes something else of an event than it did before.
RULES = 2


def _shape() -> str:
    """What a snapshot means: rules, fields and shapes of events. One of another shape is passed."""
    told = [f"{kind.__name__}.{f.name}" for kind in (Task, Question) for f in fields(kind)]
    told += [f"{kind.TOPIC}:{kind.class_version}" for kind in EVENT_TYPES]
    told += [f.name for f in fields(TaskOpened)]
    return f"{RULES}:{hashlib.sha256(' '.join(told).encode()).hexdigest()[:16]}"


SHAPE = _shape()

# The key comes with the first row: a stream is read at one go, whoever has met the task before.
TAIL = (
    "WITH s AS MATERIALIZED (SELECT version, state FROM outlast.task_snapshots"
    " WHERE task_id = %s AND shape = %s AND version <= %s),"
    " k AS MATERIALIZED (SELECT wrapped, wrapped_by FROM outlast.data_keys WHERE task_id = %s)"
    f" SELECT version, '{TOPIC}', state, (SELECT wrapped FROM k), (SELECT wrapped_by FROM k) FROM s"
    " UNION ALL SELECT originator_version, topic, state,"
    " CASE WHEN originator_version = 1 THEN (SELECT wrapped FROM k) END,"
    " CASE WHEN originator_version = 1 THEN (SELECT wrapped_by FROM k) END"
    " FROM outlast.task_events"
    " WHERE originator_id = %s AND originator_version > coalesce((SELECT version FROM s), 0)"
    " ORDER BY 1"
)
# The view row is locked: a task that is being forgotten leaves no snapshot behind.
_KEEP = (
    "INSERT INTO outlast.task_snapshots AS s (task_id, version, shape, state)"
    " SELECT v.task_id, %s, %s, %s FROM outlast.task_view v WHERE v.task_id = %s FOR KEY SHARE"
    " ON CONFLICT (task_id) DO UPDATE"
    " SET version = EXCLUDED.version, shape = EXCLUDED.shape, state = EXCLUDED.state"
    " WHERE s.version < EXCLUDED.version OR s.shape <> EXCLUDED.shape"
)


def tail_of(task_id: str, version: int | None) -> tuple[str, *tuple[Any, ...]]:
    """The statement, with its arguments: the newest fitting snapshot, and all events after it."""
    upto = NEWEST if version is None else version
    return TAIL, task_id, SHAPE, upto, task_id, task_id


class Snapshots:
    """The snapshots of a store. `every` is from how many events on one is left behind."""

    def __init__(self, database: postgres.Database, sealer: Sealer, every: int = EVERY) -> None:
        self._database, self._sealer, self._every = database, sealer, every

    def opened(self, key: bytes | None, task_id: str, version: int, stored: bytes) -> Task | None:
        """The task as it was; None when it cannot be had of this."""
        try:
            task = decoded(self._sealer.open(key, task_id, version, TOPIC, stored))
        except (errors.PayloadError, ValueError, TypeError, KeyError):
            return None
        return task if (task.id, task.version) == (task_id, version) else None

    async def shortened(
        self, key: bytes | None, task: Task | None, events: Sequence[TaskEvent]
    ) -> tuple[Task | None, Sequence[TaskEvent]]:
        """The same with fewer events, once there are many: then a snapshot is left for others."""
        if len(events) < 2 * self._every:
            return task, events
        boundary = events[-1].version // self._every * self._every
        count = sum(event.version <= boundary for event in events)
        for event in events[:count]:
            task = evolve(task, event)
        if task is None:
            return task, events
        plain = encoded(task)
        stored = self._sealer.seal(key, task.id, task.version, TOPIC, plain)
        with contextlib.suppress(errors.StoreUnavailable):  # the wish itself can do without
            await self._database.rows(_KEEP, task.version, SHAPE, stored, task.id)
        return task, events[count:]


def encoded(task: Task) -> bytes:
    """The task as JSON."""
    facts = dict(vars(task))
    facts["opened"] = vars(task.opened)
    facts["questions"] = [vars(question) for question in task.questions]
    until = task.delegated_until
    facts["delegated_until"] = None if until is None else until.isoformat()
    return codec.encode(facts)


def decoded(plain: bytes) -> Task:
    """The task again. Raises ValueError, TypeError or KeyError for what is none."""
    facts: dict[str, Any] = codec.decode(plain)
    facts["opened"] = TaskOpened(**facts["opened"])
    facts["status"] = TaskStatus(facts["status"])
    facts["questions"] = tuple(Question(**each) for each in facts["questions"])
    facts["heard"] = tuple(facts["heard"])
    if facts["delegated_until"] is not None:
        facts["delegated_until"] = datetime.fromisoformat(facts["delegated_until"])
    return Task(**facts)
