"""`outlast doctor` as a program, what it found, and something that answers as a service may."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from outlast.tests.chaos.nodes import UPSTREAM
from outlast.tests.support.asgi import listening

OUTLAST = str(Path(sys.executable).with_name("outlast"))
PATIENCE_S = 90.0
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
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


@contextmanager
def open_folder() -> Iterator[Path]:
    """One that everybody may pass; what pytest gives is closed to others."""
    with tempfile.TemporaryDirectory(prefix="ol-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@asynccontextmanager
async def answering(**how: Response) -> AsyncIterator[tuple[str, list[Request]]]:
    """Something at the service's paths that answers like this, and what it was asked."""
    asked: list[Request] = []

    def route(name: str) -> Route:
        async def answer(request: Request) -> Response:
            asked.append(request)
            return how.get(name, Response())

        return Route(f"/{name}", answer, methods=["GET", "POST"])

    names = ("healthz", "readyz", "mcp")
    async with listening(Starlette(routes=[route(name) for name in names])) as port:
        yield f"http://127.0.0.1:{port}", asked


def discovered(version: str, *, in_meta: bool = False) -> Response:
    info = {"name": "outlast", "version": version}
    return JSONResponse(
        {"result": {"_meta": {SERVER_INFO: info}} if in_meta else {"serverInfo": info}}
    )
