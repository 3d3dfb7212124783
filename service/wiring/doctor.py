"""What `outlast doctor` looks with."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from ... import __version__
from ...adapters import audit_tree, diagnosis, operations, postgres, upstream
from ...delivery.webhook import address
from ...delivery.webhook.challenge import Challenger
from ...delivery.webhook.exchange import WebhookClient
from ...delivery.webhook.network import system_lookup
from ...domain.audit import Standing
from ...domain.diagnosing import Manners, StoreFacts
from ...domain.operating import Load
from ..config import Config
from ..doctor.visit import Instruments
from ..settings import Settings
from .process import upstreams_of
from .store import CONNECTIONS_MAX, database, now


class _Store:
    """Two that look from outside, and two that look like a process of ours.

    Its pool begins with the latter: it would complain of a database that is away, or of no URL, in
    its own words, and take one of the few connections that a role may have.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._own: postgres.Database | None = None
        self._outside = diagnosis.PostgresDiagnosis(url)

    async def facts(self) -> StoreFacts:
        return await self._outside.facts()

    async def manners(self) -> Manners:
        return await self._outside.manners()

    async def load(self) -> Load:
        with diagnosis.with_reasons(self._url):
            return await operations.PostgresOperations(await self._opened()).load()

    async def standing(self) -> Standing:
        with diagnosis.with_reasons(self._url):
            return await audit_tree.PostgresTreeFollowing(await self._opened()).standing()

    async def _opened(self) -> postgres.Database:
        if self._own is None:
            self._own = postgres.Database(self._url)
            await self._own.open()
        return self._own

    async def close(self) -> None:
        if self._own is not None:
            await self._own.close()


def doctor(settings: Settings, config: Config) -> Instruments:
    """The instruments for a service with these settings."""

    @asynccontextmanager
    async def store() -> AsyncGenerator[_Store]:
        with database(settings, share=True) as url:
            looked_at = _Store(url)
            try:
                yield looked_at
            finally:
                await looked_at.close()

    @asynccontextmanager
    async def upstreams() -> AsyncGenerator[upstream.McpUpstreams]:
        async with upstreams_of(config) as made:
            yield made

    async def probe(url: str) -> str | None:
        return await _probe(config, url)

    return Instruments(store, upstreams, probe, CONNECTIONS_MAX, __version__)


async def _probe(config: Config, url: str) -> str | None:
    """Why no webhook arrives at this URL. For operators, who may learn what subscribers may not."""
    given = config.events
    try:
        place = address.check_url(url, allow_loopback_http=given.development, ports=given.ports)
        local = given.development and address.names_loopback(place.host)
        address.judged(system_lookup(place.host), loopback=local)
    except (address.UrlRefused, address.AddressRefused) as refused:
        return refused.reason
    except OSError:
        return "the name leads nowhere"
    client = WebhookClient(
        allow_loopback_http=given.development, ports=given.ports, extra_ca=given.ca_file
    )
    async with client:
        asking = Challenger(client, now, server=None)
        return await asking.ask(url, f"doctor_{secrets.token_hex(8)}", secrets.token_bytes(32))
