"""Quotas: nothing is opened beyond one, what runs is never cut off, and the counting is exact."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import psycopg
import pytest

from outlast.domain import errors
from outlast.domain.quotas import Quotas
from outlast.domain.task import Task
from outlast.tests.contracts import stores
from outlast.tests.contracts.stores import Limits, Ports, happens, open_task
from outlast.tests.domain.given import (
    DEPLOY,
    YES,
    Wish,
    answers,
    asks,
    cancels,
    completes,
    fails,
    starts,
    stops,
)

pytestmark = [pytest.mark.anyio, pytest.mark.promise("quotas-are-exact")]

AT_ONCE = 24
LARGE = {"text": "x" * 20_000}
BYTES = 50_000  # room for two large tasks
USE = ("tasks", "working", "parked", "bytes")


def within(url: str | None, **quotas: int) -> AbstractAsyncContextManager[Ports]:
    return stores.opened(url, Limits(Quotas(**quotas)))


async def refusal(ports: Ports, task_id: str, **changes: Any) -> tuple[str, int] | None:
    """The quota that refuses this opening, and its value; None when the task is opened."""
    try:
        await open_task(ports.log, task_id, **changes)
    except errors.QuotaExceeded as refused:
        return refused.limit, refused.most
    return None


@pytest.mark.parametrize("name", ["tasks", "tasks_per_owner", "working", "working_per_owner"])
async def test_as_many_are_opened_as_may_be_and_one_that_goes_makes_room(
    store_url: str | None, name: str
) -> None:
    async with within(store_url, **{name: 2}) as ports:
        first = await open_task(ports.log, "first")
        assert await refusal(ports, "second") is None
        assert await refusal(ports, "third") == (name, 2)
        others = await refusal(ports, "others", owner="another")
        assert others == (None if name.endswith("_owner") else (name, 2))
        await happens(ports.log, first, cancels())
        assert (await refusal(ports, "fourth") is None) == name.startswith("working")
        await ports.views.forget([first.id])
        assert await refusal(ports, "fifth") == ((name, 2) if name.startswith("working") else None)


@pytest.mark.parametrize("name", ["parked", "parked_per_owner"])
async def test_nothing_is_opened_while_more_are_parked_than_may_be(
    store_url: str | None, name: str
) -> None:
    async with within(store_url, **{name: 1}) as ports:
        parked = [await _parked(ports, f"parked-{number}") for number in range(2)]
        assert await refusal(ports, "third") == (name, 1)
        await happens(ports.log, parked[0], answers({"in-1": YES}))
        assert await refusal(ports, "third") is None


async def _parked(ports: Ports, task_id: str) -> Task:
    return await happens(ports.log, await open_task(ports.log, task_id), starts(), asks(DEPLOY))


@pytest.mark.parametrize("name", ["bytes", "bytes_per_owner"])
async def test_what_would_take_too_many_bytes_is_refused_and_less_is_not(
    store_url: str | None, name: str
) -> None:
    async with within(store_url, **{name: BYTES}) as ports:
        for number in range(2):
            assert await refusal(ports, f"large-{number}", arguments=LARGE) is None
        assert await refusal(ports, "large-2", arguments=LARGE) == (name, BYTES)
        assert await refusal(ports, "small") is None
        await ports.views.forget(["large-0"])
        assert await refusal(ports, "large-3", arguments=LARGE) is None


async def test_what_is_under_way_goes_on_at_every_limit(store_url: str | None) -> None:
    async with within(
        store_url, working_per_owner=1, parked_per_owner=0, bytes_per_owner=5_000
    ) as ports:
        parked = await _parked(ports, "parked")
        assert await refusal(ports, "refused") == ("parked_per_owner", 0)
        working = await happens(ports.log, parked, answers({"in-1": YES}))
        large = {"content": [{"type": "text", "text": "x" * 10_000}]}
        ended = await happens(ports.log, working, starts("worker-b"), completes(large))
        assert ended.status.is_terminal
        assert await refusal(ports, "refused") == ("bytes_per_owner", 5_000)


async def test_a_call_that_was_opened_before_is_found_again_at_the_limit(
    store_url: str | None,
) -> None:
    async with within(store_url, tasks_per_owner=1) as ports:
        known = await open_task(ports.log, "known", idempotency_key="key")
        with pytest.raises(errors.DuplicateOpening):
            await open_task(ports.log, "again", idempotency_key="key")
        found = await ports.views.opened_with(known.owner, "key")
        assert found is not None
        assert found.task_id == "known"


async def test_a_refused_opening_leaves_nothing_not_even_its_key(store_url: str | None) -> None:
    async with within(store_url, working_per_owner=1) as ports:
        first = await open_task(ports.log, "first")
        assert await refusal(ports, "refused", idempotency_key="key") == ("working_per_owner", 1)
        assert list(await ports.log.read("refused")) == []
        assert await ports.views.get("refused") is None
        assert await ports.views.opened_with("owner-of-the-task", "key") is None
        assert await ports.dispatcher.depth() == 1
        await happens(ports.log, first, cancels())
        assert await refusal(ports, "later", idempotency_key="key") is None


@pytest.mark.parametrize("name", ["tasks", "tasks_per_owner", "working", "working_per_owner"])
async def test_of_many_who_race_for_the_last_places_none_gets_one_too_many(
    store_url: str | None, name: str
) -> None:
    async with within(store_url, **{name: 5}) as ports:
        await asyncio.gather(*(open_task(ports.log, f"first-{n}") for n in range(3)))
        refused = await asyncio.gather(*(refusal(ports, f"task-{n}") for n in range(AT_ONCE)))
        assert refused.count(None) == 2
        assert set(refused) == {None, (name, 5)}


# --- the counters of the database


@pytest.mark.parametrize("seed", range(4))
async def test_the_counters_are_those_of_a_recount_after_any_history(
    database_url: str, seed: int
) -> None:
    """Many at once, with appends that fail and tasks that are forgotten in the middle."""
    quotas = Quotas(tasks_per_owner=9, working_per_owner=6, tasks=20)
    async with stores.on_postgres(
        database_url, limits=Limits(quotas), seals=bool(seed % 2)
    ) as made:
        lives = (_live(made, random.Random(1_000 * seed + n), n) for n in range(40))
        await asyncio.gather(*lives)
        counted = _counters(database_url)
        with psycopg.connect(database_url) as connection:
            connection.execute("SELECT outlast.count_usage()")
            connection.commit()
        assert {k: v for k, v in counted.items() if any(v)} == _counters(database_url)
        assert counted[b""] == tuple(
            sum(used) for used in zip(*(v for k, v in counted.items() if k), strict=True)
        )
        assert 0 < counted[b""][0] <= 20
        assert all(used[0] <= 9 for owner, used in counted.items() if owner)


STEPS: Sequence[Wish] = (starts(), asks(DEPLOY), answers({"in-1": YES}), cancels(), stops())
ENDS: Sequence[Wish] = (completes(), fails())


async def _live(ports: Ports, chance: random.Random, number: int) -> None:
    """One task from its opening until some point of its life; its owner forgets it, or not."""
    owner, key = f"owner-{number % 3}", chance.choice((None, f"key-{number % 10}"))
    try:
        task = before = await open_task(
            ports.log, f"task-{number}", owner=owner, idempotency_key=key
        )
    except (errors.QuotaExceeded, errors.DuplicateOpening):
        return
    for _ in range(chance.randint(0, 6)):
        try:
            stale = chance.random() < 0.2
            wished = chance.choice((*STEPS, *ENDS))(before if stale else task)
            if wished:
                before, task = task, await ports.log.append(before if stale else task, wished)
        except errors.TaskError:
            continue
    if chance.random() < 0.3:
        await ports.views.forget([task.id, "unknown"])


def _counters(url: str) -> dict[bytes, tuple[int, ...]]:
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            f"SELECT owner, {', '.join(USE)} FROM outlast.owner_usage"
        ).fetchall()
    return {bytes(owner): tuple(used) for owner, *used in rows}
