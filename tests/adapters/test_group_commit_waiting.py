"""Appends that wait for a call: in whose turn, for how long, and what an end of it all leaves."""

import asyncio

import anyio
import psycopg
import pytest

from outlast.adapters import event_log, group_commit
from outlast.domain import errors
from outlast.domain.task import Task
from outlast.tests.adapters.group_commit_world import (
    BOUND_S,
    IMPATIENT_S,
    MANY,
    ORDER,
    Made,
    outcomes_of,
    until_blocked,
)
from outlast.tests.contracts.stores import open_task
from outlast.tests.domain.given import OPENED

pytestmark = pytest.mark.anyio


@pytest.mark.promise("appends-are-served-in-turn")
async def test_an_owner_is_not_behind_the_flood_of_another(
    made: Made, calls: list[list[str]], database_url: str
) -> None:
    log = await made.log()
    with psycopg.connect(database_url) as holder:
        holder.execute(ORDER)
        running = [asyncio.create_task(open_task(log, f"flood-{n}")) for n in range(MANY)]
        await until_blocked(database_url, event_log.WRITERS_MAX)
        running.append(asyncio.create_task(open_task(log, "lone", owner="another-owner")))
        await asyncio.wait(running, timeout=0)
    await asyncio.gather(*running)
    assert "lone" in calls[event_log.WRITERS_MAX]


@pytest.mark.promise("appends-are-served-in-turn")
async def test_who_waits_in_line_too_long_is_told_and_is_never_written(
    made: Made, calls: list[list[str]], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await made.log()
    with psycopg.connect(database_url) as holder:
        holder.execute(ORDER)
        patient: list[asyncio.Task[Task]] = []
        for number in range(event_log.WRITERS_MAX):
            patient.append(asyncio.create_task(open_task(log, f"patient-{number}")))
            await until_blocked(database_url, number + 1)
        with monkeypatch.context() as patience:
            patience.setattr(event_log, "APPEND_PATIENCE_S", IMPATIENT_S)
            outcomes = await outcomes_of(*(open_task(log, f"task-{n}") for n in range(MANY)))
    assert {type(outcome) for outcome in outcomes} == {errors.StoreUnavailable}
    await asyncio.gather(*patient)
    await open_task(log, "last")
    assert calls == [[f"patient-{number}"] for number in range(len(patient))] + [["last"]]
    with psycopg.connect(database_url) as connection:
        stored = connection.execute("SELECT count(*) FROM outlast.task_view").fetchone()
    assert stored == (len(patient) + 1,)


async def test_a_caller_that_goes_away_from_its_batch_leaves_nothing_half_known(
    made: Made, calls: list[list[str]], database_url: str
) -> None:
    log = await made.log()
    with psycopg.connect(database_url) as holder:
        holder.execute(ORDER)
        # Asked for in one turn of the loop, they are in one batch.
        gone, stays = (asyncio.create_task(open_task(log, name)) for name in ("gone", "stays"))
        await until_blocked(database_url, 1)
        in_line = asyncio.create_task(open_task(log, "in-line"))
        await asyncio.wait({in_line}, timeout=0)
        for task in (gone, in_line):
            task.cancel()
        await asyncio.wait({gone, in_line})
    assert (await stays).id == "stays"
    await open_task(log, "last")
    assert calls[0] == ["gone", "stays"]
    for name in ("gone", "in-line"):
        assert len(await log.read(name)) == 1, name


async def test_the_end_waits_for_what_is_under_way(
    made: Made, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "CLOSE_S_MAX", BOUND_S)
    log = await made.log()
    with psycopg.connect(database_url) as holder:
        holder.execute(ORDER)
        appending = asyncio.create_task(open_task(log))
        await until_blocked(database_url, 1)
        closing = asyncio.create_task(asyncio.to_thread(log.close))
    async with asyncio.timeout(BOUND_S):
        await closing
        assert (await appending).id == OPENED.task_id


async def test_the_end_hangs_up_on_what_does_not_end_and_tells_those_in_line(
    made: Made, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "CLOSE_S_MAX", IMPATIENT_S)
    log = await made.log()
    with psycopg.connect(database_url) as holder:
        holder.execute(ORDER)
        appending = [asyncio.create_task(open_task(log, f"task-{n}")) for n in range(MANY)]
        await until_blocked(database_url, event_log.WRITERS_MAX)
        with anyio.fail_after(BOUND_S):
            log.close()
            outcomes = await asyncio.gather(*appending, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {errors.StoreUnavailable}
