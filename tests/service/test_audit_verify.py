"""`verify` finds and names what anybody does to the log by hand, and nothing else."""

from collections.abc import AsyncIterator

import pytest

from outlast.adapters.notes import CheckpointNotary, SigningKey
from outlast.domain.audit import leaf_of
from outlast.domain.merkle import leaf_hash, root
from outlast.tests.support.auditing import (
    ORIGIN,
    Audited,
    audited,
    places,
    told,
    twelve_events,
)

pytestmark = pytest.mark.anyio

EVENTS = "outlast.task_events"
COPIED = (
    "originator_id, originator_version, topic, state, event_id, notification_id, recorded_at,"
    " owner, tool, status, digest"
)


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[Audited]:
    async with twelve_events(database_url) as world:
        yield world


@pytest.mark.promise("tampering-is-found")
async def test_a_log_that_nobody_touched_verifies(world: Audited) -> None:
    report = await world.verified()
    assert told(report) == []
    assert report.figures == {"events": 12, "leaves": 12, "checkpoints": 2}
    assert report.remarks == ["every event is covered by a checkpoint"]
    assert report.lines[-1] == "nothing is wrong"


@pytest.mark.promise("tampering-is-found")
async def test_a_flipped_byte_of_state_is_named(world: Audited) -> None:
    (place,) = places(world, 3)
    flip = "set_byte(state, 5, get_byte(state, 5) # 1)"
    world.tamper(f"UPDATE {EVENTS} SET state = {flip} WHERE notification_id = %s", place)
    assert told(await world.verified()) == [("state does not match its digest", place)]


@pytest.mark.promise("tampering-is-found")
async def test_a_state_that_is_changed_with_its_digest_is_named(world: Audited) -> None:
    (place,) = places(world, 3)
    world.tamper(
        f"UPDATE {EVENTS} SET state = '{{}}', digest = sha256('{{}}') WHERE notification_id = %s",
        place,
    )
    assert told(await world.verified()) == [("changed", place)]


@pytest.mark.promise("tampering-is-found")
@pytest.mark.parametrize(
    "change",
    [
        "topic = 'task.completed'",
        "recorded_at = recorded_at + interval '1 microsecond'",
        "recorded_at = 'infinity'",
        "recorded_at = '20000-01-01'",
        "event_id = gen_random_uuid()",
        "originator_version = 99",
        "originator_id = 'another'",
    ],
)
async def test_a_change_beside_the_state_is_named(world: Audited, change: str) -> None:
    (place,) = places(world, 5)
    world.tamper(f"UPDATE {EVENTS} SET {change} WHERE notification_id = %s", place)
    assert told(await world.verified()) == [("changed", place)]


@pytest.mark.promise("tampering-is-found")
async def test_a_flipped_byte_of_a_digest_is_named_for_what_it_is(world: Audited) -> None:
    (place,) = places(world, 0)
    flip = "set_byte(digest, 31, get_byte(digest, 31) # 1)"
    world.tamper(f"UPDATE {EVENTS} SET digest = {flip} WHERE notification_id = %s", place)
    report = await world.verified()
    assert sorted(told(report)) == [
        ("changed", place),
        ("state does not match its digest", place),
    ]
    assert any("its digest is not" in finding.text for finding in report.findings)


@pytest.mark.promise("tampering-is-found")
async def test_a_deleted_event_is_named(world: Audited) -> None:
    (place,) = places(world, 6)
    world.tamper(f"DELETE FROM {EVENTS} WHERE notification_id = %s", place)
    assert told(await world.verified()) == [("missing", place)]


@pytest.mark.promise("tampering-is-found")
async def test_neighbours_that_are_deleted_are_one_finding(world: Audited) -> None:
    gone = places(world, 2, 3, 4, 5, 6, 7)
    world.tamper(f"DELETE FROM {EVENTS} WHERE notification_id = ANY (%s)", gone)
    report = await world.verified()
    assert told(report) == [("missing", gone[0])]
    assert "6 events" in report.findings[0].text


SWAP = (
    f"UPDATE {EVENTS} a SET {{column}} FROM {EVENTS} b"
    " WHERE (a.notification_id, b.notification_id) IN ((%s, %s), (%s, %s))"
)


@pytest.mark.promise("tampering-is-found")
async def test_two_states_that_are_swapped_are_named(world: Audited) -> None:
    one, two = places(world, 2, 7)
    world.tamper(SWAP.format(column="state = b.state"), one, two, two, one)
    whats = "state does not match its digest"
    assert told(await world.verified()) == [(whats, one), (whats, two)]


@pytest.mark.promise("tampering-is-found")
async def test_two_states_that_are_swapped_with_their_digests_are_named(world: Audited) -> None:
    one, two = places(world, 2, 7)
    columns = "state = b.state, digest = b.digest"
    world.tamper(SWAP.format(column=columns), one, two, two, one)
    assert told(await world.verified()) == [("changed", one), ("changed", two)]


@pytest.mark.promise("tampering-is-found")
async def test_two_events_that_change_places_are_called_reordered(world: Audited) -> None:
    one, two = places(world, 2, 7)
    put = f"UPDATE {EVENTS} SET notification_id = %s WHERE notification_id = %s"
    for new, old in ((-1, one), (one, two), (two, -1)):
        world.tamper(put, new, old)
    report = await world.verified()
    assert told(report) == [("reordered", one), ("reordered", two)]
    assert f"was recorded at position {two}" in report.ordered[0].text


@pytest.mark.promise("tampering-is-found")
async def test_an_event_that_moves_into_a_gap_is_called_reordered(world: Audited) -> None:
    (place,), gap = places(world, 2), gap_of(world)
    put = f"UPDATE {EVENTS} SET notification_id = %s WHERE notification_id = %s"
    world.tamper(put, gap, place)
    assert told(await world.verified()) == [("reordered", gap)]


PUT_IN = (
    f"INSERT INTO {EVENTS} ({COPIED}) SELECT originator_id, 90, topic, state, gen_random_uuid(),"
    f" %s, recorded_at, owner, tool, status, digest FROM {EVENTS} WHERE notification_id = %s"
)


@pytest.mark.promise("tampering-is-found")
async def test_an_event_that_is_put_into_a_gap_is_named(world: Audited) -> None:
    (place,), gap = places(world, 2), gap_of(world)
    world.tamper(PUT_IN, gap, place)
    report = await world.verified()
    assert told(report) == [("inserted", gap)]
    assert "event 90 of task one" in report.findings[0].text


@pytest.mark.promise("tampering-is-found")
async def test_an_event_put_at_the_end_is_named_or_counted_as_not_covered(world: Audited) -> None:
    (last,) = places(world, 11)
    end = world.skip_position()
    world.tamper(PUT_IN, end, last)
    report = await world.verified()
    assert told(report) == []
    assert report.remarks == [
        f"not covered by a checkpoint yet: the newest event, behind position {last}"
    ]
    world.tamper(PUT_IN.replace("90", "91"), end + 1_000, last)
    await world.signed()
    assert told(await world.verified()) == [("inserted", end + 1_000)]


@pytest.mark.promise("tampering-is-found")
async def test_a_copy_at_a_position_that_is_taken_is_named(world: Audited) -> None:
    (place,) = places(world, 4)
    world.tamper(
        f"INSERT INTO outlast.past_events ({COPIED}) SELECT {COPIED} FROM {EVENTS}"
        " WHERE notification_id = %s",
        place,
    )
    assert told(await world.verified()) == [("inserted", place)]


@pytest.mark.promise("tampering-is-found")
@pytest.mark.parametrize(("number", "sizes"), [(5, "between sizes 0 and 8"), (9, "8 and 12")])
async def test_a_change_of_event_and_leaf_is_found_by_the_next_checkpoint(
    world: Audited, number: int, sizes: str
) -> None:
    await falsify(world, number)
    report = await world.verified()
    assert [finding.what for finding in report.findings] == ["root differs"]
    assert sizes in report.findings[0].text


@pytest.mark.promise("tampering-is-found")
async def test_a_change_of_event_leaf_and_checkpoint_is_found_by_its_signature(
    world: Audited,
) -> None:
    await falsify(world, 9)
    leaves = [leaf async for batch in world.tree.leaves(12) for leaf in batch]
    false = root([leaf.hash for leaf in leaves])
    forged = SigningKey(ORIGIN, bytes(32))
    note = CheckpointNotary(ORIGIN, forged, [forged.verifier]).sign(12, false)
    world.tamper(
        "UPDATE outlast.audit_checkpoints SET root = %s, note = %s WHERE size = 12", false, note
    )
    report = await world.verified()
    assert told(report) == [("checkpoint signature bad", None)]
    (place,) = places(world, 7)
    assert report.remarks == [
        f"not covered by a checkpoint yet: the newest 4 events, behind position {place}"
    ]


@pytest.mark.promise("tampering-is-found")
async def test_a_checkpoint_that_says_other_than_its_note_is_named(world: Audited) -> None:
    world.tamper("UPDATE outlast.audit_checkpoints SET root = sha256('') WHERE size = 8")
    assert told(await world.verified()) == [("checkpoint changed", None)]


@pytest.mark.promise("tampering-is-found")
async def test_a_leaf_that_is_changed_alone_is_named_with_its_interval(world: Audited) -> None:
    (place,) = places(world, 9)
    world.tamper("UPDATE outlast.audit_leaves SET hash = sha256('') WHERE number = 9")
    assert told(await world.verified()) == [("changed", place), ("root differs", None)]


@pytest.mark.promise("tampering-is-found")
async def test_a_leaf_that_is_gone_is_named(world: Audited) -> None:
    (place,) = places(world, 5)
    world.tamper("DELETE FROM outlast.audit_leaves WHERE number = 5")
    found = told(await world.verified())
    assert found[:2] == [("inserted", place), ("tree changed", places(world, 6)[0])]


@pytest.mark.promise("tampering-is-found")
async def test_leaves_that_swap_their_positions_are_named(world: Audited) -> None:
    one, two = places(world, 4, 5)
    put = "UPDATE outlast.audit_leaves SET position = %s WHERE position = %s"
    for new, old in ((-1, one), (one, two), (two, -1)):
        world.tamper(put, new, old)
    found = told(await world.verified())
    assert found[0] == ("tree changed", one)


@pytest.mark.promise("tampering-is-found")
async def test_a_leaf_at_a_position_far_off_is_named_and_hides_nothing(world: Audited) -> None:
    world.tamper("UPDATE outlast.audit_leaves SET position = 1000000 WHERE number = 4")
    (place,) = places(world, 4)
    found = told(await world.verified())
    assert sorted(found) == [("inserted", place), ("tree changed", place)]


async def test_what_is_not_covered_yet_is_said(world: Audited) -> None:
    (last,) = places(world, 11)
    await world.happened("four")
    said = f"not covered by a checkpoint yet: the newest 4 events, behind position {last}"
    assert (await world.verified()).remarks == [said]
    await world.extended()
    assert (await world.verified()).remarks == [said]


async def test_an_event_not_covered_yet_is_still_held_against_its_digest(world: Audited) -> None:
    await world.happened("four")
    (place,) = places(world, 13)
    world.tamper(f"UPDATE {EVENTS} SET state = '{{}}' WHERE notification_id = %s", place)
    assert told(await world.verified()) == [("state does not match its digest", place)]


async def test_a_log_that_was_never_followed_is_said_to_be_uncovered(database_url: str) -> None:
    async with audited(database_url) as world:
        await world.happened("one")
        report = await world.verified()
    assert told(report) == []
    assert report.remarks == ["not covered by a checkpoint yet: the newest 4 events, all there are"]


async def test_more_changes_than_can_be_told_are_counted(database_url: str) -> None:
    async with audited(database_url, batch=50) as world:
        await world.happened("one", events=150)
        await world.signed()
        world.tamper(f"UPDATE {EVENTS} SET topic = 'x'")
        report = await world.verified()
    assert len(report.findings) == 100
    assert report.left_out == 50
    assert report.lines[100] == "and 50 more"
    assert report.ordered[0].position == 1


def gap_of(world: Audited) -> int:
    """The position of the append that was rolled back."""
    there = world.positions
    return next(place for place in range(there[0], there[-1]) if place not in there)


async def falsify(world: Audited, number: int) -> None:
    """Another state, a digest that matches, and a leaf that matches both."""
    (place,) = places(world, number)
    world.tamper(
        f"UPDATE {EVENTS} SET state = '{{}}', digest = sha256('{{}}') WHERE notification_id = %s",
        place,
    )
    rows = [row async for batch in world.log.batches(place - 1, place) for row in batch]
    world.tamper(
        "UPDATE outlast.audit_leaves SET hash = %s WHERE number = %s",
        leaf_hash(leaf_of(rows[0])),
        number,
    )
