"""The official suite objects to nothing, scenario by scenario; and it would if it could."""

import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from mcp.client import Client

from outlast.tests.conformance import fixture_server, suite

LIFECYCLE = "tasks-lifecycle"


@pytest.fixture(scope="module")
def node() -> str:
    if not suite.can_run():
        pytest.skip("the official suite is an npm package, and this machine has no npm")
    return suite.install()


@pytest.fixture(scope="module")
def outlast_url(node: str, anyio_backend: str, module_database_url: str) -> Iterator[str]:
    with suite.outlast_served(module_database_url) as url:
        yield url


@pytest.fixture
def a_server_without_tasks() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _RefuseAll) as server:
        answering = Thread(target=server.serve_forever)
        answering.start()
        yield f"http://127.0.0.1:{server.server_port}/mcp"
        server.shutdown()
        answering.join()


class _RefuseAll(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the base class names it so
        pass


@pytest.mark.promise("official-conformance")
@pytest.mark.parametrize("scenario", [s for s in suite.SCENARIOS if s not in suite.UNWRITTEN])
def test_the_official_suite_passes(scenario: str, node: str, outlast_url: str) -> None:
    report = suite.run_scenario(node, outlast_url, scenario)

    assert report.objections == ()
    assert report.proofs
    assert not report.having("SKIPPED")


@pytest.mark.parametrize("scenario", sorted(suite.UNWRITTEN))
def test_what_the_suite_does_not_test_yet_is_known_by_name(
    scenario: str, node: str, outlast_url: str
) -> None:
    report = suite.run_scenario(node, outlast_url, scenario)

    assert [check.status for check in report.checks] == ["SKIPPED"]


def test_a_cancelled_computation_ends_cancelled(node: str, outlast_url: str) -> None:
    """The suite notes the status that follows a cancel and accepts any."""
    report = suite.run_scenario(node, outlast_url, LIFECYCLE)
    (cancel,) = [check for check in report.checks if check.id == "sep-2663-cancel-ack-empty-result"]

    assert cancel.details["statusAfterCancel"] == "cancelled"


def test_the_suite_objects_to_a_server_without_tasks(
    node: str, a_server_without_tasks: str
) -> None:
    report = suite.run_scenario(node, a_server_without_tasks, LIFECYCLE)

    assert len(report.objections) == len(report.having("FAILURE")) > 0
    assert report.proofs == ()


def test_a_scenario_that_proved_nothing_does_not_count_as_passed() -> None:
    silence = suite.Check(suite.WIRE_CHECK, "SUCCESS", "", {})

    assert suite.Report(LIFECYCLE, (silence,)).objections == ("no check was passed",)


@pytest.mark.anyio
async def test_the_policy_alone_makes_tasks_of_the_fixtures_tools() -> None:
    policy = tomllib.loads((suite.HERE / "outlast.toml").read_text("utf-8"))
    async with Client(fixture_server.mcp) as client:
        tools = (await client.list_tools()).tools
        extensions = client.server_capabilities.extensions

    assert {tool.name for tool in tools} == set(policy["tools"])
    assert not extensions
