"""The whole visit: which checks there are, and in which order."""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...domain import errors
from ...domain.audit import Standing
from ...domain.diagnosing import Manners, StoreFacts, StoreNotReached
from ...domain.operating import Load
from ...domain.ports import Upstreams
from ..config import Config
from ..settings import Settings
from . import configuration, store
from .deployment import check_deployment
from .finding import Finding, ok, problem
from .upstreams import check_upstreams
from .webhook import Probe, check_webhook


class StoreDoctor(Protocol):
    """What can be asked of a store. Raises StoreUnavailable."""

    async def facts(self) -> StoreFacts:
        """How it is set."""
        ...

    async def manners(self) -> Manners:
        """How it treats connections."""
        ...

    async def load(self) -> Load:
        """What waits there."""
        ...

    async def standing(self) -> Standing:
        """How far the audit tree is."""
        ...


@dataclass(frozen=True)
class Instruments:
    """What the checks look with."""

    store: Callable[[], AbstractAsyncContextManager[StoreDoctor]]
    upstreams: Callable[[], AbstractAsyncContextManager[Upstreams]]
    probe: Probe
    connections_each: int
    version: str


@dataclass(frozen=True)
class Wanted:
    """What is to be looked at. Without `url` no running service is asked."""

    path: Path | None
    url: str | None
    token: str | None
    webhook: str | None


async def visit(
    settings: Settings, config: Config, wanted: Wanted, with_: Instruments
) -> AsyncIterator[Finding]:
    """Every finding, as it is found."""
    for finding in _settings(settings, config, wanted.path):
        yield finding
    async for finding in _store(settings, with_):
        yield finding
    async with with_.upstreams() as upstreams:
        for finding in await check_upstreams(upstreams, list(config.upstreams)):
            yield finding
    if wanted.webhook is not None:
        yield await check_webhook(wanted.webhook, with_.probe)
    if wanted.url is not None:
        for finding in await check_deployment(wanted.url, with_.version, wanted.token):
            yield finding


def _settings(settings: Settings, config: Config, path: Path | None) -> Iterator[Finding]:
    yield from configuration.check_reach(settings, config)
    yield from configuration.check_keys(settings, config)
    yield from configuration.check_files(settings, path, os.environ)
    yield from configuration.check_webhooks(config, os.environ)


async def _store(settings: Settings, with_: Instruments) -> AsyncGenerator[Finding]:
    try:
        async with with_.store() as asked:
            facts = await asked.facts()
            for finding in _facts(facts, settings.processes, with_.connections_each):
                yield finding
            if facts.is_standby:
                return  # there is nothing to listen to, and nobody is meant to work on it
            manners = await asked.manners()
            for finding in store.check_connections(manners):
                yield finding
            # Without prepared statements none of what follows can be asked.
            if manners.prepares and not facts.lacks:
                for finding in await _standing(asked, has_tree=settings.audit):
                    yield finding
    except StoreNotReached as error:
        yield problem(
            "database",
            f"The database cannot be reached, or not be looked at: {error.reason}.",
            "Correct database_url, or start PostgreSQL and let this machine and role in, with the"
            " rights of the schema's owner and the connections that it wants.",
        )
    except errors.StoreUnavailable:
        yield problem("database", "The database went away.", "See its log, and look again.")


def _facts(facts: StoreFacts, processes: int, each: int) -> Iterator[Finding]:
    yield ok("database", "The database answers.")
    yield from store.check_server(facts)
    yield from store.check_durability(facts)
    yield from store.check_settings(facts, processes, each)
    yield from store.check_schema(facts)
    yield from store.check_clock(facts)


async def _standing(asked: StoreDoctor, *, has_tree: bool) -> list[Finding]:
    found = list(store.check_work(await asked.load()))
    # Where nobody builds the tree, nobody is late with it; `check_keys` says that there is none.
    return [*found, *store.check_follower(await asked.standing())] if has_tree else found
