"""Old and new processes on one database: an upgrade that no client notices."""

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from outlast.tests.acceptance.waiting import until
from outlast.tests.chaos.client import Client, text_of, word
from outlast.tests.chaos.nodes import Node
from outlast.tests.delivery.webhook_world import SECRET, Hook, Posted, hook
from outlast.tests.operations import versions
from outlast.tests.operations.versions import Version
from outlast.tests.support.databases import database
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.streams import listening

pytestmark = pytest.mark.anyio

STEPS = "".join(
    path.read_text(encoding="utf-8")
    for path in sorted((versions.ROOT / "ops" / "migrations").glob("*.sql"))
)
SERVING, WORKING = "outlast: serving", "outlast worker: waiting"
READY_S_MAX, STOP_S_MAX = 90.0, 60.0


@asynccontextmanager
async def started(*nodes: Node) -> AsyncIterator[None]:
    """All of them ready; whatever happens, none is left."""
    try:
        for node in nodes:
            node.start()
        for node in nodes:
            await node.until_said(WORKING if "worker" in node.name else SERVING, READY_S_MAX)
        yield
    finally:
        for node in nodes:
            await node.make_gone()


async def stopped(node: Node) -> None:
    """It has drained and left in order."""
    node.process.terminate()
    assert await node.until_ended(STOP_S_MAX) == 0, node.log.read_text()


def errors_in(*nodes: Node) -> list[str]:
    """What they logged as an error; other lines are no JSON, or of a lower level."""
    lines = ((node.name, line) for node in nodes for line in node.log.read_text().splitlines())
    said = ((name, line) for name, line in lines if line.startswith("{"))
    return [f"{name}: {line}" for name, line in said if json.loads(line)["level"] == "error"]


def finished_once(endpoint: Hook, task_ids: list[str]) -> Callable[[], Any]:
    """Whether the endpoint has been told of the end of each of these tasks."""

    async def told() -> bool:
        ends = {
            post.content["data"]["taskId"]
            for post in endpoint.events
            if post.content["data"]["status"] == "completed"
        }
        return ends >= set(task_ids)

    return told


def each_change_has_one_id(posts: Sequence[Posted]) -> bool:
    """True also where a change came twice, since its first answer was late."""
    told = {(post.content["data"]["taskId"], post.version, post.webhook_id) for post in posts}
    return len({change[:2] for change in told}) == len({change[2] for change in told}) == len(told)


async def inbox(http: httpx2.AsyncClient, url: str) -> str:
    """The page of those who wait for an answer, at a server of the new version."""
    page = await http.get(f"{url}/console/inbox")
    assert page.is_success, page.text
    return page.text


def indexes(url: str) -> set[str]:
    """Those that are there, and were built to their end."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
            " WHERE i.indisvalid AND i.indisready"
        ).fetchall()
    return {str(name) for (name,) in rows}


async def answered_across(at_old: Client, at_new: Client, journal: str) -> None:
    """An answer that the new version wrote down is read by the old one, whose worker goes on."""
    task_id = await at_old.call("new_asks", _work(journal, "across"), "across")
    await at_new.update(task_id, {await at_old.asked(task_id): word("go")})
    assert text_of(await at_old.ended(task_id)) == "asks across go"


@pytest.fixture
def old(tmp_path: Path) -> Version:
    return versions.before(tmp_path)


@pytest.mark.promise("upgrade-without-downtime")
async def test_old_and_new_processes_serve_and_finish_each_others_tasks(
    tmp_path: Path, database_url: str, old: Version
):
    new, journal = versions.now(), str(tmp_path / "journal")
    old_serve, old_url = old.serve(tmp_path, database_url)
    new_serve, new_url = new.serve(tmp_path, database_url)
    old_worker, new_worker = old.worker(tmp_path, database_url), new.worker(tmp_path, database_url)
    nodes = old_serve, new_serve, old_worker, new_worker
    async with hook() as endpoint, http_client() as http, started(old_serve, new_serve):
        at_old, at_new = Client(http, old_url), Client(http, new_url)
        asked = {"delivery": {"mode": "webhook", "url": endpoint.url, "secret": SECRET}}
        raw = RawClient(f"{new_url}/mcp", http)
        assert (await raw.request("events/subscribe", {"name": "task.updated", **asked})).result

        async with started(old_worker):
            first = await at_new.call("new_safe", _work(journal, "first"), "first")
            assert text_of(await at_old.ended(first)) == "safe first"
            parked = await at_new.call("new_asks", _work(journal, "parked"), "parked")
            question = await at_old.asked(parked)
            assert parked in await inbox(http, new_url)
            await answered_across(at_old, at_new, journal)
            await stopped(old_worker)

        async with started(new_worker):
            await at_old.update(parked, {question: word("go")})
            assert text_of(await at_new.ended(parked)) == "asks parked go"
            async with listening(old_url, parked) as stream:
                told = await stream.to_the_end()
            assert told[-1]["result"]["resultType"] == "complete"
            second = await at_old.call("new_safe", _work(journal, "second"), "second")
            assert text_of(await at_new.ended(second)) == "safe second"
            assert await at_old.get(second) == await at_new.get(second)
            await until(finished_once(endpoint, [first, parked, second]), READY_S_MAX)

        assert each_change_has_one_id(endpoint.events)
        await stopped(old_serve)
        await stopped(new_serve)
    assert errors_in(*nodes) == []


@pytest.mark.promise("upgrade-without-downtime")
async def test_what_the_old_version_stored_goes_on_under_the_new_one(
    tmp_path: Path, postgres_url: str, old: Version
):
    new, journal = versions.now(), str(tmp_path / "journal")
    with database(postgres_url) as url:
        assert "applied 0001" in old.run(tmp_path, url, "db", "upgrade")
        serve, address = old.serve(tmp_path, url)
        worker = old.worker(tmp_path, url)
        async with http_client() as http, started(serve, worker):
            client = Client(http, address)
            done = await client.call("new_safe", _work(journal, "done"), "done")
            was = await client.ended(done)
            parked = await client.call("new_asks", _work(journal, "parked"), "parked")
            question = await client.asked(parked)
            await stopped(worker)
            await stopped(serve)

        new.run(tmp_path, url, "db", "upgrade")
        assert "up to date" in new.run(tmp_path, url, "db", "upgrade")
        wanted = set(re.findall(r"CREATE INDEX CONCURRENTLY (\w+)", STEPS))
        assert wanted
        assert wanted <= indexes(url)
        later, address = new.serve(tmp_path, url)
        finisher = new.worker(tmp_path, url)
        async with http_client() as http, started(later, finisher):
            client = Client(http, address)
            assert await client.get(done) == was
            assert parked in await inbox(http, address)
            await client.update(parked, {question: word("go")})
            assert text_of(await client.ended(parked)) == "asks parked go"
            # The key of an old call still finds the task that it made.
            assert await client.call("new_safe", _work(journal, "done"), "done") == done
            new.run(tmp_path, url, "audit", "verify", "--config", str(tmp_path / "outlast.toml"))
            await stopped(finisher)
            await stopped(later)
        assert errors_in(serve, worker, later, finisher) == []


def _work(journal: str, key: str) -> dict[str, Any]:
    return {"path": journal, "key": key, "seconds": 0.1}
