"""The only place that names concrete classes: what is built from which settings."""

import logging
import os
import secrets
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from socket import gethostname
from typing import Any

import httpx2

from .. import __version__
from ..adapters import (
    announcements,
    codec,
    event_log,
    identity,
    inbox,
    migrations,
    outbox,
    owner_events,
    postgres,
    private_file,
    run_queue,
    server_key,
    signal,
    task_view,
    upstream,
    webhooks,
)
from ..adapters.embedded import EmbeddedServer, find_running
from ..delivery.events.cursors import Cursors
from ..delivery.events.occurrences import Occurrences
from ..delivery.feed import Feed
from ..delivery.limits import WatchLimits
from ..delivery.listen import Listening, ListenMethod
from ..delivery.polling import PollingMethod
from ..delivery.port import Poller
from ..delivery.remote import ANSWER_S_MAX, CONNECT_S_MAX, Remote
from ..delivery.webhook.challenge import Challenger
from ..delivery.webhook.exchange import WebhookClient
from ..delivery.webhook.keyring import MemoryKeyring
from ..delivery.webhook.receiver import Receiver
from ..delivery.webhook.reception import Reception
from ..delivery.webhook.sender import Sealing, Sender, SenderStores
from ..delivery.webhook.signing import ServerKey
from ..delivery.webhook.subscriber import Subscribing, Wish
from ..delivery.webhook.subscriptions import Rules, SubscriptionMethods, SubscriptionStores
from ..delivery.webhook.vault import Vault
from ..delivery.websocket import Switchboard
from ..domain import draft, errors
from ..domain.ports import Announcements, Identity
from .app import Parts
from .catalogue import Catalogue
from .commands import Commands
from .config import Config, Upstream
from .endpoint import Endpoint, Method
from .guard import Guard
from .methods.discovery import DiscoveryMethods
from .methods.tasks import TaskMethods
from .methods.tools import Bench, ToolMethods
from .metrics import Figure, Metrics
from .receiving import Wanted
from .run import Workbench
from .sealing import StateSeal
from .settings import Settings
from .socket import Socket
from .worker import Stores, Worker

_log = logging.getLogger("outlast")


def now() -> datetime:
    """The clock of the service."""
    return datetime.now(UTC)


@contextmanager
def database(settings: Settings, *, share: bool = False) -> Generator[str]:
    """The URL of the store: the one given, or an embedded server's that lives as long as this.

    With `share`, an embedded server that another process already owns is used instead.
    """
    if settings.database_url is not None:
        yield settings.database_url
        return
    running = find_running(settings.data_folder) if share else None
    if running is not None:
        yield running
        return
    with EmbeddedServer.start(settings.data_folder) as server:
        yield server.url


async def upgrade(url: str) -> list[str]:
    """Bring the schema up to this release; the names of the steps applied."""
    return await migrations.upgrade(url)


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


@dataclass(frozen=True)
class Built:
    """One process's objects, connected to each other and not yet opened."""

    key: str
    identity: Identity
    feed: Feed
    push: Push
    store: postgres.Database
    log: event_log.PostgresEventLog
    views: task_view.PostgresTaskViews
    dispatcher: run_queue.PostgresDispatcher
    signal: signal.PostgresSignal
    upstreams: upstream.McpUpstreams
    announcements: Announcements
    commands: Commands
    worker: Worker

    @asynccontextmanager
    async def running(self, drain_s: float) -> AsyncGenerator[None]:
        """Open everything, work, and on the way out drain the worker and close in reverse."""
        await self.store.open()
        await self.signal.open()
        self.worker.start()
        if self.push.sender is not None:
            self.push.sender.start()
        try:
            yield
        finally:
            await self.worker.drain(drain_s)
            if self.push.sender is not None:
                await self.push.sender.drain()
            await self.upstreams.close()
            await self.signal.close()
            self.log.close()
            await self.store.close()

    async def is_ready(self) -> bool:
        """True while the store answers."""
        try:
            await self.store.rows("SELECT 1")
        except errors.StoreUnavailable:
            return False
        return True


async def build(settings: Settings, config: Config, url: str, *, claims: bool = True) -> Built:
    """The objects of a `serve` or `worker` process, over an upgraded store."""
    own_key, epoch = await server_key.read(url)
    key = settings.secret_key or own_key
    store = postgres.Database(url)
    log = event_log.PostgresEventLog(store)
    views, dispatcher = task_view.PostgresTaskViews(store), run_queue.PostgresDispatcher(store)
    heard = signal.PostgresSignal(url, store)
    upstreams = upstream.McpUpstreams([_upstream(*item) for item in config.upstreams.items()])
    announced = announcements.UpstreamAnnouncements(upstreams)
    commands = Commands(log, now)
    worker = Worker(
        f"{gethostname()}:{os.getpid()}:{secrets.token_hex(4)}",
        Workbench(commands, upstreams, heard),
        Stores(views, dispatcher),
        slots=settings.slots,
        claims=claims,
    )
    who = _identity(settings)
    feed = Feed(views, log, codec.wire_of, now)
    signing_key = settings.webhook_signing_key
    server = None if signing_key is None else ServerKey.parse(signing_key)
    sealing = Sealing(Cursors(key, epoch), Vault(key), server)
    push = _push(config, _push_stores(store, feed, heard), who, sealing)
    return Built(
        key,
        who,
        feed,
        push,
        store,
        log,
        views,
        dispatcher,
        heard,
        upstreams,
        announced,
        commands,
        worker,
    )


def _push_stores(store: postgres.Database, feed: Feed, heard: signal.PostgresSignal) -> PushStores:
    return PushStores(
        owner_events.PostgresOwnerEvents(store),
        outbox.PostgresOutbox(store),
        webhooks.PostgresWebhookSubscriptions(store),
        Occurrences(feed),
        feed,
        heard,
    )


def _push(config: Config, stores: PushStores, who: Identity, sealing: Sealing) -> Push:
    given = config.events
    if not (given.enabled and given.webhooks):
        return Push(stores, sealing.cursors, None, None)
    client = WebhookClient(
        allow_loopback_http=given.development, ports=given.ports, extra_ca=given.ca_file
    )
    rules = Rules(
        given.development,
        given.ports,
        given.subscriptions_per_owner,
        given.ttl / 1000,
        given.ttl_max / 1000,
    )
    sender = Sender(
        SenderStores(stores.outbox, stores.subscriptions, stores.occurrences, stores.signal),
        client,
        sealing,
        now,
        who.knows,
    )
    methods = SubscriptionMethods(
        SubscriptionStores(stores.subscriptions, stores.outbox, stores.events, stores.feed),
        sealing.cursors,
        sealing.vault,
        Challenger(client, now, sealing.server),
        rules,
        now,
    )
    return Push(stores, sealing.cursors, sender, methods)


def parts(settings: Settings, config: Config, built: Built) -> Parts:
    """The application over built objects."""
    who, feed = built.identity, built.feed
    guard = Guard(settings.allowed_hosts, settings.allowed_origins)
    limits = WatchLimits(settings.watches, settings.watches_per_owner)
    listening = Listening(feed, built.signal, built.announcements, limits)
    listener = ListenMethod(listening)

    def wind_down() -> None:
        listening.closing.set()
        built.worker.stop_claiming()

    endpoint = Endpoint(
        _methods(config, built, StateSeal(built.key), PollingMethod(feed)),
        listener,
        who,
        guard,
        {"name": "outlast", "version": __version__},
        require_task_name=settings.require_task_name_header,
    )
    socket = Socket(lambda send, refuse: Switchboard(listener, send, refuse), who, guard)
    return Parts(
        endpoint,
        socket,
        Metrics(_figures(built, limits), who, guard),
        built.is_ready,
        lambda: built.running(settings.drain_s),
        wind_down,
    )


@asynccontextmanager
async def receiving(wanted: Wanted) -> AsyncGenerator[Reception]:
    """A webhook endpoint and its subscription, as an earlier process left them. Not yet served."""
    wanted.inbox.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    headers = {} if wanted.token is None else {"Authorization": f"Bearer {wanted.token}"}
    capabilities = {"extensions": {draft.EVENTS_EXTENSION: dict[str, Any]()}}
    timeout = httpx2.Timeout(ANSWER_S_MAX, connect=CONNECT_S_MAX)
    store, keyring = await inbox.SqliteInbox.open(wanted.inbox, now), MemoryKeyring()
    try:
        async with httpx2.AsyncClient(timeout=timeout) as http:
            remote = Remote(wanted.server, http, headers, capabilities)
            yield await Reception.resumed(
                Receiver(store, keyring, now),
                Subscribing(remote, keyring, store, now),
                Wish(wanted.url, wanted.name, wanted.arguments, wanted.ttl_ms),
                private_file.PrivateFile(wanted.record),
            )
    finally:
        await store.close()


def _figures(built: Built, limits: WatchLimits) -> Mapping[str, Figure]:
    return {
        "outlast_signal_live": Figure(
            "1 while changes are heard of at once; 0 while waiters look for them every second.",
            lambda: float(built.signal.is_live),
        ),
        "outlast_watches_open": Figure(
            "Watches that clients hold open.", lambda: limits.open_count
        ),
        "outlast_calls_running": Figure(
            "Calls that this process runs now.", lambda: built.worker.running_count
        ),
    }


def _methods(config: Config, built: Built, seal: StateSeal, poller: Poller) -> Mapping[str, Method]:
    catalogue = Catalogue(built.upstreams)
    tasks = TaskMethods(built.commands, poller)
    discovery = DiscoveryMethods(catalogue)
    bench = Bench(built.commands, built.views, built.upstreams, built.worker)
    tools = ToolMethods(bench, catalogue, config.policies, seal)
    return {
        "server/discover": discovery.discover,
        "tools/list": discovery.tools,
        "tools/call": tools.call,
        "tasks/get": tasks.get,
        "tasks/update": tasks.update,
        "tasks/cancel": tasks.cancel,
    }


def _identity(settings: Settings) -> Identity:
    if settings.tokens_file is not None:
        return identity.StaticTokens.read(settings.tokens_file)
    return identity.LocalIdentity()


def _upstream(name: str, given: Upstream) -> upstream.UpstreamSettings:
    return upstream.UpstreamSettings(
        name=name,
        command=given.command,
        url=given.url,
        era=given.era,
        env=given.env or None,
        cwd=given.cwd,
        headers=given.headers or None,
    )
