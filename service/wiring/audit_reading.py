"""What auditors read the log with, and what makes the views anew."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ...adapters import codec, event_reader, postgres, rebuild, sealing, view_verification
from ...adapters.audit_log import PostgresAuditLog
from ...adapters.audit_tree import PostgresAuditTree
from ...adapters.positions import PostgresPositions
from ...domain.views import Rebuilding, ViewAudit
from ..access import Access
from ..audit_http import AuditPages
from ..auditing.exporting import Exporter
from ..auditing.history import Historian
from ..settings import Settings
from .process import Built
from .store import sealer_of


@dataclass(frozen=True)
class Reading:
    """The readers of one store."""

    historian: Historian
    exporter: Exporter


@asynccontextmanager
async def audit_reading(settings: Settings, url: str) -> AsyncGenerator[Reading]:
    """The readers alone, over an upgraded store."""
    store = postgres.Database(url)
    await store.open()
    try:
        sealer, log = sealer_of(settings, store), PostgresAuditLog(store)
        read, positions = event_reader.EventReader(sealer).read, PostgresPositions(store)
        source = settings.audit_source or f"/outlast/{await positions.epoch()}"
        yield Reading(Historian(log, read, codec.wire_of), Exporter(log, positions, read, source))
    finally:
        await store.close()


def audit_pages(built: Built, access: Access) -> AuditPages:
    """The same for a process that serves, behind its door."""
    log, reader = PostgresAuditLog(built.store), event_reader.EventReader(built.sealer)
    tree = PostgresAuditTree(built.store)

    async def newest() -> str | None:
        checkpoint = await tree.newest()
        return None if checkpoint is None else checkpoint.note + checkpoint.cosignatures

    return AuditPages(Historian(log, reader.read, codec.wire_of), newest, access)


@asynccontextmanager
async def view_audit(settings: Settings, url: str) -> AsyncGenerator[ViewAudit]:
    """What holds every view against the log."""
    async with _sealer(settings, url) as sealer:
        yield view_verification.ViewVerification(url, sealer)


@asynccontextmanager
async def rebuilding(settings: Settings, url: str) -> AsyncGenerator[Rebuilding]:
    """What makes every view anew."""
    async with _sealer(settings, url) as sealer:
        yield rebuild.Rebuild(url, sealer)


@asynccontextmanager
async def _sealer(settings: Settings, url: str) -> AsyncGenerator[sealing.Sealer]:
    store = postgres.Database(url)
    await store.open()
    try:
        yield sealer_of(settings, store)
    finally:
        await store.close()
