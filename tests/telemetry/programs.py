"""Prometheus's own checker, taken out of Debian's package and not installed: nothing is started."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

APT_S_MAX = 180


def promtool(folder: Path) -> Path:
    """The program. Skips the test where it cannot be had."""
    if (found := shutil.which("promtool")) is not None:
        return Path(found)
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("promtool is missing, and there is no apt-get to take it from")
    fetch = ["apt-get", "-q", "download", "prometheus"]
    if not _does(fetch, folder):
        if os.geteuid() or not _does(["apt-get", "-q", "update"], folder):
            pytest.skip("promtool is missing, and apt-get knows no package of it")
        if not _does(fetch, folder):
            pytest.skip("promtool is missing, and apt-get could not fetch its package")
    (package,) = folder.glob("prometheus_*.deb")
    subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    return folder / "usr" / "bin" / "promtool"


def _does(command: list[str], folder: Path) -> bool:
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=APT_S_MAX, check=False)
    return done.returncode == 0
