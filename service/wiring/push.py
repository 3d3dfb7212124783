"""Events and webhooks: what they are read from, and what sends them."""

from dataclasses import dataclass

from ...adapters import (
    outbox,
    owner_events,
    postgres,
    sealing as at_rest,
    signal,
    webhooks,
)
from ...delivery.events.cursors import Cursors
from ...delivery.events.occurrences import Occurrences
from ...delivery.feed import Feed
from ...delivery.webhook.challenge import Challenger
from ...delivery.webhook.exchange import WebhookClient
from ...delivery.webhook.sender import Around, Sealing, Sender, SenderStores
from ...delivery.webhook.signing import ServerKey
from ...delivery.webhook.subscriptions import Rules, SubscriptionMethods, SubscriptionStores
from ...domain.ports import Identity
from ...domain.push import WebhookSubscription
from ..config import Config
from ..operators import Ask
from .store import now


@dataclass(frozen=True)
class PushStores:
    """What push is read from, and what it waits in."""

    events: owner_events.PostgresOwnerEvents
    outbox: outbox.PostgresOutbox
    subscriptions: webhooks.PostgresWebhookSubscriptions
    occurrences: Occurrences
    feed: Feed
    signal: signal.PostgresSignal


@dataclass(frozen=True)
class Push:
    """What leaves by itself. Without webhooks there is no `sender`, and nobody subscribes."""

    stores: PushStores
    cursors: Cursors
    sender: Sender | None
    methods: SubscriptionMethods | None
    ask: Ask | None = None
    server_key: ServerKey | None = None


def stores_of(
    store: postgres.Database,
    feed: Feed,
    heard: signal.PostgresSignal,
    sealer: at_rest.Sealer,
) -> PushStores:
    """The stores of one database."""
    return PushStores(
        owner_events.PostgresOwnerEvents(store),
        outbox.PostgresOutbox(store, sealer),
        webhooks.PostgresWebhookSubscriptions(store),
        Occurrences(feed),
        feed,
        heard,
    )


def build_push(
    config: Config,
    stores: PushStores,
    who: Identity,
    sealing: Sealing,
    around: Around | None = None,
) -> Push:
    """All of it, as far as the configuration wants it."""
    given = config.events
    if not (given.enabled and given.webhooks):
        return Push(stores, sealing.cursors, None, None)
    client = WebhookClient(
        allow_loopback_http=given.development, ports=given.ports, extra_ca=given.ca_file
    )
    challenger = Challenger(client, now, sealing.server)
    rules = Rules(
        given.development,
        given.ports,
        given.subscriptions_per_owner,
        given.subscriptions,
        given.ttl / 1000,
        given.ttl_max / 1000,
    )
    sender = Sender(
        SenderStores(stores.outbox, stores.subscriptions, stores.occurrences, stores.signal),
        client,
        sealing,
        now,
        who.knows,
        around=around,
    )
    kept = SubscriptionStores(stores.subscriptions, stores.outbox, stores.events, stores.feed)
    methods = SubscriptionMethods(kept, sealing.cursors, sealing.vault, challenger, rules, now)

    async def ask(known: WebhookSubscription) -> str | None:
        secret = sealing.vault.open(known.secret, known.id)
        return await challenger.ask(known.key.url, known.id, secret)

    return Push(stores, sealing.cursors, sender, methods, ask, sealing.server)
