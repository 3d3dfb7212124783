"""When a claim may find more than now: what the dispatcher says of time, the signal of the rest."""

import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from outlast.tests.acceptance.waiting import until
from outlast.tests.contracts import stores
from outlast.tests.contracts.stores import Limits, Ports, happens, open_task
from outlast.tests.domain.given import DEPLOY, asks, completes, delegates, starts

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("unlooked"),
    pytest.mark.promise("twins-keep-the-same-contract"),
    pytest.mark.promise("waiting-tasks-are-not-polled-for"),
]

SHORT_S = 0.05
BOUND_S = 30.0
LONG_S = 60.0
MORE_THAN_FEW = 300  # migration 0010 looks through fewer in another way


@pytest.fixture
async def limited(store_url: str | None) -> AsyncIterator[Ports]:
    """A store in which one owner runs one task."""
    async with stores.opened(store_url, Limits(running_per_owner=1)) as ports:
        yield ports


async def test_a_queue_with_nothing_to_come_is_quiet_for_ever(ports: Ports) -> None:
    assert await ports.dispatcher.quiet_s("worker-a") == math.inf
    task = await open_task(ports.log)
    assert await ports.dispatcher.quiet_s("worker-a") == math.inf  # it may be claimed now
    assert await ports.dispatcher.claim("worker-a", 1, LONG_S) == [task.id]
    assert await ports.dispatcher.quiet_s("worker-a") == math.inf
    await happens(ports.log, task, starts("worker-a"), asks(DEPLOY))
    assert await ports.dispatcher.quiet_s("worker-b") == math.inf


async def test_it_is_quiet_until_the_next_task_is_due(ports: Ports) -> None:
    soon, later = await open_task(ports.log, "soon"), await open_task(ports.log, "later")
    await ports.dispatcher.claim("worker-a", 2, LONG_S)
    an_hour = datetime.now(UTC) + timedelta(hours=1)
    await happens(ports.log, later, starts("worker-a"), delegates(an_hour))
    assert 3_500 < await ports.dispatcher.quiet_s("worker-a") <= 3_601
    await ports.dispatcher.release("worker-a", [soon.id], LONG_S)
    for worker in ("worker-a", "worker-b"):
        assert LONG_S / 2 < await ports.dispatcher.quiet_s(worker) <= LONG_S


async def test_it_is_never_quiet_while_another_holds_a_lease(ports: Ports) -> None:
    task = await open_task(ports.log)
    await ports.dispatcher.claim("worker-a", 1, LONG_S)
    assert await ports.dispatcher.quiet_s("worker-b") == 0
    assert await ports.dispatcher.quiet_s("worker-a") == math.inf
    await happens(ports.log, task, starts("worker-a"), completes())
    assert await ports.dispatcher.quiet_s("worker-b") == math.inf


async def test_a_lease_that_its_own_holder_lets_run_out_is_not_forgotten(ports: Ports) -> None:
    await open_task(ports.log)
    await ports.dispatcher.claim("worker-a", 1, SHORT_S)

    async def is_asked_for() -> bool:
        return await ports.dispatcher.quiet_s("worker-a") == 0

    await until(is_asked_for, BOUND_S)


async def test_a_lease_that_is_given_up_at_once_wakes_who_waits_for_work(ports: Ports) -> None:
    task = await open_task(ports.log)
    await ports.dispatcher.claim("worker-a", 1, LONG_S)
    async with ports.signal.watching_queue() as queue:
        await stores.forget_old_moves(ports, queue)
        await ports.dispatcher.release("worker-a", [task.id], 0)
        assert await queue.wait(BOUND_S)


@pytest.mark.parametrize("ends", [[completes()], [asks(DEPLOY)], [delegates()]])
async def test_room_for_one_more_task_of_an_owner_wakes(
    limited: Ports, ends: list[stores.Wish]
) -> None:
    first = await open_task(limited.log, "first")
    await open_task(limited.log, "second")
    assert await limited.dispatcher.claim("worker-a", 2, LONG_S) == [first.id]
    first = await happens(limited.log, first, starts("worker-a"))
    assert await limited.dispatcher.claim("worker-b", 2, LONG_S) == []
    async with limited.signal.watching_queue() as queue:
        await stores.forget_old_moves(limited, queue)
        await happens(limited.log, first, *ends)
        assert await queue.wait(BOUND_S)
        assert await limited.dispatcher.claim("worker-b", 2, LONG_S) == ["second"]


async def test_room_that_nobody_of_the_owner_waits_for_wakes_nobody(ports: Ports) -> None:
    task = await open_task(ports.log, "a")
    assert await ports.dispatcher.claim("worker-a", 1, LONG_S) == [task.id]
    other = await open_task(ports.log, "b", owner="other")
    async with ports.signal.watching(task.id) as witness, ports.signal.watching_queue() as queue:
        await stores.forget_old_moves(ports, witness, queue)
        task = await happens(ports.log, task, starts("worker-a"), completes())
        while witness.take().get(task.id) != task.version:
            assert await witness.wait(BOUND_S)
        assert not await queue.wait(0)
    assert await ports.dispatcher.claim("worker-a", 1, LONG_S) == [other.id]


async def test_turns_go_round_as_well_when_very_many_are_due(database_url: str) -> None:
    async with stores.on_postgres(database_url) as ports:
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(
                "INSERT INTO outlast.run_queue (task_id, owner, due)"
                " SELECT 'flood-' || n, 'flood', now() - interval '1 hour'"
                " FROM generate_series(1, %s) n UNION ALL VALUES ('a-1', 'a'::bytea, now()),"
                " ('z-1', 'z', now()), ('late-1', 'late', now() + interval '1 hour')",
                [MORE_THAN_FEW],
            )
        claimed = [await ports.dispatcher.claim("worker-a", 1, LONG_S) for _ in range(4)]
        owners = [task_id.split("-")[0] for (task_id,) in claimed]
        assert sorted(owners) == ["a", "flood", "flood", "z"]
