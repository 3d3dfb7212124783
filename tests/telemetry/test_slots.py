"""Slots that are taken are seen where servers and workers are apart, as we deploy them."""

import re
import subprocess
from pathlib import Path

import httpx2
import psycopg
import pytest
import yaml

from outlast.tests.acceptance.waiting import until
from outlast.tests.chaos.client import REQUEST_S_MAX, Client
from outlast.tests.chaos.nodes import Node, cluster
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.serving import serving
from outlast.tests.telemetry.conftest import config_text
from outlast.tests.telemetry.programs import promtool
from outlast.tests.telemetry.test_files import RULES

pytestmark = pytest.mark.anyio

ALERT = "OutlastSlotsFull"
BOUND_S = 60.0
EARLIER = "UPDATE outlast.run_queue SET due = due - interval '5 minutes' WHERE worker IS NULL"


async def figures(http: httpx2.AsyncClient, url: str) -> dict[str, float]:
    """Those without labels."""
    page = (await http.get(f"{url}/metrics")).text
    found = re.findall(r"^(outlast_\w+) (\S+)$", page, re.MULTILINE)
    return {name: float(value) for name, value in found}


def fires(folder: Path, found: dict[str, float]) -> bool:
    """What Prometheus says of our rules where these figures stay as they are for an hour."""
    given = [
        {"series": f'{name}{{job="outlast"}}', "values": f"{value}+0x60"}
        for name, value in found.items()
    ]
    asked = {"eval_time": "30m", "alertname": ALERT, "exp_alerts": []}
    test = {
        "rule_files": [str(RULES)],
        "tests": [{"interval": "1m", "input_series": given, "alert_rule_test": [asked]}],
    }
    (folder / "test.yml").write_text(yaml.safe_dump(test))
    command = [promtool(folder), "test", "rules", folder / "test.yml"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    said = done.stdout + done.stderr
    assert done.returncode == 0 or f'alertname="{ALERT}"' in said, said
    return done.returncode != 0


async def test_a_worker_whose_slots_are_taken_fires_the_alert(tmp_path: Path, database_url: str):
    async with (
        cluster(tmp_path, database_url) as made,
        httpx2.AsyncClient(trust_env=False, timeout=REQUEST_S_MAX) as http,
    ):
        server, worker = made.serve(work=False), made.worker(slots="1")
        await begun(server, "outlast: serving")
        await begun(worker, "waiting for tasks")
        idle = await figures(http, made.url)
        assert idle["outlast_tasks_held"] == 0
        assert "outlast_slots" not in idle  # nothing here takes tasks
        client = Client(http, made.url)
        for number in range(3):
            arguments = {"path": str(made.journal), "key": f"{number}"}
            await client.call("new_hold", arguments, f"{number}")

        async def is_full() -> bool:
            found = await figures(http, made.url)
            return (found["outlast_tasks_held"], found["outlast_queue_depth"]) == (1, 2)

        await until(is_full, BOUND_S)
        assert not fires(tmp_path, await figures(http, made.url))  # they have only just come
        with psycopg.connect(database_url) as store:
            store.execute(EARLIER)

        async def is_old() -> bool:
            return (await figures(http, made.url))["outlast_queue_oldest_seconds"] > 300

        await until(is_old, BOUND_S)
        assert fires(tmp_path, await figures(http, made.url))


async def begun(node: Node, says: str) -> None:
    node.start()
    await node.until_said(says)


async def test_where_no_audit_tree_is_built_none_is_behind(tmp_path: Path, database_url: str):
    config = config_text("[server]\naudit = false")
    async with serving(tmp_path, config, database_url) as server, http_client() as http:
        client = RawClient(server.url, http)
        await client.opened("red")
        page = (await http.get(f"{server.base_url}/metrics")).text
    assert "outlast_store_up 1.0" in page
    assert "outlast_audit_" not in page
