"""The page of `make bench`, from its figures alone: `docs/performance.md` is written here."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from outlast.ops.bench import floor, targets
from outlast.ops.bench.contenders import BARE, IN_MEMORY, ON_REDIS, OURS, SDK
from outlast.ops.bench.targets import Stages, number, of

Results = Mapping[str, Any]
Shots = Mapping[str, Sequence[Mapping[str, Any]]]

HEAD = """\
# Performance

Ours beside what people would use instead, on one machine in one go. `make bench` has written this
page, its plots and [the figures](performance.json); what to change is in `ops/bench/`.

The ratios are what counts: another machine has other absolute numbers. Figures are medians of all
rounds, with the lowest and the highest in brackets.
"""
HOW = """\
## How it was measured

One server process each, on loopback, with its store and `wrk` (one thread) beside it on the same
cores. The servers run at the same time and are loaded in turn, one shot each and then the next
round, every shot after a second of warm-up. `wrk` sends the next request of a connection when the
last is answered, so a latency is that of a server that is kept busy. Every answer is looked at: a
stage fails if one is not a 200 with what it should contain. What ours acknowledged is counted in
its database after each shot, and a stage fails if a row is missing. Processor time is the kernel's
count of the server's processes, and of the store's where there is one, divided by the answers: load
on the machine blurs it less than a clock.

| | what it is |
|---|---|
| {ours} | `outlast serve` with a worker, and a stdio server behind it; quotas off; fsync on |
| {redis} | the real one, no sessions, answering JSON, hiredis; a Redis that never writes to disk |
| {memory} | the same on `memory://` |
| {sdk} | `MCPServer`, no sessions, answering JSON; no tasks: a plain call of a tool |
| {bare} | parses JSON, answers JSON; no store, no check, no MCP |
| {floor} | inserts a row like one of our log, one a transaction, on the server that ours uses |

All servers run on uvloop and httptools without an access log. The tool of all tasks never ends, so
`tasks/get` asks for live tasks. Creating ends with the handle; ours is committed to disk by then,
and those of the others are not.
"""
AGAIN = """\
## Again

```
make bench                                # everything, into docs/
make bench ARGS=--quick                   # a small run of everything, into build/performance/
make bench ARGS="--only get,create"       # these stages anew, the other figures as they were
make bench ARGS=--report-only             # this page anew
make bench ARGS=--strict                  # fails if a target is missed
```

It needs `wrk` and `redis-server`, which it installs itself as root on Debian.
"""
CALLS = {"get": "tasks/get", "create": "tools/call"}
NAMES = {
    "ours": OURS,
    "redis": ON_REDIS,
    "memory": IN_MEMORY,
    "sdk": SDK,
    "bare": BARE,
    "floor": floor.NAME,
}


def page(results: Results, images: Mapping[str, str]) -> str:
    """All of it, in Markdown."""
    stages: Stages = results["stages"]
    parts = [HEAD, *_targets(stages)]
    for stage, write in SECTIONS.items():
        if stage in stages:
            parts += write(stages[stage]["figures"], images)
    parts += [HOW.format(**NAMES), AGAIN, *_machine(results)]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown: words to the left, figures to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def told(name: str) -> str:
    """The name of a figure in words."""
    words = name.replace("_store_cpu_us", ", store CPU µs").replace("_cpu_us", ", server CPU µs")
    return words.replace("_", " ")


def cell(value: float | None) -> str:
    """A figure, or nothing."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else number(value)


def _targets(stages: Stages) -> Iterator[str]:
    yield "## Targets\n"
    verdicts = targets.judged(stages)
    rows = [
        (each.target.what, each.figure.told() if each.figure else "", each.target.bound, each.told)
        for each in verdicts
    ]
    yield table(("", "measured", "target", ""), rows)
    quick = [name for name, stage in stages.items() if stage["is_quick"]]
    if quick:
        yield f"A quick run, which is small and short: {', '.join(quick)}. It proves nothing."
    for each in verdicts:
        if each.figure and not each.is_met:
            limits = each.target.limits or "Not looked into yet: the profile stands below."
            yield f"**{each.target.what}.** {limits}"


def _side_by_side(title: str, shots: Shots) -> str:
    rows: list[Sequence[str]] = []
    for name, runs in shots.items():
        ours = "" if name == OURS else targets.times(shots[OURS], runs).told()
        cpu = [
            of(runs, what).told() if what in runs[0] else ""
            for what in ("server_cpu_us", "store_cpu_us")
        ]
        latencies = [number(of(runs, what).median) for what in ("p50_ms", "p99_ms")]
        rows.append((name, of(runs, "per_second").told(), ours, *latencies, *cpu))
    head = ("", "a second", "ours, times", "p50 ms", "p99 ms", "server CPU µs", "store CPU µs")
    return f"## {title}\n\n{table(head, rows)}"


def _get(figures: Mapping[str, Any], images: Mapping[str, str]) -> Iterator[str]:
    yield _side_by_side(f"`tasks/get`, {figures['connections']} connections", figures["shots"])
    if "latency" in images:
        yield f"![Latency distribution of get and create](images/{images['latency']})"


def _create(figures: Mapping[str, Any], _: Mapping[str, str]) -> Iterator[str]:
    yield _side_by_side(f"Durable create, {figures['connections']} connections", figures["shots"])


def _connections(figures: Mapping[str, Any], images: Mapping[str, str]) -> Iterator[str]:
    yield "## Against connections"
    if "connections" in images:
        yield f"![Throughput against connections](images/{images['connections']})"
    for what, title in (("get", "`tasks/get` a second"), ("create", "creations a second")):
        counts = figures[what]
        rows = [
            (name, *(number(of(shots[name], "per_second").median) for shots in counts.values()))
            for name in next(iter(counts.values()))
        ]
        yield table((title, *counts), rows)


def _variants(figures: Mapping[str, Any], _: Mapping[str, str]) -> Iterator[str]:
    yield _side_by_side("Sealed, and as two processes: `tasks/get`", figures["get"])
    yield _side_by_side("Sealed, and as two processes: create", figures["create"])
    yield (
        "Payloads are sealed with `data_keys`. Two processes share the cores with PostgreSQL and\n"
        "`wrk`. This is context: nothing of it is judged."
    )


def _listen(figures: Mapping[str, Any], _: Mapping[str, str]) -> Iterator[str]:
    runs = figures["runs"]
    yield "## From commit to frame"
    yield f"{runs[0]['listeners']:,} listeners, {runs[0]['rate']} changes a second."
    told = {
        "from the append's begin to the frame, p50 ms": "p50_ms",
        "the same, p99 ms": "p99_ms",
        "the append alone, p99 ms": "append_p99_ms",
        "from the append's return to the frame, p99 ms": "after_return_p99_ms",
        "changes that never came": "lost",
    }
    yield table(("", "measured"), [(name, of(runs, what).told()) for name, what in told.items()])
    yield (
        "The commit lies between the append's begin and its return. The target is held against\n"
        "the longer time."
    )


def _groups(title: str) -> Any:
    """A section with one table of groups of figures."""

    def write(figures: Mapping[str, Any], _: Mapping[str, str]) -> Iterator[str]:
        yield f"## {title}"
        names = list(dict.fromkeys(name for group in figures.values() for name in group))
        rows = [
            (group, *(cell(values.get(name)) for name in names))
            for group, values in figures.items()
        ]
        yield table(("", *map(told, names)), rows)

    return write


def _growth(figures: Mapping[str, Any], images: Mapping[str, str]) -> Iterator[str]:
    yield "## With ever more tasks stored"
    if "growth" in images:
        yield f"![Latency against stored tasks](images/{images['growth']})"
    yield (
        "One connection, or sixteen where it says some. `get` asks for tasks all over the store;\n"
        "`listen` runs from an append to its frame; a claim is a worker's, of one task."
    )
    by_size = [name for name in figures if "stored" in figures[name]]
    by_task = [name for name in figures if name not in by_size]
    for groups in filter(None, (by_size, by_task)):
        names = dict.fromkeys(name for group in groups for name in figures[group])
        rows = [
            (told(name), *(cell(figures[group].get(name)) for group in groups)) for name in names
        ]
        yield table(("", *groups), rows)


def _profile(figures: Mapping[str, Any], _: Mapping[str, str]) -> Iterator[str]:
    yield "## Where the time goes"
    yield (
        "Samples of `py-spy` of the thread that holds the interpreter, under the load of the\n"
        "comparisons, in percent of all. On the left whose code was at work, C code counted for\n"
        "its caller; on the right functions of ours with all that they call."
    )
    for name, told in figures.items():
        if "missing" in told:
            yield f"No profile of {name}: {told['missing']}."
            continue
        left = [(owner, f"{share:g}") for owner, share in told["by_owner"].items()]
        right = [(f"`{name}`", f"{share:g}") for name, share in told["of_ours"].items()]
        rows = [(*a, *b) for a, b in zip_longest(left, right, fillvalue=("", ""))]
        yield f"`{CALLS[name]}`, {told['samples']:,} samples:"
        yield table(("at work", "%", "of ours, with all below", "%"), rows)


def _machine(results: Results) -> Iterator[str]:
    yield "## The machine"
    yield "| | |\n|---|---|\n" + "\n".join(
        f"| {name} | {told} |" for name, told in results["machine"].items()
    )
    rows = [
        (name, stage["taken"], f"{stage['took_s']} s") for name, stage in results["stages"].items()
    ]
    yield table(("stage", "taken", "took"), rows)


SECTIONS = {
    "get": _get,
    "create": _create,
    "connections": _connections,
    "listen": _listen,
    "dispatch": _groups("From creation to start"),
    "growth": _growth,
    "idle": _groups("Idle"),
    "variants": _variants,
    "profile": _profile,
}
