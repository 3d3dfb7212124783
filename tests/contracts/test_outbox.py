"""The promise of `Outbox`: who may send what and when, and what is left of it afterwards."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from outlast.domain import draft
from outlast.domain.push import DueDelivery, Health
from outlast.tests.contracts.outbox_world import (
    ALICE,
    HERE,
    LONG_S,
    SHORT_S,
    THERE,
    Rig,
    attempt,
    now,
    place,
    rig,
    until_true,
)

pytestmark = pytest.mark.anyio

CLAIMERS = 8
THOUSANDS = 3_000


@pytest.fixture(params=[False, True], ids=["plain", "sealed"])
async def world(module_database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with rig(module_database_url, seals=request.param) as made:
        yield made


async def claimed_again(world: Rig) -> DueDelivery:
    """The only delivery, once its lease has run out."""
    found: list[DueDelivery] = []

    async def is_due() -> bool:
        found.extend(await world.other.outbox.claim(10, 10, LONG_S))
        return bool(found)

    await until_true(is_due)
    (due,) = found
    return due


async def test_an_append_queues_what_its_subscribers_want_and_nothing_else(world: Rig):
    await world.subscribes("all")
    await world.subscribes("ends", event=draft.TASK_FINISHED)
    await world.subscribes("progress", event=draft.TASK_PROGRESS, tools=["build"])
    await world.subscribes("deploys", tools=["deploy"])
    await world.subscribes("working", statuses=["working"])
    task_id = await world.started(tool="build")
    await world.progresses(task_id)
    await world.ends(task_id)
    came: dict[str, list[int]] = {}
    while claimed := await world.claims():
        for due in claimed:
            came.setdefault(due.subscription_id, []).append(due.version)
            assert (due.task_id, due.tool, due.owner) == (task_id, "build", ALICE)
            await world.acks(due)
    assert came == {"all": [1, 2, 3, 4], "ends": [4], "progress": [3], "working": [1, 2, 3]}
    assert await world.outbox.waiting() == 0


async def test_no_delivery_is_leased_to_two_claimers_at_once(world: Rig):
    for number in range(10):
        await world.subscribes(f"sub-{number}", url=f"https://h{number}.example/")
    for _ in range(5):
        await world.opened()

    async def claim_all(number: int) -> list[DueDelivery]:
        outbox = (world.one, world.other)[number % 2].outbox
        mine: list[DueDelivery] = []
        while batch := await outbox.claim(3, 2, LONG_S):
            mine += batch
        return mine

    batches = await asyncio.gather(*(claim_all(number) for number in range(CLAIMERS)))
    leased = [due for batch in batches for due in batch] + await claim_all(0)
    assert len({due.id for due in leased}) == len(leased) == 50
    assert all([await world.acks(due) for due in leased])


async def test_a_lease_that_runs_out_is_due_again_with_one_attempt_more(world: Rig):
    await world.subscribes()
    await world.opened()
    (lost,) = await world.claims(lease_s=SHORT_S)
    assert lost.attempts == 0
    again = await claimed_again(world)
    assert (again.id, again.attempts) == (lost.id, 1)
    assert again.fence > lost.fence
    await world.refuses(again, 0)
    assert (await world.claims_one()).attempts == 2


async def test_a_void_fence_changes_nothing(world: Rig):
    await world.subscribes()
    await world.opened()
    (lost,) = await world.claims(lease_s=0)
    held = await world.claims_one()
    for retry_in_s in (None, 0.0):
        assert not await world.outbox.settle(lost, attempt(lost), retry_in_s)
    await world.outbox.put_back(lost, 0)
    assert await world.outbox.attempts("sub") == []
    assert await world.claims() == []
    assert await world.acks(held)
    assert not await world.acks(held)
    assert len(await world.outbox.attempts("sub")) == 1


async def test_what_is_put_back_is_due_later_and_has_no_attempt_more(world: Rig):
    await world.subscribes()
    await world.opened()
    await world.outbox.put_back(await world.claims_one(), LONG_S)
    assert await world.claims() == []
    await world.sql("UPDATE outlast.webhook_deliveries SET due = clock_timestamp()")
    again = await world.claims_one()
    assert again.attempts == 0
    await world.outbox.put_back(again, 0)
    assert (await world.claims_one()).attempts == 0
    assert await world.outbox.attempts("sub") == []


async def test_first_attempts_of_one_task_go_in_order_and_retries_on_their_own(world: Rig):
    await world.subscribes()
    first, second = await world.started(), await world.started()
    one, other = sorted(await world.claims(), key=place)
    assert {place(one), place(other)} == {(first, 1), (second, 1)}
    assert await world.claims() == []
    await world.outbox.put_back(one, LONG_S)
    await world.refuses(other)
    # The first event of one task still waits for its first attempt; that of the other had it.
    assert place(await world.claims_one()) == (place(other)[0], 2)


async def test_a_retry_waits_for_no_first_attempt_of_an_older_event(world: Rig):
    await world.subscribes()
    task_id = await world.started()
    await world.acks(await world.claims_one())
    await world.refuses(await world.claims_one(), 0)
    await world.outbox.resend("sub", event=(task_id, 1))
    again, retry = await world.claims()
    assert (place(again), place(retry)) == ((task_id, 1), (task_id, 2))
    assert (again.attempts, retry.attempts) == (0, 1)


async def test_each_subscription_has_its_own_order(world: Rig):
    await world.subscribes("slow", url=HERE)
    await world.subscribes("quick", url=THERE)
    await world.started()
    slow, quick = sorted(await world.claims(), key=lambda due: due.url)
    assert await world.acks(quick)
    assert (await world.claims_one()).subscription_id == "quick"
    assert slow.subscription_id == "slow"


async def test_terminated_goes_when_nothing_else_waits_and_ends_the_subscription(world: Rig):
    task_id = await world.started()
    await world.subscribes(task_ids=[task_id])
    await world.progresses(task_id)
    await world.ends(task_id)
    first = await world.claims_one()
    await world.refuses(first, LONG_S)
    assert place(await world.claims_one()) == (task_id, 4)
    assert await world.claims() == []
    await world.sql(
        "UPDATE outlast.webhook_deliveries SET due = clock_timestamp() WHERE envelope IS NULL"
    )
    for due in await world.claims():
        assert due.envelope is None
        await world.acks(due)
    last = await world.claims_one()
    assert (last.envelope, last.why) == (draft.ENDED, "task_terminal")
    assert await world.one.subscriptions.count(ALICE) == 1
    await world.refuses(last, 0)
    assert await world.one.subscriptions.count(ALICE) == 1
    await world.acks(await world.claims_one())
    assert await world.one.subscriptions.count(ALICE) == 0
    assert await world.outbox.waiting() == 0


async def test_a_claim_keeps_to_its_limits_and_starves_no_endpoint(world: Rig):
    await world.subscribes("busy", url=HERE)
    await world.subscribes("small", url=THERE, event=draft.TASK_FINISHED)
    await world.sql(
        "INSERT INTO outlast.webhook_deliveries (subscription_id, url, position, task_id, version)"
        " SELECT 'busy', %s, n, 'task ' || n, 1 FROM generate_series(1, %s) n",
        HERE,
        THOUSANDS,
    )
    task_id = await world.started()
    await world.ends(task_id)
    claimed = await world.claims(limit=20, per_endpoint=8)
    assert [due.url for due in claimed].count(HERE) == 8
    assert [place(due) for due in claimed if due.url == THERE] == [(task_id, 3)]
    assert len(await world.claims(limit=5, per_endpoint=8)) == 5
    assert await world.claims(busy=[HERE, THERE]) == []
    assert {due.url for due in await world.claims(limit=3, busy=[THERE])} == {HERE}


async def test_an_endpoint_is_tried_as_its_breaker_says(world: Rig):
    await world.subscribes()
    for _ in range(4):
        await world.opened()

    async def becomes(now_known: Health) -> Health:
        assert await world.outbox.note_health(HERE, seen, now_known) is None
        return Health(revision=seen.revision + 1)

    soon, ago = now() + timedelta(hours=1), now() - timedelta(seconds=1)
    seen = Health()
    seen = await becomes(Health(failures=2, failing_since=ago))
    (failing,) = await world.claims()
    assert (failing.health.failures, failing.health.failing_since) == (2, ago)
    seen = await becomes(Health(failures=5, failing_since=ago, opened=1, open_until=soon))
    assert await world.claims() == []
    seen = await becomes(Health(failures=5, failing_since=ago, opened=1, open_until=ago))
    (probe,) = await world.claims()
    assert probe.health.probing_until is not None
    assert await world.claims() == []
    assert await world.other.outbox.claim(10, 10, LONG_S) == []
    assert await world.outbox.note_health(HERE, probe.health, Health()) is None
    assert len(await world.claims()) == 2


async def test_a_probe_that_was_never_answered_for_makes_room_for_another(world: Rig):
    await world.subscribes()
    await world.opened()
    await world.opened()
    ago = now() - timedelta(seconds=1)
    await world.outbox.note_health(HERE, Health(), Health(5, ago, 1, ago))
    assert len(await world.claims(lease_s=0)) == 1
    assert len(await world.claims(lease_s=LONG_S)) == 1
    assert await world.claims() == []


async def test_health_that_somebody_changed_meanwhile_is_told_and_not_overwritten(world: Rig):
    await world.subscribes()
    newer = Health(failures=1, failing_since=now())
    assert await world.outbox.note_health(HERE, Health(), newer) is None
    found = await world.outbox.note_health(HERE, Health(), Health(failures=7))
    assert found == Health(1, newer.failing_since, revision=1)
    assert await world.outbox.note_health("https://unknown.example/", Health(), newer) is None


async def test_attempts_are_kept_newest_first_and_by_event(world: Rig):
    await world.subscribes()
    await world.subscribes("other", url=THERE, event=draft.TASK_FINISHED)
    await world.opened()
    due = await world.claims_one()
    await world.refuses(due, 0)
    due = await world.claims_one()
    await world.acks(due)
    newest, oldest = await world.outbox.attempts("sub")
    assert (newest.number, newest.category, newest.status_class) == (2, None, 2)
    assert (oldest.number, oldest.category, oldest.status_class) == (1, "http_5xx", 5)
    assert [each.number for each in await world.outbox.attempts("sub", limit=1)] == [2]
    assert len(await world.outbox.attempts("sub", f"evt_{due.id}")) == 2
    assert await world.outbox.attempts("sub", "evt_none") == []
    assert await world.outbox.attempts("other") == []
    stored = await world.one.subscriptions.get("sub")
    assert stored is not None
    assert (stored.last_error, stored.failed_since) == (None, None)
    assert stored.last_delivery_at == newest.at


async def test_one_event_is_sent_once_more_and_those_since_an_instant(world: Rig):
    early = await world.started()
    await world.subscribes(event=draft.TASK_UPDATED)
    since = now()
    late = await world.started()
    await world.told()
    assert await world.outbox.resend("sub", event=(early, 2)) == 1
    assert await world.told() == [(early, 2)]
    assert await world.outbox.resend("sub", since=since) == 2
    assert await world.told() == [(late, 1), (late, 2)]
    assert await world.outbox.resend("sub", event=(early, 99)) == 0
    assert await world.outbox.resend("nobody", event=(early, 1)) == 0
    assert await world.told() == []


async def test_only_what_a_subscription_wants_can_be_sent_once_more(world: Rig):
    theirs = await world.started(owner="somebody else")
    ours, other = await world.started(), await world.started()
    await world.subscribes(task_ids=[ours], event=draft.TASK_PROGRESS)
    for task_id, version in ((theirs, 1), (other, 1), (ours, 1)):
        assert await world.outbox.resend("sub", event=(task_id, version)) == 0
    await world.progresses(ours)
    await world.told()
    assert await world.outbox.resend("sub", since=now() - timedelta(hours=1)) == 1


async def test_a_resend_meets_a_scheduled_retry_and_is_not_doubled(world: Rig):
    await world.subscribes()
    task_id = await world.opened()
    await world.refuses(await world.claims_one(), LONG_S)
    assert await world.claims() == []
    assert await world.outbox.resend("sub", event=(task_id, 1)) == 1
    due = await world.claims_one()
    assert due.attempts == 1
    await world.outbox.resend("sub", event=(task_id, 1))
    assert await world.claims() == []
    assert await world.acks(due)
    assert await world.outbox.waiting() == 0


async def test_what_waits_is_counted_due_or_not(world: Rig):
    await world.subscribes()
    assert await world.outbox.is_empty()
    await world.started()
    await world.refuses(await world.claims_one(), LONG_S)
    assert await world.outbox.waiting() == 2
    assert not await world.outbox.is_empty()
    stored = await world.one.subscriptions.get("sub")
    assert stored is not None
    assert (stored.waiting, stored.last_error) == (2, "http_5xx")
    assert stored.failed_since is not None
