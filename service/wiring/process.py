"""The objects of one process, connected to each other."""

import os
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from socket import gethostname

from ...adapters import (
    announcements,
    codec,
    event_log,
    oauth,
    postgres,
    retention,
    run_queue,
    sealing,
    server_key,
    signal,
    task_view,
    upstream,
    upstream_names,
)
from ...delivery.events.cursors import Cursors
from ...delivery.feed import Feed
from ...delivery.webhook import signing
from ...delivery.webhook.sender import Sealing
from ...delivery.webhook.vault import Vault
from ...domain import errors
from ...domain.ports import Announcements, Dispatcher, Identity, Upstreams
from ..bridging import status_tool, upstream_tasks
from ..bridging.port import Bridge
from ..callbacks import Tickets
from ..commands import Commands
from ..config import Config, Upstream
from ..retention import Retention
from ..settings import Settings
from ..tracing.tracing import Tracing
from ..workbench import Workbench
from ..worker import Stores, Worker
from .audit import Auditing, auditing_of
from .draining import Drain
from .identity import identity_of, issuers_of
from .push import Push, PushStores, build_push, stores_of
from .store import now, sealer_of
from .telemetry import around_deliveries, traced_log, traced_upstreams, tracing_of


@dataclass(frozen=True)
class Kept:
    """What stands on the store alone. No two processes have one `name`."""

    name: str
    tracing: Tracing | None
    store: postgres.Database
    sealer: sealing.Sealer
    log: event_log.PostgresEventLog
    views: task_view.PostgresTaskViews
    dispatcher: Dispatcher
    commands: Commands
    retention: Retention


@dataclass(frozen=True)
class Built(Kept):
    """One process's objects, connected to each other and not yet opened."""

    key: str
    tickets: Tickets
    identity: Identity
    issuers: oauth.OAuthTokens | None
    feed: Feed
    push: Push
    signal: signal.PostgresSignal
    upstreams: upstream.McpUpstreams
    announcements: Announcements
    worker: Worker
    auditing: Auditing
    claims: bool  # whether it takes tasks from the queue

    @property
    def called(self) -> Upstreams:
        """The upstreams, as their tools are called: traced, if anything is."""
        return traced_upstreams(self.upstreams, self.tracing)

    @asynccontextmanager
    async def running(self, drain_s: float, drain: Drain | None = None) -> AsyncGenerator[None]:
        """Open everything, work, and on the way out drain the worker and close in reverse.

        Where a server ends before, in `drain`, the worker gets what that has left of `drain_s`.
        """
        await self.store.open()
        await self.signal.open()
        self.worker.start()
        if self.push.sender is not None:
            self.push.sender.start()
        for loop in self.auditing.loops:
            loop.start()
        try:
            yield
        finally:
            await self.worker.drain(drain_s if drain is None else drain.left_of(drain_s))
            for loop in self.auditing.loops:
                await loop.stop()
            if self.push.sender is not None:
                await self.push.sender.drain()
            await self.upstreams.close()
            if self.issuers is not None:
                await self.issuers.close()
            await self.signal.close()
            self.log.close()
            await self.store.close()
            if self.tracing is not None:
                await self.tracing.close()

    async def is_ready(self) -> bool:
        """True while the store answers."""
        try:
            await self.store.rows("SELECT 1")
        except errors.StoreUnavailable:
            return False
        return True


async def build(  # noqa: PLR0913 - what only some processes have is named
    settings: Settings,
    config: Config,
    url: str,
    *,
    claims: bool = True,
    address: str | None = None,
    upstreams: upstream.McpUpstreams | None = None,
) -> Built:
    """The objects of a process that serves or works, over an upgraded store.

    `address` is where this process is reached, if it is and no `public_url` says it better.
    `upstreams` are those that were there before the store, if any.
    """
    own_key, epoch = await server_key.read(url)
    key = settings.secret_key or own_key
    kept = _kept(settings, config, url)
    heard = signal.PostgresSignal(url, kept.store)
    upstreams, issuers = upstreams or upstreams_of(config), issuers_of(config)
    tickets = Tickets(key, settings.public_url or address)
    bench = _bench(config, kept, upstreams, heard, tickets)
    who = identity_of(settings, issuers)
    feed = Feed(kept.views, kept.log, codec.wire_of, now, kept.retention.end)
    seals = Sealing(Cursors(key, epoch), Vault(key), _signing_key(settings))
    stores = Stores(kept.dispatcher, kept.retention)
    return Built(
        **vars(kept),
        key=key,
        tickets=tickets,
        identity=who,
        issuers=issuers,
        feed=feed,
        push=_push(config, kept, stores_of(kept.store, feed, heard, kept.sealer), who, seals),
        signal=heard,
        upstreams=upstreams,
        announcements=announcements.UpstreamAnnouncements(upstreams),
        worker=Worker(kept.name, bench, stores, slots=settings.slots, claims=claims),
        auditing=auditing_of(settings, kept.store, own_key),
        claims=claims,
    )


def _push(config: Config, kept: Kept, stores: PushStores, who: Identity, seals: Sealing) -> Push:
    return build_push(config, stores, who, seals, around_deliveries(kept.commands, kept.tracing))


def _bench(
    config: Config,
    kept: Kept,
    upstreams: upstream.McpUpstreams,
    heard: signal.PostgresSignal,
    tickets: Tickets,
) -> Workbench:
    bench = Workbench(
        kept.commands,
        traced_upstreams(upstreams, kept.tracing),
        heard,
        tickets.offer,
        *_bridging(config, upstreams),
    )
    return bench if kept.tracing is None else replace(bench, around=kept.tracing.run)


def upstreams_of(config: Config) -> upstream.McpUpstreams:
    """The servers that the file names. Nothing is started or connected yet."""
    return upstream.McpUpstreams([_upstream(*item) for item in config.upstreams.items()])


def _status_bridges(config: Config) -> status_tool.PolicyOf:
    """The policies that name a status tool, by what the upstreams call their tools."""
    names = upstream_names.Names(list(config.upstreams))
    return lambda upstream, tool: config.policies.of(names.name(upstream, tool)).bridge


def _bridging(
    config: Config, upstreams: upstream.McpUpstreams
) -> tuple[Sequence[Bridge], Callable[[str, str], bool]]:
    """What follows jobs, and of which tools the upstream's own tasks are followed.

    Not where the policy has a bridge to a tool's jobs: what such a task ends with is a job.
    """
    policy_of = _status_bridges(config)
    bridges = status_tool.StatusTools(upstreams, policy_of), upstream_tasks.UpstreamTasks(upstreams)
    makers = {name for name, given in config.upstreams.items() if given.makes_tasks}
    return bridges, lambda name, tool: name in makers and policy_of(name, tool) is None


def _kept(settings: Settings, config: Config, url: str) -> Kept:
    name = _name()
    tracing, store = tracing_of(settings, name), postgres.Database(url)
    sealer = sealer_of(settings, store)
    log = event_log.PostgresEventLog(store, config.limits.quotas, sealer)
    views = task_view.PostgresTaskViews(store, sealer)
    most_running = config.limits.running_per_owner
    dispatcher = run_queue.PostgresDispatcher(store, running_per_owner=most_running)
    commands = Commands(traced_log(log, tracing), now)
    past = retention.PostgresPastTasks(store, sealer)
    period = timedelta(seconds=settings.audit_period_s)
    kept = Retention(commands, views, past, period)
    return Kept(name, tracing, store, sealer, log, views, dispatcher, commands, kept)


def _name() -> str:
    """No two workers share one, on whatever machines."""
    return f"{gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def _signing_key(settings: Settings) -> signing.ServerKey | None:
    given = settings.webhook_signing_key
    return None if given is None else signing.ServerKey.parse(given)


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
