"""One subscription by itself: where another process goes on, and how it is let go."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from outlast.delivery.webhook.subscriber import Record, Subscriber, Wish
from outlast.domain import errors
from outlast.tests.delivery.events_server import Client, Refusal, webhook_client

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(tmp_path: Path) -> AsyncGenerator[Client]:
    async with webhook_client(tmp_path) as made:
        yield made


def wish(client: Client) -> Wish:
    return Wish(client.url, "task.finished", {}, None)


async def test_another_process_goes_on_from_the_later_of_answer_and_delivery(client: Client):
    first = Subscriber(client.shared, wish(client))
    grant = await first.subscribe()
    assert first.record is not None
    left = Record.parse(first.record.to_json())
    assert left == first.record
    cursors: list[str] = []
    for stored in (None, "c5", None):
        if stored is not None:
            await client.inbox.store(grant.subscription_id, stored, stored, b"{}")
        client.server.cursor += 10
        await Subscriber(client.shared, wish(client), left).subscribe()
        cursors.append(client.server.asked("events/subscribe")[-1]["cursor"])
    assert cursors == ["g0", "c5", "c5"]
    second = Subscriber(client.shared, wish(client), left)
    await second.subscribe()
    await second.subscribe()  # nothing was delivered since the answer, which is the later one
    assert client.server.asked("events/subscribe")[-1]["cursor"] == "g30"
    assert client.server.asked("events/subscribe")[-1]["ttlMs"] is None


async def test_a_known_secret_is_good_before_the_first_answer(client: Client):
    first = Subscriber(client.shared, wish(client))
    grant = await first.subscribe()
    client.keyring.forget(grant.subscription_id)
    Subscriber(client.shared, wish(client), first.record)
    assert await client.server.deliver(client.server.advance("t1")) == 204


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"subscription_id":"s"}', b"\xff"])
async def test_a_record_that_is_none_is_ignored(text: bytes):
    assert Record.parse(text) is None


async def test_what_the_server_no_longer_knows_is_unsubscribed(client: Client):
    ours = Subscriber(client.shared, wish(client))
    await ours.subscribe()
    client.server.subscriptions.clear()
    await ours.unsubscribe()
    await ours.unsubscribe()
    assert client.server.count("events/unsubscribe") == 1


async def test_an_unsubscribe_call_that_was_refused_otherwise_is_an_error(client: Client):
    ours = Subscriber(client.shared, wish(client))
    await ours.subscribe()
    client.server.faults.append(Refusal(-32012))
    with pytest.raises(errors.RequestRefused):
        await ours.unsubscribe()
