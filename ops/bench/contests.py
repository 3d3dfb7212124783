"""Servers under the same load in turn: one shot of each, and then the next round.

The turns are what makes figures comparable: whatever slows the machine down for a minute slows all
of them. Every answer is looked at, and what ours acknowledged is counted in its database.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg

from outlast.ops.bench import contenders, floor, load, usage
from outlast.ops.bench.contenders import BARE, SDK, TOOL, Contender

WARM_S = 1
TASKS = 500  # that a contender's clients ask for in turn
GET, CALL = "tasks/get", "tools/call"
WORKING = '"status":"working"'
A_TASK = '"resultType":"task"'
A_PLAIN_RESULT = '"isError":false'
MICRO = 1e6

Shot = dict[str, Any]
Shots = dict[str, list[Shot]]


@dataclass(frozen=True)
class Pace:
    """How many rounds, how long each shot, and from how many connections."""

    rounds: int
    seconds: int
    connections: int


@dataclass(frozen=True)
class Entrant:
    """One that takes part: `shoot` loads it for so many seconds from so many connections."""

    name: str
    shoot: Callable[[int, int], Shot]


def in_turn(entrants: Sequence[Entrant], pace: Pace) -> Shots:
    """All shots of each, by name. The first one of a turn warms up and is forgotten."""
    shots: Shots = {entrant.name: [] for entrant in entrants}
    for number in range(pace.rounds):
        for entrant in entrants:
            entrant.shoot(WARM_S, pace.connections)
            shot = entrant.shoot(pace.seconds, pace.connections)
            if not shot["per_second"]:
                raise RuntimeError(f"{entrant.name} answered nothing in {pace.seconds} s")
            shots[entrant.name].append(shot)
            print(
                f"  round {number + 1}, {pace.connections} connections, {entrant.name}: "
                f"{shot['per_second']:,.0f} a second, p99 {shot['p99_ms']:.1f} ms",
                flush=True,
            )
    return shots


def gets(contender: Contender, folder: Path, tasks: int = TASKS) -> Entrant:
    """Asks for live tasks; the SDK's server has none, and answers a plain call of a tool."""
    if contender.name == SDK:
        return _posting(contender, folder, CALL, _calls(tasks), A_PLAIN_RESULT)
    if contender.name == BARE:
        ids = [secrets.token_urlsafe(32) for _ in range(tasks)]
    else:
        ids = contenders.created(contender, tasks)
    asked = [contenders.body(n, GET, taskId=task_id) for n, task_id in enumerate(ids)]
    return _posting(contender, folder, GET, asked, WORKING)


def creates(contender: Contender, folder: Path, database_url: str | None = None) -> Entrant:
    """Calls a tool, and takes the handle of the task; counted in the database, if there is one."""
    posting = _posting(contender, folder, CALL, _calls(TASKS), A_TASK)
    if database_url is None:
        return posting

    def shoot(seconds: int, connections: int) -> Shot:
        before = stored(database_url)
        shot = posting.shoot(seconds, connections)
        shot["committed"] = stored(database_url) - before
        if shot["committed"] < shot["answered"]:
            raise RuntimeError(f"{contender.name} acknowledged what it had not stored: {shot}")
        return shot

    return Entrant(posting.name, shoot)


def inserts(url: str, folder: Path) -> Entrant:
    """The floor that PostgreSQL sets; it has its own number of clients."""
    floor.prepare(url)
    server = usage.postmaster(url)

    def shoot(seconds: int, _: int) -> Shot:
        return _with_usage({"store": server}, lambda: floor.run(url, folder, seconds))

    return Entrant(floor.NAME, shoot)


def stored(database_url: str) -> int:
    """How many tasks there are."""
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT count(*) FROM outlast.task_view").fetchone()
    assert row is not None
    return row[0]


def _calls(count: int) -> list[dict[str, Any]]:
    return [contenders.body(n, CALL, name=TOOL, arguments={"task": str(n)}) for n in range(count)]


def _posting(
    contender: Contender,
    folder: Path,
    method: str,
    asked: Sequence[Mapping[str, Any]],
    expected: str,
) -> Entrant:
    path = folder / f"{contender.name}-{method}.bodies".replace("/", "-").replace(" ", "-")
    load.write_bodies(path, asked, expected)

    def shoot(seconds: int, connections: int) -> Shot:
        def run() -> Shot:
            return asdict(
                load.run(contender.url, path, method, connections=connections, seconds=seconds)
            )

        pids = {"server": contender.pid, "store": contender.store_pid}
        shot = _with_usage(pids, run)
        if shot["refused"]:
            raise RuntimeError(f"{contender.name} refused {method}: {shot}")
        return shot

    return Entrant(contender.name, shoot)


def _with_usage(pids: Mapping[str, int | None], run: Callable[[], Shot]) -> Shot:
    """The shot, and the processor time of these processes for each answer."""
    before = {name: usage.tree_cpu_s(pid) for name, pid in pids.items() if pid is not None}
    shot = run()
    for name, used in before.items():
        pid = pids[name]
        assert pid is not None
        spent = usage.tree_cpu_s(pid) - used
        shot[f"{name}_cpu_us"] = spent / max(1, shot["answered"]) * MICRO
    return shot
