"""The programs that a benchmark starts and that no Python package brings."""

import os
import shutil
import subprocess

INSTALL_S_MAX = 300.0


def found(name: str, package: str) -> str:
    """The path of a program; root on a Debian installs it when it is missing."""
    path = shutil.which(name)
    if path is not None:
        return path
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        raise SystemExit(f"{name} is not installed: on Debian it is in {package}")
    print(f"{name} is missing: installing {package}")
    for words in (("update", "-qq"), ("install", "-y", "-qq", "--no-install-recommends", package)):
        subprocess.run(
            (apt, *words),
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=INSTALL_S_MAX,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        )
    path = shutil.which(name)
    if path is None:
        raise SystemExit(f"{package} was installed, and brought no {name}")
    return path


def is_there(name: str) -> bool:
    """Whether the program can be started without being installed first."""
    return shutil.which(name) is not None
