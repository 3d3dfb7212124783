"""The objects of one process, connected to each other."""

import os
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from socket import gethostname

from ...adapters import (
    announcements,
    codec,
    event_log,
    identity,
    postgres,
    run_queue,
    server_key,
    signal,
    task_view,
    upstream,
)
from ...delivery.events.cursors import Cursors
from ...delivery.feed import Feed
from ...delivery.webhook import signing
from ...delivery.webhook.sender import Sealing
from ...delivery.webhook.vault import Vault
from ...domain import errors
from ...domain.ports import Announcements, Dispatcher, Identity
from ..callbacks import Tickets
from ..commands import Commands
from ..config import Config, Upstream
from ..run import Workbench
from ..settings import Settings
from ..worker import Stores, Worker
from .push import Push, build_push, stores_of
from .store import now


@dataclass(frozen=True)
class Built:
    """One process's objects, connected to each other and not yet opened."""

    key: str
    tickets: Tickets
    identity: Identity
    feed: Feed
    push: Push
    store: postgres.Database
    log: event_log.PostgresEventLog
    views: task_view.PostgresTaskViews
    dispatcher: Dispatcher
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


async def build(
    settings: Settings,
    config: Config,
    url: str,
    *,
    claims: bool = True,
    address: str | None = None,
) -> Built:
    """The objects of a `serve` or `worker` process, over an upgraded store.

    `address` is where this process is reached, if it is and no `public_url` says it better.
    """
    own_key, epoch = await server_key.read(url)
    key = settings.secret_key or own_key
    store = postgres.Database(url)
    log = event_log.PostgresEventLog(store)
    views, heard = task_view.PostgresTaskViews(store), signal.PostgresSignal(url, store)
    upstreams = upstream.McpUpstreams([_upstream(*item) for item in config.upstreams.items()])
    commands = Commands(log, now)
    tickets = Tickets(key, settings.public_url or address)
    bench = Workbench(commands, upstreams, heard, tickets.offer)
    stores = Stores(views, run_queue.PostgresDispatcher(store))
    who, feed = _identity(settings), Feed(views, log, codec.wire_of, now)
    sealing = Sealing(Cursors(key, epoch), Vault(key), _signing_key(settings))
    return Built(
        key=key,
        tickets=tickets,
        identity=who,
        feed=feed,
        push=build_push(config, stores_of(store, feed, heard), who, sealing),
        store=store,
        log=log,
        views=views,
        dispatcher=stores.dispatcher,
        signal=heard,
        upstreams=upstreams,
        announcements=announcements.UpstreamAnnouncements(upstreams),
        commands=commands,
        worker=Worker(_name(), bench, stores, slots=settings.slots, claims=claims),
    )


def _name() -> str:
    """No two workers share one, on whatever machines."""
    return f"{gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def _signing_key(settings: Settings) -> signing.ServerKey | None:
    given = settings.webhook_signing_key
    return None if given is None else signing.ServerKey.parse(given)


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
