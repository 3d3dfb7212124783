"""The stages of `make bench`: each starts what it needs on stores of its own, and gives figures.

What they are made into, and whether it is good enough, is in `targets.py` and `report.py`.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outlast.adapters.sealing import new_key_line
from outlast.ops.bench import (
    contenders,
    contests,
    delivery,
    dispatch_stage,
    growth_stage,
    idle_stage,
    machine,
    profiling,
    usage,
)
from outlast.ops.bench.contenders import BARE, IN_MEMORY, ON_REDIS, OURS, SDK, Contender
from outlast.ops.bench.contests import Pace, Shots
from outlast.ops.bench.stores import stores

SEALED, TWO = "outlast, sealed", "outlast, 2 processes"
ANSWERING = (OURS, ON_REDIS, IN_MEMORY, SDK, BARE)
CREATING = (OURS, ON_REDIS, IN_MEMORY)

Figures = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    side_by_side: Pace
    sweep: Pace
    connections: Sequence[int]
    variants: Pace
    tasks: int
    listeners: int
    listen_s: float
    listen_runs: int
    dispatched: int
    bursts: int
    idle_s: float
    waiting: int
    stored: Sequence[int]
    growth_rounds: int
    profile_s: int


FULL = Size(
    side_by_side=Pace(5, 8, 64),
    sweep=Pace(3, 3, 0),
    connections=(1, 8, 64),  # with 256, fastmcp-tasks on Redis answers errors alone
    variants=Pace(5, 4, 64),
    tasks=contests.TASKS,
    listeners=1_000,
    listen_s=15.0,
    listen_runs=5,
    dispatched=200,
    bursts=10,
    idle_s=60.0,
    waiting=1_000,
    stored=(10_000, 100_000, 1_000_000),
    growth_rounds=5,
    profile_s=12,
)
QUICK = Size(
    side_by_side=Pace(2, 2, 64),
    sweep=Pace(1, 1, 0),
    connections=(1, 64),
    variants=Pace(1, 2, 64),
    tasks=50,
    listeners=100,
    listen_s=4.0,
    listen_runs=1,
    dispatched=20,
    bursts=2,
    idle_s=5.0,
    waiting=0,
    stored=(1_000, 10_000),
    growth_rounds=1,
    profile_s=3,
)


@dataclass(frozen=True)
class Place:
    """A folder of a stage's own, and the server for its databases, if one is given."""

    folder: Path
    server: str | None


def get(size: Size, place: Place) -> Figures:
    """`tasks/get` of live tasks, side by side."""
    with _all(place) as (found, _):
        entrants = [contests.gets(found[name], place.folder, size.tasks) for name in ANSWERING]
        return _compared(entrants, size.side_by_side)


def create(size: Size, place: Place) -> Figures:
    """A call that becomes a task, side by side, and the floor that PostgreSQL sets."""
    with _all(place) as (found, urls):
        entrants = [_creating(found, name, urls[0], place.folder) for name in CREATING]
        entrants.append(contests.inserts(urls[1], place.folder))
        return _compared(entrants, size.side_by_side)


def connections(size: Size, place: Place) -> Figures:
    """Both, from one connection to many."""
    with _all(place) as (found, urls):
        reading = [contests.gets(found[name], place.folder, size.tasks) for name in ANSWERING]
        creating = [_creating(found, name, urls[0], place.folder) for name in CREATING]
        return {
            what: {
                str(count): _brief(
                    contests.in_turn(entrants, replace(size.sweep, connections=count))
                )
                for count in size.connections
            }
            for what, entrants in (("get", reading), ("create", creating))
        }


def variants(size: Size, place: Place) -> Figures:
    """Ours with payloads sealed, and ours as two processes, beside ours as it comes."""
    with (
        stores(place.server, 3) as urls,
        contenders.starting(place.folder) as start,
    ):
        found = [
            contenders.ours(start, urls[0], place.folder),
            contenders.ours(
                start, urls[1], place.folder, SEALED, OUTLAST_DATA_KEYS=new_key_line("bench")
            ),
        ]
        if _has_processes():
            options = ("--processes", "2")
            found.append(contenders.ours(start, urls[2], place.folder, TWO, options))
        reading = [contests.gets(each, place.folder, size.tasks) for each in found]
        creating = [
            contests.creates(each, place.folder, url)
            for each, url in zip(found, urls, strict=False)
        ]
        return {
            "get": _brief(contests.in_turn(reading, size.variants)),
            "create": _brief(contests.in_turn(creating, size.variants)),
        }


def listen(size: Size, place: Place) -> Figures:
    """From the append to the frame, with many listeners."""
    wanted = argparse.Namespace(listeners=size.listeners, rate=100, seconds=size.listen_s)
    with stores(place.server, 1) as (url,):
        runs = [
            asyncio.run(delivery.latency(url, place.folder, wanted))
            for _ in range(size.listen_runs)
        ]
    if any(run["lost"] for run in runs):
        raise RuntimeError(f"changes did not arrive: {runs}")
    return {"runs": runs}


def dispatch(size: Size, place: Place) -> Figures:
    """From the creation of a task to its start, with a free slot."""
    with stores(place.server, 1) as (url,):
        return dispatch_stage.measure(url, place.folder, idle=size.dispatched, bursts=size.bursts)


def idle(size: Size, place: Place) -> Figures:
    """What a service costs while nothing happens."""
    with stores(place.server, 1) as (url,):
        return idle_stage.measure(url, place.folder, seconds=size.idle_s, waiting=size.waiting)


def growth(size: Size, place: Place) -> Figures:
    """The same requests with ever more tasks stored."""
    return growth_stage.measure(size.stored, place.folder, place.server, size.growth_rounds)


def profile(size: Size, place: Place) -> Figures:
    """Where the time of ours goes, under the load of the comparisons."""
    with stores(place.server, 1) as (url,), contenders.starting(place.folder) as start:
        ours = contenders.ours(start, url, place.folder)
        told: Figures = {}
        for name, entrant in (
            ("get", contests.gets(ours, place.folder, size.tasks)),
            ("create", contests.creates(ours, place.folder)),
        ):
            entrant.shoot(contests.WARM_S, size.side_by_side.connections)
            told[name] = profiling.recorded(
                ours.pid,
                place.folder,
                size.profile_s,
                lambda shoot=entrant.shoot: shoot(
                    size.profile_s + 1, size.side_by_side.connections
                ),
            )
        return told


STAGES: Mapping[str, Callable[[Size, Place], Figures]] = {
    "get": get,
    "create": create,
    "connections": connections,
    "variants": variants,
    "listen": listen,
    "dispatch": dispatch,
    "idle": idle,
    "growth": growth,
    "profile": profile,
}


def run(name: str, size: Size, server: str | None) -> Figures:
    """The figures of one stage, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="ol-bench-") as folder:
        return STAGES[name](size, Place(Path(folder), server))


def described(server: str | None) -> dict[str, str]:
    """The machine, the programs, and the database server."""
    with stores(server, 1) as (url,):
        return machine.described() | machine.of_store(url)


@contextmanager
def _all(place: Place) -> Iterator[tuple[dict[str, Contender], list[str]]]:
    with (
        stores(place.server, 2) as urls,
        contenders.all_of_them(urls[0], place.folder) as found,
    ):
        found[OURS] = replace(found[OURS], store_pid=usage.postmaster(urls[0]))
        yield found, urls


def _compared(entrants: Sequence[contests.Entrant], pace: Pace) -> Figures:
    return {"connections": pace.connections, "shots": contests.in_turn(entrants, pace)}


def _creating(
    found: Mapping[str, Contender], name: str, url: str, folder: Path
) -> contests.Entrant:
    return contests.creates(found[name], folder, url if name == OURS else None)


def _brief(shots: Shots) -> Shots:
    """Without the distributions, which no page shows of these."""
    return {
        name: [{key: value for key, value in shot.items() if key != "percentiles"} for shot in all_]
        for name, all_ in shots.items()
    }


def _has_processes() -> bool:
    outlast = Path(sys.executable).with_name("outlast")
    said = subprocess.run((outlast, "serve", "--help"), capture_output=True, text=True, check=True)
    return "--processes" in said.stdout
