"""Many append at once while the server, its wires or the process fail: each is told the truth.

Nothing that was acknowledged is lost, nothing is stored twice or after it was refused, one that
cannot be stored hurts no other, and nobody waits for more than those who came before.
"""

import asyncio
import itertools
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio.lowlevel
import httpx2
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from outlast.adapters import event_log, migrations
from outlast.domain import errors
from outlast.domain.ports import EventLog
from outlast.tests.acceptance.waiting import until
from outlast.tests.chaos.client import Client
from outlast.tests.chaos.nodes import Cluster
from outlast.tests.chaos.test_outage import Store
from outlast.tests.contracts import stores
from outlast.tests.contracts.stores import Limits, open_task
from outlast.tests.domain.given import OPENED
from outlast.tests.support import mixes, proxy
from outlast.tests.support.ledger import Caller, Ledger, following, judge, store_on
from outlast.tests.support.mcp import http_client
from outlast.tests.support.proxy import Proxy
from outlast.tests.support.shaky import Shaky

pytestmark = pytest.mark.anyio

CALLERS = 32  # half of them through each of two logs
RIVALS = 4  # two and two move one task
STEPS = 8
PATIENCE_S = 120.0
OUTAGES = 2
TOLD_BETWEEN = 250  # events acknowledged between two faults
LOSES = 0.06

CONNECTIONS = 64
CREATED = 150  # before the server is killed

EXAMPLES, MIXED_MAX = 20, 24

FLOOD, TURNS = 800, 5
SLACK = 256  # of those who came later, so many may go along in the same batches
AWAY = 5_000
IMPATIENT_S, AWAY_S_MAX = 0.5, 30.0  # one batch after the other it would take 39 s


@pytest.fixture
def store() -> Iterator[Store]:
    with tempfile.TemporaryDirectory(prefix="ol-") as folder:
        running = Store(Path(folder))
        try:
            yield running
        finally:
            running.stop()


class Crowd:
    """Callers of two logs, at work until the block ends."""

    def __init__(self, logs: Sequence[EventLog], ledger: Ledger) -> None:
        self._logs, self._ledger = logs, ledger

    async def work(self, crowd: asyncio.TaskGroup) -> None:
        """Begin. Each log has callers with tasks of their own, and some that vie for one."""
        contested = await Caller(self._logs[0], self._ledger, "first").opens("contested")
        for number, log in zip(range(CALLERS), itertools.cycle(self._logs), strict=False):
            crowd.create_task(Caller(log, self._ledger, f"caller-{number}").live(STEPS))
        for number, log in zip(range(RIVALS), itertools.cycle(self._logs), strict=False):
            crowd.create_task(Caller(log, self._ledger, f"rival-{number}").vies(contested))


@pytest.mark.promise("group-commit-tells-the-truth")
async def test_a_server_that_is_stopped_and_started_again_loses_and_doubles_nothing(
    store: Store,
) -> None:
    await migrations.upgrade(store.url)
    ledger = Ledger()
    async with AsyncExitStack() as stack:
        logs = [(await stack.enter_async_context(store_on(store.url)))[0] for _ in range(2)]
        follower = await stack.enter_async_context(following(store.url))
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as crowd:
            await Crowd(logs, ledger).work(crowd)
            for _ in range(OUTAGES):
                await ledger.until_told(TOLD_BETWEEN, PATIENCE_S)
                store.end(signal.SIGQUIT)  # to PostgreSQL, its immediate mode
                await store.start_again()
            await ledger.until_told(TOLD_BETWEEN, PATIENCE_S)
            ledger.is_over = True
    await judge(store.url, ledger, follower)
    assert ledger.refused  # the rivals did meet


@pytest.mark.promise("group-commit-tells-the-truth")
@pytest.mark.promise("lost-reply-is-no-conflict")
async def test_wires_that_are_cut_before_and_after_the_commit_lose_and_double_nothing(
    database_url: str,
) -> None:
    ledger = Ledger()
    async with AsyncExitStack() as stack:
        wire = await stack.enter_async_context(proxy.between(database_url, Shaky))
        logs = [(await stack.enter_async_context(store_on(wire.url)))[0] for _ in range(2)]
        follower = await stack.enter_async_context(following(database_url))
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as crowd:
            await Crowd(logs, ledger).work(crowd)
            wire.loses = LOSES
            for _ in range(OUTAGES):
                await ledger.until_told(TOLD_BETWEEN, PATIENCE_S)
                wire.cut()

            async def has_lost_both() -> bool:
                return min(wire.lost_replies, wire.lost_requests) >= OUTAGES

            await until(has_lost_both, PATIENCE_S)
            wire.loses = 0.0
            ledger.is_over = True
    await judge(database_url, ledger, follower)


@dataclass
class Creating:
    """Clients that create tasks, each on a connection of its own, until they are told to stop."""

    chaos: Cluster
    is_up: asyncio.Event = field(default_factory=asyncio.Event)
    given: dict[str, str] = field(default_factory=dict[str, str])
    is_over: bool = False

    async def create(self, name: str) -> None:
        """One after the other; each key again until it is answered, as a client would."""
        async with http_client() as http:
            client = Client(http, self.chaos.url)
            for number in itertools.count():
                if self.is_over:
                    return
                key = f"{name}-{number}"
                task_id = await self._surely(client, key)
                assert task_id not in self.given.values()
                self.given[key] = task_id

    async def _surely(self, client: Client, key: str) -> str:
        arguments = {"path": str(self.chaos.journal), "key": key}
        while True:
            await self.is_up.wait()
            try:
                return await client.call("new_hold", arguments, key)
            except httpx2.TransportError:
                assert not self.is_up.is_set()

    async def until_given(self, more: int) -> None:
        """Return once so many more tasks were told."""
        wanted = len(self.given) + more

        async def reached() -> bool:
            return len(self.given) >= wanted

        await until(reached, PATIENCE_S)


@pytest.mark.promise("create-is-durable")
@pytest.mark.promise("group-commit-tells-the-truth")
async def test_a_server_that_is_killed_under_many_creations_loses_none_that_it_answered(
    chaos: Cluster,
) -> None:
    node = chaos.serve(work=False)
    node.start()
    await chaos.until_ready(node)
    creating = Creating(chaos)
    creating.is_up.set()
    async with following(chaos.database_url) as follower, asyncio.TaskGroup() as clients:
        for number in range(CONNECTIONS):
            clients.create_task(creating.create(f"client-{number}"))
        await creating.until_given(CREATED)
        async with mixes.nothing_commits(chaos.database_url) as does_one_wait:
            await until(does_one_wait, PATIENCE_S)
            creating.is_up.clear()
            node.kill()
            # What the dead had asked for would still be done.
            await mixes.end_who_wait(chaos.database_url)
        node.start()
        await chaos.until_ready(node)
        creating.is_up.set()
        await creating.until_given(CONNECTIONS)
        creating.is_over = True
    await judge(chaos.database_url, Ledger(), follower)  # a client was told no events, only ids
    await _are_there(chaos, creating.given)


async def _are_there(chaos: Cluster, given: dict[str, str]) -> None:
    async with await psycopg.AsyncConnection.connect(chaos.database_url) as connection:
        rows = await (
            await connection.execute(
                "SELECT v.idempotency_key, v.task_id, v.version, q.task_id IS NOT NULL"
                " FROM outlast.task_view v LEFT JOIN outlast.run_queue q USING (task_id)"
            )
        ).fetchall()
    # Each key has one task, the one that was told, and it waits for a worker.
    assert len(rows) == len(given)
    assert {row[1]: tuple(row[2:]) for row in rows} == dict.fromkeys(given.values(), (1, True))
    async with http_client() as http:
        client = Client(http, chaos.url)
        for task_id in list(given.values())[-CONNECTIONS:]:
            assert (await client.get(task_id))["status"] == "working"


@dataclass(frozen=True)
class Pair:
    """Two processes' logs on one store that has quotas, and where it is."""

    logs: tuple[EventLog, EventLog]
    url: str


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "sealed"])
async def pair(
    request: pytest.FixtureRequest, module_database_url: str, anyio_backend: str
) -> AsyncIterator[Pair]:
    limits = Limits(mixes.QUOTAS)
    async with AsyncExitStack() as stack:
        opened = [
            stores.on_postgres(module_database_url, seals=request.param, limits=limits)
            for _ in range(2)
        ]
        one, other = [await stack.enter_async_context(each) for each in opened]
        yield Pair((one.log, other.log), module_database_url)


@pytest.mark.promise("one-bad-append-hurts-no-other")
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(
    kinds=st.lists(st.sampled_from(sorted(mixes.RULES)), min_size=2, max_size=MIXED_MAX),
    logs=st.integers(1, 2),
)
async def test_of_appends_at_once_exactly_those_happen_that_may(
    pair: Pair, kinds: list[str], logs: int
) -> None:
    kinds = ["opens", *kinds]  # the first is under way, and all others gather behind it
    scene = mixes.Scene(pair.logs[:logs])
    await scene.set_up(kinds)
    outcomes = await mixes.all_at_once(pair.url, scene.appends(kinds))
    await scene.holds(kinds, outcomes)


@pytest.mark.promise("one-bad-append-hurts-no-other")
async def test_one_of_each_kind_at_once_and_many_good_ones(pair: Pair) -> None:
    kinds = [*sorted(mixes.RULES), *sorted(mixes.RULES), *["opens", "moves"] * MIXED_MAX]
    scene = mixes.Scene(pair.logs[:1])
    await scene.set_up(kinds)
    outcomes = await mixes.all_at_once(pair.url, scene.appends(kinds))
    await scene.holds(kinds, outcomes)


@pytest.mark.promise("appends-are-served-in-turn")
@pytest.mark.parametrize(
    ("owner", "ahead"), [(OPENED.owner, FLOOD), ("another", 0)], ids=["own", "another"]
)
async def test_one_append_does_not_wait_for_those_after_it_nor_for_another_owners_flood(
    database_url: str, owner: str, ahead: int
) -> None:
    async with store_on(database_url) as (log, _), asyncio.TaskGroup() as callers:
        for number in range(FLOOD):
            callers.create_task(open_task(log, f"before-{number}"))
        for _ in range(TURNS):
            await anyio.lowlevel.checkpoint()  # the first are on their way, the others in line
        callers.create_task(open_task(log, "lone", owner=owner))
        await anyio.lowlevel.checkpoint()
        for number in range(FLOOD):
            callers.create_task(open_task(log, f"after-{number}"))
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        rows = await (
            await connection.execute(
                "SELECT originator_id FROM outlast.task_events ORDER BY notification_id"
            )
        ).fetchall()
    order = [task_id.partition("-")[0] for (task_id,) in rows]
    assert len(order) == 2 * FLOOD + 1
    served_before = Counter(order[: order.index("lone")])
    assert served_before["after"] <= SLACK
    assert served_before["before"] <= ahead + SLACK


@pytest.mark.promise("appends-are-served-in-turn")
@pytest.mark.parametrize("fault", ["refused", "silent"])
async def test_however_many_wait_each_is_told_when_the_store_stays_away(
    database_url: str, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    async with proxy.between(database_url) as wire, store_on(wire.url) as (log, _):
        await open_task(log, "first")
        monkeypatch.setattr(event_log, "APPEND_PATIENCE_S", IMPATIENT_S)
        with taken_away(wire, fault):
            async with asyncio.timeout(AWAY_S_MAX):
                opening = [open_task(log, f"task-{number}") for number in range(AWAY)]
                outcomes = await asyncio.gather(*opening, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {errors.StoreUnavailable}
        monkeypatch.undo()
        async with asyncio.timeout(AWAY_S_MAX):
            await open_task(log, "last")
        assert len(await log.read("last")) == len(await log.read("first")) == 1


@contextmanager
def taken_away(wire: Proxy, fault: str) -> Generator[None]:
    """The store cannot be reached within the block."""
    if fault == "refused":
        wire.is_refusing = True
        wire.cut()
    else:
        wire.block()
    try:
        yield
    finally:
        wire.is_refusing = False
        wire.unblock()
