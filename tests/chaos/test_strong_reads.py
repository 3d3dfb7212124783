"""Whoever has been told of a change reads it, wherever and however many read at the same time.

What is read may be newer than what the reader was told of, and never older: no answer comes from a
statement that the store had begun before.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from outlast.adapters import postgres
from outlast.adapters.event_log import PostgresEventLog
from outlast.domain import errors
from outlast.domain.owner import LOCAL_OWNER
from outlast.domain.ports import TaskViews
from outlast.tests.contracts import stores
from outlast.tests.contracts.stores import Ports, open_task
from outlast.tests.service.conftest import desk_config
from outlast.tests.support import proxy
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.publishing import Publisher, publishing
from outlast.tests.support.serving import serving
from outlast.tests.support.shaky import Holding, Noting

pytestmark = pytest.mark.anyio

TASKS, READERS = 8, 12  # readers of each replica
READS, SERVED_READS = 4_000, 1_200
ROUNDS = 12
STEPS_S_MAX = 120.0
TURNS = 5
LIVES = 3
EXAMPLES = 15

OWNER, STRANGER = LOCAL_OWNER.key, "a-stranger"
STORED = {"theirs-1": OWNER, "theirs-2": OWNER, "a stranger's": STRANGER, "{a,NULL}": STRANGER}
ODD = ["", "a\x00b", "\ud800", "x" * 10_000, "%s'", "{}", '"', "\\", "NULL", "unknown"]
IDS, OWNERS = st.sampled_from([*STORED, *ODD]), st.sampled_from([None, OWNER, STRANGER])

# One batch after the other it would take 47 s.
IMPATIENT_S, AWAY, AWAY_S_MAX = 1.0, 3_000, 30.0

Read = Callable[[str], Coroutine[Any, Any, int]]
Settle = Callable[[], Awaitable[None]]


async def turns() -> None:
    """Let all who have begun come as far as they can without an answer."""
    for _ in range(TURNS):
        await anyio.lowlevel.checkpoint()


class Told:
    """Tasks that writers move, and the version that each has at least: it was told of."""

    def __init__(self, publisher: Publisher, settle: Settle | None = None) -> None:
        self._publisher, self.settle = publisher, settle or turns
        self.least: dict[str, int] = {}
        self.reads = 0
        self.is_over = False

    def afresh(self, settle: Settle | None = None) -> "Told":
        """The same with no tasks yet."""
        return Told(self._publisher, settle)

    async def open(self) -> str:
        """The id of a task of the local owner, which is running."""
        task_id = await self._publisher.opened()
        self.least[task_id] = 2
        await self.move(task_id)
        return task_id

    async def move(self, task_id: str) -> None:
        """One more event, which says its version."""
        version = self.least[task_id] + 1
        await self._publisher.progresses(task_id, f"version {version}")
        self.least[task_id] = version

    async def write(self, task_id: str) -> None:
        while not self.is_over:
            await self.move(task_id)

    async def look(self, task_id: str, read: Read) -> None:
        """One read, which has to be of what was told before it began, or of newer."""
        least = self.least[task_id]
        version = await read(task_id)
        assert version >= least, f"{task_id} was at {least}, and read at {version}"
        self.reads += 1

    async def watch(self, read: Read, enough: int, seed: int) -> None:
        """Look at any of the tasks, again and again."""
        chance, tasks, seen = random.Random(seed), list(self.least), dict[str, int]()

        async def rising(task_id: str) -> int:
            version = await read(task_id)
            assert version >= seen.get(task_id, 0), "it went back"
            seen[task_id] = version
            return version

        while self.reads < enough:
            await self.look(chance.choice(tasks), rising)
        self.is_over = True

    async def race(self, reads: Sequence[Read], enough: int) -> None:
        """Writers of all tasks against many readers by each of these ways."""
        async with asyncio.timeout(STEPS_S_MAX), asyncio.TaskGroup() as all_of_them:
            for task_id in self.least:
                all_of_them.create_task(self.write(task_id))
            for number, read in zip(range(READERS * len(reads)), itertools.cycle(reads)):
                all_of_them.create_task(self.watch(read, enough, number))


def by(views: TaskViews, owner: str | None = None) -> Read:
    """Reads of the port, by an owner's name if one is given."""

    async def read(task_id: str) -> int:
        view = await views.get(task_id, owner)
        assert view is not None, f"{task_id} is not there"
        return view.version

    return read


def over(client: RawClient) -> Read:
    """Reads over HTTP. The version is what the last event says."""

    async def read(task_id: str) -> int:
        return int((await client.task(task_id))["statusMessage"].removeprefix("version "))

    return read


@dataclass(frozen=True)
class Replicas:
    """Two processes' views, the second of them over a wire that can hold answers back."""

    near: Ports
    far: Ports
    wire: Holding

    def told(self) -> Told:
        """Writers through the first of them."""
        assert isinstance(self.near.log, PostgresEventLog)
        return Told(Publisher(self.near.log))


@pytest.fixture(params=[False, True], ids=["plain", "sealed"])
async def replicas(
    request: pytest.FixtureRequest, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Replicas]:
    # More than are ever held back here, so that none of those that are not waits for them.
    monkeypatch.setattr(postgres, "POOL_SIZE_MAX", 16)
    async with AsyncExitStack() as stack:
        wire = await stack.enter_async_context(proxy.between(database_url, Holding))
        near = stores.on_postgres(database_url, seals=request.param)
        far = stores.on_postgres(wire.url, seals=request.param)
        yield Replicas(
            await stack.enter_async_context(near), await stack.enter_async_context(far), wire
        )


async def overtaken(told: Told, wire: Holding, read: Read, moved: str, still: str) -> None:
    """One round: answers are held back while a task moves on, and more and more ask for it."""
    async with asyncio.timeout(STEPS_S_MAX), asyncio.TaskGroup() as readers:

        def ask(*task_ids: str) -> None:
            for task_id in task_ids:
                readers.create_task(told.look(task_id, read))

        wire.hold(moved, still, signals=True)
        ask(moved)
        await wire.until_held(1)  # the store has answered; the answer is on its way
        ask(still, moved)
        await told.settle()
        for _ in range(2):
            await told.move(moved)
            ask(moved, still, moved)
            await told.settle()
        wire.release()
    await told.look(moved, read)  # nor is an old answer kept for later


@pytest.mark.promise("reads-are-strong")
async def test_what_was_told_is_read_by_every_replica_while_all_tasks_move(
    replicas: Replicas,
) -> None:
    told = replicas.told()
    for _ in range(TASKS):
        await told.open()
    near, far = replicas.near.views, replicas.far.views
    await told.race([by(near), by(far), by(far, OWNER), by(near, OWNER)], READS)


@pytest.mark.promise("reads-are-strong")
async def test_no_read_is_answered_by_a_statement_that_began_before_it(
    replicas: Replicas,
) -> None:
    told = replicas.told()
    moved, still = [await told.open() for _ in range(2)]
    for _ in range(ROUNDS):
        for owner in (OWNER, None):
            await overtaken(told, replicas.wire, by(replicas.far.views, owner), moved, still)


@pytest.mark.promise("owners-are-isolated")
@settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(asked=st.lists(st.tuples(IDS, OWNERS), min_size=2, max_size=40))
async def test_each_of_many_reads_at_once_is_answered_as_if_it_were_alone(
    replicas: Replicas, asked: list[tuple[str, str | None]]
) -> None:
    for task_id, owner in STORED.items():
        if not await replicas.near.views.get(task_id):
            await open_task(replicas.near.log, task_id, owner=owner)
    views = replicas.far.views
    together = await asyncio.gather(*(views.get(*each) for each in asked))
    assert together == [await views.get(*each) for each in asked]
    for (task_id, owner), view in zip(asked, together, strict=True):
        is_theirs = task_id in STORED and owner in (None, STORED[task_id])
        assert (view is not None) == is_theirs, (task_id, owner)
        assert view is None or (view.task_id, view.owner) == (task_id, STORED[task_id])


@pytest.mark.promise("owners-are-isolated")
async def test_what_is_asked_of_the_store_does_not_tell_whether_there_is_a_task(
    database_url: str,
) -> None:
    async with AsyncExitStack() as stack:
        wire = await stack.enter_async_context(proxy.between(database_url, Noting))
        there = await stack.enter_async_context(stores.on_postgres(database_url))
        noted = stores.on_postgres(wire.url, signal_url=database_url)
        views = (await stack.enter_async_context(noted)).views
        for task_id, owner in STORED.items():
            await open_task(there.log, task_id, owner=owner)
        for _ in range(2):  # what is prepared once is prepared now
            assert await views.get("theirs-1", OWNER)
        shapes: list[list[tuple[bytes, ...]]] = []
        for task_id in (*STORED, *STORED, "unknown", "x" * 3_000):
            wire.asked.clear()
            await views.get(task_id, OWNER)
            shapes.append(list(wire.asked))
    assert shapes[0]
    assert shapes == [shapes[0]] * len(shapes)


@pytest.mark.parametrize("fault", ["gone", "cut"])
async def test_neither_a_reader_that_goes_away_nor_a_cut_wire_takes_others_along(
    replicas: Replicas, fault: str
) -> None:
    told = replicas.told()
    task_ids = [await told.open() for _ in range(TASKS)]
    read = by(replicas.far.views, OWNER)
    replicas.wire.hold(*task_ids)
    async with asyncio.timeout(STEPS_S_MAX):
        leaving = [asyncio.create_task(read(task_id)) for task_id in task_ids]
        await replicas.wire.until_held(1)
        staying = [asyncio.create_task(read(task_id)) for task_id in task_ids]
        leaving += [asyncio.create_task(read(task_id)) for task_id in task_ids]
        await turns()
        if fault == "gone":
            for each in leaving:
                each.cancel()
        else:
            replicas.wire.cut()
        replicas.wire.release()
        assert set(await asyncio.gather(*staying)) == {3}
        came = await asyncio.gather(*leaving, return_exceptions=True)
        assert fault == "gone" or set(came) == {3}
        assert await read(task_ids[0]) == 3


@pytest.mark.promise("an-outage-is-told-to-all-who-read")
async def test_however_many_read_each_is_told_when_the_store_is_silent(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = replicas.far.views
    (task_id, owner), *_ = STORED.items()
    await open_task(replicas.near.log, task_id, owner=owner)
    assert await views.get(task_id)
    replicas.wire.block()
    patience = postgres.STATEMENT_S_MAX
    monkeypatch.setattr(postgres, "STATEMENT_S_MAX", IMPATIENT_S)
    try:
        async with asyncio.timeout(AWAY_S_MAX):
            reading = [views.get(task_id, owner) for _ in range(AWAY)]
            outcomes = await asyncio.gather(*reading, return_exceptions=True)
    finally:
        monkeypatch.setattr(postgres, "STATEMENT_S_MAX", patience)
        replicas.wire.unblock()
    assert {type(outcome) for outcome in outcomes} == {errors.StoreUnavailable}
    async with asyncio.timeout(AWAY_S_MAX):
        assert await views.get(task_id, owner)


# --- the same over HTTP, with real servers


@dataclass(frozen=True)
class Served:
    """Two servers that run nothing; the second reaches the store over a wire."""

    near: RawClient
    far: RawClient
    wire: Holding
    told: Told


@pytest.fixture(scope="module")
async def served(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        wire = await enter(proxy.between(module_database_url, Holding))
        urls = [
            (await enter(serving(folder, desk_config(), url, ["--no-work"]))).url
            for url in (module_database_url, wire.url)
        ]
        http = await enter(http_client())
        publisher = stack.enter_context(publishing(module_database_url))
        near, far = [RawClient(url, http) for url in urls]
        yield Served(near, far, wire, Told(publisher))


@pytest.mark.promise("reads-are-strong")
async def test_servers_answer_with_what_was_told_while_all_tasks_move(served: Served) -> None:
    told = served.told.afresh()
    for _ in range(TASKS):
        await told.open()
    await told.race([over(served.near), over(served.far)], SERVED_READS)


@pytest.mark.promise("reads-are-strong")
async def test_no_request_is_answered_by_a_statement_that_began_before_it(served: Served) -> None:
    async def arrived() -> None:
        # What was sent before has been read by the server when it answers what is sent after.
        for _ in range(TURNS):
            reply = await served.far.http.get(served.far.url.replace("/mcp", "/healthz"))
            assert reply.is_success

    told = served.told.afresh(arrived)
    moved, still = [await told.open() for _ in range(2)]
    for _ in range(ROUNDS):
        await overtaken(told, served.wire, over(served.far), moved, still)


@pytest.mark.promise("reads-are-strong")
@pytest.mark.promise("create-is-durable")
async def test_what_one_server_has_acknowledged_the_other_one_shows(served: Served) -> None:
    async def live(here: RawClient, there: RawClient) -> None:
        for _ in range(LIVES):
            task_id = await here.opened("hold_task", {"marker": "none"})
            for client in (there, here):
                assert (await client.task(task_id))["status"] == "working"
            acknowledged = await there.request("tasks/cancel", {"taskId": task_id})
            assert acknowledged.result is not None
            for client in (here, there):
                assert (await client.task(task_id))["status"] == "cancelled"

    async with asyncio.timeout(STEPS_S_MAX), asyncio.TaskGroup() as clients:
        for here, there in [(served.near, served.far), (served.far, served.near)] * TASKS:
            clients.create_task(live(here, there))
