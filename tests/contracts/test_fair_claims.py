"""Turns: claims go round the owners, and nobody's many tasks stand before another's one."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import psycopg
import pytest

from outlast.adapters.postgres import Database
from outlast.adapters.run_queue import PostgresDispatcher
from outlast.tests.acceptance.waiting import until
from outlast.tests.contracts import stores
from outlast.tests.contracts.stores import Limits, Ports, happens, open_task
from outlast.tests.domain.given import cancels, completes, starts

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise("twins-keep-the-same-contract"),
    pytest.mark.promise("owners-do-not-slow-each-other"),
]

SHORT_S = 0.2
LONG_S = 60.0
BOUND_S = 30.0
MANY = 40
RUNNING = 3


@pytest.fixture
async def limited(store_url: str | None) -> AsyncIterator[Ports]:
    """A store in which one owner runs at most RUNNING tasks."""
    async with stores.opened(store_url, Limits(running_per_owner=RUNNING)) as ports:
        yield ports


async def queue(ports: Ports, **many: int) -> None:
    """So many tasks of each owner, all of one before those of the next."""
    for owner, count in many.items():
        for number in range(count):
            await open_task(ports.log, f"{owner}-{number:02}", owner=owner)


def owners(claimed: Sequence[str]) -> Counter[str]:
    return Counter(task_id.split("-")[0] for task_id in claimed)


async def claim(ports: Ports, limit: int, worker: str = "worker-a") -> list[str]:
    return list(await ports.dispatcher.claim(worker, limit, LONG_S))


async def test_one_task_waits_for_one_turn_of_each_other_owner_and_no_more(ports: Ports) -> None:
    await queue(ports, flood=MANY, other=1, third=2)
    turns = [owners(await claim(ports, 1)) for _ in range(3)]
    assert sum(turns, Counter[str]()) == {"flood": 1, "other": 1, "third": 1}
    assert [owners(await claim(ports, 1)) for _ in range(3)].count(Counter({"third": 1})) == 1


async def test_a_claim_is_shared_and_of_each_owner_the_oldest_come_first(ports: Ports) -> None:
    await queue(ports, a=6, b=6, c=1)
    assert await claim(ports, 7) == ["a-00", "a-01", "a-02", "b-00", "b-01", "b-02", "c-00"]
    assert await claim(ports, 4) == ["a-03", "a-04", "b-03", "b-04"]
    assert await claim(ports, 9) == ["a-05", "b-05"]


async def test_what_others_do_not_use_is_one_owners(ports: Ports) -> None:
    await queue(ports, a=MANY, b=1)
    assert owners(await claim(ports, 30)) == {"a": 29, "b": 1}


@pytest.mark.parametrize("seed", range(5))
async def test_nobody_gets_more_than_another_who_waits(ports: Ports, seed: int) -> None:
    chance = random.Random(seed)
    waiting = Counter({f"owner{n}": chance.choice((1, 2, 3, 9)) for n in range(7)})
    await queue(ports, **waiting)
    served: Counter[str] = Counter()
    while waiting.total():
        claimed = await claim(ports, chance.randint(1, 9))
        for task_id in claimed:
            served[task_id.split("-")[0]] += 1
        waiting -= owners(claimed)
        if waiting:
            least = min(served[owner] for owner in waiting)
            assert max(served.values()) <= least + 1, (served, waiting)
    assert await ports.dispatcher.depth() == 0


async def test_an_owner_runs_no_more_than_its_share_whoever_claims(limited: Ports) -> None:
    await queue(limited, flood=MANY, other=2)
    assert owners(await claim(limited, 10)) == {"flood": RUNNING, "other": 2}
    assert await claim(limited, 10, "worker-b") == []
    await limited.dispatcher.release("worker-a", ["flood-01"], 0)
    assert await claim(limited, 10, "worker-b") == ["flood-03"]
    assert await claim(limited, 10, "worker-c") == []


async def test_a_place_is_free_once_a_task_of_the_owner_ends(limited: Ports) -> None:
    task = await open_task(limited.log, "flood-x", owner="flood")
    await queue(limited, flood=MANY)
    assert len(await claim(limited, 10)) == RUNNING
    await happens(limited.log, task, starts("worker-a"), completes())
    assert await claim(limited, 10) == [f"flood-{RUNNING - 1:02}"]


async def test_what_a_lost_worker_held_is_taken_over_and_counts_all_the_time(
    limited: Ports,
) -> None:
    await queue(limited, flood=MANY, other=1)
    held = await claim(limited, 2)
    assert owners(held) == {"flood": 1, "other": 1}
    more = await claim(limited, 9)
    assert owners(more) == {"flood": RUNNING - 1}
    await limited.dispatcher.renew("worker-a", [*held, *more], SHORT_S)  # the last time
    taken: list[str] = []

    async def is_taken_over() -> bool:
        taken.extend(await claim(limited, 9, "worker-b"))
        return len(taken) == RUNNING + 1

    await until(is_taken_over, BOUND_S)
    assert sorted(taken) == sorted([*held, *more])
    assert await claim(limited, 9, "worker-c") == []


async def test_many_who_may_have_no_more_are_not_in_the_way_of_one_who_may(limited: Ports) -> None:
    busy = {f"busy{number:02}": RUNNING + 1 for number in range(30)}
    await queue(limited, **busy)
    assert len(await claim(limited, 100)) == 30 * RUNNING
    assert await claim(limited, 1) == []
    await queue(limited, other=1)
    assert await claim(limited, 1) == ["other-00"]


async def test_a_share_is_kept_while_many_claim_at_once(limited: Ports) -> None:
    await queue(limited, flood=MANY, other=MANY)
    workers = [f"worker-{number}" for number in range(8)]
    batches = await asyncio.gather(*(claim(limited, 4, worker) for worker in workers * 3))
    claimed = [task_id for batch in batches for task_id in batch]
    assert max(owners(claimed).values()) <= RUNNING
    # Who found another at it passed by: what was left is had now.
    claimed += await claim(limited, 10)
    assert owners(claimed) == {"flood": RUNNING, "other": RUNNING}
    assert len(set(claimed)) == len(claimed)


async def test_a_task_that_leaves_the_queue_leaves_no_turn_behind(ports: Ports) -> None:
    task = await open_task(ports.log, "gone-00", owner="gone")
    await queue(ports, a=2)
    await happens(ports.log, task, cancels())
    assert await claim(ports, 1) == ["a-00"]
    assert await claim(ports, 1) == ["a-01"]


async def test_a_row_from_before_there_were_owners_has_its_turn(database_url: str) -> None:
    async with stores.on_postgres(database_url) as ports:
        await queue(ports, a=3, b=3)
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute("INSERT INTO outlast.run_queue (task_id, due) VALUES ('old', now())")
        claimed = [(await claim(ports, 1))[0] for _ in range(3)]
        assert sorted(owners(claimed)) == ["a", "b", "old"]


async def test_what_a_claim_under_way_takes_counts_although_nobody_sees_it(
    database_url: str,
) -> None:
    async with stores.opened(database_url, Limits(running_per_owner=RUNNING)) as ports:
        await queue(ports, flood=MANY)
        with psycopg.connect(database_url) as connection:
            connection.execute(
                "SELECT outlast.claim_tasks('slow', 2, 60, '', %s, false)", [RUNNING]
            )
            assert await claim(ports, 9) == []
        assert await claim(ports, 9) == [f"flood-{RUNNING - 1:02}"]


async def test_what_nobody_alive_holds_counts_for_who_may_not_take_it_over(
    database_url: str,
) -> None:
    async with stores.opened(database_url, Limits(running_per_owner=RUNNING)) as ports:
        await queue(ports, flood=MANY)
        await ports.dispatcher.claim("worker-a", 9, SHORT_S)

        async def have_lapsed() -> bool:
            return await ports.dispatcher.depth() == MANY

        await until(have_lapsed, BOUND_S)
        database = Database(database_url)
        await database.open()
        just_come = PostgresDispatcher(database, LONG_S, RUNNING)
        assert await just_come.claim("worker-b", 9, LONG_S) == []
        await database.close()


async def test_a_row_that_is_locked_holds_nobody_up(database_url: str) -> None:
    async with stores.on_postgres(database_url) as ports:
        await queue(ports, **{f"locked{n}": 1 for n in range(5)}, free=1)
        with psycopg.connect(database_url) as connection:
            connection.execute(
                "SELECT 1 FROM outlast.run_queue WHERE task_id LIKE 'locked%' FOR UPDATE"
            )
            assert await claim(ports, 1) == ["free-00"]
            assert await claim(ports, 1) == []
        assert len(await claim(ports, 9)) == 5
