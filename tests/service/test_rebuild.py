"""`outlast db rebuild` beside a running service: nobody is told anything wrong meanwhile."""

import json
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest

from outlast.ops.bench.audit_stage import fill
from outlast.tests.acceptance.waiting import until
from outlast.tests.service.conftest import desk_config
from outlast.tests.support.mcp import TERMINAL, RawClient, http_client
from outlast.tests.support.serving import OUTLAST, Serving, serving

pytestmark = pytest.mark.anyio

PATIENCE_S = 120.0
DAMAGED = 12
CLIENTS = 4
REBUILDS = 3
DAMAGE = (
    "DELETE FROM outlast.task_view WHERE task_id = %s",
    "UPDATE outlast.task_view SET wire = '{}', version = 1 WHERE task_id = %s",
    "UPDATE outlast.task_view SET status = 'working', expires_at = NULL WHERE task_id = %s",
    "UPDATE outlast.task_view SET owner = 'nobody' WHERE task_id = %s",
)
FILLED = 6_000


@dataclass
class Load:
    """What clients were told while the rebuild ran."""

    done: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    wrong: list[str] = field(default_factory=list[str])
    is_over: bool = False

    async def client(self, at: RawClient, folder: Path, number: int) -> None:
        """Create, poll, finish, and look again at what is done; over and over."""
        count = 0
        while not self.is_over:
            count += 1
            path = folder / f"{number}-{count}"
            await self._one(at, path)
            for task_id, told in list(self.done.items())[-3:]:
                self._hold(await at.task(task_id) == told, f"{task_id} has changed after its end")

    async def _one(self, at: RawClient, path: Path) -> None:
        task_id = await at.opened("note_task", {"path": str(path), "seconds": 0.05})
        last, told = "", dict[str, Any]()
        while told.get("status") not in TERMINAL:
            reply = await at.request("tasks/get", {"taskId": task_id})
            if "result" not in reply.body:
                self._hold(False, f"{task_id}: {reply.body}")
                return
            told = reply.result
            self._hold(told["lastUpdatedAt"] >= last, f"{task_id} went back in time: {told}")
            last = told["lastUpdatedAt"]
        right = told["status"] == "completed" and told["result"]["content"][0]["text"] == "1"
        self._hold(right, f"{task_id} ended otherwise: {told}")
        self.done[task_id] = told

    def _hold(self, right: bool, what: str) -> None:
        if not right:
            self.wrong.append(what)


@asynccontextmanager
async def load_on(server: Serving, folder: Path) -> AsyncIterator[Load]:
    load = Load()
    with anyio.fail_after(PATIENCE_S):
        async with http_client() as http, anyio.create_task_group() as clients:
            for number in range(CLIENTS):
                clients.start_soon(load.client, RawClient(server.url, http), folder, number)
            yield load
            load.is_over = True


async def outlast(url: str, folder: Path, *words: str) -> tuple[int, str]:
    """Exit code and output."""
    with anyio.fail_after(PATIENCE_S):
        done = await anyio.run_process(
            [str(OUTLAST), *words, "--database-url", url],
            check=False,
            cwd=folder,
            stderr=subprocess.STDOUT,
        )
    return done.returncode, done.stdout.decode()


async def finished(server: Serving, folder: Path, count: int) -> dict[str, dict[str, Any]]:
    """Tasks that have ended, as their client knows them."""
    load = Load()
    async with http_client() as http:
        at = RawClient(server.url, http)
        for number in range(count):
            await load._one(at, folder / f"before-{number}")
    assert not load.wrong
    return load.done


def damage(url: str, task_ids: Sequence[str]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for number, task_id in enumerate(task_ids):
            connection.execute(DAMAGE[number % len(DAMAGE)], (task_id,))


@pytest.mark.promise("rebuild-tells-no-lie")
async def test_a_rebuild_under_load_mends_what_is_damaged_and_disturbs_nobody(
    database_url: str, tmp_path: Path
):
    async with serving(tmp_path, desk_config(), database_url) as server:
        known = await finished(server, tmp_path, DAMAGED)
        async with load_on(server, tmp_path) as load:
            for _ in range(REBUILDS):
                damage(database_url, list(known))
                so_far = len(load.done)
                code, said = await outlast(database_url, tmp_path, "db", "rebuild")
                assert code == 0, said
                assert f"{DAMAGED} tasks differed" in said, said

                async def went_on(more: int = so_far + CLIENTS) -> bool:
                    return len(load.done) >= more

                await until(went_on, PATIENCE_S)
        assert load.wrong == []
        async with http_client() as http:
            at = RawClient(server.url, http)
            assert {task_id: await at.task(task_id) for task_id in known} == known
        code, said = await outlast(database_url, tmp_path, "audit", "verify")
        assert code == 0, said


async def test_a_rebuild_that_is_killed_in_the_middle_harms_nothing(
    database_url: str, tmp_path: Path
):
    fill(database_url, FILLED)
    with psycopg.connect(database_url, autocommit=True) as connection:
        views = "SELECT task_id, version, wire FROM outlast.task_view ORDER BY task_id"
        before = connection.execute(views).fetchall()
        connection.execute("UPDATE outlast.task_view SET version = version + 7, wire = 'x'")
    middle = before[len(before) // 2][0]
    with psycopg.connect(database_url) as held:
        held.execute("SELECT 1 FROM outlast.task_view WHERE task_id = %s FOR UPDATE", (middle,))
        process = await anyio.open_process(
            [str(OUTLAST), "db", "rebuild", "--database-url", database_url], cwd=tmp_path
        )
        await until_waiting_in_the_middle(database_url)
        process.send_signal(signal.SIGKILL)
        with anyio.fail_after(PATIENCE_S):
            await process.wait()
    await until_let_go(database_url)
    with psycopg.connect(database_url, autocommit=True) as connection:
        after = connection.execute(views).fetchall()
    damaged = [(task_id, version + 7, b"x") for task_id, version, _ in before]
    mended = sum(row == right for row, right in zip(after, before, strict=True))
    assert 0 < mended < len(before)
    assert all(row in pair for row, *pair in zip(after, before, damaged, strict=True))
    code, said = await outlast(database_url, tmp_path, "db", "rebuild")
    assert code == 0, said
    assert f"{len(before) - mended} tasks differed" in said, said
    with psycopg.connect(database_url, autocommit=True) as connection:
        assert connection.execute(views).fetchall() == before


async def until_waiting_in_the_middle(url: str) -> None:
    """Something is mended, and somebody waits for the lock of a row."""

    async def waits() -> bool:
        mended = "SELECT count(*) FROM outlast.task_view WHERE wire <> 'x'"
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        return _count(url, mended) > 0 and _count(url, waiting) > 0

    await until(waits, PATIENCE_S)


async def until_let_go(url: str) -> None:
    """PostgreSQL has noticed that the process is gone, on all of its connections.

    The one with the lock may be the first to go, while another still ends what it was told.
    """

    async def is_alone() -> bool:
        others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        others += " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        return _count(url, others) == 0

    await until(is_alone, PATIENCE_S)


def _count(url: str, statement: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


async def test_what_differed_is_told_on_request_and_a_second_run_finds_nothing(
    database_url: str, tmp_path: Path
):
    async with serving(tmp_path, desk_config(), database_url) as server:
        (task_id,) = await finished(server, tmp_path, 1)
    damage(database_url, [task_id])
    code, said = await outlast(database_url, tmp_path, "audit", "verify", "--json")
    report = json.loads(said)
    assert (code, report["good"]) == (1, False)
    assert task_id in {finding["taskId"] for finding in report["findings"]}
    code, said = await outlast(database_url, tmp_path, "db", "rebuild", "--verbose")
    assert code == 0
    assert f"task {task_id}: task_view has no row" in said
    code, said = await outlast(database_url, tmp_path, "db", "rebuild")
    assert (code, "0 tasks differed" in said) == (0, True)
    assert (await outlast(database_url, tmp_path, "audit", "verify"))[0] == 0
