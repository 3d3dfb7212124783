"""What it costs to call a quick tool through Outlast, against its server alone: HTTP and stdio.

    make bench-gateway [ARGS="--quick | --rounds N | --seconds N | --out FILE"]

The tool is `direct`, so its call is passed on and nothing of it is stored. Over HTTP the same load
goes to the SDK's server and to Outlast before it, in turn, and every figure is the median of the
rounds. A server over stdio has one client: alone it is driven by bare lines, which is the least
that a client can cost, and by the SDK's client.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from outlast.ops.bench import contenders, load, table, usage
from outlast.ops.bench.contenders import Contender, Start
from outlast.ops.bench.stores import stores

METHOD = "tools/call"
CONNECTIONS = (1, 16)
WARM_S = 1
CONFIG = """
[defaults]
run = "direct"
[quotas]
calls_per_minute = "unlimited"
[upstreams.bench]
{upstream}
"""
STDIO_TOOL = (sys.executable, str(contenders.PEERS), "stdio")
ALONE, BY_LINES, BY_SDK, GATEWAY = "alone", "alone, lines", "alone, SDK client", "Outlast"
FLOORS = {"added p50, ms": table.Floor(3.0, "ms")}

Figures = dict[str, float]
Shot = Callable[[int, float], Figures]


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    rounds: int
    seconds: float


FULL, QUICK = Size(rounds=5, seconds=5), Size(rounds=1, seconds=1)


# --- what is compared


def gateway(start: Start, url: str, folder: Path, name: str, upstream: str) -> Contender:
    """One `outlast serve` before this upstream."""
    port = contenders.free_port()
    config = folder / f"{name}.toml"
    config.write_text(CONFIG.format(upstream=upstream))
    outlast = str(Path(sys.executable).with_name("outlast"))
    command = (outlast, "serve", "--config", str(config), "--port", str(port))
    started = start(name, command, port, OUTLAST_DATABASE_URL=url, OUTLAST_DRAIN_S="0")
    contenders.listed(started)
    return started


def own_cpu_s(pid: int) -> float:
    """What this one process has used, without those below it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / usage.TICKS_A_SECOND


def over_http(contender: Contender, bodies: Path, others: Sequence[Contender] = ()) -> Shot:
    """Load on an endpoint; `others` are the processes behind it that are no children of it."""

    def shot(connections: int, seconds: float) -> Figures:
        before = own_cpu_s(contender.pid), _behind_s(contender, others)
        run = load.run(contender.url, bodies, METHOD, connections=connections, seconds=seconds)
        if run.refused:
            raise RuntimeError(f"{contender.name} refused {run.refused} calls")
        after = own_cpu_s(contender.pid), _behind_s(contender, others)
        return {
            "p50, ms": run.p50_ms,
            "p99, ms": run.p99_ms,
            "a second": run.per_second,
            "CPU us, own": 1e6 * (after[0] - before[0]) / run.answered,
            "CPU us, behind": 1e6 * (after[1] - before[1]) / run.answered,
        }

    return shot


def _behind_s(contender: Contender, others: Sequence[Contender]) -> float:
    below = usage.tree_cpu_s(contender.pid) - own_cpu_s(contender.pid)
    return below + sum(usage.tree_cpu_s(each.pid) for each in others)


# --- a server over stdio, alone


def by_sdk_client(connections: int, seconds: float) -> Figures:
    """The SDK's client, with so many calls at once."""

    async def run() -> Figures:
        parameters = StdioServerParameters(command=STDIO_TOOL[0], args=list(STDIO_TOOL[1:]))
        async with Client(stdio_client(parameters), mode="auto") as client:
            return await _timed(
                lambda: client.call_tool(contenders.TOOL, {"task": "1"}), connections, seconds
            )

    return asyncio.run(run())


def by_lines(connections: int, seconds: float) -> Figures:
    """A line out, a line in: one call at a time."""
    del connections
    line = json.dumps(_body(1)).encode() + b"\n"

    async def run() -> Figures:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*STDIO_TOOL, stdin=pipe, stdout=pipe)
        asks, answers = process.stdin, process.stdout
        assert asks is not None
        assert answers is not None

        async def call() -> None:
            asks.write(line)
            if b'"result":' not in await answers.readline():
                raise RuntimeError("the server over stdio refused a call")

        try:
            return await _timed(call, 1, seconds)
        finally:
            asks.close()
            await process.wait()

    return asyncio.run(run())


async def _timed(call: Callable[[], Awaitable[Any]], at_once: int, seconds: float) -> Figures:
    """Call after call for so long, after some that do not count."""
    took: list[float] = []

    async def one_after_another(until: float, counted: list[float]) -> None:
        while (begun := time.perf_counter()) < until:
            await call()
            counted.append(time.perf_counter() - begun)

    await one_after_another(time.perf_counter() + WARM_S, [])
    begun = time.perf_counter()
    await asyncio.gather(*(one_after_another(begun + seconds, took) for _ in range(at_once)))
    lasted = time.perf_counter() - begun
    took.sort()
    return {
        "p50, ms": 1e3 * took[len(took) // 2],
        "p99, ms": 1e3 * took[len(took) * 99 // 100],
        "a second": len(took) / lasted,
    }


# --- the figures


def in_turn(shots: Mapping[str, Shot], connections: int, size: Size) -> dict[str, Figures]:
    """Each in turn, round after round; the median of every figure."""
    found: dict[str, list[Figures]] = {name: [] for name in shots}
    for _ in range(size.rounds):
        for name, shot in shots.items():
            found[name].append(shot(connections, size.seconds))
    return {
        name: {key: statistics.median(each[key] for each in runs) for key in runs[0]}
        for name, runs in found.items()
    }


def compared(shots: Mapping[str, Shot], connections: int, size: Size) -> Figures:
    """The first of the shots is what Outlast, the last, is held against."""
    medians = in_turn(shots, connections, size)
    figures = {
        f"{name}: {key}": value for name, told in medians.items() for key, value in told.items()
    }
    alone, through = next(iter(medians.values())), medians[GATEWAY]
    added = "added p50, ms" if connections == 1 else "more p50, ms"
    figures[added] = through["p50, ms"] - alone["p50, ms"]
    figures["added p99, ms" if connections == 1 else "more p99, ms"] = (
        through["p99, ms"] - alone["p99, ms"]
    )
    figures["rate, of alone"] = through["a second"] / alone["a second"]
    return figures


def _body(number: int) -> dict[str, Any]:
    body = contenders.body(number, METHOD, name=contenders.TOOL, arguments={"task": str(number)})
    # Not as a task: no extension is declared.
    meta = {**contenders.META, "io.modelcontextprotocol/clientCapabilities": {}}
    return {**body, "params": {**body["params"], "_meta": meta}}


def measured(url: str, folder: Path, size: Size) -> dict[str, Figures]:
    """All of it."""
    bodies = load.write_bodies(folder / "calls.txt", [_body(number) for number in range(50)])
    figures: dict[str, Figures] = {}
    with ExitStack() as stack:
        start = stack.enter_context(contenders.starting(folder))
        sdk = contenders.peer(start, contenders.SDK, "sdk")
        before_http = gateway(start, url, folder, "http", f'url = "{sdk.url}"')
        command = json.dumps(list(STDIO_TOOL))
        before_stdio = gateway(start, url, folder, "stdio", f"command = {command}")
        http = {
            ALONE: over_http(sdk, bodies),
            GATEWAY: over_http(before_http, bodies, [sdk]),
        }
        through_stdio = over_http(before_stdio, bodies)
        for shot in (*http.values(), through_stdio):
            shot(1, WARM_S)
        for connections in CONNECTIONS:
            name = f"{connections} at once"
            figures[f"HTTP, {name}"] = compared(http, connections, size)
            alone: dict[str, Shot] = {BY_LINES: by_lines} if connections == 1 else {}
            stdio = {**alone, BY_SDK: by_sdk_client, GATEWAY: through_stdio}
            figures[f"stdio, {name}"] = compared(stdio, connections, size)
    return figures


def main() -> int:
    """Measure, show, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="some seconds, judges nothing")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--out", type=Path, default=Path("build/gateway.json"))
    parser.add_argument("--database-url", default=os.environ.get("OUTLAST_TEST_DATABASE_URL"))
    wanted = parser.parse_args()
    size = QUICK if wanted.quick else FULL
    size = Size(wanted.rounds or size.rounds, wanted.seconds or size.seconds)
    # Told to stop, it stops what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with (
        tempfile.TemporaryDirectory(prefix="ol-gateway-") as folder,
        stores(wanted.database_url, 1) as (url,),
    ):
        figures = measured(url, Path(folder), size)
    is_met = table.show(figures, {} if wanted.quick else FLOORS)
    table.write(wanted.out, figures)
    return 0 if is_met else 1


if __name__ == "__main__":
    raise SystemExit(main())
