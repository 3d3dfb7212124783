"""What an operator does to a full log while two writers append: nobody waits for it.

The promise is a worst append under 50 ms. A noisy machine alone can break it, so each phase is held
to the larger of the promise and some multiple of what a quiet phase of the same run showed; both
figures are printed (`pytest -rP`).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import psycopg
import pytest

from outlast.tests.contracts import stores
from outlast.tests.contracts.stores import Ports, happens, open_task, progresses
from outlast.tests.domain.given import starts

pytestmark = pytest.mark.anyio

PROMISED_S = 0.050
QUIET_TIMES = 2
TRIES_MAX = 4

WRITERS = 2
OLD_TASKS = 3_000
EVENTS_EACH = 10
FORGOTTEN = 500
CHUNK = 100
APPENDS_MIN = 200
LOOK_AGAIN_S = 0.01
PHASE_S_MAX = 60.0

FILL = (
    "INSERT INTO outlast.task_events"
    " (originator_id, originator_version, topic, state, event_id, digest)"
    f" SELECT 'old-' || t, v, 'task.progress_reported', convert_to(repeat('x', 700), 'UTF8'),"
    f" gen_random_uuid(), '' FROM generate_series(1, {OLD_TASKS}) t,"
    f" generate_series(1, {EVENTS_EACH}) v",
    "INSERT INTO outlast.task_view (task_id, version, owner, tool, status, created_at, wire)"
    f" SELECT 'old-' || t, {EVENTS_EACH}, 'owner', 'tool', 'completed', now(), 'x'"
    f" FROM generate_series(1, {OLD_TASKS}) t",
)


@dataclass(frozen=True)
class Phase:
    """What was done to the log, and how the appends fared meanwhile."""

    name: str
    appends: int
    worst_s: float

    def __str__(self) -> str:
        return f"{self.name:28} {self.appends:5} appends, worst {self.worst_s * 1000:6.1f} ms"


@pytest.fixture
async def ports(database_url: str) -> AsyncIterator[Ports]:
    """A log of 30,000 events."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        for statement in FILL:
            connection.execute(statement.encode())
    async with stores.on_postgres(database_url) as ports:
        yield ports


@pytest.mark.alone
@pytest.mark.promise("maintenance-does-not-stall-appends")
async def test_maintenance_does_not_stall_appends(database_url: str, ports: Ports) -> None:
    async def statements(*texts: str) -> None:
        connecting = psycopg.AsyncConnection.connect(database_url, autocommit=True)
        async with await connecting as connection:
            for text in texts:
                await connection.execute(text.encode())

    async def retention() -> None:
        for first in range(1, FORGOTTEN, CHUNK):
            await ports.views.forget([f"old-{first + n}" for n in range(CHUNK)])

    index = "CREATE INDEX CONCURRENTLY for_a_while ON outlast.task_events (topic, recorded_at)"
    phases: dict[str, Callable[[], Awaitable[None]]] = {
        "retention delete": retention,
        "VACUUM": lambda: statements("VACUUM outlast.task_events, outlast.task_view"),
        "ANALYZE": lambda: statements("ANALYZE outlast.task_events, outlast.task_view"),
        "CREATE INDEX CONCURRENTLY": lambda: statements(
            index, "DROP INDEX CONCURRENTLY outlast.for_a_while"
        ),
        "VACUUM of everything": lambda: statements("VACUUM (ANALYZE)"),
    }
    table_waits: list[str] = []
    looking = asyncio.create_task(look_for_table_waits(database_url, table_waits))
    quiet = await watched(ports, "quiet", lambda: asyncio.sleep(0.05))  # noqa: TID251 - time itself is meant
    bound_s = max(PROMISED_S, QUIET_TIMES * quiet.worst_s)
    found = [await best(ports, name, work, bound_s) for name, work in phases.items()]
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    report = "\n".join(map(str, [quiet, *found]))
    kept = max(phase.worst_s for phase in found) < bound_s
    print(f"{report}\nworst append under {bound_s:.3f} s: {'kept' if kept else 'NOT KEPT'}")  # noqa: T201 - the figure is the proof
    assert table_waits == []  # whatever the clock of a busy machine says
    assert kept, report
    with psycopg.connect(database_url) as connection:
        old = "SELECT count(*) FROM outlast.task_view WHERE task_id LIKE 'old-%'"
        left = connection.execute(old).fetchone()
    assert left == (OLD_TASKS - FORGOTTEN,)


async def best(
    ports: Ports, name: str, work: Callable[[], Awaitable[None]], bound_s: float
) -> Phase:
    """The phase, measured again while it is slow: a stall of its own making comes every time.

    One that the machine makes, which others use too, does not.
    """
    phases: list[Phase] = []
    while len(phases) < TRIES_MAX and not (phases and phases[-1].worst_s < bound_s):
        phases.append(await watched(ports, f"{name}, try {len(phases) + 1}", work))
    return min(phases, key=lambda phase: phase.worst_s)


async def watched(ports: Ports, name: str, work: Callable[[], Awaitable[None]]) -> Phase:
    """Two writers append while the work is done, again and again until there is enough to see."""
    taken_s: list[float] = []
    has_begun, is_done = asyncio.Event(), asyncio.Event()

    async def write(number: int) -> None:
        task = await happens(ports.log, await open_task(ports.log, f"{name}-{number}"), starts())
        while not is_done.is_set():
            began = time.perf_counter()
            task = await happens(ports.log, task, progresses(len(taken_s)))
            taken_s.append(time.perf_counter() - began)
            has_begun.set()

    async with asyncio.timeout(PHASE_S_MAX):
        writing = [asyncio.create_task(write(number)) for number in range(WRITERS)]
        await has_begun.wait()
        while len(taken_s) < APPENDS_MIN:
            await work()
        is_done.set()
        await asyncio.gather(*writing)
    return Phase(name, len(taken_s), max(taken_s))


async def look_for_table_waits(url: str, found: list[str]) -> None:
    """Note every append that is seen to wait for a lock on a table, until cancelled."""
    connecting = psycopg.AsyncConnection.connect(url, autocommit=True)
    async with await connecting as connection:
        while True:
            cursor = await connection.execute(
                "SELECT wait_event FROM pg_stat_activity WHERE datname = current_database()"
                " AND wait_event_type = 'Lock' AND wait_event = 'relation'"
                " AND query LIKE 'SELECT outlast.append_events%'"
            )
            found += [row[0] for row in await cursor.fetchall()]
            await asyncio.sleep(LOOK_AGAIN_S)  # noqa: TID251 - time itself is meant
