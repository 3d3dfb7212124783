"""Load from `wrk`: one run of so many connections and seconds, as figures."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.ops.bench import programs

SCRIPT = Path(__file__).with_name("load.lua")
OVER_S = 90.0  # what a run may last beyond its time, before it counts as stuck
TIMEOUT = "30s"


@dataclass(frozen=True)
class Run:
    """What one run measured; `answered` are the good answers alone."""

    answered: int
    per_second: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    percentiles: list[tuple[float, float]]
    refused: int


def write_bodies(
    path: Path, bodies: Sequence[Mapping[str, Any]], expected: str = '"result":'
) -> Path:
    """A file for the script: what a good answer contains; then a line for each request, its name
    for the header and its body."""
    lines = [expected, *(f"{_name(each)} {json.dumps(each)}" for each in bodies)]
    path.write_text("\n".join(lines) + "\n")
    return path


def _name(body: Mapping[str, Any]) -> str:
    params = body["params"]
    return params.get("taskId") or params.get("name") or "none"


def run(url: str, bodies: Path, method: str, *, connections: int, seconds: float) -> Run:
    """So many whole seconds of load.

    One thread: the load must not take the processor from what it measures.
    """
    command = [programs.found("wrk", "wrk"), "-t1", f"-c{connections}", f"-d{seconds:.0f}s"]
    command += ["--timeout", TIMEOUT, "-s", str(SCRIPT), url, "--", str(bodies), method]
    told = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=seconds + OVER_S
    ).stdout
    (line,) = [line for line in told.splitlines() if line.startswith("JSON ")]
    said = json.loads(line.removeprefix("JSON "))
    if said["socket_errors"]:
        raise RuntimeError(f"{url}: connections failed: {said}")
    at: dict[float, float] = dict(said["percentiles"])
    answered = said["requests"] - said["refused"]
    return Run(
        answered=answered,
        per_second=answered / said["seconds"],
        p50_ms=at[50],
        p90_ms=at[90],
        p99_ms=at[99],
        max_ms=said["max_ms"],
        percentiles=said["percentiles"],
        refused=said["refused"],
    )
