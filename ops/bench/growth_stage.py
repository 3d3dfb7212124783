"""The same requests on small and on very large stores, and on a task of ten thousand events.

    python ops/bench/growth_stage.py [SIZES...] [--database-url URL]

`measure` fills one store for each size, starts an `outlast serve` on each, and asks them in turn,
so that whatever slows the machine down slows all of them. Few connections: this is about what a
request costs, and not about how many fit into a second. `get`, `update` and `cancel` go to tasks
all over the store, so none is answered from a page that is warm by chance. A run of creations makes
the store larger: `stored_after` says by how much.
"""

import argparse
import asyncio
import json
import os
import secrets
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.postgres import Database
from outlast.adapters.run_queue import PostgresDispatcher
from outlast.delivery.port import AFTER_META_KEY
from outlast.domain import decisions
from outlast.domain.owner import LOCAL_OWNER
from outlast.domain.queueing import LEASE_S
from outlast.ops.bench import contenders, contests, delivery, load, seeding, usage
from outlast.ops.bench.contenders import META, Contender, body
from outlast.ops.bench.stores import stores

ROUNDS = 5
FEW, SOME = 1, 16  # connections
SHOT_S = 3
CREATE_S = 2  # of creations, so that a small store stays small
WARM = 20  # creations before the first shot
ASKED = 1_000
BEHIND = 100  # versions that a reader of the long task has missed
LISTENERS, LISTEN_RATE, LISTEN_S, LISTEN_RUNS = 100, 50, 4.0, 3
CLAIMS = 200
MICRO = 1e6

Figures = dict[str, dict[str, Any]]
Runs = dict[str, list[float]]


@dataclass(frozen=True)
class _Shot:
    """One kind of request: which bodies, of what method, for how long."""

    name: str
    method: str
    path: Path
    seconds: int
    connections: int = FEW


@dataclass(frozen=True)
class _Store:
    """One filled store."""

    size: int
    url: str
    seeded: seeding.Seeded


def measure(
    sizes: Sequence[int], folder: Path, server: str | None = None, rounds: int = ROUNDS
) -> Figures:
    """A group of figures for each size, and one for each kind of task in the smallest store.

    Medians over the rounds of p50 and p99 in ms; `_cpu_us` is processor time for an answer, of the
    service and of PostgreSQL. `server` is a URL to make databases on; without one an embedded
    server is started.
    """
    with stores(server, len(sizes)) as urls:
        filled: list[_Store] = []
        for size, url in zip(sorted(sizes), urls, strict=True):
            begun = time.monotonic()
            # Two of them: one is asked about, and one is cancelled.
            filled.append(_Store(size, url, seeding.fill(url, size, asked=ASKED, long=2)))
            print(f"  {size:,} tasks were stored in {time.monotonic() - begun:.0f} s", flush=True)
        figures = _asked(filled, folder, rounds)
        for number in range(min(rounds, LISTEN_RUNS)):
            for store in filled:
                _add(figures[_name(store)], _heard(store, folder), f"  run {number + 1}")
        for store in filled:
            _add(figures[_name(store)], asyncio.run(_claimed(store.url)), "  claims")
            figures[_name(store)]["stored_after"] = [contests.stored(store.url)]
    return {
        group: {name: _middle(values) for name, values in runs.items()}
        for group, runs in figures.items()
    }


def _name(store: _Store) -> str:
    return f"{store.size:,} tasks"


def _middle(values: Sequence[float]) -> float:
    return values[0] if len(values) == 1 else round(median(values), 3)


def _add(runs: Runs, found: dict[str, float], told: str) -> None:
    for name, value in found.items():
        runs.setdefault(name, []).append(value)
    print(
        f"{told}: {', '.join(f'{name} {value:.2f}' for name, value in found.items())}", flush=True
    )


def _asked(filled: Sequence[_Store], folder: Path, rounds: int) -> dict[str, Runs]:
    """All that is asked over HTTP: of each store in turn, and of single tasks in the smallest."""
    figures: dict[str, Runs] = {_name(store): {"stored": [store.size]} for store in filled}
    with contenders.starting(folder) as start:
        at = [contenders.ours(start, store.url, folder, f"at {store.size}") for store in filled]
        for server in at:
            contenders.created(server, WARM)  # the upstream is connected, and plans are made
        shots = [_of_store(store, folder) for store in filled]
        single = _of_tasks(filled[0], folder)
        for number in range(rounds):
            for row in zip(*shots, strict=True):
                for store, server, shot in zip(filled, at, row, strict=True):
                    found = _fired(server, store.url, shot)
                    _add(figures[_name(store)], found, f"  round {number + 1}, {_name(store)}")
            for group, asked in single.items():
                for shot in asked:
                    found = _fired(at[0], filled[0].url, shot)
                    _add(figures.setdefault(group, {}), found, f"  round {number + 1}, {group}")
    return figures


def _of_store(store: _Store, folder: Path) -> list[_Shot]:
    gets = [body(n, "tasks/get", taskId=task) for n, task in enumerate(store.seeded.asked)]
    get = load.write_bodies(folder / f"get-{store.size}", gets, '"resultType":"complete"')
    calls = [
        body(n, "tools/call", name=contenders.TOOL, arguments={"task": str(n)})
        for n in range(ASKED)
    ]
    create = load.write_bodies(folder / f"create-{store.size}", calls, '"resultType":"task"')
    return [
        _Shot("get", "tasks/get", get, SHOT_S),
        _Shot("get_of_some", "tasks/get", get, SHOT_S, SOME),
        _Shot("create", "tools/call", create, CREATE_S),
        _Shot("create_of_some", "tools/call", create, CREATE_S // 2, SOME),
    ]


def _of_tasks(store: _Store, folder: Path) -> dict[str, list[_Shot]]:
    """The same of one task that is short and of one that is long."""
    asked, cancelled = store.seeded.long
    ordinary = store.seeded.asked[0]
    behind = {AFTER_META_KEY: {asked: seeding.LONG_EVENTS - BEHIND}}
    missed = body(1, "tasks/get", taskId=asked)
    missed["params"] = {**missed["params"], "_meta": META | behind}
    shots: dict[str, list[_Shot]] = {}
    for group, ids in (
        ("an ordinary task", (ordinary, ordinary)),
        (f"a task of {seeding.LONG_EVENTS:,} events", (asked, cancelled)),
    ):
        bodies = {
            "get": body(1, "tasks/get", taskId=ids[0]),
            "update": body(1, "tasks/update", taskId=ids[0], inputResponses={"in-99": {}}),
            "cancel": body(1, "tasks/cancel", taskId=ids[1]),
        }
        if ids[0] == asked:
            bodies["watch"] = missed
        shots[group] = [
            _Shot(
                name,
                each["method"],
                load.write_bodies(folder / f"{name}-{ids[0]}", [each]),
                CREATE_S,
            )
            for name, each in bodies.items()
        ]
    return shots


def _fired(server: Contender, url: str, shot: _Shot) -> dict[str, float]:
    """One shot, after a short one that warms up."""
    fire = partial(load.run, server.url, shot.path, shot.method, connections=shot.connections)
    if shot.name.startswith(("get", "watch")):
        fire(seconds=1)
    pids = {"cpu_us": server.pid, "store_cpu_us": usage.postmaster(url)}
    before = {name: usage.tree_cpu_s(pid) for name, pid in pids.items() if pid is not None}
    run = fire(seconds=shot.seconds)
    if run.refused:
        raise RuntimeError(f"{server.name} refused {run.refused} of {shot.method}")
    found = {f"{shot.name}_p50_ms": run.p50_ms, f"{shot.name}_p99_ms": run.p99_ms}
    for name, used in before.items():
        pid = pids[name]
        assert pid is not None
        spent = usage.tree_cpu_s(pid) - used
        found[f"{shot.name}_{name}"] = spent / max(1, run.answered) * MICRO
    return found


def _heard(store: _Store, folder: Path) -> dict[str, float]:
    """From an append to its frame, on a server of its own that runs no tasks."""
    wanted = argparse.Namespace(listeners=LISTENERS, rate=LISTEN_RATE, seconds=LISTEN_S)
    found = asyncio.run(delivery.latency(store.url, folder, wanted))
    if found["lost"]:
        raise RuntimeError(f"changes did not arrive: {found}")
    return {
        "listen_p50_ms": found["p50_ms"],
        "listen_p99_ms": found["p99_ms"],
        "append_p50_ms": found["append_p50_ms"],
    }


async def _claimed(url: str) -> dict[str, float]:
    """One claim of one task, while others wait."""
    async with AsyncExitStack() as stack:
        database = Database(url)
        await database.open()
        stack.push_async_callback(database.close)
        log = PostgresEventLog(database)
        stack.callback(log.close)
        dispatcher = PostgresDispatcher(database)
        taken: list[float] = []
        for number in range(CLAIMS):
            opening = seeding.opening(secrets.token_urlsafe(32), LOCAL_OWNER, datetime.now(UTC))
            await log.append(None, decisions.open_task(opening))
            begun = time.monotonic()
            if not await dispatcher.claim(f"bench:{number}", 1, LEASE_S):
                raise RuntimeError("there was nothing to claim")
            taken.append((time.monotonic() - begun) * 1_000)
    return {
        "claim_p50_ms": delivery.percentile(taken, 0.5),
        "claim_p99_ms": delivery.percentile(taken, 0.99),
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("sizes", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--database-url", default=os.environ.get("OUTLAST_TEST_DATABASE_URL"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ol-bench-") as folder:
        figures = measure(wanted.sizes, Path(folder), wanted.database_url, wanted.rounds)
    print(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
