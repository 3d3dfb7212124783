"""A Chromium for the browser tests: the machine's own, or Debian's package, installed once.

A machine that has none and may install none is told apart from a failure by `BrowserMissing`.
"""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome")
INSTALL_S_MAX = 400.0
COMMANDS = (
    ["apt-get", "update", "-q"],
    ["apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium"],
)


class BrowserMissing(Exception):
    """This machine has no Chromium, and none can be installed."""


def executable() -> str:
    """The path of a Chromium. Raises BrowserMissing."""
    if own := _found():
        return own
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise BrowserMissing("chromium is not installed, and only root with apt-get could do that")
    lock = ROOT / ".node" / ".chromium.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as held:  # test files run at once
        fcntl.flock(held, fcntl.LOCK_EX)
        return _found() or _installed()


def _installed() -> str:
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in COMMANDS:
        done = subprocess.run(
            command, env=env, timeout=INSTALL_S_MAX, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise BrowserMissing(f"chromium cannot be installed: {done.stderr.strip()[-300:]}")
    if own := _found():
        return own
    raise BrowserMissing("the package chromium brought no chromium")


def _found() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)
