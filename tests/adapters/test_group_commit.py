"""Appends of many tasks in one call: how few calls there are, and that each is told its own."""

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from outlast.adapters import group_commit
from outlast.adapters.event_log import PostgresEventLog
from outlast.domain import decisions, errors
from outlast.domain.quotas import Quotas
from outlast.domain.task import Task, fold
from outlast.tests.acceptance.waiting import until
from outlast.tests.adapters.group_commit_world import (
    BOUND_S,
    MANY,
    Made,
    opened,
    outcomes_of,
)
from outlast.tests.contracts.stores import happens, open_task, progresses
from outlast.tests.domain.given import OPENED, at, completes, starts

pytestmark = pytest.mark.anyio

FEW = 12  # calls in which so many go, and some to spare
REPLY = b"append_events"
OPENING = b"task.opened"


# --- how few calls


async def test_an_append_alone_is_one_call(made: Made, calls: list[list[str]]) -> None:
    log = await made.log()
    await happens(log, await open_task(log), starts(), completes())
    assert calls == [[OPENED.task_id]] * 3


@pytest.mark.promise("appends-share-commits")
async def test_many_at_once_go_in_few_calls_and_each_gets_its_own_task(
    made: Made, calls: list[list[str]], database_url: str
) -> None:
    log = await made.log()
    tasks = await opened(log, MANY)
    assert len(calls) <= FEW
    assert [task.id for task in tasks] == [f"task-{number}" for number in range(MANY)]
    begun = await asyncio.gather(*(happens(log, task, starts()) for task in tasks))
    assert len(calls) <= 2 * FEW
    assert [(task.id, task.version) for task in begun] == [(task.id, 2) for task in tasks]
    with psycopg.connect(database_url) as connection:
        commits = connection.execute("SELECT DISTINCT xmin::text FROM outlast.task_events")
        assert len(commits.fetchall()) == len(calls)
    for task in begun:
        assert fold(await log.read(task.id)) == task


async def test_of_one_task_one_append_is_in_a_call_and_they_keep_their_order(
    made: Made, calls: list[list[str]]
) -> None:
    log = await made.log()
    task = before = await happens(log, await open_task(log), starts())
    later: list[Task] = []
    appends: list[Coroutine[Any, Any, Task]] = []
    for number in range(5):  # each decided on what the one before it will have left
        events = progresses(number, 2 + number)(before)
        appends.append(log.append(before, events))
        after = fold(events, before)
        assert after is not None
        before = after
        later.append(after)
    assert await outcomes_of(*appends, open_task(log, "other")) == [
        *later,
        fold([replace(OPENED, task_id="other")]),
    ]
    assert all(len(set(call)) == len(call) for call in calls)
    assert [event.version for event in await log.read(task.id)] == list(range(1, 8))


async def test_large_appends_do_not_share_a_call(made: Made, calls: list[list[str]]) -> None:
    log = await made.log()
    large = {"text": "x" * (group_commit.BATCH_BYTES_MAX * 2 // 3)}
    opening = (open_task(log, f"large-{number}", arguments=large) for number in range(3))
    await asyncio.gather(*opening)
    assert [len(call) for call in calls] == [1, 1, 1]


async def test_plans_that_were_made_on_empty_tables_do_not_read_them_whole_later(
    made: Made, database_url: str
) -> None:
    log = await made.log(Quotas(tasks=10_000))
    for number in range(8):  # enough for a plan that is kept
        await happens(log, await open_task(log, f"first-{number}"), starts())
    tasks = await opened(log, MANY)
    await asyncio.gather(*(happens(log, task, starts(), completes()) for task in tasks))
    log.close()
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:

        async def scans() -> dict[str, tuple[int, int]]:
            cursor = await connection.execute(
                "SELECT relname, coalesce(idx_scan, 0), seq_tup_read FROM pg_stat_user_tables"
                " WHERE relname IN ('task_view', 'run_queue', 'owner_usage')"
            )
            return {name: (by_index, read) for name, by_index, read in await cursor.fetchall()}

        async def are_told() -> bool:
            return (await scans())["task_view"][0] >= MANY

        await until(are_told, BOUND_S)
        assert {name: read for name, (_, read) in (await scans()).items()} == {
            "task_view": 0,
            "run_queue": 0,
            "owner_usage": 0,
        }


# --- each its own outcome


@pytest.mark.promise("one-bad-append-hurts-no-other")
async def test_in_one_call_the_stale_the_double_and_the_one_beyond_a_quota_fail_alone(
    made: Made, calls: list[list[str]]
) -> None:
    log = await made.log(Quotas(tasks_per_owner=1))
    stale, moving = [
        await happens(log, await open_task(log, name, owner=name, idempotency_key=name), starts())
        for name in ("stale", "moving")
    ]
    await happens(log, stale, progresses())
    del calls[:]
    outcomes = await outcomes_of(
        *(open_task(log, f"good-{n}", owner=f"owner-{n}") for n in range(20)),
        happens(log, stale, completes()),
        open_task(log, "double", owner="stale", idempotency_key="stale"),
        open_task(log, "beyond", owner="moving"),
        open_task(log, "nul\x00", owner="nul"),
        happens(log, moving, completes()),
    )
    assert len(calls[0]) == 25
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds[20:23] == [errors.StaleVersion, errors.DuplicateOpening, errors.QuotaExceeded]
    assert isinstance(outcomes[23], Exception)
    assert not isinstance(outcomes[23], errors.OutlastError)  # a mistake, and told as one
    assert kinds[:20] + kinds[24:] == [Task] * 21
    for outcome in outcomes:
        if isinstance(outcome, Task):
            assert fold(await log.read(outcome.id)) == outcome
    for name, versions in (("double", 0), ("beyond", 0), ("stale", 3)):
        assert len(await log.read(name)) == versions


async def test_a_quota_that_a_batch_passes_is_used_up_and_not_passed(made: Made) -> None:
    log = await made.log(Quotas(tasks_per_owner=5))
    outcomes = await outcomes_of(*(open_task(log, f"task-{n}") for n in range(50)))
    assert [type(outcome) for outcome in outcomes] == [Task] * 5 + [errors.QuotaExceeded] * 45


async def test_what_the_server_undoes_for_a_deadlock_is_made_again(
    made: Made, calls: list[list[str]], database_url: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE SEQUENCE outlast.tries")
        connection.execute(
            "CREATE FUNCTION outlast.undo() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF nextval('outlast.tries') = 1 THEN RAISE 'undone' USING ERRCODE = '40P01'; END IF;"
            " RETURN NULL; END $$"
        )
        connection.execute(
            "CREATE TRIGGER undo AFTER INSERT ON outlast.task_events"
            " FOR EACH STATEMENT EXECUTE FUNCTION outlast.undo()"
        )
    log = await made.log()
    tasks = await opened(log, 10)
    assert [task.version for task in tasks] == [1] * 10
    assert calls[0] == calls[1]


async def test_two_logs_that_use_the_same_keys_crosswise_do_not_wait_in_a_circle(
    made: Made, calls: list[list[str]], database_url: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION outlast.dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " PERFORM pg_sleep(0.01); RETURN NEW; END $$"
        )
        connection.execute(
            "CREATE TRIGGER dawdle BEFORE INSERT ON outlast.task_view"
            " FOR EACH ROW EXECUTE FUNCTION outlast.dawdle()"
        )
    logs, keys = [await made.log(), await made.log()], [f"key-{number}" for number in range(10, 30)]
    opening = [
        open_task(log, f"{side}-{place:02}", idempotency_key=key)
        for side, (log, order) in enumerate(zip(logs, (keys, keys[::-1]), strict=True))
        for place, key in enumerate(order)
    ]
    kinds = [type(outcome) for outcome in await outcomes_of(*opening)]
    assert (kinds.count(Task), kinds.count(errors.DuplicateOpening)) == (20, 20)
    assert len(set(map(tuple, calls))) == len(calls)  # what is undone for a deadlock is made again


# --- lost replies


@pytest.mark.promise("lost-reply-is-no-conflict")
@pytest.mark.parametrize("lost", ["reply", "request"])
async def test_a_batch_that_was_cut_off_happens_once_whole(made: Made, lost: str) -> None:
    wire = await made.wire()
    log = await made.log(url=wire.url)
    moving = await opened(log, 10, "moving")
    if lost == "reply":
        wire.lose_replies(REPLY)
    else:
        wire.lose_requests(OPENING)
    outcomes = await outcomes_of(
        *(open_task(log, f"new-{n}", idempotency_key=f"key-{n}") for n in range(10)),
        *(happens(log, task, starts()) for task in moving),
    )
    assert wire.faults == 1
    assert [type(outcome) for outcome in outcomes] == [Task] * 20
    for outcome in outcomes:
        assert isinstance(outcome, Task)
        assert fold(await log.read(outcome.id)) == outcome


@pytest.mark.promise("lost-reply-is-no-conflict")
@pytest.mark.parametrize("lost", ["reply", "request"])
async def test_when_a_rival_moves_one_of_a_cut_off_batch_each_is_told_the_truth(
    made: Made, lost: str
) -> None:
    wire, rival = await made.wire(), await made.log()
    log = await made.log(url=wire.url)
    tasks = await opened(log, 10)
    await open_task(rival, "before")  # it is connected, so that the outage is a short one
    if lost == "reply":
        wire.lose_replies(REPLY)
    else:
        wire.lose_requests(b"task.work_started")
    wire.is_refusing = True  # the open connection goes on until it is cut
    appending = [asyncio.create_task(happens(log, task, starts())) for task in tasks]

    async def is_cut() -> bool:
        return wire.faults > 0

    await until(is_cut, BOUND_S)
    seen = fold(await rival.read(tasks[3].id))
    assert seen is not None
    await happens(rival, seen, progresses() if seen.is_running else starts("worker-of-the-rival"))
    wire.is_refusing = False
    async with asyncio.timeout(BOUND_S):
        outcomes = await asyncio.gather(*appending, return_exceptions=True)
    refused = [number for number, each in enumerate(outcomes) if not isinstance(each, Task)]
    assert refused == ([] if lost == "reply" else [3])
    assert all(isinstance(outcomes[number], errors.StaleVersion) for number in refused)
    assert len(await rival.read(tasks[3].id)) == (3 if lost == "reply" else 2)
    for number in {*range(10)} - {3}:
        assert fold(await rival.read(tasks[number].id)) == outcomes[number]


# --- two processes


@pytest.mark.parametrize("seed", range(3))
async def test_of_two_logs_that_race_each_append_that_was_acknowledged_is_there_once(
    made: Made, seed: int
) -> None:
    logs, chance = [await made.log(), await made.log()], random.Random(seed)
    tasks = [
        await happens(logs[0], await open_task(logs[0], f"task-{n}"), starts()) for n in range(4)
    ]
    told: list[tuple[str, str]] = []

    async def race(log: PostgresEventLog, number: int) -> None:
        for step in range(6):
            task = fold(await log.read(chance.choice(tasks).id))
            assert task is not None
            mark = f"{number}.{step}"
            with suppress(errors.StaleVersion):
                await log.append(
                    task, decisions.report_progress(task, task.attempt, step, None, mark, at(2))
                )
                told.append((task.id, mark))

    await asyncio.gather(*(race(logs[n % 2], n) for n in range(16)))
    found: list[tuple[str, Any]] = []
    for task in tasks:
        stored = await logs[0].read(task.id)
        assert [event.version for event in stored] == list(range(1, len(stored) + 1))
        found += [(task.id, vars(event)["message"]) for event in stored[2:]]
    assert sorted(found) == sorted(told)
    assert len(told) > len(tasks)
