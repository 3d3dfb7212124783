"""Where a webhook subscription begins, what a refresh is answered, what outlives a restart."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from outlast.delivery.port import AFTER_META_KEY
from outlast.domain import draft, errors
from outlast.tests.delivery.webhook_world import (
    ALICE,
    BOB,
    Hook,
    Made,
    hook,
    now,
    request,
    world,
)
from outlast.tests.support.publishing import Publisher

pytestmark = pytest.mark.anyio


@pytest.fixture
async def endpoint() -> AsyncIterator[Hook]:
    async with hook() as served:
        yield served


def knows(task_id: str, version: int) -> dict[str, Any]:
    return {"_meta": {AFTER_META_KEY: {task_id: version}}}


async def ended(publisher: Publisher, owner: str = ALICE) -> str:
    """A task at version 3, its last."""
    task_id = await publisher.opened(owner=owner)
    await publisher.ends(task_id)
    return task_id


async def test_a_new_subscription_begins_now_and_says_where_that_is(made: Made, endpoint: Hook):
    here, publisher = made
    await publisher.opened(owner=ALICE)
    granted = await here.subscribe(endpoint.url)
    assert set(granted) == {"id", "refreshBefore", "cursor", "truncated"}
    assert granted["id"].startswith("sub_")
    assert granted["truncated"] is False
    assert datetime.fromisoformat(granted["refreshBefore"]) > now() + timedelta(hours=23)
    assert here.cursors.open(ALICE, granted["cursor"]) == await here.events.head(ALICE)
    assert await here.outbox.waiting() == 0
    assert endpoint.challenges[0].headers["x-mcp-subscription-id"] == granted["id"]


async def test_who_says_what_it_knows_gets_the_rest_and_the_end_of_an_ended_task(
    made: Made, endpoint: Hook
):
    here, publisher = made
    over, running = await ended(publisher), await publisher.opened(owner=ALICE)
    async with here.sending():
        await here.subscribe(endpoint.url, {"taskId": over}, **knows(over, 0))
        await endpoint.until(lambda seen: len(seen.envelopes) == 1)
        assert [post.version for post in endpoint.events] == [3]
        await here.nothing_waits()  # until then the next one is a refresh of this one
        endpoint.posted.clear()
        await here.subscribe(endpoint.url, {"taskId": over}, **knows(over, 1))
        await endpoint.until(lambda seen: len(seen.envelopes) == 1)
        assert [post.version for post in endpoint.events] == [2, 3]
        await here.nothing_waits()  # until then the next one is a refresh of this one
        endpoint.posted.clear()
        await here.subscribe(endpoint.url, {"taskId": over}, **knows(over, 3))
        await endpoint.until(lambda seen: len(seen.envelopes) == 1)
        assert not endpoint.events
        await here.nothing_waits()  # until then the next one is a refresh of this one
        endpoint.posted.clear()
        await here.subscribe(endpoint.url, {"taskId": running}, **knows(running, 0))
        await publisher.ends(running)
        await endpoint.until(lambda seen: len(seen.envelopes) == 1)
    assert [post.version for post in endpoint.events] == [2, 3]


async def test_an_ended_task_is_no_event_source_any_more_but_for_whoever_missed_its_end(
    made: Made, endpoint: Hook
):
    here, publisher = made
    over, theirs = await ended(publisher), await ended(publisher, BOB)
    with pytest.raises(errors.EventNotFound) as refused:
        await here.subscribe(endpoint.url, {"taskId": over})
    assert refused.value.data == {"kind": "subscription", "reason": "task_terminal"}
    for task_id in (theirs, "unknown"):
        for more in ({}, knows(task_id, 0), {"cursor": here.cursors.seal(ALICE, 0)}):
            with pytest.raises(errors.TaskNotFound):
                await here.subscribe(endpoint.url, {"taskIds": [over, task_id]}, **more)
    with pytest.raises(errors.InvalidCall):
        await here.subscribe(endpoint.url, {"taskId": over}, **knows(over, -1))
    assert not endpoint.challenges
    granted = await here.subscribe(
        endpoint.url, {"taskId": over}, cursor=here.cursors.seal(ALICE, 0)
    )
    assert granted["truncated"] is False
    assert await here.outbox.waiting() == 4


async def test_a_cursor_that_cannot_be_followed_is_told_and_never_refused(
    made: Made, endpoint: Hook
):
    here, publisher = made
    await ended(publisher)
    head = await here.events.head(ALICE)
    foreign = [here.cursors.seal(BOB, head), "v1.forged", "", here.cursors.seal(ALICE, head)[:-1]]
    for number, cursor in enumerate(foreign):
        granted = await here.subscribe(endpoint.url, {"tools": [str(number)]}, cursor=cursor)
        assert granted["truncated"] is True, cursor
    ahead = await here.subscribe(endpoint.url, cursor=here.cursors.seal(ALICE, head + 99))
    assert ahead["truncated"] is True
    assert here.cursors.open(ALICE, ahead["cursor"]) == head
    assert await here.outbox.waiting() == 0
    all_of_it = await here.subscribe(endpoint.url, {"statuses": ["completed"]}, cursor="v1.forged")
    assert all_of_it["truncated"] is True
    assert await here.outbox.waiting() == 1


async def test_what_is_too_old_for_the_client_is_left_out_and_told(made: Made, endpoint: Hook):
    here, publisher = made
    await ended(publisher)
    cursor = here.cursors.seal(ALICE, 0)
    await here.database.rows(
        "UPDATE outlast.task_events SET recorded_at = recorded_at - interval '1 hour'"
    )
    late = await publisher.opened(owner=ALICE)
    granted = await here.subscribe(endpoint.url, cursor=cursor, maxAgeMs=1_800_000)
    assert granted["truncated"] is True
    assert await here.outbox.waiting() == 2
    whole = await here.subscribe(
        endpoint.url, {"statuses": ["working"]}, cursor=cursor, maxAgeMs=7_200_000
    )
    assert whole["truncated"] is False
    nothing_missed = await here.subscribe(
        endpoint.url, {"taskId": late}, cursor=cursor, maxAgeMs=1_800_000
    )
    assert nothing_missed["truncated"] is False
    for bad in ("1", -1, True, 1.5):
        with pytest.raises(errors.InvalidCall):
            await here.subscribe(endpoint.url, maxAgeMs=bad)


async def test_a_refresh_tells_how_deliveries_went_and_how_far(made: Made, endpoint: Hook):
    here, publisher = made
    endpoint.behaves = lambda post: 500 if post.version == 2 else 204
    await here.subscribe(endpoint.url)
    async with here.sending():
        await publisher.opened(owner=ALICE)
        await endpoint.got(2)

        async def is_told() -> bool:
            (stored,) = await here.subscriptions.find()
            return stored.last_error is not None

        await here.until_true(is_told)
    refreshed = await here.subscribe(endpoint.url, cursor=here.cursors.seal(ALICE, 0))
    status = refreshed["deliveryStatus"]
    assert (status["active"], status["lastError"]) == (True, "http_5xx")
    assert set(status) == {"active", "lastDeliveryAt", "lastError", "failedSince"}
    for member in ("lastDeliveryAt", "failedSince"):
        assert now() - datetime.fromisoformat(status[member]) < timedelta(minutes=5)
    assert refreshed["truncated"] is False
    first_place = here.cursors.open(ALICE, endpoint.events[0].content["cursor"])
    assert here.cursors.open(ALICE, refreshed["cursor"]) == first_place
    assert await here.outbox.waiting() == 1
    assert len(endpoint.challenges) == 1


async def test_a_restart_of_everything_keeps_subscriptions_and_what_waits(
    module_database_url: str, endpoint: Hook
):
    async with world(module_database_url) as (before, publisher):
        await before.empties()
        granted = await before.subscribe(endpoint.url, name=draft.TASK_FINISHED)
        over = await ended(publisher)
    async with world(module_database_url) as (here, publisher):
        late = await ended(publisher)
        async with here.sending():
            await endpoint.got(2)
            await here.nothing_waits()
        refreshed = await here.subscribe(endpoint.url, name=draft.TASK_FINISHED)
        assert (
            await here.methods().unsubscribe(request(endpoint.url, name=draft.TASK_FINISHED)) == {}
        )
    assert {post.content["data"]["taskId"] for post in endpoint.events} == {over, late}
    assert refreshed["id"] == granted["id"]
    assert len(endpoint.challenges) == 1
