"""What the race tests stand on: two replicas on one database, and witnesses of single tasks.

A witness reads a task on either replica and holds every read against all that was known before the
read began. A reply that would let a client see time run backwards is an error, whoever gave it.
"""

import itertools
import os
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httpx2
import orjson

UPSTREAM = Path(__file__).with_name("race_server.py")
PROTOCOL = "2026-07-28"
TERMINAL = frozenset({"completed", "failed", "cancelled"})
INVALID_PARAMS = -32602

AT_ONCE = 16  # repetitions under way at any time
READY_S_MAX = 60.0
STOP_S_MAX = 20.0
TASK_S_MAX = 20.0  # a worker's whole recovery fits in; none of these tools takes half a second
LOOK_AGAIN_S = 0.02
FAULTS_SHOWN_MAX = 5

META: Mapping[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": PROTOCOL,
    "io.modelcontextprotocol/clientInfo": {"name": "races", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {
        "elicitation": {},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    },
}

State = dict[str, Any]


class Refused(Exception):
    """A JSON-RPC error came back."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code = code


def answer(word: str) -> State:
    """An accepted elicitation."""
    return {"action": "accept", "content": {"word": word}}


@dataclass(frozen=True)
class Replica:
    """One `outlast serve`, as its clients reach it."""

    name: str
    port: int
    http: httpx2.AsyncClient
    _ids: Any = field(default_factory=itertools.count)

    def request(self, method: str, params: State, meta: State) -> tuple[dict[str, str], bytes]:
        """Headers and body of one POST."""
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Mcp-Protocol-Version": PROTOCOL,
            "Mcp-Method": method,
            "Mcp-Name": params.get("taskId") or params["name"],
        }
        body = {"jsonrpc": "2.0", "id": next(self._ids), "method": method}
        return headers, orjson.dumps({**body, "params": {**params, "_meta": {**META, **meta}}})

    async def ask(self, method: str, params: State, **meta: Any) -> State:
        """The result. Raises Refused."""
        headers, body = self.request(method, params, meta)
        url = f"http://127.0.0.1:{self.port}/mcp"
        reply = await self.http.post(url, headers=headers, content=body)
        message = orjson.loads(reply.content)
        if "error" in message:
            raise Refused(message["error"]["code"], message["error"]["message"])
        return message["result"]

    async def ask_and_hang_up(self, method: str, params: State) -> None:
        """Send a whole request and lose the line before any reply."""
        headers, body = self.request(method, params, {})
        lines = [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Host: 127.0.0.1:{self.port}", f"Content-Length: {len(body)}"]
        async with await anyio.connect_tcp("127.0.0.1", self.port) as line:
            head = "\r\n".join(["POST /mcp HTTP/1.1", *lines, "", ""])
            await line.send(head.encode() + body)


@dataclass
class Witness:
    """One task, read on all replicas. `newest` is the newest state that any read has given."""

    task_id: str
    created_at: str
    newest: State
    answered: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, created: State) -> "Witness":
        return cls(created["taskId"], created["createdAt"], created)

    async def get(self, replica: Replica) -> State:
        """The task as this replica tells it. Fails if that is older than what was known before."""
        known, closed = self.newest, self.answered | self.gone
        state = await replica.ask("tasks/get", {"taskId": self.task_id})
        seen_keys = set(state.get("inputRequests", ()))
        told = f"{replica.name} told {state} after {known}"
        assert state["createdAt"] == self.created_at, told
        assert state["lastUpdatedAt"] >= known["lastUpdatedAt"], f"older: {told}"
        assert not seen_keys & closed, f"asks {seen_keys & closed} again: {told}"
        if known["status"] in TERMINAL:
            assert state == known, f"an end changed: {told}"
        self.gone |= set(known.get("inputRequests", ())) - seen_keys
        if (state["lastUpdatedAt"], state["status"] in TERMINAL) >= (
            self.newest["lastUpdatedAt"],
            self.newest["status"] in TERMINAL,
        ):
            self.newest = state
        return state

    async def update(self, replica: Replica, answers: Mapping[str, str]) -> None:
        """Answer; from the acknowledgement on, no read may ask for these keys."""
        responses = {key: answer(word) for key, word in answers.items()}
        acknowledged = await replica.ask(
            "tasks/update", {"taskId": self.task_id, "inputResponses": responses}
        )
        assert acknowledged["resultType"] == "complete"
        self.answered |= set(answers)

    async def cancel(self, replica: Replica) -> None:
        """Ask for its end."""
        acknowledged = await replica.ask("tasks/cancel", {"taskId": self.task_id})
        assert acknowledged["resultType"] == "complete"

    async def until(
        self, replicas: Sequence[Replica], condition: Callable[[State], bool]
    ) -> State:
        """The first state that meets the condition, looked for on each replica in turn."""
        try:
            with anyio.fail_after(TASK_S_MAX):
                for replica in itertools.cycle(replicas):
                    if condition(state := await self.get(replica)):
                        return state
                    # Another process cannot set an event of ours: look again.
                    await anyio.sleep(LOOK_AGAIN_S)  # noqa: TID251 - a poll is what a client does
        except TimeoutError:
            raise AssertionError(f"still {self.newest} after {TASK_S_MAX} s") from None
        raise AssertionError("no replica to ask")

    async def asked(self, replicas: Sequence[Replica], *keys: str) -> State:
        """The state in which exactly these keys are asked."""
        return await self.until(replicas, lambda state: set(state.get("inputRequests", ())) == set(keys))

    async def end(self, replicas: Sequence[Replica]) -> State:
        """The terminal state, once every replica has told the same one."""
        await self.until(replicas, lambda state: state["status"] in TERMINAL)
        for replica in replicas:
            await self.get(replica)
        return self.newest


def text_of(state: State) -> str:
    """What a completed task's tool has returned."""
    assert state["status"] == "completed", state
    return state["result"]["content"][0]["text"]


@dataclass(frozen=True)
class Deed:
    """One line of the journal."""

    at_ns: int
    what: str


@dataclass(frozen=True)
class Service:
    """Both replicas and the journal of the upstream behind them."""

    replicas: tuple[Replica, Replica]
    journal: Path
    witnesses: dict[str, Witness] = field(default_factory=dict)

    def pair(self, number: int) -> tuple[Replica, Replica]:
        """Both replicas; who comes first alternates."""
        a, b = self.replicas
        return (a, b) if number % 2 == 0 else (b, a)

    async def create(self, replica: Replica, tool: str, label: str, **wishes: Any) -> Witness:
        """A new task, or the one that the same key has made."""
        meta = {"dev.outlast/idempotencyKey": wishes.pop("key")} if "key" in wishes else {}
        arguments = {"label": label, "journal": str(self.journal), **wishes}
        created = await replica.ask("tools/call", {"name": tool, "arguments": arguments}, **meta)
        assert created["resultType"] == "task", created
        witness = Witness.of(created)
        return self.witnesses.setdefault(witness.task_id, witness)

    def deeds(self) -> Mapping[str, list[Deed]]:
        """What the upstream did so far, by label."""
        found: defaultdict[str, list[Deed]] = defaultdict(list)
        for line in self.journal.read_text().splitlines() if self.journal.exists() else ():
            at_ns, label, what = line.split(" ")
            found[label].append(Deed(int(at_ns), what))
        return found

    async def settle(self) -> Mapping[str, list[Deed]]:
        """The journal once nothing runs upstream any more, with every end told as it was told."""
        for witness in self.witnesses.values():
            for replica in self.replicas:
                await witness.get(replica)
        with anyio.fail_after(TASK_S_MAX):
            while unfinished(deeds := self.deeds()):
                await anyio.sleep(LOOK_AGAIN_S)  # noqa: TID251 - another process is waited for
        return deeds


def unfinished(deeds: Mapping[str, list[Deed]]) -> list[str]:
    """The labels under which a tool has begun and neither run nor stopped."""
    return [label for label, done in deeds.items() if times(done, "began") > times(done, "ran", "stopped")]


def times(done: Sequence[Deed], *words: str) -> int:
    """How often any of these words stands there."""
    return sum(deed.what in words for deed in done)


async def at_once(*wishes: Awaitable[Any]) -> None:
    """Send all of these in the same breath, and wait for each acknowledgement."""

    async def sent(wish: Awaitable[Any]) -> None:
        await wish

    async with anyio.create_task_group() as group:
        for wish in wishes:
            group.start_soon(sent, wish)


async def repeat(count: int, body: Callable[[int], Awaitable[None]]) -> None:
    """Run `body(0)` to `body(count - 1)`, AT_ONCE of them at a time, and fail with what failed."""
    numbers, faults = iter(range(count)), list[str]()

    async def lane() -> None:
        for number in numbers:
            try:
                await body(number)
            except* (AssertionError, Refused, httpx2.HTTPError) as group:
                faults.append(f"repetition {number}: {flat(group)}")

    async with anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(lane)
    shown = "\n".join(faults[:FAULTS_SHOWN_MAX])
    assert not faults, f"{len(faults)} of {count} went wrong:\n{shown}"


def flat(error: BaseException) -> str:
    """The leaves of a group in one line."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(flat(inner) for inner in error.exceptions)
    return f"{type(error).__name__}: {error}"


@asynccontextmanager
async def two_replicas(database_url: str, folder: Path) -> AsyncIterator[Service]:
    """Two `outlast serve` processes; both have to stop cleanly."""
    config = folder / "outlast.toml"
    config.write_text(
        f"[upstreams.races]\ncommand = ['{sys.executable}', '{UPSTREAM}']\n"
        '[defaults]\nrun = "task"\npoll_interval = "20ms"\nttl = "10m"\n'
    )
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=8 * AT_ONCE)
    async with httpx2.AsyncClient(trust_env=False, timeout=TASK_S_MAX, limits=limits) as http:
        async with replica("A", config, database_url, http) as a:
            async with replica("B", config, database_url, http) as b:
                yield Service((a, b), folder / "journal")


@asynccontextmanager
async def replica(
    name: str, config: Path, database_url: str, http: httpx2.AsyncClient
) -> AsyncIterator[Replica]:
    """One running `outlast serve`."""
    port, log = free_port(), config.with_name(f"outlast-{name}.log")
    outlast = Path(sys.executable).with_name("outlast")
    command = [str(outlast), "serve", "--config", str(config), "--port", str(port)]
    with log.open("wb") as output:
        process = await anyio.open_process(
            command,
            cwd=config.parent,
            env=os.environ | {"OUTLAST_DATABASE_URL": database_url},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        await until_ready(f"http://127.0.0.1:{port}/readyz", http, process, log)
        yield Replica(name, port, http)
        process.terminate()
        with anyio.fail_after(STOP_S_MAX):
            assert await process.wait() == 0, log.read_text()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until_ready(
    url: str, http: httpx2.AsyncClient, process: anyio.abc.Process, log: Path
) -> None:
    """Return once the replica says that it is ready."""
    give_up_at = time.monotonic() + READY_S_MAX
    while True:
        assert process.returncode is None, log.read_text()
        assert time.monotonic() < give_up_at, f"not ready:\n{log.read_text()}"
        try:
            if (await http.get(url)).status_code == httpx2.codes.OK:
                return
        except httpx2.TransportError:
            pass
        await anyio.sleep(LOOK_AGAIN_S)  # noqa: TID251 - another process is waited for


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
