"""The benchmark against others is a program too: it takes turns, believes no answer, and judges."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outlast.ops.bench import compare, contenders, contests, load, profiling, report, targets, usage
from outlast.ops.bench.contenders import BARE, IN_MEMORY, ON_REDIS, OURS
from outlast.ops.bench.contests import Entrant, Pace

RUN_S_MAX = 480
SHOT_S = 5  # something is answered in it, also where a server stalls for seconds
COMMAND = Path(compare.__file__)

needs_wrk = pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is not installed"
)


def shots(per_second: float, p99_ms: float = 10.0) -> list[dict[str, Any]]:
    """Two shots of a contender, one on each side of these figures."""
    percentiles = [[50, p99_ms / 2], [99, p99_ms]]
    return [
        {
            "per_second": per_second * by,
            "p50_ms": p99_ms / 2,
            "p99_ms": p99_ms,
            "server_cpu_us": 100.0,
            "percentiles": percentiles,
        }
        for by in (0.9, 1.1)
    ]


def results(**by_stage: dict[str, Any]) -> dict[str, Any]:
    stages = {
        name: {"taken": "today", "took_s": 1, "is_quick": False, "figures": figures}
        for name, figures in by_stage.items()
    }
    return {"machine": {"processor": "one of sand"}, "stages": stages}


def test_contenders_take_turns_and_the_warm_up_is_not_counted():
    taken: list[tuple[str, int, int]] = []

    def entrant(name: str) -> Entrant:
        def shoot(seconds: int, connections: int) -> dict[str, Any]:
            taken.append((name, seconds, connections))
            return {"per_second": float(seconds), "p99_ms": 1.0}

        return Entrant(name, shoot)

    found = contests.in_turn([entrant("a"), entrant("b")], Pace(2, 8, 64))
    assert taken == [
        (name, seconds, 64) for _ in range(2) for name in ("a", "b") for seconds in (1, 8)
    ]
    assert {name: [shot["per_second"] for shot in all_] for name, all_ in found.items()} == {
        "a": [8.0, 8.0],
        "b": [8.0, 8.0],
    }


@needs_wrk
def test_an_answer_without_what_it_should_contain_is_refused(tmp_path: Path):
    bodies = [contenders.body(1, "tasks/get", taskId="x" * 43)]
    with contenders.starting(tmp_path) as start:
        bare = contenders.peer(start, BARE, "bare")
        served, refused = (
            load.run(
                bare.url,
                load.write_bodies(tmp_path / "bodies", bodies, expected),
                "tasks/get",
                connections=1,
                seconds=SHOT_S,
            )
            for expected in ('"status":"working"', '"status":"completed"')
        )
    assert served.answered > 0
    assert served.refused == 0
    assert refused.answered == 0
    assert refused.refused > 0


@needs_wrk
def test_an_acknowledged_task_that_is_not_stored_breaks_the_stage(
    tmp_path: Path, database_url: str
):
    with contenders.starting(tmp_path) as start:
        forgetful = contenders.peer(start, IN_MEMORY, "tasks", "memory://bench")
        entrant = contests.creates(forgetful, tmp_path, database_url)
        with pytest.raises(RuntimeError, match="acknowledged what it had not stored"):
            entrant.shoot(SHOT_S, 2)


def test_the_processor_time_of_a_process_counts_its_ended_children():
    busy = "sum(range(20_000_000))"
    script = (
        "import subprocess, sys; sys.stdin.readline();"
        f"subprocess.run([sys.executable, '-c', {busy!r}]); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        before = usage.tree_cpu_s(process.pid)
        process.stdin.write(b"go\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"\n"
        assert usage.tree_cpu_s(process.pid) > before
        process.stdin.close()


def test_a_target_is_judged_by_the_median_and_a_missed_one_says_what_limits_it():
    stages = results(
        get={
            "connections": 64,
            "shots": {OURS: shots(1_000), ON_REDIS: shots(50), BARE: shots(2_000)},
        },
        create={"connections": 64, "shots": {OURS: shots(100, p99_ms=51.0), ON_REDIS: shots(50)}},
        idle={
            "nothing": {"cpu_percent": 0.5, "rss_mib": 100.0},
            "many": {"cpu_percent": 1.5, "rss_mib": 120.0},
        },
    )
    told = {each.target.what: each.told for each in targets.judged(stages["stages"])}
    assert told["`tasks/get`, times `fastmcp-tasks` on Redis"] == "met"
    assert told["`tasks/get`, times a bare FastAPI route"] == "**NOT MET**"
    assert told["durable create at 64 connections, p99"] == "**NOT MET**"
    assert told["idle `serve`, of one core"] == "**NOT MET**"
    assert told["idle `serve`, resident"] == "met"
    assert told["from commit to frame on `listen`, p99"] == "not measured"
    page = report.page(stages, {})
    assert "| 51.0 | under 50 ms | **NOT MET** |" in page
    assert "**durable create at 64 connections, p99.** " in page


def test_growth_compares_the_largest_store_with_the_smallest():
    group = {"get_p99_ms": 3.0, "create_p50_ms": 4.0}
    stages = results(
        growth={
            "1,000 stored": {"stored": 1_000, "get_p50_ms": 1.2, **group},
            "10 stored": {"stored": 10, "get_p50_ms": 1.0, **group},
            "a task of many events": {"get_p50_ms": 9.0},
        }
    )["stages"]
    by_name = {each.target.what: each.figure for each in targets.judged(stages)}
    grown = by_name["`tasks/get` with most tasks stored, times that with least, p50"]
    assert grown is not None
    assert grown.median == pytest.approx(1.2)


def test_a_profile_says_who_was_at_work_and_what_led_there():
    root = profiling.ROOT
    main = f"run ({root}/service/hosting.py:9)"
    post = f"post ({root}/service/endpoint.py:3)"
    rows = f"rows ({root}/adapters/postgres.py:5)"
    psycopg = f"execute ({root}/.venv/lib/python3.11/site-packages/psycopg/cursor.py:1)"
    loop = "select (/usr/lib/python3.11/selectors.py:4)"
    told = profiling.grouped([f"{main};{post} 5", f"{main};{post};{rows};{psycopg} 3", f"{loop} 2"])
    assert told == {
        "samples": 10,
        "by_owner": {
            "outlast: service": 50.0,
            "psycopg": 30.0,
            "standard library: selectors": 20.0,
        },
        "of_ours": {"service/endpoint.py: post": 80.0, "adapters/postgres.py: rows": 30.0},
    }


def test_a_missed_target_fails_only_a_strict_run(tmp_path: Path):
    kept = results(create={"connections": 64, "shots": {OURS: shots(1), ON_REDIS: shots(1)}})
    (tmp_path / "performance.json").write_text(json.dumps(kept))
    codes = [
        subprocess.run(
            [sys.executable, COMMAND, "--report-only", "--out", tmp_path, *more],
            stdout=subprocess.DEVNULL,
            timeout=RUN_S_MAX,
            check=False,
        ).returncode
        for more in ([], ["--strict"])
    ]
    assert codes == [0, 1]
    assert "NOT MET" in (tmp_path / "performance.md").read_text()


def test_a_broken_stage_fails_the_run_and_keeps_the_figures_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str
):
    def run(name: str, *_: object) -> dict[str, Any]:
        if name == "get":
            raise RuntimeError("a server ended")
        return {"shots": {OURS: shots(2)}}

    monkeypatch.setattr(compare.stages, "run", run)
    monkeypatch.setattr(compare.stages, "described", lambda _: {"taken": "today"})
    wanted = compare.arguments(["--only", "get,create", "--out", str(tmp_path)])
    found = results(get={"shots": {}})
    assert not compare.measured(wanted, found, tmp_path / "performance.json")
    assert list(json.loads((tmp_path / "performance.json").read_text())["stages"]) == ["create"]


@needs_wrk
@needs_redis
def test_a_tiny_run_compares_all_contenders_and_writes_the_page(tmp_path: Path, postgres_url: str):
    command = [sys.executable, COMMAND, "--quick", "--only", "get,create", "--out", tmp_path]
    command += ["--rounds", "1", "--seconds", "3", "--connections", "4"]
    command += ["--database-url", postgres_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    stages = json.loads((tmp_path / "performance.json").read_text())["stages"]
    for name in ("get", "create"):
        for runs in stages[name]["figures"]["shots"].values():
            assert [run["refused"] for run in runs] == [0]
            assert runs[0]["answered"] > 0
    (created,) = stages["create"]["figures"]["shots"][OURS]
    assert created["committed"] >= created["answered"]
    assert (
        "durable create, times `fastmcp-tasks` on Redis"
        in (tmp_path / "performance.md").read_text()
    )


def test_rounds_and_seconds_can_be_chosen():
    wanted = compare.arguments(["--quick", "--rounds", "7"])
    assert compare.sized(wanted) == replace(
        compare.stages.QUICK,
        side_by_side=replace(compare.stages.QUICK.side_by_side, rounds=7),
    )
