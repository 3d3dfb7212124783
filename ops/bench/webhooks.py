"""How fast signed webhooks leave, and what a backlog and subscriptions cost.

    make bench-webhooks [ARGS="--out FILE --seconds 15 --waiting 300000 --database-url URL"]

PostgreSQL, this writer, one sender and a receiver that answers 204 at once are four programs on one
machine; every delivery is an event that the real append recorded. `sustained` keeps so many
deliveries ahead of the receiver and counts what arrives. Latency is taken at half of the floor for
that, by the clock, and runs from just before the append is called to the moment the whole POST has
been received: so the commit itself is inside it. Claims and appends that are compared take turns,
so that what else the machine does falls on all of them. `--quick` is small and judges nothing.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.postgres import Database
from outlast.delivery.webhook.exchange import PER_HOST_MAX
from outlast.delivery.webhook.sender import LEASE_S, SLOTS
from outlast.ops.bench import delivery
from outlast.ops.bench.stores import stores
from outlast.ops.bench.table import Floor, show, write
from outlast.ops.bench.webhook_stage import (
    FAN_OUT,
    IN_FLIGHT,
    Process,
    Stage,
    Writer,
    fill,
    owner,
    running,
    stage,
    subscribe,
)

PORTS = 4  # hosts, to the sender's caps
TASKS = 1_000
AHEAD = 400  # deliveries that wait while `sustained` is taken
LOOK_S = 0.02
SETTLED_S_MAX = 30.0
WARM_SHARE = 0.2  # of the time, not counted
OTHERS = 300  # endpoints beside those in use, whose deliveries wait
ENDPOINTS = (1_000, 10_000)
DUE = 64  # deliveries there to be claimed
MATCHING = (0, 1, 100)
BODY = b'{"eventId":"evt_1","name":"task.updated","data":"' + b"x" * 400 + b'"}'
RATE_FLOOR = 400.0
FLOORS = {
    "sustained_per_s": Floor(RATE_FLOOR, "a second", is_least=True),
    "p99_ms": Floor(250.0, "ms"),
    "with_backlog_times": Floor(2.0, "times"),
    "lost": Floor(0.0, ""),
}
CLAIM = "SELECT * FROM outlast.claim_deliveries(%s, %s, %s, %s::text[])"
Figures = dict[str, Any]
Stamps = dict[str, tuple[int, int]]  # event: append begun, append returned
Arrival = tuple[str, str, int]  # event, subscription, when


async def sustained(on: Stage, seconds: float) -> Figures:
    """As many as will go, with some always waiting."""
    await on.receiver.asked("take")
    on.writer.stamps.clear()
    began, used = time.monotonic(), (await on.sender.asked("how"))["cpu_s"]
    counted_from = began + seconds * WARM_SHARE
    marks: list[tuple[float, int]] = []
    sent = 0
    async with asyncio.TaskGroup() as group:
        running_now: set[asyncio.Task[float]] = set()
        while time.monotonic() < began + seconds:
            arrived = await on.receiver.asked("count")
            marks.append((time.monotonic(), arrived))
            missing = (AHEAD - (sent * FAN_OUT - arrived)) // FAN_OUT
            for _ in range(min(missing, IN_FLIGHT - len(running_now))):
                task = group.create_task(on.writer.change())
                running_now.add(task)
                task.add_done_callback(running_now.discard)
                sent += 1
            await asyncio.sleep(LOOK_S)
    marks = [mark for mark in marks if mark[0] >= counted_from]
    (start, first), (end, last) = marks[0], marks[-1]
    cpu = (await on.sender.asked("how"))["cpu_s"] - used
    arrivals = await settled(on)
    return {
        "sustained_per_s": (last - first) / (end - start),
        "sender_cpu_ms_each": cpu / max(1, len(arrivals)) * 1_000,
        **counted(on.writer.stamps, arrivals),
    }


async def paced(on: Stage, rate: float, seconds: float) -> Figures:
    """So many deliveries a second, by the clock."""
    await on.receiver.asked("take")
    on.writer.stamps.clear()
    used = (await on.sender.asked("how"))["cpu_s"]
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with asyncio.TaskGroup() as group:
        for number in range(int(rate / FAN_OUT * seconds)):
            await asyncio.sleep(max(0.0, start + number * FAN_OUT / rate - loop.time()))
            group.create_task(on.writer.change())
    cpu = (await on.sender.asked("how"))["cpu_s"] - used
    arrivals = await settled(on)
    return {
        "deliveries_per_s": rate,
        **counted(on.writer.stamps, arrivals),
        **latencies(on.writer.stamps, arrivals),
        "sender_cpu_percent": cpu / seconds * 100,
    }


async def settled(on: Stage) -> list[Arrival]:
    """What arrived, once all has, or too much time is over."""
    until = time.monotonic() + SETTLED_S_MAX
    while time.monotonic() < until:
        if await on.receiver.asked("count") >= len(on.writer.stamps) * FAN_OUT:
            break
        await asyncio.sleep(LOOK_S)
    return await on.receiver.asked("take")


def counted(stamps: Stamps, arrivals: list[Arrival]) -> Figures:
    """How many deliveries there had to be, how many never came, and how many came again."""
    different = {(event, subscription) for event, subscription, _ in arrivals if event in stamps}
    expected = len(stamps) * FAN_OUT
    return {
        "deliveries": expected,
        "lost": expected - len(different),
        "repeated": len(arrivals) - len(different),
    }


def latencies(stamps: Stamps, arrivals: list[Arrival]) -> Figures:
    """From the append to each whole POST."""
    met = [(at, *stamps[event]) for event, _, at in arrivals if event in stamps]
    whole = [(at - begun) / 1e6 for at, begun, _ in met]
    after = [(at - returned) / 1e6 for at, _, returned in met]
    appends = [(returned - begun) / 1e6 for begun, returned in stamps.values()]
    return {
        "p50_ms": delivery.percentile(whole, 0.5),
        "p99_ms": delivery.percentile(whole, 0.99),
        "max_ms": max(whole),
        "after_return_p50_ms": delivery.percentile(after, 0.5),
        "after_return_p99_ms": delivery.percentile(after, 0.99),
        "append_p50_ms": delivery.percentile(appends, 0.5),
        "append_p99_ms": delivery.percentile(appends, 0.99),
    }


async def deliveries(
    url: str, receiver: Process, ports: list[int], wanted: argparse.Namespace
) -> dict[str, Figures]:
    """How many, and how soon."""
    async with stage(url, receiver, ports, wanted.tasks) as on:
        return {
            "as many as will go": await sustained(on, wanted.seconds),
            "at half of the floor": await paced(on, RATE_FLOOR / 2, wanted.seconds),
        }


async def bare(receiver: Process, ports: list[int], posts: int) -> Figures:
    """The same POSTs, signed, without any store: what the client alone can do."""
    await receiver.asked("take")
    urls = [f"http://127.0.0.1:{port}/hooks/bare" for port in ports]
    async with running("bare") as poster:
        took = await poster.asked({"posts": posts, "urls": urls, "body": BODY.hex()})
    await receiver.asked("take")
    return {
        "posts_per_s": posts / took["seconds"],
        "cpu_ms_each": took["cpu_s"] / posts * 1_000,
    }


async def due_in(url: str) -> None:
    """Owners with a subscription each, and deliveries that are due, of a task each."""
    log = PostgresEventLog(Database(url))
    try:
        for number in range(DUE // 4):
            await subscribe(url, owner(number), f"https://due-{number}.example/hook")
        await Writer(log).open([owner(number) for number in range(DUE // 4)], DUE)
    finally:
        log.close()


def claims(urls: dict[str, str], rounds: int) -> Figures:
    """What a claim takes in each store, in turns; rolled back, so that the next finds the same."""
    taken: dict[str, list[float]] = {name: [] for name in urls}
    with ExitStack() as stack:
        open_ones = {
            name: stack.enter_context(psycopg.connect(url, autocommit=True))
            for name, url in urls.items()
        }
        for _ in range(rounds):
            for name, connection in open_ones.items():
                with connection.transaction(force_rollback=True):
                    begun = time.perf_counter()
                    found = connection.execute(
                        CLAIM, (SLOTS, PER_HOST_MAX, LEASE_S, []), prepare=True
                    ).fetchall()
                    taken[name].append((time.perf_counter() - begun) * 1_000)
                assert len(found) == DUE, (name, len(found))
    return compared(taken)


async def claims_compared(urls: Sequence[str], wanted: argparse.Namespace) -> Figures:
    """Of the same due deliveries: alone, beside a backlog, and beside many idle endpoints."""
    sizes = [("alone", OTHERS, 0), ("with_backlog", OTHERS, wanted.waiting)]
    sizes += [(f"with_{count}_endpoints", count, 0) for count in wanted.endpoints]
    for url, (_, others, waiting) in zip(urls, sizes, strict=True):
        fill(url, others, waiting)
        await due_in(url)
    return claims({name: url for url, (name, *_) in zip(urls, sizes, strict=True)}, wanted.rounds)


async def appends(bare_url: str, url: str, rounds: int) -> Figures:
    """What an append takes with subscriptions that match it, beside one where there are none."""
    logs = {
        name: PostgresEventLog(Database(where))
        for name, where in [("none", bare_url), *((f"matching_{count}", url) for count in MATCHING)]
    }
    writers = {name: Writer(log) for name, log in logs.items()}
    taken: dict[str, list[float]] = {name: [] for name in logs}
    try:
        for number, name in enumerate(logs):
            await writers[name].open([f"append-{number}"], 8)
            for place in range(MATCHING[number - 1] if number else 0):
                await subscribe(url, f"append-{number}", f"https://append-{place}.example/hook")
        for _ in range(rounds):
            for name, writer in writers.items():
                taken[name].append(await writer.change())
    finally:
        for log in logs.values():
            log.close()
    return compared(taken)


def compared(taken: dict[str, list[float]]) -> Figures:
    """The median of each, and how many times the first one's."""
    medians = {name: statistics.median(values) for name, values in taken.items()}
    first = next(iter(medians.values()))
    times = {f"{name}_times": value / first for name, value in list(medians.items())[1:]}
    return {f"{name}_ms": value for name, value in medians.items()} | times


async def measured(urls: Sequence[str], wanted: argparse.Namespace) -> Figures:
    """All tables."""
    figures: Figures = {"machine": {"load_before": os.getloadavg()[0]}}
    quiet, loaded, *more = urls
    async with running("receiver") as receiver:
        ports = await receiver.asked({"ports": PORTS})
        figures["without a store"] = await bare(receiver, ports, wanted.posts)
        fill(quiet, OTHERS, 0)
        fill(loaded, OTHERS, wanted.waiting)
        for url, waiting in ((quiet, 0), (loaded, wanted.waiting)):
            for name, found in (await deliveries(url, receiver, ports, wanted)).items():
                figures[f"{waiting:,} waiting, {name}"] = found
    figures["a claim"] = await claims_compared(more[:-1], wanted)
    figures["an append"] = await appends(more[-1], loaded, wanted.rounds)
    figures["machine"]["load_after"] = os.getloadavg()[0]
    return figures


def arguments() -> argparse.Namespace:
    """How large, how long, and where to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, default=Path("build/bench-webhooks.json"))
    parser.add_argument("--database-url", default=os.environ.get("OUTLAST_TEST_DATABASE_URL"))
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run of deliveries")
    parser.add_argument("--waiting", type=int, default=300_000)
    parser.add_argument("--quick", action="store_true", help="small, and nothing is judged")
    return parser.parse_args()


def main() -> int:
    """Measure, print, write; 1 if a floor is missed."""
    wanted = arguments()
    wanted.tasks, wanted.posts, wanted.rounds, wanted.endpoints = TASKS, 5_000, 100, ENDPOINTS
    if wanted.quick:
        wanted.tasks, wanted.posts, wanted.rounds, wanted.endpoints = 50, 200, 3, (400,)
        wanted.seconds, wanted.waiting = 1.0, 1_000
    with stores(wanted.database_url, 5 + len(wanted.endpoints)) as urls:
        figures = asyncio.run(measured(urls, wanted))
    all_met = show(figures, {} if wanted.quick else FLOORS)
    write(wanted.out, figures)
    return 0 if all_met else 1


if __name__ == "__main__":
    raise SystemExit(main())
