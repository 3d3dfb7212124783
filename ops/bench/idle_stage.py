"""What a `serve` costs while nothing happens: processor time, memory, and what it asks the store.

`measure` starts one on a database of its own with an upstream behind it, gives it time to come to
rest, and watches it. Once nothing is stored; once a thousand tasks wait for all that tasks can wait
for: an answer, a job elsewhere with an end and without one, and their owner's turn. No task moves
meanwhile, so whatever is used is the price of being there.
"""

import asyncio
import json
import secrets
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import psycopg

from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.postgres import Database
from outlast.domain import decisions
from outlast.domain.decisions import Ask
from outlast.domain.events import TaskOpened
from outlast.domain.owner import LOCAL_OWNER
from outlast.domain.task import evolve
from outlast.ops.bench import contenders
from outlast.ops.bench.delivery import Server
from outlast.tests.support.ports import free_port

SETTLE_S = 12.0  # by then the audit has followed what was stored before
KIB = 1024
AT_ONCE = 8
DAY_MS = 86_400_000
QUESTION = Ask("go", {"method": "elicitation/create", "params": {"mode": "form", "message": "Go?"}})
WAITING = 1_000
# One of the owner's tasks runs and never ends; the others that could run wait for their turn.
CONFIG = """
[upstreams.bench]
command = {command}
[quotas]
running_per_owner = 1
working_per_owner = "unlimited"
"""


def measure(
    url: str, folder: Path, *, seconds: float = 60.0, waiting: int = WAITING
) -> dict[str, dict[str, Any]]:
    """The figures of an idle `serve` by what is stored: `nothing`, then `waiting` tasks.

    Each has `cpu_percent` of one core, `rss_mib` of the process without its upstream, and
    `statements_per_s`. `url` is a migrated database with no task in it, used by nobody else;
    `folder` takes the configuration and the log.
    """
    found = {"idle, nothing stored": _watched(url, folder, seconds)}
    if waiting:
        asyncio.run(_filled(url, waiting))
        found[f"idle, {waiting:,} tasks wait"] = _watched(url, folder, seconds)
    return found


def _watched(url: str, folder: Path, seconds: float) -> dict[str, Any]:
    port = free_port()
    config = folder / "idle.toml"
    command = [sys.executable, str(contenders.PEERS), "tool"]
    config.write_text(CONFIG.format(command=json.dumps(command)))
    outlast = str(Path(sys.executable).with_name("outlast"))
    serve = (outlast, "serve", "--config", str(config), "--port", str(port))
    with contenders.running("idle", serve, port, folder, OUTLAST_DATABASE_URL=url) as contender:
        server = Server(contender.pid, port, url)
        _connect_upstream(contender)
        time.sleep(SETTLE_S)
        used, asked, begun = server.cpu_s(), _statements(url), time.monotonic()
        time.sleep(seconds)
        lasted = time.monotonic() - begun
        return {
            "cpu_percent": (server.cpu_s() - used) / lasted * 100,
            "rss_mib": server.rss_kib() / KIB,
            "statements_per_s": (_statements(url) - asked) / lasted,
        }


def _connect_upstream(contender: contenders.Contender) -> None:
    """An upstream is connected at the first need of it."""
    asked = contenders.body(1, "tools/list")
    with httpx2.Client(trust_env=False, timeout=contenders.ANSWER_S_MAX) as http:
        answer = http.post(contender.url, json=asked, headers=contenders.headers(asked))
    answer.raise_for_status()


def _statements(url: str) -> int:
    """How many transactions this database has seen; a statement of ours is one."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database"
            " WHERE datname = current_database()"
        ).fetchone()
    assert row is not None
    return row[0]


async def _filled(url: str, count: int) -> None:
    """So many tasks that wait, a quarter of them for each thing."""
    store = Database(url)
    log, gate = PostgresEventLog(store), asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with gate:
            await log.append(None, _history(number))

    try:
        await asyncio.gather(*(one(number) for number in range(count)))
    finally:
        log.close()


def _history(number: int) -> decisions.Events:
    now = datetime.now(UTC)
    opening = TaskOpened(
        task_id=secrets.token_urlsafe(32),
        version=1,
        at=decisions.instant(now),
        owner=LOCAL_OWNER.key,
        upstream="bench",
        tool=contenders.TOOL,
        arguments={"task": str(number)},
        client_capabilities={"elicitation": {"form": {}}},
        ttl_ms=DAY_MS,
        poll_interval_ms=2_000,
        timeout_ms=None,
        rerun_is_safe=True,
    )
    begun = evolve(None, opening)
    (started,) = decisions.start_work(begun, "bench", now)
    running = evolve(begun, started)
    tomorrow = now + timedelta(days=1)
    match number % 4:
        case 0:
            return (opening,)
        case 1:
            asked = decisions.finish_leg(running, 1, (QUESTION,), None, now)
        case 2:
            asked = decisions.delegate(running, 1, tomorrow, now)
        case _:
            asked = decisions.delegate(running, 1, None, now)
    return (opening, started, *asked)
