"""The promise of `WebhookSubscriptions`: what is stored, what it is told, and when it ends."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from outlast.domain import draft, errors
from outlast.domain.push import Filter
from outlast.tests.contracts.outbox_world import (
    ALICE,
    BOB,
    HERE,
    LONG_S,
    THERE,
    Rig,
    place,
    rig,
)

pytestmark = pytest.mark.anyio

QUOTA = 3
SUBSCRIBERS = 10


@pytest.fixture(params=[False, True], ids=["plain", "sealed"])
async def world(module_database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with rig(module_database_url, seals=request.param) as made:
        yield made


async def test_a_subscription_is_stored_whole_and_a_refresh_replaces_secret_and_time(world: Rig):
    assert await world.subscribes(tools=["build"], statuses=["working"], ttl_s=60)
    first = await world.one.subscriptions.get("sub")
    assert first is not None
    assert first.key.owner == ALICE
    assert first.wanted == Filter(draft.TASK_UPDATED, None, ("build",), ("working",))
    assert (first.secret, first.former_secret, first.is_active) == (b"secret", None, True)
    assert not await world.subscribes(tools=["other"], secret=b"new", ttl_s=None)
    second = await world.one.subscriptions.get("sub")
    assert second is not None
    assert (second.secret, second.former_secret) == (b"new", b"secret")
    assert (second.wanted, second.created_at) == (first.wanted, first.created_at)
    assert second.refresh_before is None


async def test_a_former_secret_stays_for_its_window_and_the_same_one_starts_none(world: Rig):
    await world.subscribes()
    await world.opened()
    await world.subscribes(secret=b"secret")
    stored = await world.one.subscriptions.get("sub")
    assert stored is not None
    assert stored.former_secret is None
    await world.subscribes(secret=b"new", former_s=LONG_S)
    await world.subscribes(secret=b"new", former_s=0)
    due = await world.claims_one()
    assert due.secrets == [b"new", b"secret"]
    await world.outbox.put_back(due, 0)
    await world.subscribes(secret=b"newest", former_s=0)
    assert (await world.claims_one()).secrets == [b"newest"]
    stored = await world.one.subscriptions.get("sub")
    assert stored is not None
    assert stored.former_secret is None


async def test_they_are_found_by_owner_in_the_order_of_their_ids(world: Rig):
    for name in ("b", "a", "c"):
        await world.subscribes(name)
    await world.subscribes("theirs", owner=BOB)
    found = await world.one.subscriptions.find(owner=ALICE, limit=2)
    assert [each.id for each in found] == ["a", "b"]
    found = await world.one.subscriptions.find(owner=ALICE, after="b")
    assert [each.id for each in found] == ["c"]
    assert len(await world.one.subscriptions.find()) == 4
    assert await world.one.subscriptions.get("unknown") is None


async def test_an_endpoint_is_verified_for_the_owner_who_has_a_subscription_there(world: Rig):
    subscriptions = world.one.subscriptions
    await world.subscribes()
    assert await subscriptions.is_verified(ALICE, HERE)
    assert not await subscriptions.is_verified(ALICE, THERE)
    assert not await subscriptions.is_verified(BOB, HERE)
    assert await subscriptions.remove("sub")
    assert not await subscriptions.is_verified(ALICE, HERE)


async def test_the_quota_holds_under_concurrency_and_counts_the_living_alone(world: Rig):
    await world.subscribes("lapsed", ttl_s=0)
    await world.subscribes("gone")
    await world.one.subscriptions.remove("gone")
    await world.subscribes("theirs", owner=BOB)

    async def subscribe(number: int) -> bool:
        try:
            return await world.subscribes(f"sub-{number}", most=QUOTA)
        except errors.TooManySubscriptions:
            return False

    stored = await asyncio.gather(*(subscribe(number) for number in range(SUBSCRIBERS)))
    assert sum(stored) == QUOTA == await world.one.subscriptions.count(ALICE)
    assert not await world.subscribes(f"sub-{stored.index(True)}", most=QUOTA)
    with pytest.raises(errors.TooManySubscriptions) as refused:
        await world.subscribes("one more", most=QUOTA)
    assert refused.value.data == {"limit": "subscriptions", "max": QUOTA}


async def test_another_owners_events_are_never_told(world: Rig):
    theirs = await world.started(owner=BOB)
    await world.subscribes("all", start=0)
    await world.subscribes("named", start=0, task_ids=[theirs])
    await world.subscribes("known", known={theirs: 0})
    await world.subscribes("since", known={theirs: 1})
    await world.progresses(theirs)
    ours = await world.opened()
    assert await world.told() == [(ours, 1)] * 3  # "all", "known" and "since" want all tasks
    assert await world.outbox.resend("all", event=(theirs, 1)) == 0


async def test_one_whose_time_has_passed_gets_nothing_and_is_swept_with_all_it_had(world: Rig):
    await world.subscribes()
    await world.subscribes("other", url=THERE)
    await world.opened()
    await world.passes()
    assert [due.subscription_id for due in await world.claims()] == ["other"]
    await world.opened()
    assert await world.one.subscriptions.get("sub") is None
    assert await world.one.subscriptions.find() != []
    assert await world.one.subscriptions.count(ALICE) == 1
    assert not await world.one.subscriptions.remove("sub")
    assert not await world.one.subscriptions.end("sub", "why")
    assert await world.outbox.resend("sub", event=("task-1", 1)) == 0
    await world.sweeps()
    assert await world.sql("SELECT id FROM outlast.webhook_subscriptions") == [("other",)]
    assert await world.sql("SELECT url FROM outlast.webhook_endpoints") == [(THERE,)]
    left = await world.sql("SELECT DISTINCT subscription_id FROM outlast.webhook_deliveries")
    assert left == [("other",)]


async def test_more_than_one_batch_of_a_lapsed_subscription_is_swept(world: Rig):
    await world.subscribes()
    await world.progresses(await world.started(), 2_500)
    await world.passes()
    assert await world.sweeps() > 2
    assert await world.outbox.waiting() == 0
    assert await world.sql("SELECT id FROM outlast.webhook_subscriptions") == []


async def test_one_that_comes_back_after_its_time_begins_anew(world: Rig):
    await world.subscribes()
    await world.opened()
    await world.passes()
    assert await world.subscribes()
    later = await world.opened()
    assert await world.told() == [(later, 1)]


async def test_an_end_drops_what_waits_tells_why_and_forgets(world: Rig):
    await world.subscribes()
    await world.started()
    held, *_ = await world.claims()
    assert await world.one.subscriptions.end("sub", "revoked")
    assert not await world.one.subscriptions.end("sub", "revoked")
    assert not await world.acks(held)
    await world.opened()
    last = await world.claims_one()
    assert (last.envelope, last.why) == (draft.ENDED, "revoked")
    assert await world.one.subscriptions.count(ALICE) == 0
    await world.acks(last)
    assert await world.outbox.waiting() == 0


async def test_what_lies_between_the_start_and_now_comes_once_in_batches_and_in_order(world: Rig):
    long = await world.started()
    await world.progresses(long, 1_200)
    other = await world.started(tool="deploy")
    assert await world.subscribes(start=0)
    assert await world.outbox.sweep()
    # While history is being queued the task goes on; what is new must not overtake it.
    await world.progresses(long)
    await world.ends(long)
    assert len(await world.queued()) < 1_000
    assert place(await world.claims_one()) == (long, 1)
    assert await world.watermark() == (await world.places(long))[0] - 1
    await world.sweeps()
    assert await world.queued() == [
        *((long, version) for version in range(1, 1_203)),
        *((other, version) for version in (1, 2)),
        *((long, version) for version in (1_203, 1_204)),
    ]


async def test_new_events_wait_for_the_history_that_is_still_being_queued(world: Rig):
    task_id = await world.started()
    await world.subscribes(start=0)
    await world.progresses(task_id)
    assert await world.claims() == []
    assert [version for _, version in await world.told()] == [1, 2, 3]


async def test_a_subscription_from_known_versions_is_told_what_came_after_them(world: Rig):
    seen, unseen, over = await world.started(), await world.started(), await world.started()
    await world.progresses(seen)
    await world.progresses(unseen)
    await world.ends(over)
    await world.subscribes(
        known={seen: 1, unseen: 0, over: 3}, task_ids=[seen, unseen, over], start=0
    )
    await world.progresses(seen)
    assert sorted(await world.told()) == sorted([(seen, 2), (seen, 3), (seen, 4), (unseen, 3)])


async def test_a_named_task_that_has_ended_is_told_to_its_end_and_then_terminated(world: Rig):
    task_id = await world.started()
    await world.ends(task_id)
    await world.subscribes("known", known={task_id: 0}, task_ids=[task_id])
    await world.subscribes("cursor", start=0, task_ids=[task_id], url=THERE)
    await world.sweeps()
    came: dict[str, list[object]] = {"known": [], "cursor": []}
    while claimed := await world.claims():
        for due in claimed:
            came[due.subscription_id].append(due.envelope or due.version)
            await world.acks(due)
    assert came == {"known": [3, draft.ENDED], "cursor": [1, 2, 3, draft.ENDED]}
    assert await world.one.subscriptions.count(ALICE) == 0


async def test_terminated_waits_until_the_last_of_several_tasks_has_ended(world: Rig):
    first, last = await world.started(), await world.started()
    await world.subscribes(task_ids=[first, last], event=draft.TASK_FINISHED)
    await world.ends(first)
    assert await world.told() == [(first, 3)]
    await world.ends(last)
    assert await world.told() == [(last, 3), ("", 0)]


async def test_a_suspended_one_gets_all_of_it_later_in_order_and_none_twice(world: Rig):
    await world.subscribes()
    task_id = await world.started()
    await world.acks(await world.claims_one())
    waits = await world.claims_one()
    await world.outbox.suspend("sub")
    assert not await world.acks(waits)
    await world.progresses(task_id, 1_100)
    await world.sweeps()
    assert await world.queued() == []
    stored = await world.one.subscriptions.get("sub")
    assert stored is not None
    assert not stored.is_active
    assert not await world.subscribes()
    await world.ends(task_id)
    await world.sweeps()
    assert await world.queued() == [(task_id, version) for version in range(2, 1_104)]
    assert place(await world.claims_one()) == (task_id, 2)


async def test_a_task_that_ends_during_a_suspension_is_terminated_after_it(world: Rig):
    task_id = await world.started()
    await world.subscribes(task_ids=[task_id])
    await world.outbox.suspend("sub")
    await world.outbox.suspend("sub")
    await world.ends(task_id)
    assert await world.told() == []
    await world.subscribes(task_ids=[task_id])
    assert await world.told() == [(task_id, 3), ("", 0)]


async def test_a_refresh_makes_a_breaker_let_a_probe_through(world: Rig):
    await world.subscribes()
    await world.opened()
    await world.sql(
        "UPDATE outlast.webhook_endpoints SET failures = 5, opened = 1,"
        " open_until = clock_timestamp() + interval '1 hour'"
    )
    assert await world.claims() == []
    await world.subscribes()
    assert len(await world.claims()) == 1


async def test_a_client_that_comes_back_need_not_wait_for_the_next_try(world: Rig):
    await world.subscribes()
    for _ in range(2):
        await world.opened()
    first, second = await world.claims()
    await world.refuses(first)
    assert await world.claims() == []
    await world.subscribes()
    assert place(await world.claims_one()) == place(first)  # the other is under way
    assert await world.acks(second)


async def test_deliveries_of_what_is_forgotten_end_as_one_gap(world: Rig):
    await world.subscribes()
    gone, kept = await world.started(), await world.opened()
    head = await world.one.events.head(ALICE)
    await world.one.views.forget([gone])
    claimed = await world.claims()
    assert sorted((due.envelope, *place(due)) for due in claimed if due.envelope is None) == [
        (None, kept, 1)
    ]
    gaps = [due for due in claimed if due.envelope == draft.GAP]
    assert len(gaps) == 1
    for due in claimed:
        await world.acks(due)
    removed = await world.one.events.removed_to(ALICE)
    assert 0 < removed < head
    assert await world.one.events.removed_to(BOB) == 0
    assert await world.outbox.waiting() == 0


async def test_a_gap_that_comes_while_one_is_suspended_is_told_after_it(world: Rig):
    await world.subscribes()
    await world.subscribes("elsewhere", tools=["deploy"])
    await world.outbox.suspend("sub")
    await world.outbox.suspend("elsewhere")
    gone = await world.started()
    await world.one.views.forget([gone])
    await world.subscribes()
    await world.subscribes("elsewhere", tools=["deploy"])
    await world.sweeps()
    due = await world.claims_one()
    assert (due.subscription_id, due.envelope) == ("sub", draft.GAP)


async def test_a_gap_that_waits_outlasts_a_suspension(world: Rig):
    await world.subscribes()
    await world.one.views.forget([await world.opened()])
    await world.outbox.suspend("sub")
    await world.subscribes()
    await world.sweeps()
    assert (await world.claims_one()).envelope == draft.GAP


async def test_the_watermark_does_not_go_back_when_the_newest_events_are_removed(world: Rig):
    await world.subscribes()
    kept, gone = await world.opened(), await world.opened()
    await world.told()
    before = await world.watermark()
    await world.one.views.forget([gone])
    assert await world.watermark() == before
    assert await world.outbox.resend("sub", event=(kept, 1)) == 1
    assert (await world.claims_one()).watermark == before
    await world.outbox.suspend("sub")
    assert await world.watermark() <= before
