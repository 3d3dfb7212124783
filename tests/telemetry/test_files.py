"""The dashboard, the alert rules and the page of telemetry, against a scrape of a real server."""

import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from outlast.service.tracing.spans import ATTRIBUTES, SPANS
from outlast.tests.acceptance.waiting import until
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.serving import serving
from outlast.tests.telemetry.conftest import config_text
from outlast.tests.telemetry.programs import promtool

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "ops" / "alerts" / "outlast.yml"
DASHBOARD = ROOT / "ops" / "dashboards" / "outlast.json"
PAGE = (ROOT / "docs" / "telemetry.md").read_text()
METRIC = re.compile(r"\boutlast_[a-z_]+")
DURATION = re.compile(r"[0-9]+[smh]")
BOUND_S = 60.0


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return group["rules"]


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield from (target["expr"] for target in panel["targets"])


async def scraped(client: RawClient) -> str:
    page = await client.http.get(client.url.replace("/mcp", "/metrics"))
    assert page.status_code == httpx2.codes.OK, page.text
    return page.text


def names_in(page: str) -> set[str]:
    """All that a query may name: a histogram has three names, which are not its own."""
    kinds = re.findall(r"^# TYPE (\S+) (\S+)", page, re.MULTILINE)
    found: set[str] = set()
    for name, kind in kinds:
        parts = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found |= {f"{name}{part}" for part in parts}
    return found


def figure(page: str, line: str) -> float:
    (found,) = [one for one in page.splitlines() if one.startswith(f"{line} ")]
    return float(found.split()[-1])


@pytest.fixture(scope="module")
async def page(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    """A scrape of a server that has done something, was asked for nonsense, and signed its log."""
    folder = tmp_path_factory.mktemp("figures")
    config = config_text("[server]\naudit_checkpoint_s = 0.2")
    async with serving(folder, config, module_database_url) as server, http_client() as http:
        client = RawClient(server.url, http)
        await client.call("where")
        task_id = await client.opened("red")
        await client.until_status(task_id, "completed", "failed", seconds=BOUND_S)
        for number in range(3):
            await client.call(f"no-such-tool-{number}")

        async def is_signed() -> bool:
            return "outlast_audit_checkpoint_age_seconds " in await scraped(client)

        await until(is_signed, BOUND_S)
        yield await scraped(client)


@pytest.mark.promise("what-dashboards-name-exists")
async def test_every_metric_that_a_rule_or_the_dashboard_names_is_scraped(page: str):
    named = {name for each in expressions() for name in METRIC.findall(each)}
    assert named, "nothing was looked at"
    assert named - names_in(page) == set()


async def test_the_page_lists_exactly_what_is_scraped(page: str):
    table = set(re.findall(r"^\| `(outlast_[a-z_]+)`", PAGE, re.MULTILINE))
    kinds = {name for name, _ in re.findall(r"^# TYPE (\S+) (\S+)", page, re.MULTILINE)}
    assert table == kinds


def test_the_page_lists_every_attribute_and_every_span():
    listed = set(re.findall(r"^\| `([a-z_]+(?:\.[a-z_]+)+)`", PAGE, re.MULTILINE))
    assert listed == set(ATTRIBUTES)
    assert all(re.search(rf"^\| `{name}( <tool>)?`", PAGE, re.MULTILINE) for name in SPANS)


async def test_requests_and_calls_are_counted_by_what_there_is_and_not_by_what_is_asked(page: str):
    assert figure(page, 'outlast_tool_calls_total{outcome="ok",tool="where"}') == 1
    assert figure(page, 'outlast_tool_calls_total{outcome="task",tool="red"}') == 1
    assert figure(page, 'outlast_tool_calls_total{outcome="error",tool="other"}') == 3
    assert figure(page, 'outlast_requests_total{method="tools/call",outcome="error"}') == 3
    assert figure(page, 'outlast_request_seconds_count{method="tools/call"}') == 5
    assert figure(page, 'outlast_appends_total{kind="create"}') == 1
    assert figure(page, "outlast_append_batch_size_count") >= 2
    assert figure(page, "outlast_queue_depth") == 0
    assert figure(page, "outlast_store_up") == 1
    assert "no-such-tool" not in page


def test_rules_and_runbook_belong_together():
    seen: set[str] = set()
    for rule in rules():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert DURATION.fullmatch(rule["for"])
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
        seen.add(rule["alert"])
    assert len(seen) == len(rules())


def test_prometheus_itself_reads_the_rules(tmp_path: Path):
    command = [promtool(tmp_path), "check", "rules", RULES]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules())} rules found" in done.stdout
