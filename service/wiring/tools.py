"""What has no service behind it: the operators' part, and the receiving half."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from ...adapters import (
    inbox,
    private_file,
    retention,
)
from ...delivery.remote import ANSWER_S_MAX, CONNECT_S_MAX, Remote
from ...delivery.webhook.keyring import MemoryKeyring
from ...delivery.webhook.receiver import Receiver
from ...delivery.webhook.reception import Reception
from ...delivery.webhook.subscriber import Subscribing, Wish
from ...domain import draft
from ..config import Config
from ..operators import Operators
from ..purging import Purge, PurgeStores
from ..receiving import Wanted
from ..settings import Settings
from .process import Built, build
from .store import now


def operators(built: Built) -> Operators:
    """What operators may do with the webhooks of this store."""
    push = built.push
    return Operators(push.stores.subscriptions, push.stores.outbox, push.ask, now)


@asynccontextmanager
async def operating(settings: Settings, config: Config, url: str) -> AsyncGenerator[Operators]:
    """The operators' part alone: nothing is claimed here, and nothing that waits is sent."""
    built = await build(settings, config, url, claims=False)
    await built.store.open()
    try:
        yield operators(built)
    finally:
        if built.push.sender is not None:
            await built.push.sender.drain()
        built.log.close()
        await built.store.close()


@asynccontextmanager
async def purging(settings: Settings, config: Config, url: str) -> AsyncGenerator[Purge]:
    """What removes an owner's data; nothing is claimed or sent here."""
    built = await build(settings, config, url, claims=False)
    await built.store.open()
    past = retention.PostgresPastTasks(built.store, built.sealer)
    owned = retention.PostgresOwnedData(built.store)
    try:
        yield Purge(built.commands, PurgeStores(built.views, past, owned))
    finally:
        if built.push.sender is not None:
            await built.push.sender.drain()
        built.log.close()
        await built.store.close()


async def scrub(url: str) -> Sequence[str]:
    """Vacuum what was erased from; the tables where that was not allowed."""
    return await retention.scrub(url)


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
