"""The tree on PostgreSQL: what the follower leaves there, whatever comes between."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import psycopg
import pytest

from outlast.adapters.audit_log import PostgresAuditLog
from outlast.adapters.audit_tree import LOCK, PostgresTreeFollowing
from outlast.domain import errors, merkle
from outlast.domain.audit import Leaf, leaf_of
from outlast.domain.merkle import Subtree
from outlast.service.auditing.following import Follower, Pace
from outlast.tests.acceptance.waiting import until
from outlast.tests.contracts.stores import happens, open_task, progresses
from outlast.tests.domain.given import starts
from outlast.tests.support.auditing import HOURLY, NOTARY, Audited, audited, told

pytestmark = pytest.mark.anyio

SOON_S = 20.0
MANY = 700  # more than two subtrees of 256
FILL = (
    "INSERT INTO outlast.task_events (originator_id, originator_version, topic, state, event_id,"
    " digest) SELECT 'old-' || n / 10, mod(n, 10), 'task.progress_reported', s, gen_random_uuid(),"
    " sha256(s) FROM (SELECT n, convert_to(n::text, 'UTF8') AS s"
    " FROM generate_series(1, {count}) n) g"
)


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[Audited]:
    async with audited(database_url, batch=7) as world:
        yield world


async def leaves_of(world: Audited) -> list[Leaf]:
    return [leaf async for batch in world.tree.leaves(2**62) for leaf in batch]


async def is_whole(world: Audited) -> bool:
    """Whether the tree is that of the whole log, in order."""
    rows = [row async for batch in world.log.batches() for row in batch]
    expected = [
        Leaf(number, row.position, merkle.leaf_hash(leaf_of(row)))
        for number, row in enumerate(rows)
    ]
    return await leaves_of(world) == expected


async def test_a_walk_meets_every_event_once_in_order_whatever_its_batches(
    world: Audited,
) -> None:
    await world.happened("one", "two", "three", events=5)
    await world.ports.views.forget(["two"])
    whole = world.positions
    for size in (1, 2, 7, 15, 100):
        log = PostgresAuditLog(world.database, size)
        batches = [batch async for batch in log.batches()]
        assert [row.position for batch in batches for row in batch] == whole
        assert max(len(batch) for batch in batches) <= size
        some = [row.position async for batch in log.batches(whole[2], whole[9]) for row in batch]
        assert some == whole[3:10]
    rows = await world.log.of_task("two")
    assert [row.version for row in rows] == [1, 2, 3, 4, 5]
    assert all(row.is_past for row in rows)
    assert await world.log.of_task("nobody") == await world.log.of_task("\x00") == []


async def test_a_batch_is_bounded_in_bytes_and_a_larger_row_comes_alone(world: Audited) -> None:
    world.tamper(
        "INSERT INTO outlast.task_events (originator_id, originator_version, topic, state,"
        " event_id, digest) SELECT 'large', n, 't', s, gen_random_uuid(), sha256(s) FROM"
        " (SELECT n, convert_to(repeat('x', n * 9000000), 'UTF8') AS s"
        " FROM generate_series(1, 3) n) g"
    )
    assert [len(batch) async for batch in world.log.batches()] == [1, 1, 1]


async def test_the_follower_signs_after_so_many_events(world: Audited) -> None:
    await world.happened("one", events=10)
    await world.follower(Pace(3, 3_600)).follow()
    sizes = [each.size for each in await world.tree.checkpoints()]
    assert sizes == [3, 6, 9]
    assert await is_whole(world)
    standing = await world.following.standing()
    assert (standing.size, standing.checkpointed) == (10, 9)


async def test_the_follower_signs_after_some_time_what_it_has(world: Audited) -> None:
    await world.happened("one")
    follower = world.follower(HOURLY)
    await follower.follow()
    assert [each.size for each in await world.tree.checkpoints()] == [4]  # the first, at once
    await world.happened("two")
    await follower.follow()
    assert [each.size for each in await world.tree.checkpoints()] == [4]
    hour_ago = "clock_timestamp() - interval '1 hour'"
    world.tamper(f"UPDATE outlast.audit_checkpoints SET signed_at = {hour_ago}")
    await follower.follow()
    assert [each.size for each in await world.tree.checkpoints()] == [4, 8]
    world.tamper(f"UPDATE outlast.audit_checkpoints SET signed_at = {hour_ago}")
    await follower.follow()  # nothing is new
    assert [each.size for each in await world.tree.checkpoints()] == [4, 8]
    assert told(await world.verified()) == []


async def test_subtrees_are_stored_as_they_are_completed(world: Audited) -> None:
    world.tamper(FILL.format(count=MANY))
    await world.signed()
    hashes = [leaf.hash for leaf in await leaves_of(world)]
    stored = await world.tree.hashes([Subtree(8, n) for n in range(3)] + [Subtree(0, 5)])
    assert stored == {
        Subtree(8, 0): merkle.root(hashes[:256]),
        Subtree(8, 1): merkle.root(hashes[256:512]),
        Subtree(0, 5): hashes[5],
    }
    newest = await world.tree.newest()
    assert newest is not None
    assert (newest.size, newest.root) == (MANY, merkle.root(hashes))


@pytest.mark.promise("follower-misses-nothing")
async def test_a_follower_that_begins_anew_goes_on_where_another_stopped(world: Audited) -> None:
    for count in range(3):
        world.tamper(FILL.format(count=MANY).replace("old-", f"old-{count}-"))
        following = PostgresTreeFollowing(world.database)  # remembers nothing
        await Follower(following, NOTARY, Pace(100, 3_600)).follow()
    assert await is_whole(world)
    assert told(await world.verified()) == []
    assert [each.size for each in await world.tree.checkpoints()] == list(range(100, 2_101, 100))


@pytest.mark.promise("follower-misses-nothing")
async def test_two_followers_at_once_make_one_tree(world: Audited) -> None:
    world.tamper(FILL.format(count=MANY))
    followers = [
        Follower(PostgresTreeFollowing(world.database), NOTARY, Pace(50, 0.001)) for _ in range(3)
    ]

    async def until_done(follower: Follower) -> None:
        async def is_done() -> bool:
            await follower.follow()
            standing = await world.following.standing()
            return standing.checkpointed == MANY

        await until(is_done, SOON_S)

    await asyncio.gather(*map(until_done, followers))
    assert await is_whole(world)
    assert told(await world.verified()) == []


async def test_one_follower_has_the_pen_and_nobody_else(world: Audited) -> None:
    other = PostgresTreeFollowing(world.database)
    async with world.following.alone() as pen, other.alone() as second:
        assert pen is not None
        assert second is None
    async with other.alone() as second:
        assert second is not None


@pytest.mark.promise("follower-misses-nothing")
async def test_two_that_write_without_the_lock_still_make_one_tree(world: Audited) -> None:
    world.tamper(FILL.format(count=20))
    async with world.following.alone() as pen:
        assert pen is not None
        assert await pen.extend(5) == 5
        world.tamper(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
            " AND classid = %s AND objid = %s",
            *LOCK,
        )
        other = PostgresTreeFollowing(world.database)

        async def takes_it() -> bool:
            async with other.alone() as second:
                return second is not None and await second.extend(10) == 10

        await until(takes_it, SOON_S)
        with pytest.raises(errors.StoreUnavailable):
            await pen.extend(5)
    await world.signed()
    assert await is_whole(world)


@pytest.mark.promise("follower-misses-nothing")
async def test_a_follower_that_stopped_between_leaves_and_checkpoint_leaves_it_to_the_next(
    world: Audited,
) -> None:
    await world.happened("one")
    await world.extended()
    assert await world.tree.newest() is None
    await Follower(PostgresTreeFollowing(world.database), NOTARY, HOURLY).follow()
    newest = await world.tree.newest()
    assert newest is not None
    assert newest.size == 4
    assert told(await world.verified()) == []


KILLED = """
import asyncio, os, sys
from outlast.adapters.audit_tree import PostgresTreeFollowing
from outlast.adapters.postgres import Database

async def main():
    database = Database(sys.argv[1])
    await database.open()
    async with PostgresTreeFollowing(database).alone() as pen:
        assert await pen.extend(7) == 7
        print("extended", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.promise("follower-misses-nothing")
async def test_a_killed_follower_holds_nobody_up(world: Audited) -> None:
    world.tamper(FILL.format(count=20))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, world.url, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"extended\n"
        async with world.following.alone() as pen:
            assert pen is None
    finally:
        process.kill()
        await process.wait()
    follower = Follower(PostgresTreeFollowing(world.database), NOTARY, Pace(10, 0.001))

    async def is_done() -> bool:
        await follower.follow()
        return (await world.following.standing()).checkpointed == 20

    await until(is_done, SOON_S)
    assert await is_whole(world)
    assert told(await world.verified()) == []


@pytest.mark.promise("follower-misses-nothing")
async def test_appends_that_race_with_the_follower_are_all_followed(world: Audited) -> None:
    follower = world.follower(Pace(5, 0.001))
    is_over = asyncio.Event()

    async def follow() -> None:
        while not is_over.is_set():
            await follower.follow()

    async def append(name: str) -> None:
        log = world.ports.log
        task = await happens(log, await open_task(log, name), starts())
        for number in range(8):
            late = task  # appends the same version twice: one of them is rolled back
            task = await happens(log, task, progresses(number, number + 2))
            with pytest.raises(errors.StaleVersion):
                await happens(log, late, progresses(99, number + 2))
            if number == 5 and name.endswith("0"):
                world.skip_position()

    following = asyncio.create_task(follow())
    await asyncio.gather(*(append(f"task-{number}") for number in range(12)))
    is_over.set()
    await following
    await world.signed()
    assert len(world.positions) == 120
    assert await is_whole(world)
    assert told(await world.verified()) == []


@pytest.mark.promise("follower-holds-up-no-append")
async def test_an_append_waits_for_no_follower(world: Audited) -> None:
    world.tamper(FILL.format(count=5))
    async with world.following.alone() as pen:
        assert pen is not None
        await pen.extend(3)
        # A follower in the middle of its transaction, and for as long as one likes:
        async with await psycopg.AsyncConnection.connect(world.url) as connection:
            await connection.execute("SELECT * FROM outlast.task_events")
            await connection.execute("SELECT * FROM outlast.past_events")
            await connection.execute(
                "LOCK TABLE outlast.audit_leaves, outlast.audit_nodes, outlast.audit_checkpoints"
            )
            async with asyncio.timeout(SOON_S):
                await world.happened("one")
            await connection.rollback()
    await world.signed()
    assert await is_whole(world)


async def test_an_outage_is_one_lost_look_and_nothing_else(world: Audited) -> None:
    await world.happened("one")
    async with world.following.alone() as pen:
        assert pen is not None
        await pen.extend(2)
        world.tamper(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        with pytest.raises(errors.StoreUnavailable):
            await pen.extend(2)
    follower = world.follower(HOURLY)

    async def is_done() -> bool:
        await follower.follow()
        return await world.tree.newest() is not None

    await until(is_done, SOON_S)
    assert await is_whole(world)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE outlast.audit_leaves SET hash = sha256('') WHERE number = 2",
        "DELETE FROM outlast.audit_leaves WHERE number = 2",
        "DELETE FROM outlast.audit_leaves WHERE number >= 2",
        "UPDATE outlast.audit_checkpoints SET root = sha256('')",
    ],
)
async def test_a_tree_that_contradicts_its_checkpoint_is_not_signed(
    world: Audited, damage: str
) -> None:
    await world.happened("one")
    await world.signed()
    world.tamper(damage)
    await world.happened("two")
    follower = Follower(PostgresTreeFollowing(world.database), NOTARY, Pace(1, 0.001))
    with pytest.raises(errors.TreeContradicts):
        await follower.follow()
    assert [each.size for each in await world.tree.checkpoints()] == [4]


async def test_a_node_that_somebody_planted_is_written_over(world: Audited) -> None:
    world.tamper("INSERT INTO outlast.audit_nodes VALUES (8, 0, sha256('planted'))")
    world.tamper(FILL.format(count=256))
    await world.signed()
    assert told(await world.verified()) == []


async def test_a_position_that_was_never_given_out_does_not_lead_the_follower_away(
    world: Audited,
) -> None:
    await world.happened("one")
    world.tamper("UPDATE outlast.task_events SET notification_id = 9000 WHERE notification_id = 2")
    await world.signed()
    await world.happened("two")
    await world.signed()
    assert [leaf.position for leaf in await leaves_of(world)] == [1, 3, 4, 5, 6, 7, 8]


@pytest.mark.promise("tampering-is-found")
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE outlast.audit_nodes SET hash = sha256('') WHERE number = 1",
        "DELETE FROM outlast.audit_nodes WHERE number = 1",
    ],
)
async def test_a_subtree_that_is_not_what_its_leaves_make_is_named(
    world: Audited, damage: str
) -> None:
    world.tamper(FILL.format(count=MANY))
    await world.signed()
    world.tamper(damage)
    report = await world.verified()
    assert told(report) == [("tree changed", None)]
    assert "over 256 leaves from leaf 256 on" in report.findings[0].text
