"""What a benchmark of webhooks stands on: stores, tasks that go on, and the ends as processes."""

import asyncio
import json
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.postgres import Database
from outlast.adapters.webhooks import PostgresWebhookSubscriptions
from outlast.delivery.events.occurrences import event_id
from outlast.delivery.webhook.vault import Vault
from outlast.domain import decisions, draft
from outlast.domain.events import TaskOpened
from outlast.domain.owner import Owner
from outlast.domain.push import Filter, SubscriptionKey, SubscriptionWish
from outlast.domain.task import Task
from outlast.ops.bench import webhook_ends

ANSWER_S_MAX = 60.0
OWNERS = 16
FAN_OUT = 4  # subscriptions of each owner: appends take turns, so one a delivery would be the limit
IN_FLIGHT = 32  # appends at once
BACKLOG = """
INSERT INTO outlast.webhook_deliveries
    (subscription_id, url, position, task_id, version, due, attempts)
SELECT 'other-' || n %% %(others)s, 'https://other-' || n %% %(others)s || '.example/hook', n,
    md5(n::text), 3, clock_timestamp() + make_interval(secs => 3600 + 60000 * random()), 1
FROM generate_series(1, %(waiting)s) AS n
"""
ENDPOINTS = """
INSERT INTO outlast.webhook_endpoints (url)
SELECT 'https://other-' || n || '.example/hook' FROM generate_series(0, %(others)s - 1) AS n
"""
SUBSCRIPTIONS = """
INSERT INTO outlast.webhook_subscriptions (id, owner, url, name, arguments, secret, begins)
SELECT 'other-' || n, 'other', 'https://other-' || n || '.example/hook', 'task.updated', '{}', '', 0
FROM generate_series(0, %(others)s - 1) AS n
"""


class Process:
    """One of the ends."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def asked(self, line: Any) -> Any:
        """What it answers to one line."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(line).encode() + b"\n")
        async with asyncio.timeout(ANSWER_S_MAX):
            answer = await process.stdout.readline()
        if not answer:
            raise SystemExit("an end gave up; what it said stands above")
        return json.loads(answer)


@asynccontextmanager
async def running(role: str) -> AsyncIterator[Process]:
    """A process in this role; the end of its stdin ends it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(webhook_ends.__file__)), role),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        limit=1 << 28,
    )
    try:
        yield Process(process)
    finally:
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                await process.communicate(b"")
        finally:
            if process.returncode is None:
                process.kill()


def fill(url: str, others: int, waiting: int) -> None:
    """Endpoints of somebody else, and deliveries that wait there for another attempt."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in (ENDPOINTS, SUBSCRIPTIONS, BACKLOG):
            connection.execute(statement, {"others": others, "waiting": waiting})


def now() -> datetime:
    """The instant."""
    return datetime.now(UTC)


def owner(number: int) -> str:
    """The key of one of the owners that publish."""
    return Owner("bench", f"owner-{number}", "default").key


async def subscribe(url: str, owner_key: str, endpoint: str) -> None:
    """All changes of this owner's tasks, to this endpoint; the challenge left out."""
    database = Database(url)
    await database.open()
    identity = "sub-" + secrets.token_hex(8)
    try:
        await PostgresWebhookSubscriptions(database).put(
            SubscriptionWish(
                identity,
                SubscriptionKey(owner_key, endpoint, draft.TASK_UPDATED, identity),
                Filter(draft.TASK_UPDATED),
                Vault(webhook_ends.KEY).seal(bytes(32), identity),
                None,
                1 << 60,
            ),
            1_000_000,
            0.0,
        )
    finally:
        await database.close()


class Writer:
    """Tasks that go on. `stamps`: when the append of each change was begun, and returned."""

    def __init__(self, log: PostgresEventLog) -> None:
        self._log = log
        self._idle: asyncio.Queue[Task] = asyncio.Queue()
        self.stamps: dict[str, tuple[int, int]] = {}

    async def open(self, owners: Sequence[str], count: int) -> None:
        """Tasks that a worker runs."""
        gate = asyncio.Semaphore(IN_FLIGHT)

        async def one(number: int) -> None:
            opening = TaskOpened(
                task_id=secrets.token_urlsafe(32),
                version=1,
                at=decisions.instant(now()),
                owner=owners[number % len(owners)],
                upstream="bench",
                tool="run_ci_pipeline",
                arguments={"branch": "main"},
                client_capabilities={},
                ttl_ms=3_600_000,
                poll_interval_ms=2_000,
                timeout_ms=None,
                rerun_is_safe=False,
            )
            async with gate:
                task = await self._log.append(None, decisions.open_task(opening))
                begun = decisions.start_work(task, "bench", now())
                self._idle.put_nowait(await self._log.append(task, begun))

        await asyncio.gather(*[one(number) for number in range(count)])

    async def change(self) -> float:
        """One change of the task that has been idle the longest; how many ms it took."""
        task = await self._idle.get()
        step = task.version
        happened = decisions.report_progress(task, task.attempt, step, None, f"step {step}", now())
        begun = time.monotonic_ns()
        task = await self._log.append(task, happened)
        returned = time.monotonic_ns()
        self.stamps[event_id(draft.TASK_UPDATED, task.id, task.version)] = begun, returned
        self._idle.put_nowait(task)
        return (returned - begun) / 1e6


@dataclass(frozen=True)
class Stage:
    """What a run of deliveries needs."""

    writer: Writer
    receiver: Process
    sender: Process


@asynccontextmanager
async def stage(url: str, receiver: Process, ports: list[int], tasks: int) -> AsyncIterator[Stage]:
    """Owners with their subscriptions, tasks that run, and a sender with nothing to do."""
    owners = [owner(number) for number in range(OWNERS)]
    log = PostgresEventLog(Database(url))
    writer = Writer(log)
    try:
        await writer.open(owners, tasks)
        for number in range(OWNERS * FAN_OUT):
            endpoint = f"http://127.0.0.1:{ports[number % len(ports)]}/hooks/{number}"
            await subscribe(url, owners[number // FAN_OUT], endpoint)
        async with running("sender") as sender:
            await sender.asked({"url": url})
            yield Stage(writer, receiver, sender)
    finally:
        log.close()
