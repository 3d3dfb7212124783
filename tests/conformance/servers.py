"""What the official suite is let loose on, as processes: the everything-server, and Outlast before
it, each on a free port of loopback and stopped at the exit."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from outlast.tests.support.ports import free_port

HERE = Path(__file__).resolve().parent
POLICY = HERE / "outlast.toml"

START_S_MAX = 60
STOP_S_MAX = 20  # after SIGTERM; then the server has failed to drain and is killed
RECHECK_S = 0.1
LOG_LINES_MAX = 40


class NotServing(Exception):
    """A server did not start, or did not stop."""


@contextmanager
def everything_served(*flags: str) -> Iterator[str]:
    """The server of `everything_server.py`; yields its URL."""
    port = free_port()
    module = "outlast.tests.conformance.everything_server"
    command = [sys.executable, "-m", module, "--port", str(port), *flags]
    # It says nothing about being ready: that it listens is enough.
    with (
        tempfile.TemporaryDirectory(prefix="ol-") as folder,
        _running(command, Path(folder), os.environ, lambda: _listens(port)),
    ):
        yield f"http://127.0.0.1:{port}/mcp"


@contextmanager
def outlast_served(upstream_url: str, database_url: str | None) -> Iterator[str]:
    """Outlast before that server, with the policy of `outlast.toml`; yields its URL."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="ol-") as name:
        folder = Path(name)
        config = folder / "outlast.toml"
        upstream = f'\n[upstreams.everything]\nurl = "{upstream_url}"\n'
        config.write_text(POLICY.read_text("utf-8") + upstream, "utf-8")
        outlast = str(Path(sys.executable).with_name("outlast"))
        command = [outlast, "serve", "--config", str(config), "--host", "127.0.0.1"]
        ready = f"http://127.0.0.1:{port}/readyz"
        environment = _environment(database_url)
        with _running(
            [*command, "--port", str(port)], folder, environment, lambda: _answers(ready)
        ):
            yield f"http://127.0.0.1:{port}/mcp"


def _environment(database_url: str | None) -> dict[str, str]:
    """Ours without any setting of Outlast but the database."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OUTLAST_")}
    if database_url:
        kept["OUTLAST_DATABASE_URL"] = database_url
    return kept


@contextmanager
def _running(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], ready: Callable[[], bool]
) -> Iterator[None]:
    log = folder / "log"
    with log.open("wb") as sink:
        server = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
        try:
            _wait_until(ready, server, log)
            yield
        finally:
            _stop(server, log)


def _wait_until(ready: Callable[[], bool], server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(round(START_S_MAX / RECHECK_S)):
        try:
            server.wait(RECHECK_S)
        except subprocess.TimeoutExpired:
            if ready():
                return
        else:
            raise NotServing(f"{server.args} ended with {server.returncode}:\n{_tail(log)}")
    raise NotServing(f"{server.args} was not ready in {START_S_MAX} s:\n{_tail(log)}")


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _answers(url: str) -> bool:
    # Loopback is nobody's proxy's business.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=1) as answer:
            return answer.status == 200
    except urllib.error.HTTPError as refused:
        refused.close()
        return False
    except OSError:
        return False


def _stop(server: subprocess.Popen[bytes], log: Path) -> None:
    server.terminate()
    try:
        server.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        # Its own session, so its children go too.
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        raise NotServing(f"{server.args} did not stop in {STOP_S_MAX} s:\n{_tail(log)}") from None


def _tail(log: Path) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-LOG_LINES_MAX:])
