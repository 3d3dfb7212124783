"""Webhooks from subscription to POST: real PostgreSQL, real sockets, the sender in this process."""

from collections.abc import AsyncIterator

import pytest
from standardwebhooks import Webhook

from outlast.domain import draft, errors
from outlast.tests.delivery.webhook_world import (
    ALICE,
    BOB,
    SECRET,
    Hook,
    Posted,
    World,
    hook,
    request,
    world,
)
from outlast.tests.support.publishing import Publisher

pytestmark = pytest.mark.anyio


@pytest.fixture
async def made(database_url: str) -> AsyncIterator[tuple[World, Publisher]]:
    async with world(database_url) as pair:
        yield pair


@pytest.fixture
async def endpoint() -> AsyncIterator[Hook]:
    async with hook() as served:
        yield served


Made = tuple[World, Publisher]


@pytest.mark.promise("webhooks-are-standard")
async def test_every_change_of_a_task_is_posted_signed_and_in_order_and_then_the_end(
    made: Made, endpoint: Hook
):
    here, publisher = made
    async with here.sending():
        task_id = await publisher.opened(owner=ALICE)
        granted = await here.subscribe(endpoint.url, {"taskId": task_id})
        await publisher.progresses(task_id, "half")
        await publisher.ends(task_id)
        await endpoint.until(lambda seen: len(seen.envelopes) == 1)
    assert [post.version for post in endpoint.events] == [3, 4]
    for post in endpoint.posted:
        Webhook(SECRET).verify(post.body, dict(post.headers))
        assert post.headers["x-mcp-subscription-id"] == granted["id"]
        assert post.headers["content-type"] == "application/json"
    last = endpoint.events[-1].content
    assert (last["name"], last["data"]["status"]) == (draft.TASK_UPDATED, "completed")
    assert last["eventId"] == endpoint.events[-1].webhook_id
    assert endpoint.envelopes[0]["error"]["data"] == {
        "kind": "subscription",
        "reason": "task_terminal",
    }


async def test_a_subscription_to_all_tasks_hears_of_the_owners_own_and_of_no_others(
    made: Made, endpoint: Hook
):
    here, publisher = made
    async with here.sending():
        await here.subscribe(endpoint.url, name=draft.TASK_FINISHED)
        theirs = await publisher.opened(owner=BOB)
        await publisher.ends(theirs)
        ours = await publisher.opened(owner=ALICE)
        await publisher.ends(ours)
        await endpoint.got(1)
        await here.nothing_waits()
    assert [post.content["data"]["taskId"] for post in endpoint.events] == [ours]


async def test_a_refused_event_comes_again_under_the_same_id_with_a_new_stamp(
    made: Made, endpoint: Hook
):
    here, publisher = made
    refused: list[Posted] = []

    def once(post: Posted) -> int:
        refused.append(post)
        return 500 if len(refused) == 1 else 204

    endpoint.behaves = once
    async with here.sending():
        task_id = await publisher.opened(owner=ALICE)
        await here.subscribe(endpoint.url, {"taskId": task_id}, name=draft.TASK_FINISHED)
        await publisher.ends(task_id)
        first, second = await endpoint.got(2)
        await endpoint.until(lambda seen: bool(seen.envelopes))
    assert first.webhook_id == second.webhook_id
    assert first.headers["webhook-timestamp"] != second.headers["webhook-timestamp"]
    Webhook(SECRET).verify(second.body, dict(second.headers))


@pytest.mark.promise("nothing-is-posted-unasked")
async def test_nothing_is_stored_or_sent_for_an_endpoint_that_does_not_echo(
    made: Made, endpoint: Hook
):
    here, publisher = made
    endpoint.echoes = False
    async with here.sending():
        with pytest.raises(errors.EndpointNotVerified) as refused:
            await here.subscribe(endpoint.url)
        assert refused.value.data == {"reason": "challenge_failed"}
        await publisher.ends(await publisher.opened(owner=ALICE))
        assert await here.subscriptions.count(ALICE) == 0
        await here.nothing_waits()
    assert not endpoint.posted


async def test_the_same_subscription_twice_is_one_and_is_challenged_once(
    made: Made, endpoint: Hook
):
    here, publisher = made
    async with here.sending():
        first = await here.subscribe(endpoint.url, {"tools": ["build"]})
        second = await here.subscribe(endpoint.url, {"tools": ["build"]})
        other = await here.subscribe(endpoint.url, {"tools": ["test"]})
        assert first["id"] == second["id"] != other["id"]
        assert second["deliveryStatus"] == {
            "active": True,
            "lastDeliveryAt": None,
            "lastError": None,
        }
        assert len(endpoint.challenges) == 1
        task_id = await publisher.opened(owner=ALICE, tool="build")
        await publisher.ends(task_id)
        await endpoint.got(3)
        await here.nothing_waits()
    assert len(endpoint.events) == 3


async def test_after_unsubscribing_nothing_more_comes(made: Made, endpoint: Hook):
    here, publisher = made
    async with here.sending():
        await here.subscribe(endpoint.url)
        task_id = await publisher.opened(owner=ALICE)
        await endpoint.got(2)
        assert await here.methods().unsubscribe(request(endpoint.url)) == {}
        await publisher.ends(task_id)
        with pytest.raises(errors.EventNotFound):
            await here.methods().unsubscribe(request(endpoint.url))
        await here.nothing_waits()
    assert len(endpoint.events) == 2


async def test_a_subscription_from_a_cursor_replays_what_came_after_it(made: Made, endpoint: Hook):
    here, publisher = made
    task_id = await publisher.opened(owner=ALICE)
    cursor = here.cursors.seal(ALICE, await here.events.head(ALICE))
    await publisher.progresses(task_id, "half")
    await publisher.ends(task_id)
    async with here.sending():
        granted = await here.subscribe(endpoint.url, cursor=cursor)
        await endpoint.got(2)
        await here.nothing_waits()
        assert granted["truncated"] is False
        again = await here.subscribe(endpoint.url, cursor=cursor)
    assert [post.version for post in endpoint.events] == [3, 4]
    head = await here.events.head(ALICE)
    assert here.cursors.open(ALICE, again["cursor"]) == head
    assert here.cursors.open(ALICE, endpoint.events[-1].content["cursor"]) == head


async def test_a_gone_endpoint_is_left_alone_until_its_client_comes_back(
    made: Made, endpoint: Hook
):
    here, publisher = made
    endpoint.behaves = lambda _: 410
    async with here.sending():
        granted = await here.subscribe(endpoint.url)
        task_id = await publisher.opened(owner=ALICE)
        await endpoint.got(1)
        await here.nothing_waits()
        await publisher.ends(task_id)
        await here.nothing_waits()
        (notice,) = await here.methods().suspended(ALICE)
        assert (notice["id"], notice["lastError"]) == (granted["id"], "http_4xx")
        assert await here.methods().suspended(BOB) == []
        endpoint.posted.clear()
        endpoint.behaves = lambda _: 204
        refreshed = await here.subscribe(endpoint.url)
        assert refreshed["deliveryStatus"]["active"] is False
        assert refreshed["deliveryStatus"]["lastError"] == "http_4xx"
        posts = await endpoint.got(3)
        await here.nothing_waits()
    assert refreshed["id"] == granted["id"]
    assert posts[-1].content["data"]["status"] == "completed"


async def test_an_owner_who_lost_access_is_told_so_and_nothing_else(made: Made, endpoint: Hook):
    here, publisher = made
    await here.subscribe(endpoint.url)
    task_id = await publisher.opened(owner=ALICE)
    await publisher.ends(task_id)
    here.allowed.discard(ALICE)
    async with here.sending():
        await endpoint.until(lambda seen: bool(seen.envelopes))
        await here.nothing_waits()
    assert not endpoint.events
    assert endpoint.envelopes == [
        {
            "type": "terminated",
            "error": {
                "code": draft.FORBIDDEN,
                "message": "Forbidden",
                "data": {"reason": "Access revoked"},
            },
        }
    ]
    assert await here.subscriptions.count(ALICE) == 0


@pytest.mark.promise("webhooks-are-standard")
async def test_one_secret_after_another_both_verify_for_a_while(made: Made, endpoint: Hook):
    from outlast.delivery.webhook.signing import spell_secret

    here, publisher = made
    new = spell_secret(bytes(range(64, 96)))
    async with here.sending():
        await here.subscribe(endpoint.url, name=draft.TASK_FINISHED)
        await here.subscribe(endpoint.url, name=draft.TASK_FINISHED, secret=new)
        await publisher.ends(await publisher.opened(owner=ALICE))
        (post,) = await endpoint.got(1)
    for secret in (SECRET, new):
        Webhook(secret).verify(post.body, dict(post.headers))
