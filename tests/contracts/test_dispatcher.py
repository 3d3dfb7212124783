"""The promise of `Dispatcher`: what appends put, one worker holds, until its lease runs out."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from outlast.domain import decisions
from outlast.domain.task import evolve, fold
from outlast.tests.acceptance.waiting import until
from outlast.tests.contracts.stores import Ports, happens, open_task, progresses
from outlast.tests.domain.given import (
    DEPLOY,
    OPENED,
    YES,
    Wish,
    after,
    answers,
    asks,
    at,
    calls_back,
    calls_back_with,
    cancels,
    completes,
    delegates,
    fails,
    holds,
    loses,
    starts,
)

pytestmark = [pytest.mark.anyio, pytest.mark.promise("twins-keep-the-same-contract")]

SHORT_S = 0.2
LONG_S = 60.0
BOUND_S = 30.0

TASKS = 40
CLAIMERS = 8
CLOCKS_APART = timedelta(seconds=1)  # the store's and ours


# How a queued task moves on, and whether it then waits for a worker.
PUT: dict[str, Sequence[Wish]] = {
    "opened": [],
    "answered": [starts(), asks(DEPLOY), answers({"in-1": YES})],
    "lost": [starts(), loses()],
}
DROPPED: dict[str, Sequence[Wish]] = {
    "parked": [starts(), asks(DEPLOY)],
    "completed": [starts(), completes()],
    "failed": [starts(), fails()],
    "cancelled": [cancels()],
    "given to a job without an end": [starts(), delegates()],
    "completed by a job": [starts(), delegates(at(3_600)), calls_back_with()],
    "cancelled while a job has it": [starts(), delegates(at(3_600)), cancels()],
}


async def test_an_append_that_makes_a_task_runnable_queues_it(ports: Ports) -> None:
    for number, history in enumerate(PUT.values()):
        task = await open_task(ports.log, f"task-{number}", rerun_is_safe=True)
        await ports.dispatcher.claim("worker-a", 1, LONG_S)
        if not history:
            await ports.dispatcher.release("worker-a", [task.id], 0)
        await happens(ports.log, task, *history)
        assert await ports.dispatcher.depth() == 1
        assert await ports.dispatcher.claim("worker-b", 10, LONG_S) == [task.id]
        await ports.views.forget([task.id])


@pytest.mark.parametrize("history", DROPPED.values(), ids=DROPPED.keys())
async def test_an_append_that_parks_or_ends_a_task_takes_it_off_the_queue(
    ports: Ports, history: Sequence[Wish]
) -> None:
    task = await open_task(ports.log)
    assert await ports.dispatcher.claim("worker-a", 1, LONG_S) == [task.id]
    await happens(ports.log, task, *history)
    assert await ports.dispatcher.renew("worker-a", [task.id], LONG_S) == []
    assert await ports.dispatcher.depth() == 0
    assert await ports.dispatcher.claim("worker-b", 10, LONG_S) == []


async def test_an_append_of_a_running_task_keeps_its_lease(ports: Ports) -> None:
    task = await open_task(ports.log)
    await ports.dispatcher.claim("worker-a", 1, LONG_S)
    moves: list[Wish] = [
        starts("worker-a"),
        progresses(),
        asks(state="a leg that only carries state"),
        holds(DEPLOY),
        answers({"in-1": YES}),
        cancels(),
    ]
    for wish in moves:
        task = await happens(ports.log, task, wish)
        assert await ports.dispatcher.claim("worker-b", 10, LONG_S) == []
        assert await ports.dispatcher.renew("worker-a", [task.id], LONG_S) == [task.id]


async def test_a_runnable_task_that_stays_so_keeps_the_lease_of_who_claimed_it(
    ports: Ports,
) -> None:
    task = await open_task(ports.log, rerun_is_safe=True)
    task = await happens(ports.log, task, starts(), holds(DEPLOY), loses())
    assert await ports.dispatcher.claim("worker-b", 10, LONG_S) == [task.id]
    task = await happens(ports.log, task, answers({"in-1": YES}))
    assert task.is_runnable
    assert await ports.dispatcher.claim("worker-c", 10, LONG_S) == []
    assert await ports.dispatcher.renew("worker-b", [task.id], LONG_S) == [task.id]


async def test_a_task_whose_job_has_time_leaves_its_worker_and_waits(ports: Ports) -> None:
    task = await open_task(ports.log)
    await ports.dispatcher.claim("worker-a", 1, LONG_S)
    until_then = datetime.now(UTC) + timedelta(hours=1)
    for wish in (starts("worker-a"), delegates(until_then), calls_back("evt-1")):
        task = await happens(ports.log, task, wish)
    assert await ports.dispatcher.renew("worker-a", [task.id], LONG_S) == []
    assert await ports.dispatcher.depth() == 0
    assert await ports.dispatcher.claim("worker-b", 10, LONG_S) == []


async def test_a_task_whose_job_has_had_its_time_is_claimed_by_one_worker(ports: Ports) -> None:
    task = await open_task(ports.log)
    await ports.dispatcher.claim("worker-a", 1, LONG_S)
    soon = datetime.now(UTC) + timedelta(seconds=SHORT_S)
    task = await happens(ports.log, task, starts("worker-a"), delegates(soon))
    await until_claimed(ports, "worker-b", task.id)
    assert decisions.is_overdue(task, datetime.now(UTC) + CLOCKS_APART)
    task = await happens(ports.log, task, calls_back("evt-1"))
    assert await ports.dispatcher.claim("worker-c", 10, LONG_S) == []
    assert await ports.dispatcher.renew("worker-b", [task.id], LONG_S) == [task.id]


async def test_a_task_that_was_delegated_as_it_was_opened_waits_as_well(ports: Ports) -> None:
    task = fold(decisions.open_task(OPENED))
    assert task is not None
    later = datetime.now(UTC) + timedelta(hours=1)
    given = after(task, starts("worker-a"), delegates(later))
    history = (task.opened, *starts("worker-a")(task))
    history += delegates(later)(after(task, starts("worker-a")))
    assert await ports.log.append(None, history) == given
    assert await ports.dispatcher.renew("worker-a", [task.id], LONG_S) == []
    assert await ports.dispatcher.claim("worker-b", 10, LONG_S) == []


async def test_a_task_opened_by_the_worker_that_runs_it_is_leased_to_that_worker(
    ports: Ports,
) -> None:
    opening = decisions.open_task(OPENED)
    task = fold(opening)
    assert task is not None
    started = decisions.start_work(task, "worker-a", at(1))
    task = await ports.log.append(None, (*opening, *started))
    assert task == evolve(fold(opening), started[0])
    assert await ports.dispatcher.depth() == 0
    assert await ports.dispatcher.claim("worker-b", 10, LONG_S) == []
    assert await ports.dispatcher.renew("worker-b", [task.id], LONG_S) == []
    assert await ports.dispatcher.renew("worker-a", [task.id], SHORT_S) == [task.id]
    await until_claimed(ports, "worker-b", task.id)


async def test_a_refused_append_leaves_the_queue_as_it_was(ports: Ports) -> None:
    old = await open_task(ports.log, "kept", idempotency_key="key")
    await ports.dispatcher.claim("worker-a", 1, LONG_S)
    await happens(ports.log, old, starts("worker-a"))
    for refused in (
        happens(ports.log, old, cancels()),
        open_task(ports.log, "unwanted", idempotency_key="key"),
    ):
        outcome = await asyncio.gather(refused, return_exceptions=True)
        assert isinstance(outcome[0], Exception)
    assert await ports.dispatcher.depth() == 0
    assert await ports.dispatcher.renew("worker-a", ["kept", "unwanted"], LONG_S) == ["kept"]


async def test_claims_come_oldest_first_and_no_more_than_asked_for(ports: Ports) -> None:
    ids = [(await open_task(ports.log, f"task-{number}")).id for number in (3, 1, 2, 5, 4)]
    assert await ports.dispatcher.claim("worker-a", 2, LONG_S) == ids[:2]
    assert await ports.dispatcher.claim("worker-b", 10, LONG_S) == ids[2:]
    assert await ports.dispatcher.claim("worker-c", 10, LONG_S) == []


async def test_no_task_is_leased_to_two_claimers_at_once(ports: Ports) -> None:
    ids = {(await open_task(ports.log, f"task-{number}")).id for number in range(TASKS)}

    async def claim_all(worker: str) -> list[str]:
        claimed: list[str] = []
        while batch := await ports.dispatcher.claim(worker, 3, LONG_S):
            claimed += batch
        return claimed

    batches = await asyncio.gather(*(claim_all(f"worker-{n}") for n in range(CLAIMERS)))
    claimed = [task_id for batch in batches for task_id in batch]
    # A claimer may find the last ones locked by another and stop: what is left is claimed now.
    claimed += await claim_all("worker-last")
    assert sorted(claimed) == sorted(ids)
    for number, batch in enumerate(batches):
        assert sorted(await ports.dispatcher.renew(f"worker-{number}", batch, LONG_S)) == sorted(
            batch
        )


async def test_a_lease_that_runs_out_makes_the_task_claimable_again(ports: Ports) -> None:
    task = await open_task(ports.log)
    assert await ports.dispatcher.claim("worker-a", 10, LONG_S) == [task.id]
    assert await ports.dispatcher.claim("worker-b", 10, LONG_S) == []
    assert await ports.dispatcher.depth() == 0
    assert await ports.dispatcher.renew("worker-a", [task.id], SHORT_S) == [task.id]
    await until_depth(ports, 1)
    assert await ports.dispatcher.claim("worker-b", 10, LONG_S) == [task.id]
    assert await ports.dispatcher.renew("worker-a", [task.id], LONG_S) == []
    await ports.dispatcher.release("worker-a", [task.id], 0)
    assert await ports.dispatcher.claim("worker-a", 10, LONG_S) == []
    assert await ports.dispatcher.renew("worker-b", [task.id], LONG_S) == [task.id]


async def test_a_lease_that_ran_out_and_was_taken_by_nobody_can_still_be_renewed(
    ports: Ports,
) -> None:
    task = await open_task(ports.log)
    await ports.dispatcher.claim("worker-a", 10, SHORT_S)
    await until_depth(ports, 1)
    assert await ports.dispatcher.renew("worker-a", [task.id], LONG_S) == [task.id]
    assert await ports.dispatcher.claim("worker-b", 10, LONG_S) == []


async def test_a_renewed_lease_outlives_its_first_term(ports: Ports) -> None:
    renewed, lapsing = await open_task(ports.log, "renewed"), await open_task(ports.log, "lapsing")
    assert await ports.dispatcher.claim("worker-a", 10, SHORT_S) == [renewed.id, lapsing.id]
    assert await ports.dispatcher.renew("worker-a", [renewed.id], LONG_S) == [renewed.id]
    await until_claimed(ports, "worker-b", lapsing.id)  # the term that both had is over
    assert await ports.dispatcher.claim("worker-b", 10, LONG_S) == []


async def test_renewing_tells_which_leases_are_still_held(ports: Ports) -> None:
    held = await open_task(ports.log, "held")
    await ports.dispatcher.claim("worker-a", 1, LONG_S)
    others = await open_task(ports.log, "of-another")
    await ports.dispatcher.claim("worker-b", 1, LONG_S)
    queued = await open_task(ports.log, "queued")
    asked_for = [others.id, "unknown", held.id, queued.id]
    assert await ports.dispatcher.renew("worker-a", asked_for, LONG_S) == [held.id]
    assert await ports.dispatcher.renew("worker-a", [], LONG_S) == []
    assert await ports.dispatcher.claim("worker-c", 10, LONG_S) == [queued.id]


async def test_a_released_task_is_due_again_after_the_delay(ports: Ports) -> None:
    soon, later = await open_task(ports.log, "soon"), await open_task(ports.log, "later")
    await ports.dispatcher.claim("worker-a", 10, LONG_S)
    await ports.dispatcher.release("worker-a", [later.id, "unknown"], LONG_S)
    await ports.dispatcher.release("worker-a", [soon.id], 0)
    assert await ports.dispatcher.claim("worker-b", 10, LONG_S) == [soon.id]
    assert await ports.dispatcher.depth() == 0
    await ports.dispatcher.release("worker-b", [soon.id], SHORT_S)
    await until_claimed(ports, "worker-b", soon.id)


async def test_a_task_of_another_worker_is_not_released(ports: Ports) -> None:
    task = await open_task(ports.log)
    await ports.dispatcher.claim("worker-a", 10, LONG_S)
    await ports.dispatcher.release("worker-b", [task.id], 0)
    assert await ports.dispatcher.depth() == 0
    assert await ports.dispatcher.renew("worker-a", [task.id], LONG_S) == [task.id]


async def test_the_depth_counts_what_waits_for_a_worker(ports: Ports) -> None:
    assert await ports.dispatcher.depth() == 0
    for number in range(5):
        await open_task(ports.log, f"task-{number}")
    assert await ports.dispatcher.depth() == 5
    claimed = await ports.dispatcher.claim("worker-a", 2, LONG_S)
    assert await ports.dispatcher.depth() == 3
    await ports.dispatcher.release("worker-a", claimed[:1], 0)
    await ports.dispatcher.release("worker-a", claimed[1:], LONG_S)
    assert await ports.dispatcher.depth() == 4


async def until_depth(ports: Ports, depth: int) -> None:
    async def is_so() -> bool:
        return await ports.dispatcher.depth() == depth

    await until(is_so, BOUND_S)


async def until_claimed(ports: Ports, worker: str, task_id: str) -> None:
    async def claims_it() -> bool:
        return await ports.dispatcher.claim(worker, 10, LONG_S) == [task_id]

    await until(claims_it, BOUND_S)
