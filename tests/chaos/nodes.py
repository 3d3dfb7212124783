"""Real `outlast` processes on one database, to be killed, stopped and started again by a test.

Whatever a test does, leaving a `cluster` leaves no process behind: each one is ended by its pid.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path

import httpx2
import psycopg

from outlast.tests.acceptance.waiting import until
from outlast.tests.support.ports import free_port

UPSTREAM = Path(__file__).with_name("upstream.py")
READY_S_MAX = 60.0
GONE_S_MAX = 30.0


class Node:
    """One `outlast` process. `start` begins a new one once the one before is gone."""

    def __init__(
        self,
        folder: Path,
        name: str,
        arguments: list[str],
        env: Mapping[str, str],
        outlast: Sequence[str] = (str(Path(sys.executable).with_name("outlast")),),
    ) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        self._outlast = outlast
        self._folder, self._arguments, self._env = folder, arguments, env
        self._process: subprocess.Popen[bytes] | None = None
        self._children: set[int] = set()
        self._log_start = 0

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The process that runs now, or ran last."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Begin a new process; does not wait until it is ready."""
        assert not self.is_running
        with self.log.open("ab") as output:
            self._log_start = output.tell()
            self._process = subprocess.Popen(
                [*self._outlast, *self._arguments],
                cwd=self._folder,
                env=os.environ | dict(self._env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def said(self, text: str) -> bool:
        """True once the present process has written this text."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return text.encode() in log.read()

    async def until_said(self, text: str, seconds: float = READY_S_MAX) -> None:
        async def has_said() -> bool:
            assert self.is_running, self.log.read_text()
            return self.said(text)

        await until(has_said, seconds)

    def children(self) -> set[int]:
        """The processes that this one has started and that live."""
        found = {pid for pid in _pids() if _parent(pid) == self.pid}
        self._children |= found
        return found

    def kill(self) -> None:
        """SIGKILL, to the process alone: its children have to notice by themselves."""
        self.children()
        self.process.kill()
        self.process.wait()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def until_ended(self, seconds: float) -> int:
        """The exit status. Raises TimeoutError."""

        async def has_ended() -> bool:
            return not self.is_running

        await until(has_ended, seconds)
        return self.process.returncode

    async def until_childless(self, seconds: float = GONE_S_MAX) -> None:
        """Return once no process that this node ever started lives."""

        async def all_gone() -> bool:
            return not any(map(_is_ours, self._children))

        await until(all_gone, seconds)

    async def make_gone(self) -> None:
        """End the process and its children, by force."""
        if self._process is None:
            return
        if self.is_running:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
            self.kill()
        try:
            await self.until_childless()
        finally:
            for pid in filter(_is_ours, self._children):
                os.kill(pid, signal.SIGKILL)


class Cluster:
    """The processes on one database and how they are configured."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.folder, self.database_url = folder, database_url
        self.journal = folder / "journal"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._config = folder / "outlast.toml"
        self._config.write_text(_config())
        self._nodes: dict[str, Node] = {}

    def serve(self, name: str = "serve", *, work: bool = True, **env: str) -> Node:
        """A server, not yet started; with `work` it runs tasks too."""
        arguments = ["serve", "--config", str(self._config), "--port", str(self.port)]
        return self._node(name, arguments if work else [*arguments, "--no-work"], env)

    def worker(self, name: str = "worker", **env: str) -> Node:
        """A worker, not yet started."""
        return self._node(name, ["worker", "--config", str(self._config)], env)

    def _node(self, name: str, arguments: list[str], env: Mapping[str, str]) -> Node:
        assert name not in self._nodes
        named = {f"OUTLAST_{key.upper()}": value for key, value in env.items()}
        whole = {"OUTLAST_DATABASE_URL": self.database_url, **named}
        self._nodes[name] = Node(self.folder, name, arguments, whole)
        return self._nodes[name]

    async def until_ready(self, node: Node, seconds: float = READY_S_MAX) -> None:
        """Return once this server answers `/readyz` with 200."""
        async with httpx2.AsyncClient(trust_env=False, timeout=10) as http:

            async def is_ready() -> bool:
                assert node.is_running, node.log.read_text()
                with suppress(httpx2.TransportError):
                    return (await http.get(f"{self.url}/readyz")).is_success
                return False

            await until(is_ready, seconds)

    def lines(self, *beginnings: str) -> list[str]:
        """The lines of the journal that begin with one of these words; without any, all."""
        if not self.journal.exists():
            return []
        lines = self.journal.read_text().splitlines()
        return [line for line in lines if line.startswith(beginnings or "")]

    async def until_noted(self, line: str, times: int = 1, seconds: float = 60.0) -> None:
        """Return once the journal has this very line so often."""

        async def is_noted() -> bool:
            return self.lines().count(line) >= times

        try:
            await until(is_noted, seconds)
        except TimeoutError:
            raise AssertionError(f"no {line!r} x {times} in {self.lines()}") from None

    def recorded(self, task_id: str) -> list[tuple[str, datetime]]:
        """The events of a task by their topics, and when each was stored."""
        with psycopg.connect(self.database_url) as connection:
            rows = connection.execute(
                "SELECT topic, recorded_at FROM outlast.task_events WHERE originator_id = %s"
                " ORDER BY originator_version",
                (task_id,),
            ).fetchall()
        return [(topic, recorded_at) for topic, recorded_at in rows]

    async def until_recorded(self, task_id: str, topic: str, seconds: float = 60.0) -> None:
        """Return once the task has an event of this topic."""

        async def is_recorded() -> bool:
            return topic in dict(self.recorded(task_id))

        await until(is_recorded, seconds)

    async def make_gone(self) -> None:
        """End every process."""
        failures: list[BaseException] = []
        for node in self._nodes.values():
            try:
                await node.make_gone()
            except (OSError, TimeoutError) as error:
                failures.append(error)
        assert not failures, failures

    def logs(self) -> str:
        """What all processes said, for the message of a failed test."""
        return "\n".join(f"--- {n.name}\n{n.log.read_text()}" for n in self._nodes.values())


@asynccontextmanager
async def cluster(folder: Path, database_url: str) -> AsyncIterator[Cluster]:
    """Processes that are all gone afterwards, also when the block fails."""
    made = Cluster(folder, database_url)
    try:
        yield made
    finally:
        await made.make_gone()


def now() -> float:
    """Seconds, for measuring."""
    return time.monotonic()


def _config() -> str:
    command = f"command = ['{sys.executable}', '{UPSTREAM}']"
    lines = ["[upstreams.new]", command, "[upstreams.old]", command, 'era = "legacy"']
    lines += ["[defaults]", 'run = "task"', 'poll_interval = "50ms"', 'ttl = "10m"']
    return "\n".join(lines) + "\n"


def _pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def _parent(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[1])


def _is_ours(pid: int) -> bool:
    """True while this pid is still a process of the upstream and not a stranger's."""
    with suppress(OSError):
        return str(UPSTREAM).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
