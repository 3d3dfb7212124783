"""docs/runbook.md: its commands are run as they are written, and every alert has its place."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.tests.operations.doctoring import UPSTREAMS
from outlast.tests.operations.page import HEADINGS, PAGE, ROOT, block_with, blocks
from outlast.tests.support.ports import free_port

pytestmark = pytest.mark.promise("runbook-runs")

PATIENCE_S = 120.0
ALERTS = (ROOT / "ops" / "alerts" / "outlast.yml").read_text(encoding="utf-8")
SERVE = "outlast serve --config outlast.toml"
RESTORING = ("pg_basebackup", "recovery.signal", "log_epoch")  # run by the drill, test_restore.py


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "outlast.toml").write_text(f"[server]\nport = {free_port()}\n{UPSTREAMS}")
    (tmp_path / "outlast.toml").chmod(0o600)
    return tmp_path


def shell(folder: Path, url: str, script: str) -> str:
    """What the script prints; each of its commands has to end well."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "OUTLAST_DATABASE_URL": url}
    with subprocess.Popen(
        ["sh", "-euc", script],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, said
    return said


def test_the_first_install_serves_and_is_well(folder: Path, database_url: str):
    install = block_with("OUTLAST_SECRET_KEY") + block_with("outlast db upgrade")
    assert SERVE in install
    # In the background, until it says that it serves; then told to end, which must be in order.
    serving = f"{SERVE} > said & until grep -q serving said; do sleep 0.1; done; kill $!; wait $!"
    said = shell(folder, database_url, install.replace(SERVE, serving))
    assert "problems: 0" in said
    assert "PROBLEM" not in said


def test_the_data_keys_are_rotated_as_it_says(folder: Path, database_url: str):
    first = 'export OUTLAST_DATA_KEYS="$(outlast keys new --name first)"\n'
    steps = [block_with("NEW="), block_with("outlast keys rotate"), blocks()[-1]]
    said = shell(folder, database_url, first + "\n".join(steps))
    *_, before, old, last = said.strip().splitlines()
    assert "\tcurrent\t" in before
    assert old.startswith("first\tformer\t0")
    assert last.split("\t")[1:] == ["current", "0"]


def test_every_command_of_the_page_is_run_by_some_test():
    run = [block_with("OUTLAST_SECRET_KEY"), block_with("outlast db upgrade")]
    run += [block_with("NEW="), block_with("outlast keys rotate"), blocks()[-1], blocks()[0]]
    run += [block_with(words) for words in RESTORING]
    assert sorted(run) == sorted(blocks())
    assert blocks()[0].strip() in block_with("outlast db upgrade")


def test_every_alert_has_its_place_and_no_place_is_without_an_alert():
    alerts = re.findall(r"alert: (\w+)", ALERTS)
    assert alerts
    assert [name for name in HEADINGS if name.startswith("Outlast")] == alerts
    anchors = re.findall(r"runbook: (?:\S*/)?docs/runbook\.md#(\w+)", ALERTS)
    assert anchors == [name.lower() for name in alerts]


def test_every_link_of_the_page_leads_somewhere():
    anchors = {heading.lower().replace(" ", "-") for heading in HEADINGS}
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        file, _, anchor = target.partition("#")
        if file:
            assert (ROOT / "docs" / file).is_file(), target
        elif anchor:
            assert anchor in anchors, target
