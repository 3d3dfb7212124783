"""What is seen of a process: its traces, and the figures that have labels."""

import os

from ... import __version__
from ...adapters import event_log, standing
from ...delivery.webhook.sender import Around
from ...domain import errors
from ...domain.audit import TreeFollowing
from ...domain.ports import EventLog, Upstreams
from ..commands import Commands
from ..figures import Counters, Families, Histograms
from ..metrics import Standing
from ..settings import Settings
from ..tracing import exporting
from ..tracing.tracing import TracedLog, TracedUpstreams, Tracing
from .push import Push


def tracing_of(settings: Settings, instance: str) -> Tracing | None:
    """None where nothing is to be traced. Raises ConfigurationError."""
    return exporting.tracing(settings.traces, os.environ, __version__, instance)


def traced_log(log: EventLog, tracing: Tracing | None) -> EventLog:
    """The same log, traced if anything is."""
    return log if tracing is None else TracedLog(log, tracing.tracer)


def traced_upstreams(upstreams: Upstreams, tracing: Tracing | None) -> Upstreams:
    """The same upstreams, traced if anything is."""
    return upstreams if tracing is None else TracedUpstreams(upstreams, tracing.tracer)


def around_deliveries(commands: Commands, tracing: Tracing | None) -> Around | None:
    """What watches the attempts at deliveries."""
    if tracing is None:
        return None

    async def place_of(task_id: str) -> "dict[str, str] | None":
        opened = (await commands.load(task_id)).opened
        return None if opened.trace is None else dict(opened.trace)

    return tracing.delivering(place_of).around


def families_of(log: event_log.PostgresEventLog, push: Push) -> Families:
    """What appends and deliveries of this process are counted by."""
    commits, sender = log.commits, push.sender
    found: dict[str, Counters | Histograms] = {
        "outlast_appends": Counters(
            "Appends to tasks: those that create one, and all others.",
            ("kind",),
            lambda: commits.appends,
        ),
        "outlast_append_batch_size": Histograms(
            "How many appends were committed together.", (), lambda: {(): commits.sizes}
        ),
        "outlast_append_batch_seconds": Histograms(
            "How long they took.", (), lambda: {(): commits.times}
        ),
    }
    if sender is not None:
        found["outlast_webhook_attempts"] = Counters(
            "Attempts at webhook deliveries, by what came of them.",
            ("category",),
            lambda: sender.categories,
        )
    return found


def standing_of(store: standing.PostgresStanding, following: TreeFollowing) -> Standing:
    """What the store says of all processes. It never raises: a page without a store is a page."""

    async def read() -> dict[str, float]:
        try:
            found, tree = await store.read(), await following.standing()
        except errors.StoreUnavailable:
            return {"outlast_store_up": 0.0}
        found = {
            **found,
            "outlast_store_up": 1.0,
            "outlast_audit_lag_events": float(max(tree.head - tree.position, 0)),
            "outlast_audit_unsigned_leaves": float(tree.size - tree.checkpointed),
        }
        if tree.age_s is not None:
            found["outlast_audit_checkpoint_age_seconds"] = tree.age_s
        return found

    return read
