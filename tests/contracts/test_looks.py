"""Looks at jobs elsewhere in the run queue: due by time, claimed apart, called by their owner."""

from datetime import UTC, datetime, timedelta

import pytest

from outlast.domain import decisions, jobs
from outlast.domain.events import WorkFollowed
from outlast.domain.jobs import Sight
from outlast.domain.task import Task
from outlast.tests.acceptance.waiting import until
from outlast.tests.contracts.stores import Ports, happens, open_task
from outlast.tests.domain.given import (
    DEPLOY,
    OPENED,
    YES,
    Wish,
    after,
    answers,
    at,
    cancels,
    completes,
    opened,
    starts,
)

pytestmark = [pytest.mark.anyio, pytest.mark.promise("twins-keep-the-same-contract")]

SHORT_S = 0.2
LONG_S = 60.0
BOUND_S = 20.0
JOB = {"kind": "test", "id": "job-1"}


def follows(first: timedelta) -> Wish:
    """The attempt's job is looked at first so long from now."""
    look_at = datetime.now(UTC) + first
    return lambda task: jobs.follow(task, task.attempt, JOB, None, look_at, at(3))


async def followed(ports: Ports, name: str, first: timedelta = timedelta(0)) -> Task:
    task = await open_task(ports.log, name)
    return await happens(ports.log, task, starts("worker-a"), follows(first))


async def test_a_followed_task_waits_for_its_first_look(ports: Ports) -> None:
    task = await open_task(ports.log)
    await ports.dispatcher.claim("worker-a", 1, LONG_S)
    await happens(ports.log, task, starts("worker-a"), follows(timedelta(hours=1)))
    assert await ports.dispatcher.renew("worker-a", [task.id], LONG_S) == []
    assert await ports.dispatcher.depth() == 0
    assert await ports.dispatcher.claim("worker-b", 10, LONG_S) == []
    assert await ports.dispatcher.claim_looks("worker-b", 10, LONG_S) == []


async def test_looks_are_claimed_apart_from_what_needs_a_slot(ports: Ports) -> None:
    await open_task(ports.log, "runnable")
    since = {"two": timedelta(hours=-2), "one": timedelta(hours=-3), "three": timedelta(0)}
    for name, first in since.items():
        await followed(ports, name, first)
    looks = ["one", "two", "three"]
    claimed = await ports.dispatcher.claim_looks("worker-b", 2, LONG_S)
    assert claimed == looks[:2]
    assert await ports.dispatcher.claim_looks("worker-c", 10, LONG_S) == looks[2:]
    assert await ports.dispatcher.claim_looks("worker-c", 10, LONG_S) == []
    assert await ports.dispatcher.claim("worker-c", 10, LONG_S) == ["runnable"]
    assert await ports.dispatcher.renew("worker-b", looks, LONG_S) == looks[:2]


async def test_a_claim_takes_looks_too(ports: Ports) -> None:
    task = await followed(ports, "task-1")
    assert await ports.dispatcher.claim("worker-b", 10, LONG_S) == [task.id]
    assert await ports.dispatcher.claim_looks("worker-c", 10, LONG_S) == []


async def test_a_look_is_due_again_when_who_took_it_says(ports: Ports) -> None:
    task = await followed(ports, "task-1")
    await ports.dispatcher.claim_looks("worker-b", 1, LONG_S)
    await ports.dispatcher.release("worker-b", [task.id], LONG_S)
    assert await ports.dispatcher.claim_looks("worker-c", 1, LONG_S) == []
    assert LONG_S / 2 < await ports.dispatcher.quiet_s("worker-c") <= LONG_S


async def test_what_a_look_has_seen_leaves_its_lease_alone(ports: Ports) -> None:
    task = await followed(ports, "task-1")
    await ports.dispatcher.claim_looks("worker-b", 1, LONG_S)

    def sees(task: Task) -> decisions.Events:
        return jobs.see_job(task, 1, Sight("linking", 1, 2), JOB, at(5))

    await happens(ports.log, task, sees)
    assert await ports.dispatcher.renew("worker-b", [task.id], LONG_S) == [task.id]


@pytest.mark.parametrize("called", ["cancelled", "answered"])
async def test_a_job_whose_owner_has_something_for_it_is_looked_at_now(
    ports: Ports, called: str
) -> None:
    task = await followed(ports, "task-1")
    await ports.dispatcher.claim_looks("worker-b", 1, LONG_S)
    task = await happens(ports.log, task, lambda t: jobs.ask_for_job(t, 1, [DEPLOY], at(5)))
    assert await ports.dispatcher.renew("worker-b", [task.id], LONG_S) == [task.id]
    if called == "cancelled":
        await ports.dispatcher.release("worker-b", [task.id], LONG_S)
    await happens(ports.log, task, cancels() if called == "cancelled" else answers({"in-1": YES}))
    await ports.dispatcher.release("worker-b", [task.id], LONG_S)  # of a lease that is gone
    assert await ports.dispatcher.claim_looks("worker-c", 1, LONG_S) == [task.id]


async def test_an_ended_job_is_looked_at_no_more(ports: Ports) -> None:
    task = await followed(ports, "task-1")
    await happens(ports.log, task, lambda t: decisions.complete(t, 1, {"content": []}, at(9)))
    assert await ports.dispatcher.claim_looks("worker-b", 1, LONG_S) == []


async def test_a_task_that_was_followed_as_it_was_opened_is_looked_at_as_well(
    ports: Ports,
) -> None:
    task, follow = opened(), follows(timedelta(0))
    started = starts("worker-a")(task)
    history = (OPENED, *started, *follow(after(task, started)))
    assert isinstance(history[-1], WorkFollowed)
    await ports.log.append(None, history)
    assert await ports.dispatcher.claim_looks("worker-b", 1, LONG_S) == [task.id]


@pytest.mark.parametrize("looks", [True, False], ids=["looks", "claims"])
async def test_a_look_whose_worker_died_is_taken_by_another(ports: Ports, looks: bool) -> None:
    task = await followed(ports, "task-1")
    await ports.dispatcher.claim_looks("worker-b", 1, SHORT_S)
    again = ports.dispatcher.claim_looks if looks else ports.dispatcher.claim

    async def is_taken() -> bool:
        return await again("worker-c", 1, LONG_S) == [task.id]

    await until(is_taken, BOUND_S)


async def test_it_is_not_quiet_once_a_lease_of_ones_own_has_run_out(ports: Ports) -> None:
    """Nobody else may be there to take what the store went away under."""
    task = await open_task(ports.log)
    await ports.dispatcher.claim("worker-a", 1, SHORT_S)

    async def is_over() -> bool:
        return await ports.dispatcher.quiet_s("worker-a") == 0

    await until(is_over, BOUND_S)
    await happens(ports.log, task, starts("worker-a"), completes())
    assert await ports.dispatcher.quiet_s("worker-a") > 0
