"""PostgreSQL goes away under load and comes back: nobody is told a lie, nothing told is lost."""

import os
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import httpx2
import pytest

from outlast.adapters.embedded import EmbeddedServer
from outlast.tests.chaos.client import REQUEST_S_MAX, Client, Json, pause, word
from outlast.tests.chaos.nodes import Cluster, cluster, now

pytestmark = pytest.mark.anyio

LONG_S = 20.0  # the calls that are under way through both outages
QUIET_S = 3.0  # between the outages
# How it ends and how long it is away; at the end of the second, the leases have run out.
OUTAGES = ((signal.SIGKILL, 2.5), (signal.SIGQUIT, 6.0))
RECOVERY_S_MAX = 20.0
SETTLE_S_MAX = 60.0


class Store:
    """The database server, to be ended in a hard way and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = EmbeddedServer.start(folder)
        self.url = self._server.url

    def end(self, number: signal.Signals) -> None:
        """End it now; it says goodbye to nobody, or only with an error."""
        os.kill(self._server.pid, number)

    async def start_again(self) -> None:
        """Start where it was."""
        await anyio.to_thread.run_sync(self._server.stop)
        self._server = await anyio.to_thread.run_sync(EmbeddedServer.start, self._folder)
        assert self._server.url == self.url

    def stop(self) -> None:
        self._server.stop()


@pytest.fixture
def store() -> Iterator[Store]:
    with tempfile.TemporaryDirectory(prefix="ol-") as folder:
        running = Store(Path(folder))
        try:
            yield running
        finally:
            running.stop()


@pytest.fixture
async def chaos(tmp_path: Path, store: Store) -> AsyncIterator[Cluster]:
    """A server and two workers, for a task to be taken from one by another if it could be."""
    async with cluster(tmp_path, store.url) as made:
        server = made.serve(work=False)
        server.start()
        await made.until_ready(server)
        for name in ("first", "second"):
            made.worker(name).start()
        yield made


class Load:
    """What several clients do at once until they are told to stop, and what came of it."""

    def __init__(self, chaos: Cluster, client: Client, http: httpx2.AsyncClient) -> None:
        self._chaos, self.client, self._http = chaos, client, http
        self.ids: dict[str, str] = {}
        self.answered: set[str] = set()
        self.cancelled: set[str] = set()
        self.ready = Counter[int]()
        self.is_over = False

    async def create(self, key: str, tool: str, seconds: float | None) -> str:
        arguments: Json = {"path": str(self._chaos.journal), "key": key}
        if seconds is not None:
            arguments["seconds"] = seconds
        request = self.client.call
        self.ids[key] = await self.client.surely(lambda: request(tool, arguments, key))
        return self.ids[key]

    async def run(self, key: str, tool: str) -> None:
        """One task, answered as soon as it asks."""
        task_id = await self.create(key, tool, 0.2)
        if "asks" in tool:
            question = await self.client.asked(task_id, SETTLE_S_MAX)
            answer = {question: word(key)}
            await self.client.surely(lambda: self.client.update(task_id, answer))
            self.answered.add(key)
        await self.client.ended(task_id, SETTLE_S_MAX)

    async def run_many(self, tool: str) -> None:
        number = 0
        while not self.is_over:
            number += 1
            await self.run(f"{tool}-{number}", tool)

    async def cancel_many(self) -> None:
        number = 0
        while not self.is_over:
            number += 1
            key = f"hold-{number}"
            task_id = await self.create(key, "new_hold", None)
            await pause(0.5)
            await self.client.surely(lambda task_id=task_id: self.client.cancel(task_id))
            self.cancelled.add(key)

    async def read_many(self) -> None:
        """What was acknowledged is there, whenever it is asked for."""
        while not self.is_over:
            for task_id in list(self.ids.values())[-20:]:
                await self.client.surely(lambda task_id=task_id: self.client.get(task_id))
            await pause()

    async def watch_readiness(self) -> None:
        while not self.is_over:
            reply = await self._http.get(f"{self._chaos.url}/readyz")
            self.ready[reply.status_code] += 1
            await pause()


@pytest.fixture
async def load(chaos: Cluster) -> AsyncIterator[Load]:
    # The server is never killed here, so no connection to it may fail or stay silent.
    async with httpx2.AsyncClient(trust_env=False, timeout=REQUEST_S_MAX) as http:
        yield Load(chaos, StrictClient(http, chaos.url), http)


class StrictClient(Client):
    """Repeats what an outage excuses; a lost connection is no such thing."""

    async def surely(self, request: Callable[[], Awaitable[object]]) -> object:
        async def strict() -> object:
            try:
                return await request()
            except httpx2.TransportError as error:
                raise AssertionError(f"the server did not answer: {error!r}") from error

        return await super().surely(strict)


@pytest.mark.promise("outage-never-lies")
@pytest.mark.promise("unsafe-tool-never-runs-twice")
async def test_an_outage_under_load_loses_nothing_and_tells_nothing_wrong(
    chaos: Cluster, store: Store, load: Load
):
    with anyio.fail_after(300):
        long = {f"long-{n}": await load.create(f"long-{n}", "new_unsafe", LONG_S) for n in range(3)}
        for key in long:
            await chaos.until_noted(f"start {key}")
        async with anyio.create_task_group() as clients:
            for tool in ("new_safe", "new_unsafe", "new_asks", "old_asks_legacy"):
                clients.start_soon(load.run_many, tool)
            for work in (load.cancel_many, load.read_many, load.watch_readiness):
                clients.start_soon(work)
            for number, away_s in OUTAGES:
                await pause(QUIET_S)
                store.end(number)
                await pause(away_s)
                await store.start_again()
                await recovered(load, number)
            load.is_over = True
        await judge(chaos, load, long)


async def recovered(load: Load, number: signal.Signals) -> None:
    """A task that is created now runs soon."""
    back_at = now()
    await load.run(f"after-{number.name}", "new_safe")
    took = now() - back_at
    print(f"{number.name}: a new task had run {took:.1f} s after the store was back")
    assert took < RECOVERY_S_MAX


async def judge(chaos: Cluster, load: Load, long: dict[str, str]) -> None:
    client = load.client
    outcomes = {key: await client.ended(task_id, SETTLE_S_MAX) for key, task_id in load.ids.items()}
    told = Counter(f"{key.rpartition('-')[0]} {task['status']}" for key, task in outcomes.items())
    print(f"{dict(told)}; refused: {len(client.refusals)}; ready: {dict(load.ready)}")
    wrong = {
        key: task
        for key, task in outcomes.items()
        if task["status"] != ("cancelled" if key in load.cancelled else "completed")
    }
    assert not wrong, f"{wrong}\n{chaos.logs()}"
    starts = Counter(line.split()[1] for line in chaos.lines("start"))
    assert {key: starts[key] for key in long} == dict.fromkeys(long, 1)
    twice = [key for key, times in starts.items() if times > 1]
    assert not twice, "a call of a living worker was run again"
    seen = {line.split()[1] for line in chaos.lines("answer")}
    assert load.answered <= seen
    assert set(load.ready) == {200, 503}
