"""Appends of every kind at once, and what must come of each: a model of `EventLog.append`.

Those of one kind vie with each other where they can; those of different kinds must not notice.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from outlast.domain import errors
from outlast.domain.ports import EventLog
from outlast.domain.quotas import Quotas
from outlast.domain.task import Task, fold
from outlast.tests.acceptance.waiting import until
from outlast.tests.contracts.stores import happens, open_task, progresses
from outlast.tests.domain.given import starts

TASKS_MAX = 3  # of one owner
ROOM = 2  # what is left of it to one
QUOTAS = Quotas(tasks_per_owner=TASKS_MAX)
WAIT_S_MAX = 15.0

MOVES = ("moves", "stale", "races")
# Ends of ids that no row, no signal or no index can hold; None stands for many random letters.
ODD_IDS = {"nul": "\x00", "surrogate": "\ud800", "long": "x" * 9_000, "longer": None}
_ORDER = "SELECT pg_advisory_xact_lock(7710428, 1)"  # by which all appends commit in order
_WHO_WAITS = (
    " FROM pg_stat_activity WHERE datname = current_database()"
    " AND wait_event_type = 'Lock' AND wait_event = 'advisory'"
)
_WAITING, _END = f"SELECT count(*){_WHO_WAITS}", f"SELECT pg_terminate_backend(pid){_WHO_WAITS}"


@dataclass(frozen=True)
class Rule:
    """Of all appends of one kind so many happen (None: all), and the others are refused so."""

    happen: int | None = None
    refusal: type[Exception] | None = None


RULES = {
    "opens": Rule(),
    "moves": Rule(),
    "stale": Rule(0, errors.StaleVersion),
    "races": Rule(1, errors.StaleVersion),
    "taken": Rule(0, errors.StaleVersion),
    "used-key": Rule(0, errors.DuplicateOpening),
    "one-key": Rule(1, errors.DuplicateOpening),
    "full": Rule(0, errors.QuotaExceeded),
    "scarce": Rule(ROOM, errors.QuotaExceeded),
    **dict.fromkeys(ODD_IDS, Rule(0, Exception)),
}


class Scene:
    """What is stored before a mix: tasks and owners that nobody else has."""

    def __init__(self, logs: Sequence[EventLog]) -> None:
        self._logs, self._name = logs, secrets.token_hex(6)
        self._tasks: dict[str, Task] = {}

    async def set_up(self, kinds: Sequence[str]) -> None:
        """Store what these kinds need."""
        for role in ("stale", "races", "taken", "used-key"):
            await self._begin(role, self._owner(role), self._key(role))
        await happens(self._logs[0], self._tasks["stale"], progresses())
        for number, kind in enumerate(kinds):
            if kind == "moves":
                await self._begin(f"{kind}-{number}", f"{self._name}-{number}")
        for number in range(TASKS_MAX - ROOM):
            await self._begin(f"scarce-{number}", self._owner("scarce"))
        for number in range(TASKS_MAX):
            await self._begin(f"full-{number}", self._owner("full"))

    async def _begin(self, role: str, owner: str, key: str | None = None) -> None:
        log, task_id = self._logs[0], f"{self._name}-{role}"
        task = await open_task(log, task_id, owner=owner, idempotency_key=key)
        self._tasks[role] = await happens(log, task, starts())

    def appends(self, kinds: Sequence[str]) -> list[Coroutine[Any, Any, Task]]:
        """One for each of these kinds, not yet begun."""
        return [self._append(kind, number) for number, kind in enumerate(kinds)]

    def _append(self, kind: str, number: int) -> Coroutine[Any, Any, Task]:
        log, task_id = self._logs[number % len(self._logs)], f"{self._name}-new-{number}"
        if kind in MOVES:
            return happens(log, self._tasks[self._moved(kind, number)], progresses(number))
        if kind in ODD_IDS:
            task_id += ODD_IDS[kind] or secrets.token_hex(4_000)
        elif kind == "taken":
            task_id = self._tasks[kind].id
        is_alone = kind in ODD_IDS or kind in ("opens", "taken")
        owner = f"{self._name}-{number}" if is_alone else self._owner(kind)
        return open_task(log, task_id, owner=owner, idempotency_key=self._key(kind))

    @staticmethod
    def _moved(kind: str, number: int) -> str:
        """The role of the task that this one moves; each has its own, but those that vie."""
        return kind if kind in ("stale", "races") else f"{kind}-{number}"

    async def holds(self, kinds: Sequence[str], outcomes: Sequence[Task | BaseException]) -> None:
        """What came of each is what must, and the store has what was said to happen, alone."""
        for kind in set(kinds):
            rule = RULES[kind]
            came = [outcome for mine, outcome in zip(kinds, outcomes, strict=True) if mine == kind]
            refused = [outcome for outcome in came if not isinstance(outcome, Task)]
            happen = len(came) if rule.happen is None else min(rule.happen, len(came))
            assert len(came) - len(refused) == happen, (kind, refused)
            assert all(_is_refusal(error, rule) for error in refused), (kind, refused)
        for number, outcome in enumerate(outcomes):
            if isinstance(outcome, Task):
                assert fold(await self._logs[0].read(outcome.id)) == outcome
            else:
                assert not await self._logs[0].read(f"{self._name}-new-{number}")
        for role, versions in (("stale", 3), ("taken", 2), ("used-key", 2)):
            assert len(await self._logs[0].read(f"{self._name}-{role}")) == versions

    def _owner(self, role: str) -> str:
        return f"{self._name} {role}"

    def _key(self, role: str) -> str | None:
        return f"{self._name} key" if role in ("used-key", "one-key") else None


def _is_refusal(error: BaseException, rule: Rule) -> bool:
    """One that cannot be stored is a mistake, and not told as if the next try could do better."""
    if rule.refusal is Exception:
        return isinstance(error, Exception) and not isinstance(error, errors.OutlastError)
    return rule.refusal is not None and isinstance(error, rule.refusal)


@asynccontextmanager
async def nothing_commits(url: str) -> AsyncGenerator[Callable[[], Awaitable[bool]]]:
    """No append is done within the block. Gives a question: does one wait for that by now?"""
    async with await psycopg.AsyncConnection.connect(url) as holder:
        await holder.execute(_ORDER)

        async def does_one_wait() -> bool:
            row = await (await holder.execute(_WAITING)).fetchone()
            return bool(row and row[0])

        yield does_one_wait


async def all_at_once(
    url: str, appends: Sequence[Coroutine[Any, Any, Task]]
) -> list[Task | BaseException]:
    """What came of each. They are let go when they stand in line behind the first of them."""
    async with nothing_commits(url) as does_one_wait:
        running = [asyncio.create_task(append) for append in appends]
        await until(does_one_wait, WAIT_S_MAX)
    return await asyncio.gather(*running, return_exceptions=True)


async def end_who_wait(url: str) -> None:
    """End the sessions that wait to commit an append: it is undone."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(_END)
