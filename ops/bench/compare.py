"""Ours against what people would use instead, on this machine, in one go.

    make bench [ARGS="--quick | --only get,create | --report-only | --strict"]

Runs every stage of `stages.py`, keeps the figures in `performance.json`, and writes the page
`performance.md` with its plots from that: in `docs/`, or with `--quick` in `build/performance/`,
which is a small run of everything. A stage that is run again replaces its own figures alone. Ends
with 1 if a stage broke, or, with `--strict`, if a target is missed.
"""

import argparse
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from outlast.ops.bench import plots, report, stages, targets

NAME = "performance"
DIGITS = 3


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """What to run, how much of it, and where to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="a small run of everything")
    parser.add_argument("--only", type=_names, default=list(stages.STAGES), metavar="STAGE,STAGE")
    parser.add_argument("--report-only", action="store_true", help="write the page anew")
    parser.add_argument("--strict", action="store_true", help="fail if a target is missed")
    parser.add_argument("--rounds", type=int, help="of the comparisons")
    parser.add_argument("--seconds", type=int, help="of each shot of the comparisons")
    parser.add_argument("--connections", type=int, help="of the comparisons")
    parser.add_argument("--out", type=Path, help="the folder of the page")
    parser.add_argument("--database-url", default=os.environ.get("OUTLAST_TEST_DATABASE_URL"))
    wanted = parser.parse_args(words)
    wanted.out = wanted.out or Path("build/performance" if wanted.quick else "docs")
    return wanted


def _names(told: str) -> list[str]:
    names = told.split(",")
    if unknown := set(names) - set(stages.STAGES):
        raise argparse.ArgumentTypeError(f"{unknown} of {', '.join(stages.STAGES)}")
    return names


def sized(wanted: argparse.Namespace) -> stages.Size:
    """How much of everything."""
    size = stages.QUICK if wanted.quick else stages.FULL
    told = {name: getattr(wanted, name) for name in ("rounds", "seconds", "connections")}
    changes = {name: value for name, value in told.items() if value}
    return replace(size, side_by_side=replace(size.side_by_side, **changes))


def measured(wanted: argparse.Namespace, results: dict[str, Any], path: Path) -> bool:
    """Run the stages, and keep the figures of each as soon as it is over; False if one broke."""
    size, is_whole = sized(wanted), True
    results["machine"] = stages.described(wanted.database_url)
    for name in wanted.only:
        begun = time.monotonic()
        print(f"{name}:", flush=True)
        try:
            figures = stages.run(name, size, wanted.database_url)
        except Exception:  # noqa: BLE001 - the others must not lose their figures to a broken one
            traceback.print_exc()
            results["stages"].pop(name, None)
            keep(results, path)
            is_whole = False
            continue
        took = time.monotonic() - begun
        results["stages"][name] = {
            "taken": results["machine"]["taken"],
            "took_s": round(took),
            "is_quick": wanted.quick,
            "figures": rounded(figures),
        }
        keep(results, path)
        print(f"{name} took {took:.0f} s", flush=True)
    return is_whole


def keep(results: Mapping[str, Any], path: Path) -> None:
    """As JSON, a line for each stage."""
    lines = [f"{json.dumps(name)}: {json.dumps(told)}" for name, told in results["stages"].items()]
    machine, told = json.dumps(results["machine"]), ",\n".join(lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"machine": {machine},\n"stages": {{\n{told}\n}}}}\n')


def rounded(value: Any) -> Any:
    """With no more digits than it can have."""
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return value


def main() -> int:
    """Measure, judge, write."""
    wanted = arguments()
    # Told to stop, it stops what it has started: servers, stores and Redis.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    path = wanted.out / f"{NAME}.json"
    results: dict[str, Any] = {"machine": {}, "stages": {}}
    if path.exists():
        results = json.loads(path.read_text())
    is_whole = wanted.report_only or measured(wanted, results, path)
    images = plots.drawn(results["stages"], wanted.out / "images")
    page = wanted.out / f"{NAME}.md"
    page.write_text(report.page(results, images))
    print(f"\nwritten to {page}")
    verdicts = targets.judged(results["stages"])
    for verdict in verdicts:
        figure = verdict.figure.told() if verdict.figure else "-"
        print(f"  {verdict.told:<14}{figure:>24}   {verdict.target.what}: {verdict.target.bound}")
    all_met = all(verdict.is_met for verdict in verdicts)
    return 0 if is_whole and (all_met or not wanted.strict) else 1


if __name__ == "__main__":
    raise SystemExit(main())
