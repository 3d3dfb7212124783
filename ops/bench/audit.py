"""How fast a log is verified and its views are made anew.

    make bench-audit [ARGS="--out FILE --events 1000000 --sealed 100000"]

Fills a store with histories of about ten events each, builds the tree over them, and measures what
`outlast audit verify` and `outlast db rebuild` do: one process, beside PostgreSQL, on one machine.
`verify` is both of its parts, one after the other: every event against its leaf and every leaf
against the signed root, then every view, queue row and counter against the fold of its events.
`rebuild` is measured where nothing differs, and where all views are gone. The same for a smaller
store whose payloads are sealed.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from outlast.adapters.postgres import Database
from outlast.adapters.rebuild import Rebuild
from outlast.adapters.sealing import LocalWrapping, Sealer, new_key_line
from outlast.adapters.view_verification import ViewVerification
from outlast.ops.bench.audit_stage import Filled, Keys, fill
from outlast.ops.bench.stores import stores
from outlast.ops.bench.table import Floor, show, write
from outlast.service.auditing.following import Follower, Pace
from outlast.service.auditing.report import Report
from outlast.service.settings import load
from outlast.service.wiring.audit import auditing

ENOUGH = Floor(20_000, "a second", is_least=True)
FLOORS: dict[str, Floor] = dict.fromkeys(
    ("verify_per_s", "rebuild_per_s", "rebuild_all_per_s"), ENOUGH
)
PACE = Pace(100_000, 3_600.0)
KEY_LINE = new_key_line("bench")

Figures = dict[str, Any]


async def timed(work: Callable[[], Awaitable[Any]]) -> tuple[float, float]:
    """Seconds on the clock, and seconds of this process's own."""
    begun, used = time.monotonic(), time.process_time()
    await work()
    return time.monotonic() - begun, time.process_time() - used


async def measured(url: str, filled: Filled, keys: str | None) -> Figures:
    """All of one store."""
    database = Database(url)
    await database.open()
    sealer = Sealer(database, LocalWrapping([keys]) if keys else None)
    figures: Figures = {"events": filled.events, "tasks": filled.tasks}
    try:
        await _tree(url, figures)
        await _verify(url, sealer, figures)
        await _rebuild(url, sealer, figures)
    finally:
        await database.close()
    return figures


async def _tree(url: str, figures: Figures) -> None:
    async with auditing(load({"database_url": url}, {}), url) as found:
        follower = Follower(found.following, found.notary, PACE)
        clock, own = await timed(follower.follow)
    _note(figures, "tree", clock, own)


async def _verify(url: str, sealer: Sealer, figures: Figures) -> None:
    report = Report()
    async with auditing(load({"database_url": url}, {}), url) as found:
        check = found.check(None)
        log = await timed(lambda: check(report))
    audit = ViewVerification(url, sealer)

    async def views() -> None:
        async for difference in audit.differences():
            raise SystemExit(f"a view differs: {difference}")

    seen = await timed(views)
    if not report.is_good or audit.checked.events != figures["events"]:
        raise SystemExit("\n".join(report.lines))
    _note(figures, "verify_log", *log)
    _note(figures, "verify_views", *seen)
    _note(figures, "verify", log[0] + seen[0], log[1] + seen[1])


async def _rebuild(url: str, sealer: Sealer, figures: Figures) -> None:
    for name, lost in (("rebuild", False), ("rebuild_all", True)):
        if lost:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(
                    "TRUNCATE outlast.task_view, outlast.run_queue, outlast.owner_usage"
                )
        rebuild = Rebuild(url, sealer)

        async def run(rebuild: Rebuild = rebuild) -> None:
            async for _ in rebuild.run():
                pass

        clock, own = await timed(run)
        done, expected = rebuild.done, figures["tasks"] if lost else 0
        if (done.events, done.differing, done.refused) != (figures["events"], expected, 0):
            raise SystemExit(f"a rebuild has done something else: {done}")
        _note(figures, name, clock, own)


def _note(figures: Figures, name: str, clock: float, own: float) -> None:
    figures[f"{name}_per_s"] = round(figures["events"] / clock)
    figures[f"{name}_s"] = round(clock, 2)
    figures[f"{name}_own_s"] = round(own, 2)


def sealing_keys() -> Keys:
    """A data key for each task that is filled in, wrapped as a service would wrap it."""
    wrapping = LocalWrapping([KEY_LINE])

    def new(task_id: str) -> tuple[bytes, bytes, str]:
        key = AESGCM.generate_key(256)
        return key, asyncio.run(wrapping.wrap(task_id, key)), wrapping.name

    return new


def arguments() -> argparse.Namespace:
    """How much, and where to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, default=Path("build/bench-audit.json"))
    parser.add_argument("--database-url", default=os.environ.get("OUTLAST_TEST_DATABASE_URL"))
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--sealed", type=int, default=100_000, help="events; 0 for none")
    return parser.parse_args()


def main() -> int:
    """Fill, measure, print, write; 1 if a floor is missed."""
    wanted = arguments()
    figures: dict[str, Figures] = {}
    with stores(wanted.database_url, 2) as (plain, sealed):
        for name, url, count, keys in (
            ("plain", plain, wanted.events, None),
            ("sealed", sealed, wanted.sealed, sealing_keys()),
        ):
            if not count:
                continue
            begun = time.monotonic()
            filled = fill(url, count, keys)
            print(f"{name}: filled {filled.events:,} events in {time.monotonic() - begun:.1f} s")
            figures[name] = asyncio.run(measured(url, filled, KEY_LINE if keys else None))
    all_met = show(figures, FLOORS)
    write(wanted.out, figures)
    return 0 if all_met else 1


if __name__ == "__main__":
    raise SystemExit(main())
