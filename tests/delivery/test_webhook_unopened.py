"""By webhook, a task that cannot be opened here is tried again on the schedule, and is noted."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from outlast.adapters import codec
from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.outbox import PostgresOutbox
from outlast.adapters.task_view import PostgresTaskViews
from outlast.delivery.events.occurrences import Occurrences, event_id
from outlast.delivery.feed import Feed
from outlast.delivery.webhook import schedule
from outlast.delivery.webhook.exchange import WebhookClient
from outlast.delivery.webhook.sender import RETRY, Sealing, Sender, SenderStores
from outlast.delivery.webhook.vault import Vault
from outlast.domain import draft
from outlast.tests.delivery.webhook_world import ALICE, KEY, World, hook, now, world
from outlast.tests.support.publishing import Publisher
from outlast.tests.support.sealed import NEW, OLD, sealer

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Made:
    """A process that has the new key, who publishes under it, and who does under the old one."""

    here: World
    sender: Sender
    known: Publisher
    unknown: Publisher


@pytest.fixture
async def made(database_url: str) -> AsyncIterator[Made]:
    async with world(database_url) as (here, _):
        keeper = sealer(here.database, [NEW])
        log = PostgresEventLog(here.database, sealer=keeper)
        former = PostgresEventLog(here.database, sealer=sealer(here.database, [OLD]))
        feed = Feed(PostgresTaskViews(here.database, keeper), log, codec.wire_of, now)
        outbox = PostgresOutbox(here.database, keeper)
        sender = Sender(
            SenderStores(outbox, here.subscriptions, Occurrences(feed), here.signal),
            WebhookClient(allow_loopback_http=True),
            Sealing(here.cursors, Vault(KEY)),
            now,
            here.allowed.__contains__,
        )
        yield Made(here, sender, Publisher(log), Publisher(former))
        await sender.drain()
        log.close()
        former.close()


async def test_what_does_not_open_waits_on_the_schedule_and_the_rest_is_told(made: Made):
    async with hook() as endpoint:
        granted = await made.here.subscribe(endpoint.url)
        lost = await made.unknown.opened(owner=ALICE)
        good = await made.known.opened(owner=ALICE)
        made.sender.start()
        await endpoint.got(2)

        async def are_settled() -> bool:
            return made.sender.counts[RETRY] >= 2

        await made.here.until_true(are_settled)
        assert {post.content["data"]["taskId"] for post in endpoint.posted} == {good}
    noted = await made.here.outbox.attempts(granted["id"], event_id(draft.TASK_UPDATED, lost, 1))
    first = noted[-1]
    assert (first.number, first.step, first.category, first.status_class) == (1, RETRY, None, None)
    assert first.event == (lost, 1)
    [waits] = await made.here.database.rows(
        "SELECT count(*), min(attempts), bool_or(is_leased),"
        " max(due) - now() < %s * '1 s'::interval FROM outlast.webhook_deliveries",
        schedule.DELAYS_S[3],
    )
    assert waits == (2, 1, False, True)
    # It says nothing of the endpoint.
    stored = await made.here.subscriptions.get(granted["id"])
    assert stored is not None
    assert (stored.last_error, stored.failed_since) == (None, None)
    rows = await made.here.database.rows("SELECT failures FROM outlast.webhook_endpoints")
    assert rows == [(0,)]


async def test_what_never_opens_is_given_up_at_the_end_of_the_schedule(made: Made):
    async with hook() as endpoint:
        granted = await made.here.subscribe(endpoint.url)
        lost = await made.unknown.opened(owner=ALICE)
        await made.here.database.rows(
            "UPDATE outlast.webhook_deliveries SET attempts = %s", schedule.ATTEMPTS_MAX - 1
        )
        made.sender.start()
        await made.here.nothing_waits()
        assert endpoint.posted == []
    noted = await made.here.outbox.attempts(granted["id"])
    assert {(each.event, each.step) for each in noted} == {
        ((lost, 1), "abandoned"),
        ((lost, 2), "abandoned"),
    }
