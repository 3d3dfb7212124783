"""What `make bench` is judged by: each target, its figure in the results, and what limits it."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.ops.bench.contenders import BARE, ON_REDIS, OURS
from outlast.ops.bench.table import Floor

Stages = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Spread:
    """A median, and the lowest and the highest beside it."""

    median: float
    low: float
    high: float

    def told(self, digits: int | None = None) -> str:
        """In words, with as many digits as its size deserves."""
        if self.low == self.high:
            return number(self.median, digits)
        low, high = number(self.low, digits), number(self.high, digits)
        return f"{number(self.median, digits)} ({low} to {high})"


def number(value: float, digits: int | None = None) -> str:
    """As a person reads it."""
    if digits is None:
        digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def spread(values: Sequence[float]) -> Spread:
    """Of all runs."""
    return Spread(statistics.median(values), min(values), max(values))


def of(shots: Sequence[Mapping[str, Any]], what: str) -> Spread:
    """Of one figure of all shots."""
    return spread([shot[what] for shot in shots])


def times(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> Spread:
    """How many times their requests a second: of the medians, and by round."""
    by_round = [a["per_second"] / b["per_second"] for a, b in zip(ours, theirs, strict=True)]
    medians = of(ours, "per_second").median / of(theirs, "per_second").median
    return Spread(medians, min(*by_round, medians), max(*by_round, medians))


@dataclass(frozen=True)
class Target:
    """`figure` finds it in the results, and raises KeyError if its stage has not run.

    `limits` says what limits it and what was tried; the page shows it where the target is missed.
    """

    what: str
    floor: Floor
    figure: Callable[[Stages], Spread]
    limits: str = ""

    @property
    def bound(self) -> str:
        """What is asked, in words."""
        least = "at least" if self.floor.is_least else "under"
        return f"{least} {self.floor.bound:g} {self.floor.unit}".rstrip()


def _beside(stage: str, other: str) -> Callable[[Stages], Spread]:
    def found(stages: Stages) -> Spread:
        shots = stages[stage]["figures"]["shots"]
        return times(shots[OURS], shots[other])

    return found


def _created_p99(stages: Stages) -> Spread:
    return of(stages["create"]["figures"]["shots"][OURS], "p99_ms")


def _heard_p99(stages: Stages) -> Spread:
    return of(stages["listen"]["figures"]["runs"], "p99_ms")


def _worst(stage: str, what: str, groups: str = "") -> Callable[[Stages], Spread]:
    """Of the groups whose name begins so."""

    def found(stages: Stages) -> Spread:
        figures = stages[stage]["figures"]
        worst = max(figures[name][what] for name in figures if name.startswith(groups))
        return Spread(worst, worst, worst)

    return found


def _grown(what: str) -> Callable[[Stages], Spread]:
    """With most tasks stored, times that with least."""

    def found(stages: Stages) -> Spread:
        least, *_, most = sizes(stages["growth"]["figures"])
        if not least[what]:
            raise KeyError(what)
        times = most[what] / least[what]
        return Spread(times, times, times)

    return found


def sizes(growth: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The groups of the growth stage, the smallest store first."""
    return sorted(
        (group for group in growth.values() if "stored" in group), key=lambda group: group["stored"]
    )


CREATING = """The one process of `serve` is busy nine tenths of the time, and what it does is spread
thin: by the profile below two fifths of it is answering the request, a sixth the append, and the
rest the event loop, the drivers, and the handing of tasks to the worker, which is in the same
process. The ratio also moves with the other side: between days `fastmcp-tasks` made 166 to 345
creations a second here; theirs are not on a disk when they are told. Tried and kept: one call to
the store at a time (a quarter more than with two), timers instead of timeouts, headers by one look,
arguments held against their schema by compiled code, the garbage collector kept off what a process
begins with, head and body in one write, identifiers that lie together, no view row written twice,
one statement a batch. Tried and left: batches of other sizes, a shorter turn for threads (each
within what runs differ by)."""

TARGETS = (
    Target(
        "`tasks/get`, times `fastmcp-tasks` on Redis",
        Floor(15, is_least=True),
        _beside("get", ON_REDIS),
    ),
    Target(
        "`tasks/get`, times a bare FastAPI route",
        Floor(0.7, is_least=True),
        _beside("get", BARE),
    ),
    Target(
        "durable create, times `fastmcp-tasks` on Redis",
        Floor(15, is_least=True),
        _beside("create", ON_REDIS),
        limits=CREATING,
    ),
    Target("durable create at 64 connections, p99", Floor(50, "ms"), _created_p99),
    Target("from commit to frame on `listen`, p99", Floor(25, "ms"), _heard_p99),
    Target(
        "from creation to start with a free slot, one at a time, p99",
        Floor(20, "ms"),
        _worst("dispatch", "p99_ms", "one at a time"),
    ),
    Target(
        "`tasks/get` with most tasks stored, times that with least, p50",
        Floor(1.3),
        _grown("get_p50_ms"),
    ),
    Target(
        "create with most tasks stored, times that with least, p50",
        Floor(1.3),
        _grown("create_p50_ms"),
    ),
    Target("idle `serve`, of one core", Floor(1, "%"), _worst("idle", "cpu_percent")),
    Target("idle `serve`, resident", Floor(150, "MiB"), _worst("idle", "rss_mib")),
)


@dataclass(frozen=True)
class Verdict:
    """A target, its figure if it was measured, and whether that is good enough."""

    target: Target
    figure: Spread | None

    @property
    def is_met(self) -> bool:
        """By the median."""
        return self.figure is not None and self.target.floor.is_met_by(self.figure.median)

    @property
    def told(self) -> str:
        """In a word or two."""
        if self.figure is None:
            return "not measured"
        return "met" if self.is_met else "**NOT MET**"


def judged(stages: Stages) -> list[Verdict]:
    """All of them."""
    verdicts: list[Verdict] = []
    for target in TARGETS:
        try:
            figure = target.figure(stages)
        except KeyError:
            figure = None
        verdicts.append(Verdict(target, figure))
    return verdicts
