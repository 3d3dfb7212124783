"""`verify` finds what was cut off, and lets pass what was forgotten or erased as it should be."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from outlast.adapters.notes import CheckpointNotary, SigningKey
from outlast.service.auditing.following import Pace
from outlast.tests.support.auditing import Audited, places, told, twelve_events

pytestmark = pytest.mark.anyio

EVENTS = "outlast.task_events"


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[Audited]:
    async with twelve_events(database_url) as world:
        yield world


@pytest.mark.promise("truncation-is-found")
async def test_events_cut_off_at_the_end_are_named(world: Audited) -> None:
    (place,) = places(world, 9)
    world.tamper(f"DELETE FROM {EVENTS} WHERE notification_id >= %s", place)
    report = await world.verified()
    assert told(report) == [("truncated", place)]
    assert "the last 3 events" in report.findings[0].text


@pytest.mark.promise("truncation-is-found")
async def test_events_cut_off_with_their_leaves_are_found_by_the_checkpoint(
    world: Audited,
) -> None:
    cut_off(world, 9)
    report = await world.verified()
    assert told(report) == [("truncated", None)]
    assert "covers 12 events, the tree has 9" in report.findings[0].text


@pytest.mark.promise("truncation-is-found")
async def test_a_tail_cut_off_with_all_that_tells_of_it_is_found_by_a_kept_checkpoint(
    world: Audited,
) -> None:
    newest = await world.tree.newest()
    assert newest is not None
    kept = newest.note
    assert told(await world.verified(kept)) == []
    cut_off(world, 9)
    world.tamper("DELETE FROM outlast.audit_checkpoints WHERE size = 12")
    assert told(await world.verified()) == []
    report = await world.verified(kept)
    assert told(report) == [("truncated", None)]
    assert "the kept checkpoint of 12 leaves covers 12 events" in report.findings[0].text

    await world.happened("four")
    await world.signed()
    assert told(await world.verified()) == []
    report = await world.verified(kept)
    assert told(report) == [("root differs", None)]
    assert "the kept checkpoint" in report.findings[0].text


@pytest.mark.promise("truncation-is-found")
async def test_all_of_it_may_be_gone_and_the_kept_checkpoint_says_so(world: Audited) -> None:
    newest = await world.tree.newest()
    assert newest is not None
    for table in ("task_events", "audit_leaves", "audit_nodes", "audit_checkpoints"):
        world.tamper(f"DELETE FROM outlast.{table}")
    assert told(await world.verified()) == []
    assert told(await world.verified(newest.note)) == [("truncated", None)]


async def test_a_kept_checkpoint_of_somebody_else_proves_nothing(world: Audited) -> None:
    other = SigningKey("other.example", bytes(32))
    foreign = CheckpointNotary("other.example", other, [other.verifier]).sign(1, bytes(32))
    for kept in (foreign, "no note at all", ""):
        assert told(await world.verified(kept)) == [("checkpoint signature bad", None)]


@pytest.mark.promise("erasure-keeps-proofs")
async def test_forgetting_changes_nothing(world: Audited) -> None:
    await world.ports.views.forget(["one", "three"])
    report = await world.verified()
    assert told(report) == []
    assert report.figures["events"] == 12


@pytest.mark.promise("erasure-keeps-proofs")
async def test_an_erasure_verifies_and_an_empty_state_without_one_does_not(
    world: Audited,
) -> None:
    one, three = places(world, 0, 8)
    await world.ports.views.forget(["one", "three"])
    world.tamper("SELECT outlast.erase_tasks(ARRAY['one'], 'on request')")
    await world.signed()
    assert told(await world.verified()) == []
    world.tamper("UPDATE outlast.past_events SET state = '' WHERE notification_id = %s", three)
    assert told(await world.verified()) == [("empty without an erasure", three)]
    world.tamper("UPDATE outlast.past_events SET state = 'x' WHERE notification_id = %s", one)
    assert told(await world.verified()) == [
        ("state does not match its digest", one),
        ("empty without an erasure", three),
    ]


@pytest.mark.promise("erasure-keeps-proofs")
async def test_the_event_that_tells_of_an_erasure_may_not_be_empty_itself(world: Audited) -> None:
    await world.ports.views.forget(["one"])
    world.tamper("SELECT outlast.erase_tasks(ARRAY['one'], 'on request')")
    await world.signed()
    (place,) = places(world, -1)
    world.tamper("UPDATE outlast.past_events SET state = '' WHERE notification_id = %s", place)
    assert told(await world.verified()) == [("empty without an erasure", place)]


def cut_off(world: Audited, size: int) -> None:
    """Nothing is left behind the first so many events, but for checkpoints."""
    (place,) = places(world, size)
    world.tamper(f"DELETE FROM {EVENTS} WHERE notification_id >= %s", place)
    world.tamper("DELETE FROM outlast.audit_leaves WHERE number >= %s", size)


@pytest.mark.promise("erasure-keeps-proofs")
async def test_verifying_beside_a_busy_service_finds_nothing(world: Audited) -> None:
    follower, is_over = world.follower(Pace(3, 0.001)), asyncio.Event()

    async def be_busy() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            await world.happened(f"busy-{number}")
            if number % 3 == 0:
                await world.ports.views.forget([f"busy-{number - 1}"])
                await world.database.rows(
                    "SELECT outlast.erase_tasks(ARRAY[%s], 'on request')", f"busy-{number - 1}"
                )

    async def follow() -> None:
        while not is_over.is_set():
            await follower.follow()

    busy = [asyncio.create_task(work()) for work in (be_busy, follow, follow)]
    try:
        for _ in range(10):
            assert told(await world.verified()) == []
    finally:
        is_over.set()
        await asyncio.gather(*busy)
    await world.signed()
    report = await world.verified()
    assert told(report) == []
    assert report.figures["events"] > 12
