"""What is seen of a process: its traces, and the figures that have labels."""

import asyncio
import os
from collections.abc import Mapping

from ... import __version__
from ...adapters import event_log
from ...delivery.webhook.sender import Around
from ...domain import errors
from ...domain.audit import TreeFollowing
from ...domain.operating import Operations
from ...domain.ports import EventLog, TaskViews, Upstreams
from ..commands import Commands
from ..figures import Counters, Families, Histograms
from ..metrics import Standing
from ..settings import Settings
from ..throttle import Throttle
from ..tracing import exporting
from ..tracing.tracing import TracedLog, TracedUpstreams, Tracing
from .push import Push
from .store import now

KEPT_S = 2.0  # whoever asks for the store's figures again within this is told the same


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


def families_of(log: event_log.PostgresEventLog, push: Push, throttle: Throttle) -> Families:
    """What appends, deliveries and refusals of this process are counted by."""
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
        "outlast_refusals": Counters(
            "Requests refused because a limit was reached, by the limit's name.",
            ("limit",),
            lambda: {(limit,): count for limit, count in throttle.refusals.items()},
        ),
    }
    if sender is not None:
        found["outlast_webhook_attempts"] = Counters(
            "Attempts at webhook deliveries, by what came of them.",
            ("category",),
            lambda: sender.categories,
        )
    return found


def standing_of(
    operations: Operations, views: TaskViews, following: TreeFollowing | None
) -> Standing:
    """What the store says of all processes. It never raises: a page without a store is a page.

    Without `following` nobody builds the audit tree, and a tree that stands still is not behind.
    """
    one, loop_time = asyncio.Lock(), lambda: asyncio.get_running_loop().time()
    found: Mapping[str, float] = {}
    until = 0.0

    async def waiting() -> Mapping[str, float]:
        nonlocal found, until
        async with one:  # asked by many, it looks once
            if loop_time() >= until:
                found, until = await _waiting(operations, views), loop_time() + KEPT_S
            return found

    async def read() -> dict[str, float]:
        try:
            waits, tree = await waiting(), await _of_the_tree(following)
        except errors.StoreUnavailable:
            return {"outlast_store_up": 0.0}
        return {**waits, "outlast_store_up": 1.0, **tree}

    return read


async def _of_the_tree(following: TreeFollowing | None) -> Mapping[str, float]:
    if following is None:
        return {}
    tree = await following.standing()
    told = {
        "outlast_audit_lag_events": float(max(tree.head - tree.position, 0)),
        "outlast_audit_unsigned_leaves": float(tree.size - tree.checkpointed),
    }
    if tree.age_s is not None:
        told["outlast_audit_checkpoint_age_seconds"] = tree.age_s
    return told


async def _waiting(operations: Operations, views: TaskViews) -> Mapping[str, float]:
    load, end = await operations.load(), await views.next_end()
    overdue_s = 0.0 if end is None else (now() - end).total_seconds()
    return {
        "outlast_queue_depth": float(load.queue.due),
        "outlast_queue_oldest_seconds": load.queue.oldest_s or 0.0,
        "outlast_tasks_held": float(load.held),
        "outlast_outbox_depth": float(load.outbox.due + load.outbox.later),
        "outlast_outbox_oldest_seconds": load.outbox.oldest_s or 0.0,
        "outlast_expiry_lag_seconds": max(overdue_s, 0.0),
    }
