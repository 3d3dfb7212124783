"""The version that was landed before this one, out of the history, as a program to run."""

import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pytest

from outlast.tests.chaos.nodes import UPSTREAM, Node
from outlast.tests.support.ports import free_port

BEFORE = "64a3ba0847aa3502e2e116bb9bf085fa53857d5a"  # the last one without console and telemetry
ROOT = Path(__file__).parents[2]
RUN = "from outlast.service.cli import main; main()"
CONFIG = f"""
[server]
secret_key = "a key for tests that is long enough"
[events]
development = true
[upstreams.new]
command = ['{sys.executable}', '{UPSTREAM}']
[upstreams.old]
command = ['{sys.executable}', '{UPSTREAM}']
era = "legacy"
[defaults]
run = "task"
poll_interval = "50ms"
ttl = "10m"
"""


@dataclass(frozen=True)
class Version:
    """One version of the code: the command that runs it, and where that finds it."""

    name: str
    command: Sequence[str]
    env: dict[str, str]

    def serve(self, folder: Path, url: str) -> tuple[Node, str]:
        """A server that runs no tasks, not yet started, and where it will be."""
        port = free_port()
        words = ["serve", "--no-work", "--config", config(folder), "--port", str(port)]
        return self._node(folder, "serve", words, url), f"http://127.0.0.1:{port}"

    def worker(self, folder: Path, url: str) -> Node:
        """A worker, not yet started."""
        return self._node(folder, "worker", ["worker", "--config", config(folder)], url)

    def run(self, folder: Path, url: str, *words: str) -> str:
        """What the command prints; it has to end well."""
        env = {"PATH": "/usr/bin:/bin", "OUTLAST_DATABASE_URL": url, **self.env}
        done = subprocess.run(
            [*self.command, *words],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def _node(self, folder: Path, kind: str, words: list[str], url: str) -> Node:
        env = {"OUTLAST_DATABASE_URL": url, **self.env}
        return Node(folder, f"{self.name}-{kind}", words, env, self.command)


def now() -> Version:
    """The code that is tested."""
    return Version("now", [str(Path(sys.executable).with_name("outlast"))], {})


def before(folder: Path) -> Version:
    """The code of BEFORE. Skips the test where there is no history to take it from."""
    git = ["git", "-C", str(ROOT), "archive", BEFORE]
    try:
        archive = subprocess.run(git, check=True, capture_output=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"commit {BEFORE} is not in this clone's history ({type(error).__name__})")
    place = folder / "before" / "outlast"
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(place, filter="data")
    version = Version("before", [sys.executable, "-c", RUN], {"PYTHONPATH": str(place.parent)})
    found = [sys.executable, "-c", "import outlast; print(outlast.__file__)"]
    where = subprocess.run(
        found, cwd=folder, env=version.env, check=True, capture_output=True, text=True
    )
    assert where.stdout.strip() == str(place / "__init__.py"), "the new code would be run instead"
    return version


def config(folder: Path) -> str:
    """The file that both versions are configured by."""
    file = folder / "outlast.toml"
    file.write_text(CONFIG)
    file.chmod(0o600)
    return str(file)
