"""Starts what is compared, each as one process on loopback, and makes tasks on it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from outlast.ops.bench import programs
from outlast.tests.support.ports import free_port

HERE = Path(__file__).parent
PEERS = HERE / "peers.py"
READY_S_MAX = 60.0
ANSWER_S_MAX = 60.0
STOP_S_MAX = 3.0  # a peer would wait for ever: its tool never ends
LOOK_S = 0.05
LOG_CHARS = 2_000
TOOL = "hold"
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {
        "extensions": {"io.modelcontextprotocol/tasks": {}}
    },
}
OURS = "outlast"
ON_REDIS = "fastmcp-tasks on Redis"
IN_MEMORY = "fastmcp-tasks in memory"
SDK = "official SDK server"
BARE = "bare FastAPI route"
# No limit of a person's may stand in the way of a benchmark's one client.
CONFIG = """
[defaults]
run = "task"
poll_interval = "2s"
[quotas]
calls_per_minute = "unlimited"
polls_per_minute = "unlimited"
working_per_owner = "unlimited"
tasks_per_owner = "unlimited"
[upstreams.bench]
command = {command}
"""


@dataclass(frozen=True)
class Contender:
    """A server that runs, and the process of the store beside it, if it has one here."""

    name: str
    url: str
    pid: int
    store_pid: int | None = None


# Starts a command that serves a port, with variables for its environment, until the bench is over.
Start = Callable[..., Contender]


def body(number: int, method: str, **params: Any) -> dict[str, Any]:
    """One request of this revision."""
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, "_meta": META}}


def headers(asked: Mapping[str, Any]) -> dict[str, str]:
    """The headers that go with it."""
    params = asked["params"]
    return {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": asked["method"],
        "mcp-name": params.get("taskId") or params.get("name") or "none",
    }


def created(contender: Contender, count: int) -> list[str]:
    """The ids of so many new tasks."""
    ids: list[str] = []
    with httpx2.Client(trust_env=False, timeout=ANSWER_S_MAX) as http:
        for number in range(count):
            asked = body(number, "tools/call", name=TOOL, arguments={"task": str(number)})
            answer = http.post(contender.url, json=asked, headers=headers(asked))
            ids.append(answer.json()["result"]["taskId"])
    return ids


@contextmanager
def running(
    name: str, command: Sequence[str], port: int, folder: Path, **environment: str
) -> Iterator[Contender]:
    """The server of this command, until it has been told to stop."""
    path = folder / f"{name.replace(' ', '-')}.log"
    with path.open("ab") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, env={**os.environ, **environment}
        )
    try:
        _until_it_listens(process, port, path)
        yield Contender(name, f"http://127.0.0.1:{port}/mcp", process.pid)
    finally:
        _stop(process)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S_MAX)
    process.kill()
    process.wait()


def _until_it_listens(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    end = time.monotonic() + READY_S_MAX
    with httpx2.Client(trust_env=False, timeout=1.0) as http:
        while time.monotonic() < end and process.poll() is None:
            with suppress(httpx2.HTTPError):
                http.get(f"http://127.0.0.1:{port}/")
                return
            time.sleep(LOOK_S)
    how = "did not begin to listen" if process.poll() is None else f"ended: {process.returncode}"
    raise RuntimeError(f"{log.stem} {how}\n{log.read_text()[-LOG_CHARS:]}")


@contextmanager
def starting(folder: Path) -> Iterator[Start]:
    """Starts servers, and stops all of them at the end."""
    started: list[Contender] = []
    with ExitStack() as stack:

        def start(name: str, command: Sequence[str], port: int, **environment: str) -> Contender:
            started.append(stack.enter_context(running(name, command, port, folder, **environment)))
            return started[-1]

        try:
            yield start
        finally:
            # All are told before the first is waited for.
            for contender in started:
                os.kill(contender.pid, signal.SIGTERM)


@contextmanager
def all_of_them(url: str, folder: Path) -> Iterator[dict[str, Contender]]:
    """Every contender by its name; ours on this database."""
    with starting(folder) as start, _redis(folder) as (redis_pid, redis):
        found = [
            ours(start, url, folder),
            peer(start, ON_REDIS, "tasks", redis),
            peer(start, IN_MEMORY, "tasks", "memory://bench"),
            peer(start, SDK, "sdk"),
            peer(start, BARE, "bare"),
        ]
        by_name = {each.name: each for each in found}
        on_redis = by_name[ON_REDIS]
        by_name[ON_REDIS] = Contender(ON_REDIS, on_redis.url, on_redis.pid, redis_pid)
        yield by_name


def peer(start: Start, name: str, kind: str, *rest: str) -> Contender:
    """One of the servers of `peers.py`."""
    port = free_port()
    return start(name, (sys.executable, str(PEERS), kind, str(port), *rest), port)


def ours(
    start: Start, url: str, folder: Path, name: str = OURS, options: Sequence[str] = (), **more: str
) -> Contender:
    """One `outlast serve`, with the tool of `peers.py` behind it."""
    port = free_port()
    config = folder / f"{name.replace(' ', '-')}.toml"
    config.write_text(CONFIG.format(command=json.dumps([sys.executable, str(PEERS), "tool"])))
    outlast = str(Path(sys.executable).with_name("outlast"))
    command = (outlast, "serve", "--config", str(config), "--port", str(port), *options)
    started = start(name, command, port, OUTLAST_DATABASE_URL=url, OUTLAST_DRAIN_S="0", **more)
    listed(started)
    return started


def listed(contender: Contender) -> None:
    """Ask for the tools: ours connects an upstream at the first need of it."""
    asked = body(1, "tools/list")
    with httpx2.Client(trust_env=False, timeout=ANSWER_S_MAX) as http:
        http.post(contender.url, json=asked, headers=headers(asked)).raise_for_status()


@contextmanager
def _redis(folder: Path) -> Iterator[tuple[int, str]]:
    """A Redis that writes nothing to disk, which is the fastest that it can be."""
    binary, port = programs.found("redis-server", "redis-server"), free_port()
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    command += ["--save", "", "--appendonly", "no"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield process.pid, f"redis://127.0.0.1:{port}/0"
    finally:
        _stop(process)
