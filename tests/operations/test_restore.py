"""The drill: a machine is lost, and its database is restored to a moment before an accident."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest

from outlast.adapters import embedded_cluster
from outlast.adapters.embedded_cluster import until as until_true
from outlast.tests.acceptance.waiting import until
from outlast.tests.chaos.client import Client, Refused, text_of, word
from outlast.tests.chaos.nodes import Node
from outlast.tests.delivery.webhook_world import SECRET, Hook, Posted, hook
from outlast.tests.operations import clusters, versions
from outlast.tests.operations.page import ROOT, block_with
from outlast.tests.support.mcp import RawClient, http_client

pytestmark = pytest.mark.anyio

PATIENCE_S = 90.0


@asynccontextmanager
async def serving(folder: Path, url: str) -> AsyncIterator[str]:
    """A server that works too, and where it is."""
    now = versions.now()
    serve, address = now.serve(folder, url)
    worker = now.worker(folder, url)
    nodes: list[Node] = [serve, worker]
    try:
        for node in nodes:
            node.start()
        await serve.until_said("outlast: serving", PATIENCE_S)
        await worker.until_said("outlast worker: waiting", PATIENCE_S)
        yield address
        for node in nodes:
            node.process.terminate()
            assert await node.until_ended(PATIENCE_S) == 0, node.log.read_text()
    finally:
        for node in nodes:
            await node.make_gone()


async def told_of(endpoint: Hook, task_id: str, status: str) -> Posted:
    """The delivery that says so, once it has come."""

    def found() -> list[Posted]:
        return [
            post
            for post in endpoint.events
            if (post.content["data"]["taskId"], post.content["data"]["status"]) == (task_id, status)
        ]

    async def has_come() -> bool:
        return bool(found())

    await until(has_come, PATIENCE_S)
    return found()[0]


def archiving(archive: Path) -> dict[str, str]:
    """The settings of the runbook, for this folder."""
    archive.mkdir(mode=0o777)
    archive.chmod(0o777)  # whoever the server runs as writes here
    lines = block_with("archive_command", "ini").replace("$ARCHIVE", str(archive)).splitlines()
    pairs = (line.partition(" = ") for line in lines)
    return {name: value.strip("'") for name, _, value in pairs}


def shell(script: str, like: Path | None, cwd: Path = ROOT, **env: str) -> None:
    """Run a block of the runbook, as the user that this cluster belongs to if there is one."""
    programs = [str(embedded_cluster.find_programs()), str(Path(sys.executable).parent)]
    path = os.pathsep.join([*programs, os.environ["PATH"]])
    user = [] if like is None else embedded_cluster.run_as(embedded_cluster.choose_user(like))
    done = subprocess.run(
        [*user, "sh", "-euc", script],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={"PATH": path, **env},
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def moment(url: str) -> str:
    """Now, by the server's clock."""
    return clusters.execute(url, "SELECT clock_timestamp()")


def all_archived(url: str) -> None:
    """What has been written so far is in the archive."""
    name = clusters.execute(url, "SELECT pg_walfile_name(pg_switch_wal())")
    statement = f"SELECT last_archived_wal >= '{name}' FROM pg_stat_archiver"
    assert until_true(lambda: clusters.execute(url, statement) == "True", PATIENCE_S)


@dataclass
class Drill:
    """The endpoint, the work, and what is known of it before the machine is lost."""

    endpoint: Hook
    http: httpx2.AsyncClient
    work: dict[str, Any]
    done: str = ""
    was: dict[str, Any] = field(default_factory=dict[str, Any])
    parked: str = ""
    running: str = ""
    question: str = ""
    lost: str = ""
    lost_id: str = ""
    cursor: str = ""
    target: str = ""

    async def before(self, url: str, address: str, backed_up: Callable[[], None]) -> None:
        """A subscription, the backup, three tasks that stay, the moment, one that goes."""
        client, raw = Client(self.http, address), RawClient(f"{address}/mcp", self.http)
        delivery = {"mode": "webhook", "url": self.endpoint.url, "secret": SECRET}
        asked = {"name": "task.updated", "delivery": delivery}
        assert (await raw.request("events/subscribe", asked)).result
        await anyio.to_thread.run_sync(backed_up)
        self.done = await client.call("new_safe", {**self.work, "key": "done"}, "done")
        self.was = await client.ended(self.done)
        self.parked = await client.call("new_asks", {**self.work, "key": "parked"}, "parked")
        self.question = await client.asked(self.parked)
        await told_of(self.endpoint, self.done, "completed")
        await told_of(self.endpoint, self.parked, "input_required")
        self.running = await client.call(
            "new_stuck_once", {"path": self.work["path"], "key": "running"}, "running"
        )
        await until(self._runs, PATIENCE_S)
        self.target = moment(url)
        self.lost = await client.call("new_safe", {**self.work, "key": "lost"}, "lost")
        await client.ended(self.lost)
        self.lost_id = (await told_of(self.endpoint, self.lost, "completed")).webhook_id
        page = (await raw.request("events/poll", {"name": "task.updated"})).result
        self.cursor = page["cursor"]

    async def _runs(self) -> bool:
        return "start running\n" in Path(self.work["path"]).read_text()

    async def after(self, address: str) -> None:
        """What there was at the moment goes on, and what came later is not there."""
        client, raw = Client(self.http, address), RawClient(f"{address}/mcp", self.http)
        assert await client.get(self.done) == self.was
        with pytest.raises(Refused):
            await client.get(self.lost)
        await client.update(self.parked, {self.question: word("go")})
        assert text_of(await client.ended(self.parked)) == "asks parked go"
        await told_of(self.endpoint, self.parked, "completed")
        # Whoever ran it is gone, and it may run again: the second time it is quick.
        ended = await client.ended(self.running, PATIENCE_S)
        assert text_of(ended) == "stuck_once running"
        # A place in the log that is no more is not taken for one in the log that is.
        later = {"name": "task.updated", "cursor": self.cursor}
        assert (await raw.request("events/poll", later)).result["truncated"]
        again = await client.call("new_safe", {**self.work, "key": "lost"}, "lost")
        assert again != self.lost
        assert (await told_of(self.endpoint, again, "completed")).webhook_id != self.lost_id

    def repeated(self, count: int) -> set[str]:
        """The tasks of which something came again after so many deliveries."""
        known = {post.webhook_id for post in self.endpoint.events[:count]}
        later = self.endpoint.events[count:]
        return {post.content["data"]["taskId"] for post in later if post.webhook_id in known}


@pytest.mark.promise("restored-to-a-moment")
async def test_a_database_restored_to_a_moment_is_proven_served_and_goes_on(tmp_path: Path):
    first, second = tmp_path / "first" / "data", tmp_path / "second" / "data"
    archive, work = tmp_path / "archive", {"path": str(tmp_path / "journal"), "seconds": 0.1}
    clusters.make(first)
    second.parent.mkdir()
    async with hook() as endpoint, http_client() as http:
        drill = Drill(endpoint, http, work)
        with clusters.running(first, archiving(archive)) as url:
            text, place = block_with("pg_basebackup"), str(second)
            backup = partial(shell, text, first, OUTLAST_DATABASE_URL=url, BACKUP=place)
            async with serving(tmp_path, url) as address:
                await drill.before(url, address, backup)
            all_archived(url)

        text = block_with("recovery.signal")
        shell(text, second, BACKUP=place, ARCHIVE=str(archive), MOMENT=drill.target)
        with clusters.running(second) as url:
            shell(block_with("log_epoch"), None, tmp_path, OUTLAST_DATABASE_URL=url)
            count = len(endpoint.events)
            async with serving(tmp_path, url) as address:
                await drill.after(address)
    # What was waiting, or under way, at the moment may come again, under the id that it had.
    assert drill.repeated(count) <= {drill.done, drill.parked, drill.running}
