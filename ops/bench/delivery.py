"""How fast a change reaches its listeners, and what ten thousand idle streams cost.

    make bench-delivery [ARGS="--out FILE --listeners 1000 --rate 100 --seconds 20 --streams 10000"]

One `outlast serve` (which runs no tasks), PostgreSQL, this writer and a process of raw listeners,
all on one machine over loopback. Latency runs from just before the writer's append is called to the
moment the whole frame has arrived: so the commit itself is inside it, and the true time from commit
to frame is shorter. Beside it stands the time from the append's return, which is too short by the
way of its reply and may be negative. Changes are paced by the clock, not by their completion.
"""

import argparse
import asyncio
import json
import os
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import psycopg

from outlast.adapters import migrations
from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.postgres import Database
from outlast.domain import decisions
from outlast.domain.events import TaskOpened
from outlast.domain.owner import LOCAL_OWNER
from outlast.domain.task import Task
from outlast.ops.bench.stores import stores
from outlast.ops.bench.table import Floor, show, write

HERE = Path(__file__).parent
READY_S_MAX = 30.0
ANSWER_S_MAX = 180.0
SETTLE_S = 3.0  # before the first change and after the last
IDLE_AFTER_S = 35.0  # by then the timers that opening a stream sets have run out
OPEN_AT_ONCE = 32
KIB = 1024
# One owner opens all of them, faster than any client would.
CONFIG = """
[upstreams.none]
command = ["true"]
[quotas]
calls_per_minute = "unlimited"
"""
FLOORS = {
    "lost": Floor(0.0),
    "p99_ms": Floor(50.0, "ms"),
    "kib_per_stream": Floor(40.0, "KiB"),
    "idle_cpu_percent": Floor(2.0, "%"),
    "more_connections": Floor(0.0),
}


class Server:
    """A running `outlast serve`, as the kernel sees it."""

    def __init__(self, pid: int, port: int, url: str) -> None:
        self.pid, self.port, self._url = pid, port, url

    def rss_kib(self) -> int:
        """Resident memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        raise LookupError(self.pid)

    def cpu_s(self) -> float:
        """Processor time used so far, in user and kernel mode."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def connections(self) -> int:
        """Connections to the database, but for the one that asks and the writer's."""
        with psycopg.connect(self._url) as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid()"
            ).fetchone()
        assert row is not None
        return row[0]


@asynccontextmanager
async def serving(url: str, folder: Path) -> AsyncIterator[Server]:
    """A server that runs no tasks; stopped by SIGTERM."""
    environment = {
        "OUTLAST_DATABASE_URL": url,
        "OUTLAST_WATCHES": "100000",
        "OUTLAST_WATCHES_PER_OWNER": "100000",
    }
    outlast = Path(sys.executable).with_name("outlast")
    config = folder / "bench.toml"
    config.write_text(CONFIG)
    with (folder / "serve.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(str(outlast), "serve", "--config", str(config), "--no-work", "--port", "0"),
            cwd=folder,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(READY_S_MAX):
            said = (await process.stdout.readline()).decode()
        yield Server(process.pid, httpx2.URL(said.split()[-1]).port or 0, url)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


@asynccontextmanager
async def listening(server: Server, tasks: list[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of listeners, once all of them listen."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE / "listeners.py"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        limit=256 * KIB * KIB,
    )
    try:
        await _said(process, {"port": server.port, "tasks": tasks})
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _said(process: asyncio.subprocess.Process, line: Any) -> Any:
    """What the process answers to one line."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(line).encode() + b"\n")
    async with asyncio.timeout(ANSWER_S_MAX):
        await process.stdin.drain()
        answer = await process.stdout.readline()
    if not answer:
        raise SystemExit("the listeners gave up; what they said stands above")
    return json.loads(answer)


def _now() -> datetime:
    return datetime.now(UTC)


async def started(log: PostgresEventLog, count: int) -> list[Task]:
    """Tasks that a worker of ours runs."""
    gate = asyncio.Semaphore(OPEN_AT_ONCE)

    async def one() -> Task:
        opening = TaskOpened(
            task_id=secrets.token_urlsafe(32),
            version=1,
            at=decisions.instant(_now()),
            owner=LOCAL_OWNER.key,
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
            task = await log.append(None, decisions.open_task(opening))
            return await log.append(task, decisions.start_work(task, "bench", _now()))

    return await asyncio.gather(*[one() for _ in range(count)])


Stamps = dict[tuple[str, int], tuple[int, int]]  # task, version: append begun, append returned


async def changes(log: PostgresEventLog, tasks: list[Task], rate: int, seconds: float) -> Stamps:
    """One change of the next task every 1/rate seconds, by the clock."""
    stamps: Stamps = {}
    latest = list(tasks)

    async def change(place: int, step: int) -> None:
        task = latest[place]
        happened = decisions.report_progress(task, task.attempt, step, None, f"step {step}", _now())
        begun = time.monotonic_ns()
        latest[place] = await log.append(task, happened)
        stamps[task.id, latest[place].version] = begun, time.monotonic_ns()

    loop = asyncio.get_running_loop()
    start = loop.time()
    async with asyncio.TaskGroup() as group:
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, start + number / rate - loop.time()))
            group.create_task(change(number % len(latest), number))
    return stamps


def percentile(values: list[float], share: float) -> float:
    """The value that this share of all does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def latency(url: str, folder: Path, wanted: argparse.Namespace) -> dict[str, Any]:
    """From the writer's append to the listener's frame."""
    store = Database(url)
    log = PostgresEventLog(store)
    try:
        tasks = await started(log, wanted.listeners)
        async with serving(url, folder) as server, listening(server, [t.id for t in tasks]) as far:
            await asyncio.sleep(SETTLE_S)
            used, begun = server.cpu_s(), time.monotonic()
            stamps = await changes(log, tasks, wanted.rate, wanted.seconds)
            cpu = (server.cpu_s() - used) / (time.monotonic() - begun) * 100
            await asyncio.sleep(SETTLE_S)
            arrived = await _said(far, "stop")
    finally:
        log.close()
    return {
        "listeners": wanted.listeners,
        "rate": wanted.rate,
        **_latencies(stamps, arrived),
        "server_cpu_percent": cpu,
    }


def _latencies(stamps: Stamps, arrived: dict[str, list[tuple[int, int]]]) -> dict[str, Any]:
    seen = {(task, version): at for task, pairs in arrived.items() for version, at in pairs}
    met = [(seen[key], *stamp) for key, stamp in stamps.items() if key in seen]
    whole = [(at - begun) / 1e6 for at, begun, _ in met]
    after = [(at - returned) / 1e6 for at, _, returned in met]
    appends = [(returned - begun) / 1e6 for begun, returned in stamps.values()]
    return {
        "changes": len(stamps),
        "lost": len(stamps) - len(met),
        "p50_ms": percentile(whole, 0.5),
        "p99_ms": percentile(whole, 0.99),
        "max_ms": max(whole),
        "after_return_p50_ms": percentile(after, 0.5),
        "after_return_p99_ms": percentile(after, 0.99),
        "append_p50_ms": percentile(appends, 0.5),
        "append_p99_ms": percentile(appends, 0.99),
    }


async def idleness(url: str, folder: Path, wanted: argparse.Namespace) -> dict[str, Any]:
    """What streams cost on which nothing happens."""
    store = Database(url)
    log = PostgresEventLog(store)
    tasks = [task.id for task in await started(log, wanted.streams)]
    log.close()
    async with serving(url, folder) as server:
        # What a first request allocates for good is not the price of a stream.
        async with listening(server, tasks[: len(tasks) // 10]):
            await asyncio.sleep(SETTLE_S)
        await asyncio.sleep(SETTLE_S)
        before, connections = server.rss_kib(), server.connections()
        begun = time.monotonic()
        async with listening(server, tasks):
            opened_s = time.monotonic() - begun
            await asyncio.sleep(IDLE_AFTER_S)
            used, begun = server.cpu_s(), time.monotonic()
            await asyncio.sleep(wanted.quiet)
            cpu = (server.cpu_s() - used) / (time.monotonic() - begun) * 100
            after, connected = server.rss_kib(), server.connections()
    return {
        "streams": wanted.streams,
        "opened_s": opened_s,
        "rss_before_mib": before / KIB,
        "rss_with_mib": after / KIB,
        "kib_per_stream": (after - before) / wanted.streams,
        "idle_cpu_percent": cpu,
        "connections_without": connections,
        "connections_with": connected,
        "more_connections": max(0, connected - connections),
    }


def arguments() -> argparse.Namespace:
    """How large, how long, and where to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, default=Path("build/bench-delivery.json"))
    parser.add_argument("--database-url", default=os.environ.get("OUTLAST_TEST_DATABASE_URL"))
    parser.add_argument("--listeners", type=int, default=1_000)
    parser.add_argument("--rate", type=int, default=100, help="changes a second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--quiet", type=float, default=30.0, help="seconds to watch idle streams")
    return parser.parse_args()


async def measured(url: str, folder: Path, wanted: argparse.Namespace) -> dict[str, Any]:
    """Both tables."""
    await migrations.upgrade(url)
    figures: dict[str, Any] = {}
    if wanted.listeners:
        figures["changes"] = await latency(url, folder, wanted)
    if wanted.streams:
        figures["idle streams"] = await idleness(url, folder, wanted)
    return figures


def main() -> int:
    """Measure, print, write; 1 if a floor is missed."""
    wanted = arguments()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    with (
        tempfile.TemporaryDirectory(prefix="ol-bench-") as folder,
        stores(wanted.database_url, 1) as (url,),
    ):
        figures = asyncio.run(measured(url, Path(folder), wanted))
    all_met = show(figures, FLOORS)
    write(wanted.out, figures)
    return 0 if all_met else 1


if __name__ == "__main__":
    raise SystemExit(main())
