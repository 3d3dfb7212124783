"""`outlast doctor` as a program, and what it found."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.tests.chaos.nodes import UPSTREAM

OUTLAST = str(Path(sys.executable).with_name("outlast"))
PATIENCE_S = 90.0
UPSTREAMS = f"[upstreams.ci]\ncommand = ['{sys.executable}', '{UPSTREAM}']\n"


@dataclass(frozen=True)
class Visit:
    """What it printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def findings(self) -> list[dict[str, str]]:
        """Those of `--json`."""
        return [json.loads(line) for line in self.out.splitlines()]

    def of(self, check: str) -> list[str]:
        """The levels of the findings of one check."""
        return [one["level"] for one in self.findings if one["check"] == check]

    def bad(self) -> set[str]:
        """The checks with a problem."""
        return {one["check"] for one in self.findings if one["level"] == "problem"}


def visit(
    folder: Path,
    url: str | None,
    config: str = UPSTREAMS,
    flags: Sequence[str] = ("--json",),
    **env: str,
) -> Visit:
    """Run it in a folder, on this configuration; `env` are settings."""
    file = folder / "doctor.toml"
    file.write_text(config)
    file.chmod(0o600)
    given = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    given |= {f"OUTLAST_{name.upper()}": value for name, value in env.items()}
    if url is not None:
        given["OUTLAST_DATABASE_URL"] = url
    done = subprocess.run(
        [OUTLAST, "doctor", "--config", str(file), *flags],
        cwd=folder,
        env=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    return Visit(done.returncode, done.stdout, done.stderr)
