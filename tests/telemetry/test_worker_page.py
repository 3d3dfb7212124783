"""A worker tells how it is, to who looks after it, and nothing else to anybody."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from outlast.tests.acceptance.waiting import until
from outlast.tests.chaos.client import REQUEST_S_MAX, Client
from outlast.tests.chaos.nodes import Cluster, Node, cluster
from outlast.tests.support.ports import free_port
from outlast.tests.telemetry.test_slots import begun, figures

pytestmark = [pytest.mark.anyio, pytest.mark.promise("a-worker-tells-how-it-is")]

BOUND_S = 60.0
SECRET = "the-token-of-operators-" + "o" * 20
OK, FORBIDDEN, NOT_FOUND = 200, 403, 404


@pytest.fixture
async def made(tmp_path: Path, database_url: str) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path, database_url) as made:
        yield made


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(trust_env=False, timeout=REQUEST_S_MAX) as http:
        yield http


async def working(made: Cluster, **settings: str) -> tuple[Node, str]:
    """A worker that has begun, and where it tells how it is."""
    port = str(free_port())
    worker = made.worker(worker_port=port, **settings)
    await begun(worker, f"waiting for tasks; figures at http://127.0.0.1:{port}/metrics")
    return worker, f"http://127.0.0.1:{port}"


async def test_its_figures_are_its_own(made: Cluster, http: httpx2.AsyncClient):
    server = made.serve(work=False)
    await begun(server, "outlast: serving")
    worker, url = await working(made, slots="3")
    for number in range(2):
        arguments = {"path": str(made.journal), "key": f"{number}"}
        await Client(http, made.url).call("new_hold", arguments, f"{number}")

    async def are_running() -> bool:
        its, theirs = await figures(http, url), await figures(http, made.url)
        held = (its["outlast_tasks_held"], theirs["outlast_tasks_held"])
        return (its["outlast_calls_running"], held) == (2, (2, 2))

    await until(are_running, BOUND_S)
    its, theirs = await figures(http, url), await figures(http, made.url)
    assert its["outlast_slots"] == 3
    assert "outlast_slots" not in theirs
    assert theirs["outlast_calls_running"] == 0
    for path in ("/healthz", "/readyz"):
        assert (await http.get(url + path)).status_code == OK
    worker.send(signal.SIGTERM)
    assert await worker.until_ended(BOUND_S) == 0


async def test_it_serves_nobody_else(made: Cluster, http: httpx2.AsyncClient):
    _, url = await working(made, admin_token=SECRET)
    operator = {"authorization": f"Bearer {SECRET}"}
    assert (await http.get(f"{url}/metrics")).status_code == FORBIDDEN
    assert (await http.get(f"{url}/metrics", headers=operator)).status_code == OK
    assert (await http.get(f"{url}/healthz")).status_code == OK
    for path in (
        "/metrics/",
        "/admin/webhooks",
        "/audit/checkpoint",
        "/console",
        "/callbacks/v1.AAAA",
    ):
        assert (await http.get(url + path, headers=operator)).status_code == NOT_FOUND
    assert (await http.post(f"{url}/mcp", headers=operator, json={})).status_code == NOT_FOUND
