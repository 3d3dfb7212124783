"""The official suite objects to nothing that it requires; and it would if it could.

What it finds against the everything-server by itself comes first: what fails there is not ours.
"""

import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from mcp.client import Client

from outlast.tests.conformance import servers, suite
from outlast.tests.conformance.suite import REVISIONS, Report

# The suite has bounds of its own, half a second for a first frame among them.
pytestmark = pytest.mark.alone

LIFECYCLE = "tasks-lifecycle"
MODERN = "2026-07-28"

Reports = Callable[[str], Sequence[Report]]


@pytest.fixture(scope="module")
def node() -> str:
    if not suite.can_run():
        pytest.skip("the official suite is an npm package, and this machine has no npm")
    return suite.install()


@pytest.fixture(scope="module")
def everything_url(node: str) -> Iterator[str]:
    with servers.everything_served() as url:
        yield url


@pytest.fixture(scope="module")
def alone(node: str) -> Iterator[Reports]:
    """What a revision's run finds against the everything-server by itself."""
    with servers.everything_served("--without-task-tools") as url:
        yield lambda date: suite.run_revision(node, url, REVISIONS[date])


@pytest.fixture(scope="module")
def outlast_url(everything_url: str, anyio_backend: str, module_database_url: str) -> Iterator[str]:
    with servers.outlast_served(everything_url, module_database_url) as url:
        yield url


@pytest.fixture(scope="module")
def through(node: str, outlast_url: str) -> Reports:
    """What a revision's run finds through Outlast. It takes a while, and so is made once."""
    return cache(lambda date: suite.run_revision(node, outlast_url, REVISIONS[date]))


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


def objections(reports: Sequence[Report]) -> dict[str, tuple[str, ...]]:
    return {report.scenario: report.objections for report in reports if report.objections}


def named(reports: Sequence[Report], scenario: str) -> Report:
    (report,) = [report for report in reports if report.scenario == scenario]
    return report


@pytest.mark.parametrize("date", REVISIONS)
def test_the_server_alone_passes_all_that_a_revision_requires(date: str, alone: Reports) -> None:
    required = suite.required(alone(date), REVISIONS[date])

    assert objections(required) == {}
    assert len(required) == REVISIONS[date].required


@pytest.mark.promise("official-conformance")
@pytest.mark.parametrize("date", REVISIONS)
def test_all_that_a_revision_requires_is_passed_through_outlast(
    date: str, through: Reports
) -> None:
    required = suite.required(through(date), REVISIONS[date])

    assert objections(required) == {}
    assert len(required) == REVISIONS[date].required


@pytest.mark.promise("official-conformance")
@pytest.mark.parametrize(
    ("date", "scenario"),
    [
        (revision.date, scenario)
        for revision in REVISIONS.values()
        for scenario in revision.beyond
        if scenario not in suite.UNWRITTEN
    ],
)
def test_what_the_suite_does_not_score_is_passed_too(
    date: str, scenario: str, through: Reports
) -> None:
    report = named(through(date), scenario)

    assert report.objections == ()
    assert report.proofs
    assert not report.having("SKIPPED")


@pytest.mark.parametrize("scenario", sorted(suite.UNWRITTEN))
def test_what_the_suite_does_not_test_yet_is_known_by_name(scenario: str, through: Reports) -> None:
    report = named(through(MODERN), scenario)

    assert [check.status for check in report.checks] == ["SKIPPED"]


def test_a_cancelled_computation_ends_cancelled(through: Reports) -> None:
    """The suite notes the status that follows a cancel and accepts any."""
    report = named(through(MODERN), LIFECYCLE)
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

    assert Report(LIFECYCLE, (silence,)).objections == ("no check was passed",)


@pytest.mark.anyio
async def test_the_policy_alone_makes_tasks_of_the_servers_tools(everything_url: str) -> None:
    policy = tomllib.loads(servers.POLICY.read_text("utf-8"))
    async with Client(everything_url) as client:
        tools = (await client.list_tools()).tools
        extensions = client.server_capabilities.extensions

    assert policy["tools"].keys() <= {tool.name for tool in tools}
    assert not extensions
