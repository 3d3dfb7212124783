"""Debian's nginx, taken out of its package and not installed: nothing is started by that."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

APT_S_MAX = 180


@pytest.fixture(scope="session")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program. Skipped where it cannot be had."""
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    binary = Path(found) if found else _unpacked(tmp_path_factory.mktemp("nginx"))
    answer = subprocess.run([binary, "-v"], capture_output=True, text=True, check=False)
    if answer.returncode:
        pytest.skip(f"nginx does not run here: {answer.stderr.strip()}")
    return binary


def _unpacked(folder: Path) -> Path:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("there is no nginx, and no apt-get to take it from")
    fetch = ["apt-get", "-q", "download", "nginx"]
    if _run(fetch, folder) and (os.geteuid() or _run(["apt-get", "-q", "update"], folder)):
        pytest.skip("there is no nginx, and apt-get knows none; as root it is looked up anew")
    if not list(folder.glob("nginx_*.deb")) and _run(fetch, folder):
        pytest.skip("there is no nginx, and apt-get could not fetch it")
    [package] = folder.glob("nginx_*.deb")
    subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    return folder / "usr" / "sbin" / "nginx"


def _run(command: list[str], folder: Path) -> int:
    """The exit status."""
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=APT_S_MAX, check=False)
    return done.returncode
