"""What the race tests stand on: two replicas on one database, and witnesses of single tasks.

A witness reads a task on either replica and holds every read against all that was known before the
read began. A reply that would let a client see time run backwards is an error, whoever gave it.
"""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from outlast.tests.acceptance.waiting import until
from outlast.tests.support.mcp import IDEMPOTENCY_KEY, TERMINAL, envelope, headers_of
from outlast.tests.support.serving import command_of, serving

UPSTREAM = Path(__file__).with_name("race_server.py")
INVALID_PARAMS = -32602

AT_ONCE = 16  # repetitions under way at any time
TASK_S_MAX = 20.0  # a worker's whole recovery fits in; none of these tools takes half a second
LOOK_AGAIN_S = 0.05
IDLE_S_MAX = 1.0
FAULTS_MAX = 5

State = dict[str, Any]


class Refused(Exception):
    """A JSON-RPC error came back."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code = code


def answer(word: str) -> State:
    """An accepted elicitation."""
    return {"action": "accept", "content": {"word": word}}


@dataclass
class Line:
    """One connection, kept alive. A client library would take longer than the servers it races."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    used_at: float = 0.0

    @property
    def is_fresh(self) -> bool:
        """False when the server may be about to hang up on an idle client."""
        return time.monotonic() - self.used_at < IDLE_S_MAX

    async def exchange(self, request: bytes) -> bytes:
        """The body of the reply."""
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        lengths = [
            line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
        ]
        assert len(lengths) == 1, head
        body = await self.reader.readexactly(int(lengths[0].partition(b":")[2]))
        self.used_at = time.monotonic()
        return body

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@dataclass(frozen=True)
class Replica:
    """One `outlast serve`, as its clients reach it."""

    name: str
    host: str
    port: int
    idle: list[Line] = field(default_factory=list)

    async def ask(self, body: State) -> State:
        """The result. Raises Refused."""
        line = await self._idle_line() or await self._line()
        try:
            message = json.loads(await line.exchange(self._request(body)))
        except BaseException:
            await line.close()
            raise
        self.idle.append(line)
        if "error" in message:
            raise Refused(message["error"]["code"], message["error"]["message"])
        return message["result"]

    async def ask_and_hang_up(self, body: State, reply_bytes: int) -> None:
        """Send a whole request and lose the line after so much of the reply."""
        line = await self._line()
        line.writer.write(self._request(body))
        await line.writer.drain()
        await line.reader.readexactly(reply_bytes)
        await line.close()

    async def close(self) -> None:
        """Leave no connection behind."""
        while self.idle:
            await self.idle.pop().close()

    async def _idle_line(self) -> Line | None:
        while self.idle:
            line = self.idle.pop()
            if line.is_fresh:
                return line
            await line.close()
        return None

    async def _line(self) -> Line:
        return Line(*await asyncio.open_connection(self.host, self.port))

    def _request(self, body: State) -> bytes:
        content = json.dumps(body).encode()
        headers = {**headers_of(body), "host": f"{self.host}:{self.port}"}
        lines = [f"{name}: {value}" for name, value in headers.items()]
        head = ["POST /mcp HTTP/1.1", *lines, f"content-length: {len(content)}", "", ""]
        return "\r\n".join(head).encode() + content


@dataclass
class Witness:
    """One task, read on all replicas. `newest` is the newest state that any read has given."""

    task_id: str
    created_at: str
    newest: State
    answered: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    ended_ns: int | None = None

    @classmethod
    def of(cls, created: State) -> "Witness":
        return cls(created["taskId"], created["createdAt"], created)

    async def get(self, replica: Replica) -> State:
        """The task as this replica tells it. Fails if that is older than what was known before."""
        known, closed = self.newest, self.answered | self.gone
        state = await replica.ask(envelope("tasks/get", {"taskId": self.task_id}))
        seen_keys = set(state.get("inputRequests", ()))
        told = f"{replica.name} told {state} after {known}"
        assert state["createdAt"] == self.created_at, told
        assert state["lastUpdatedAt"] >= known["lastUpdatedAt"], f"older: {told}"
        assert not seen_keys & closed, f"asks {seen_keys & closed} again: {told}"
        if known["status"] in TERMINAL:
            # What a call is answered with tells of the end, but not of its outcome.
            same = known.keys() - {"resultType"} if known["resultType"] == "task" else state.keys()
            assert {key: state[key] for key in same} == {
                key: value for key, value in known.items() if key in same
            }, f"an end changed: {told}"
        if self.ended_ns is None and state["status"] in TERMINAL:
            self.ended_ns = time.monotonic_ns()
        self.gone |= set(known.get("inputRequests", ())) - seen_keys
        if (state["lastUpdatedAt"], state["status"] in TERMINAL) >= (
            self.newest["lastUpdatedAt"],
            self.newest["status"] in TERMINAL,
        ):
            self.newest = state
        return state

    async def update(self, replica: Replica, answers: Mapping[str, str]) -> None:
        """Answer; from the acknowledgement on, no read may ask for these keys."""
        acknowledged = await replica.ask(self.answering(answers))
        assert acknowledged["resultType"] == "complete"
        self.answered |= set(answers)

    def answering(self, answers: Mapping[str, str]) -> State:
        """The request that answers."""
        responses = {key: answer(word) for key, word in answers.items()}
        return envelope("tasks/update", {"taskId": self.task_id, "inputResponses": responses})

    async def cancel(self, replica: Replica) -> None:
        """Ask for its end."""
        acknowledged = await replica.ask(envelope("tasks/cancel", {"taskId": self.task_id}))
        assert acknowledged["resultType"] == "complete"

    async def until(self, replicas: Sequence[Replica], condition: Callable[[State], bool]) -> State:
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
        return await self.until(
            replicas, lambda state: set(state.get("inputRequests", ())) == set(keys)
        )

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
    """Both replicas, the journal of the upstream behind them, and what a test has begun there."""

    replicas: tuple[Replica, Replica]
    journal: Path
    witnesses: dict[str, Witness] = field(default_factory=dict)

    def pair(self, number: int) -> tuple[Replica, Replica]:
        """Both replicas; who comes first alternates."""
        a, b = self.replicas
        return (a, b) if number % 2 == 0 else (b, a)

    async def create(self, replica: Replica, tool: str, label: str, **wishes: Any) -> Witness:
        """A new task, or the one that the same key has made."""
        meta = {IDEMPOTENCY_KEY: wishes.pop("key")} if "key" in wishes else {}
        arguments = {"label": label, "journal": str(self.journal), **wishes}
        call = {"name": tool, "arguments": arguments}
        created = await replica.ask(envelope("tools/call", call, meta=meta))
        assert created["resultType"] == "task", created
        witness = Witness.of(created)
        return self.witnesses.setdefault(witness.task_id, witness)

    def deeds(self, label: str) -> list[Deed]:
        """What the upstream did so far under this label."""
        page = self.journal / label
        lines = page.read_text().splitlines() if page.exists() else ()
        return [Deed(int(at_ns), what) for at_ns, what in (line.split(" ") for line in lines)]

    async def did(self, label: str, word: str) -> list[Deed]:
        """All that was done under the label, once this word stands there."""

        async def done() -> bool:
            return word in words(self.deeds(label))

        await until(done, TASK_S_MAX)
        return self.deeds(label)

    async def settle(self) -> Mapping[str, list[Deed]]:
        """All deeds by label once none is under way, with every end still told as it first was."""

        async def quiet() -> bool:
            return not any(map(is_under_way, self._all().values()))

        await until(quiet, TASK_S_MAX)
        for witness in self.witnesses.values():
            assert witness.newest["status"] in TERMINAL
            await witness.end(self.replicas)
        return self._all()

    def _all(self) -> dict[str, list[Deed]]:
        return {page.name: self.deeds(page.name) for page in self.journal.iterdir()}


def words(done: Sequence[Deed]) -> list[str]:
    """The words alone."""
    return [deed.what for deed in done]


def is_under_way(done: Sequence[Deed]) -> bool:
    """True while a tool has begun and neither run nor stopped."""
    said = words(done)
    return said.count("began") > said.count("ran") + said.count("stopped")


async def at_once(*wishes: Awaitable[Any]) -> None:
    """Send all of these in the same breath, and wait for each acknowledgement."""

    async def sent(wish: Awaitable[Any]) -> None:
        await wish

    async with anyio.create_task_group() as group:
        for wish in wishes:
            group.start_soon(sent, wish)


async def repeat(count: int, body: Callable[[int], Awaitable[None]]) -> None:
    """Run `body(0)` to `body(count - 1)`, AT_ONCE of them at a time; a few faults are enough."""
    numbers, faults = iter(range(count)), list[str]()

    async def lane() -> None:
        for number in numbers:
            try:
                await body(number)
            except* (AssertionError, Refused, OSError, asyncio.IncompleteReadError) as group:
                faults.append(f"repetition {number}: {flat(group)}")
            if len(faults) >= FAULTS_MAX:
                return

    async with anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(lane)
    assert not faults, f"of at most {count}:\n" + "\n".join(faults)


def flat(error: BaseException) -> str:
    """The leaves of a group in one line."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(flat(inner) for inner in error.exceptions)
    return f"{type(error).__name__}: {error}"


@asynccontextmanager
async def two_replicas(database_url: str, folder: Path) -> AsyncIterator[tuple[Replica, Replica]]:
    """Two `outlast serve` processes on one database; both have to stop cleanly."""
    config = (
        f"[upstreams.races]\ncommand = {command_of(UPSTREAM)}\n"
        '[defaults]\nrun = "task"\npoll_interval = "50ms"\nttl = "10m"\n'
    )
    async with (
        serving(folder, config, database_url) as first,
        serving(folder, config, database_url) as second,
    ):
        a, b = _replica("A", first.base_url), _replica("B", second.base_url)
        try:
            yield a, b
        finally:
            await a.close()
            await b.close()


def _replica(name: str, base_url: str) -> Replica:
    host, _, port = base_url.removeprefix("http://").partition(":")
    return Replica(name, host, int(port))
