"""The whole sender against endpoints of every kind: what each gets, and what the others notice."""

import asyncio
import base64
import logging
import socket
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest
from standardwebhooks import Webhook
from starlette.responses import Response

from outlast.delivery.webhook import signing
from outlast.delivery.webhook.exchange import Limits
from outlast.delivery.webhook.vault import Vault
from outlast.domain import draft
from outlast.domain.push import Attempt, WebhookSubscription
from outlast.tests.delivery.webhook_world import (
    ALICE,
    BOB,
    PATIENCE_S,
    SECRET,
    Hook,
    Made,
    Posted,
    World,
    hook,
    now,
)
from outlast.tests.support.publishing import Publisher

pytestmark = pytest.mark.anyio

TABLES = ("task_events", "task_view", "webhook_subscriptions", "webhook_deliveries")


@pytest.fixture
async def endpoint() -> AsyncIterator[Hook]:
    async with hook() as served:
        yield served


@pytest.fixture
async def other() -> AsyncIterator[Hook]:
    async with hook() as served:
        yield served


async def stored(here: World, url: str) -> WebhookSubscription:
    (found,) = [each for each in await here.subscriptions.find() if each.key.url == url]
    return found


async def attempted(here: World, url: str, count: int = 1) -> list[Attempt]:
    """So many attempts, once they are written down."""
    found: list[Attempt] = []

    async def are_there() -> bool:
        found[:] = await here.outbox.attempts((await stored(here, url)).id)
        return len(found) >= count

    await here.until_true(are_there)
    return found


async def due_in_s(here: World) -> float:
    """When the only delivery is due again."""
    rows = await here.database.rows(
        "SELECT extract(epoch FROM due - clock_timestamp())::float8 FROM outlast.webhook_deliveries"
    )
    ((seconds,),) = rows
    return seconds


async def finished(publisher: Publisher, count: int, owner: str = ALICE) -> None:
    for _ in range(count):
        await publisher.ends(await publisher.opened(owner=owner))


@pytest.mark.promise("dead-endpoint-delays-nobody")
async def test_an_endpoint_that_never_answers_delays_no_other(
    made: Made, endpoint: Hook, other: Hook
):
    here, publisher = made
    endpoint.may_answer = asyncio.Event()
    for url in (endpoint.url, other.url):
        await here.subscribe(url, name=draft.TASK_FINISHED)
    async with here.sending(slots=16, limits=Limits(total_s=PATIENCE_S)):
        await finished(publisher, 20)
        posts = await other.got(20)
        # All of them held, and none answered: as many as one host may have at once.
        assert len(endpoint.posted) <= 8
        endpoint.may_answer.set()
        await endpoint.got(20)
        await here.nothing_waits()
    assert len({post.webhook_id for post in posts}) == 20


@pytest.mark.promise("dead-endpoint-delays-nobody")
async def test_an_endpoint_that_refuses_delays_no_other(made: Made, other: Hook):
    here, publisher = made
    async with hook() as gone:
        for url in (gone.url, other.url):
            await here.subscribe(url, name=draft.TASK_FINISHED)
    async with here.sending(slots=16):
        await finished(publisher, 20)
        await other.got(20)
        (refused, *_) = await attempted(here, gone.url)
    assert (refused.category, refused.status_class) == ("connection_refused", None)
    assert refused.step == "retry"
    # After its breaker's share of tries nothing more was tried.
    assert len(await here.outbox.attempts(refused.subscription_id)) < 20


async def test_an_endpoint_that_takes_the_whole_time_has_timed_out(made: Made):
    here, publisher = made
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        async with hook() as echoing:
            granted = await here.subscribe(echoing.url, name=draft.TASK_FINISHED)
        await here.database.rows("UPDATE outlast.webhook_endpoints SET url = %s", url)
        await here.database.rows("UPDATE outlast.webhook_subscriptions SET url = %s", url)
        async with here.sending(limits=Limits(total_s=0.5)):
            await finished(publisher, 1)
            (attempt,) = await attempted(here, url)
        assert attempt.subscription_id == granted["id"]
        assert (attempt.category, attempt.step) == ("timeout", "retry")
        assert await due_in_s(here) > 50


async def test_an_event_that_is_too_large_is_given_up_and_the_watermark_passes_it(
    made: Made, endpoint: Hook
):
    here, publisher = made
    endpoint.behaves = lambda post: 413 if post.version == 1 else 204
    await here.subscribe(endpoint.url)
    async with here.sending():
        await publisher.opened(owner=ALICE)
        _, second = await endpoint.got(2)
        await here.nothing_waits()
    newest, oldest = await attempted(here, endpoint.url, 2)
    assert (oldest.category, oldest.status_class, oldest.step) == ("http_4xx", 4, "abandoned")
    assert newest.step == "delivered"
    head = await here.events.head(ALICE)
    assert here.cursors.open(ALICE, second.content["cursor"]) == head
    assert (await stored(here, endpoint.url)).watermark == head
    assert len(endpoint.events) == 2


async def test_an_endpoint_that_asks_for_time_gets_it_and_not_without_end(
    made: Made, endpoint: Hook
):
    here, publisher = made
    endpoint.behaves = lambda _: Response(status_code=429, headers={"Retry-After": "86400"})
    await here.subscribe(endpoint.url, name=draft.TASK_FINISHED)
    async with here.sending():
        await finished(publisher, 1)
        (attempt,) = await attempted(here, endpoint.url)

        async def is_open() -> bool:
            return bool(
                await here.database.rows(
                    "SELECT 1 FROM outlast.webhook_endpoints"
                    " WHERE open_until > clock_timestamp() + interval '50 seconds'"
                )
            )

        await here.until_true(is_open)
        assert (attempt.category, attempt.step) == ("http_4xx", "retry")
        assert 50 < await due_in_s(here) < 130
        # What comes meanwhile waits, and counts as no attempt.
        await finished(publisher, 1)
        endpoint.behaves = lambda _: 204
        await here.subscribe(endpoint.url, name=draft.TASK_FINISHED)
        refused, *taken = await endpoint.got(3)
        await here.nothing_waits()
    assert len(endpoint.events) == 3
    assert refused.webhook_id in {post.webhook_id for post in taken}
    assert len({post.webhook_id for post in taken}) == 2


async def test_a_redirect_is_a_failure_and_never_followed(made: Made, endpoint: Hook, other: Hook):
    here, publisher = made
    codes = iter((301, 302, 303, 307, 308))
    endpoint.behaves = lambda _: Response(
        status_code=next(codes, 308), headers={"Location": other.url}
    )
    await here.subscribe(endpoint.url)
    async with here.sending():
        await publisher.opened(owner=ALICE)
        await publisher.opened(owner=ALICE)
        for attempt in await attempted(here, endpoint.url, 2):
            assert (attempt.category, attempt.status_class) == ("http_4xx", 3)
            assert attempt.step == "retry"
    assert not other.posted
    assert not other.challenges


async def test_a_long_failure_suspends_and_is_told_when_its_client_comes_back(
    made: Made, endpoint: Hook
):
    here, publisher = made
    endpoint.behaves = lambda _: 503
    await here.subscribe(endpoint.url)
    since = now() - timedelta(hours=25)
    await here.database.rows(
        "UPDATE outlast.webhook_endpoints SET failures = 9, failing_since = %s", since
    )
    await here.database.rows("UPDATE outlast.webhook_subscriptions SET failed_since = %s", since)

    async def is_suspended() -> bool:
        return not (await stored(here, endpoint.url)).is_active

    async with here.sending():
        task_id = await publisher.opened(owner=ALICE)
        await here.until_true(is_suspended)
        await here.nothing_waits()
        tried = len(endpoint.posted)
        await publisher.ends(task_id)
        endpoint.posted.clear()
        endpoint.behaves = lambda _: 204
        refreshed = await here.subscribe(endpoint.url)
        await endpoint.got(3)
        await here.nothing_waits()
    assert tried == 1
    assert not endpoint.envelopes
    status = refreshed["deliveryStatus"]
    assert (status["active"], status["lastError"]) == (False, "http_5xx")
    assert abs(datetime.fromisoformat(status["failedSince"]) - since) < timedelta(seconds=1)
    assert status["lastDeliveryAt"] is None
    assert [post.version for post in endpoint.events] == [1, 2, 3]
    again = await here.subscribe(endpoint.url)
    assert again["deliveryStatus"]["active"] is True
    assert again["deliveryStatus"]["lastError"] is None


async def test_what_could_not_be_sent_does_not_count_as_delivered(made: Made, endpoint: Hook):
    here, _ = made
    granted = await here.subscribe(endpoint.url)
    await here.database.rows(
        "INSERT INTO outlast.webhook_deliveries (subscription_id, url, position, task_id, version)"
        " VALUES (%s, %s, 1, 'a task that is gone', 1)",
        granted["id"],
        endpoint.url,
    )
    async with here.sending():
        await here.nothing_waits()
    assert [each.step for each in await attempted(here, endpoint.url)] == ["abandoned"]
    assert (await stored(here, endpoint.url)).last_delivery_at is None
    assert not endpoint.posted


async def test_a_client_that_subscribes_anew_after_a_change_of_the_key_is_served(
    made: Made, endpoint: Hook
):
    here, publisher = made
    granted = await here.subscribe(endpoint.url, name=draft.TASK_FINISHED)
    await here.database.rows(
        "UPDATE outlast.webhook_subscriptions SET secret = %s",
        Vault("the former key").seal(bytes(32), granted["id"]),
    )
    await here.subscribe(endpoint.url, name=draft.TASK_FINISHED)
    async with here.sending():
        await finished(publisher, 1)
        (post,) = await endpoint.got(1)
    Webhook(SECRET).verify(post.body, dict(post.headers))
    assert post.headers["webhook-signature"].count("v1,") == 1


async def test_one_whose_secret_cannot_be_opened_rests_until_its_client_brings_one(
    made: Made, endpoint: Hook
):
    here, publisher = made
    granted = await here.subscribe(endpoint.url, name=draft.TASK_FINISHED)
    await here.database.rows(
        "UPDATE outlast.webhook_subscriptions SET secret = %s",
        Vault("the former key").seal(bytes(32), granted["id"]),
    )
    async with here.sending():
        await finished(publisher, 1)
        await here.nothing_waits()
        assert not (await stored(here, endpoint.url)).is_active
        assert not endpoint.posted
        await here.subscribe(endpoint.url, name=draft.TASK_FINISHED)
        await endpoint.got(1)


@pytest.mark.promise("webhook-secrets-stay-inside")
async def test_the_secret_is_in_no_table_no_log_and_no_repr(
    made: Made, endpoint: Hook, caplog: pytest.LogCaptureFixture
):
    here, publisher = made
    caplog.set_level(logging.DEBUG)
    refused: list[Posted] = []
    endpoint.behaves = lambda post: refused.append(post) or (500 if len(refused) == 1 else 204)
    told: list[str] = []
    await here.subscribe(endpoint.url, name=draft.TASK_FINISHED, secret=SECRET)
    async with here.sending() as sender:
        await finished(publisher, 2)
        await attempted(here, endpoint.url, 2)
        told += map(repr, (sender, here.methods(), await stored(here, endpoint.url)))
        told += map(repr, await here.outbox.attempts((await stored(here, endpoint.url)).id))
    await here.database.rows("UPDATE outlast.webhook_deliveries SET due = clock_timestamp()")
    told += map(repr, await here.outbox.claim(10, 10, 60))
    for table in (*TABLES, "webhook_attempts", "webhook_endpoints"):
        rows = await here.database.rows(f"SELECT to_jsonb(t)::text FROM outlast.{table} t")
        told += [text for (text,) in rows]
    told += [record.getMessage() for record in caplog.records]
    told += [str(vars(record)) for record in caplog.records]
    key = signing.parse_secret(SECRET)
    spellings = (SECRET, base64.b64encode(key).decode(), key.hex(), repr(key)[2:-1])
    assert len(told) > 20
    assert not [text for text in told for spelling in spellings if spelling in text]


async def test_an_owner_who_lost_access_is_told_and_all_that_waits_is_dropped(
    made: Made, endpoint: Hook
):
    here, publisher = made
    await here.subscribe(endpoint.url, owner=BOB)
    for _ in range(5):
        await publisher.opened(owner=BOB)
    here.allowed.discard(BOB)
    async with here.sending():
        await endpoint.until(lambda seen: len(seen.envelopes) == 1)
        await here.nothing_waits()
    assert len(endpoint.posted) == 1
