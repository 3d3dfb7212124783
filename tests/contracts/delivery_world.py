"""Two replicas of the real application over one store, in this process, and ways to harm them."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

import pytest

from outlast.adapters import codec
from outlast.adapters.bus import Bus
from outlast.adapters.memory import MemoryAnnouncements, MemoryStore
from outlast.adapters.memory_past import MemoryPastTasks
from outlast.delivery import follow, polling, source
from outlast.delivery.feed import Feed
from outlast.delivery.limits import WatchLimits
from outlast.delivery.listen import Listening, ListenMethod
from outlast.delivery.polling import PollingMethod
from outlast.delivery.websocket import Switchboard
from outlast.domain import errors
from outlast.domain.events import TaskEvent
from outlast.domain.owner import Caller, Owner, Scope
from outlast.domain.ports import EventLog, Signal, TaskView, TaskViews
from outlast.domain.task import Task
from outlast.service.access import Access
from outlast.service.app import Lookout, Parts, assemble
from outlast.service.commands import Commands
from outlast.service.endpoint import Endpoint, Method
from outlast.service.guard import Guard
from outlast.service.methods.tasks import TaskMethods
from outlast.service.metrics import Metrics
from outlast.service.retention import Retention
from outlast.service.socket import Socket
from outlast.tests.contracts.delivery_pushing import Pushing, Step
from outlast.tests.contracts.delivery_serving import Served
from outlast.tests.domain.given import at

REPLICAS = 2
QUIET_S_MAX = 15.0
RECHECK_S = 0.05  # where signals are lost on purpose, and nothing below finds out
NEVER_S = 300.0  # longer than any example: what is heard late then is a failure
OWNERS = tuple(Owner("tests", name, "default") for name in ("ann", "bob"))


def the_clock() -> datetime:
    """An instant at which no generated task has expired."""
    return at(60)


class Names:
    """`Identity`: the token is the number of the owner."""

    async def authenticate(self, authorization: str | None) -> Caller:
        scheme, _, token = (authorization or "").partition(" ")
        if scheme != "Bearer":
            raise errors.Unauthenticated
        return Caller(OWNERS[int(token)], frozenset(Scope))

    def knows(self, owner: str) -> bool:
        return owner in {known.key for known in OWNERS}


class Store(Protocol):
    """What the replicas stand on."""

    @property
    def log(self) -> EventLog:
        """Where histories are written."""
        ...

    recheck_s: float  # what a watch needs to find what was lost

    def ports(self, replica: int) -> tuple[TaskViews, EventLog, Signal]:
        """What this replica reads from."""
        ...

    def pushing(self, replica: int, feed: Feed, step: Step) -> Pushing | None:
        """What this replica sends webhooks with; None where nobody asks for any."""
        ...

    async def clear(self) -> None:
        """Forget who was to be sent to in an earlier world."""
        ...

    async def places(self, task_id: str) -> Mapping[int, int]:
        """Where each version of the task stands in the order of all events, if there is one."""
        ...

    async def fate(self, fates: Sequence[str]) -> None:
        """What becomes of the next append's signal: sent, lost, twice or late, for each replica."""
        ...

    async def settle(self) -> None:
        """Deliver what is late."""
        ...

    def waited_for(self) -> list[str]:
        """The names that any replica, dead or alive, still waits for."""
        ...


class Wires(Bus):
    """The memory store's signal: carries each move to each replica's bus, or does not."""

    def __init__(self) -> None:
        super().__init__()
        self.buses: list[Bus] = [Bus() for _ in range(REPLICAS)]
        self.fates: Sequence[str] = ("sent",) * REPLICAS
        self.late: list[Callable[[], None]] = []

    def moved(self, name: str, version: int) -> None:
        """Each replica hears of it as its fate has it."""
        for bus, fate in zip(self.buses, self.fates, strict=True):
            if fate == "late":
                self.late.append(lambda bus=bus: bus.moved(name, version))
            for _ in range({"sent": 1, "twice": 2}.get(fate, 0)):
                bus.moved(name, version)

    def queue_moved(self) -> None:
        """Nobody works here."""


class InMemory:
    """`Store` over the in-memory twins."""

    def __init__(self) -> None:
        self._wires = Wires()
        self._store = MemoryStore(self._wires)
        self._dead: list[Bus] = []
        self.log: EventLog = self._store
        self.recheck_s = RECHECK_S

    def ports(self, replica: int) -> tuple[TaskViews, EventLog, Signal]:
        """A new process has a bus of its own."""
        self._dead.append(self._wires.buses[replica])
        self._wires.buses[replica] = Bus()
        return self._store, self._store, self._wires.buses[replica]

    def pushing(self, replica: int, feed: Feed, step: Step) -> None:
        """There is no outbox in memory."""

    async def clear(self) -> None:
        """See `Store.clear`."""

    async def places(self, task_id: str) -> Mapping[int, int]:
        """See `Store.places`."""
        return {}

    async def fate(self, fates: Sequence[str]) -> None:
        """See `Store.fate`."""
        self._wires.fates = fates

    async def settle(self) -> None:
        """See `Store.settle`."""
        late, self._wires.late = self._wires.late, []
        for deliver in late:
            deliver()

    def waited_for(self) -> list[str]:
        """See `Store.waited_for`."""
        return [name for bus in (*self._dead, *self._wires.buses) for name in bus.watched()]


@dataclass
class Steps:
    """Counts what servers do at their seams: each read before and after, each send alike, and with
    webhooks after a claim, before a post, and before and after the settling.

    `hooks` run between two of them: an append, or the end of the process.
    """

    hooks: Mapping[int, Callable[["Replica"], Awaitable[None]]] = field(
        default_factory=dict[int, Any]
    )
    count: int = 0

    async def took(self, replica: "Replica") -> None:
        self.count += 1
        hook = self.hooks.get(self.count)
        if hook is not None:
            await hook(replica)


@dataclass(frozen=True)
class Stepping:
    """The replica's reads, each with a step before and after it."""

    views: TaskViews
    log: EventLog
    step: Step

    async def get(self, task_id: str, owner: str | None = None) -> TaskView | None:
        await self.step()
        view = await self.views.get(task_id, owner)
        await self.step()
        return view

    async def read(self, task_id: str) -> Sequence[TaskEvent]:
        await self.step()
        events = await self.log.read(task_id)
        await self.step()
        return events

    async def tail(
        self, task_id: str, version: int | None = None
    ) -> tuple[Task | None, Sequence[TaskEvent]]:
        await self.step()
        found = await self.log.tail(task_id, version)
        await self.step()
        return found


class Replica:
    """One server: the real application under uvicorn, on a port of its own."""

    def __init__(self, store: Store, number: int, world: "World") -> None:
        views, log, signal = store.ports(number)
        self._steps = world.steps
        stepping: Any = Stepping(views, log, self._step)
        self.number = number
        self.limits = WatchLimits(world.watches, world.watches_per_owner)
        feed = Feed(stepping, stepping, codec.wire_of, the_clock)
        self.listening = Listening(
            feed,
            signal,
            MemoryAnnouncements(),
            self.limits,
            recheck_s=world.recheck_s,
        )
        self._pushing = store.pushing(number, feed, self._step)
        methods = self._pushing.methods if self._pushing else {}
        commands = Commands(log, the_clock)
        retention = Retention(commands, views, MemoryPastTasks(MemoryStore(Bus())), timedelta())
        tasks = TaskMethods(commands, PollingMethod(feed), retention)
        app = assemble(_parts(self.listening, tasks, methods))
        self._served = Served(self._stepped(app), is_narrow=world.is_narrow)

    @property
    def port(self) -> int:
        return self._served.port

    async def _step(self) -> None:
        await self._steps.took(self)

    def _stepped(self, app: Any) -> Any:
        async def stepped(scope: Any, receive: Any, send: Any) -> None:
            async def sent(message: Any) -> None:
                await self._steps.took(self)
                await send(message)
                await self._steps.took(self)

            await app(scope, receive, sent)

        return stepped

    async def start(self) -> None:
        """Serve, and send."""
        await self._served.start()
        if self._pushing is not None:
            self._pushing.start()

    async def end(self) -> None:
        """All at once: no connection is closed in order, nothing is waited for."""
        await self._served.end()
        if self._pushing is not None:
            await self._pushing.end()

    async def leave(self) -> None:
        """As on SIGTERM: the watches end well, then the connections are closed in order."""
        self.listening.closing.set()
        await self._served.stop_listening()
        if self._pushing is not None:
            await self._pushing.leave()
        self._served.close_in_order()

    @property
    def busy(self) -> str:
        """What it is still at; empty for nothing."""
        open_now = (self.limits.open_count, *self._served.open_now)
        return f"{self.number}: seats, tasks, connections: {open_now}" if any(open_now) else ""


def _parts(listening: Listening, tasks: TaskMethods, methods: Mapping[str, Method]) -> Parts:
    listener = ListenMethod(listening)
    access = Access(Names(), Guard(["127.0.0.1"], ["127.0.0.1"]))

    async def ready() -> bool:
        return True

    return Parts(
        Endpoint(
            {"tasks/get": tasks.get, **methods},
            listener,
            access,
            {"name": "outlast", "version": "0"},
            require_task_name=True,
        ),
        Socket(lambda send, refuse: Switchboard(listener, send, refuse), access),
        Lookout(Metrics({}, access), ready, contextlib.nullcontext, listening.closing.set),
    )


@dataclass
class World:
    """The replicas, and which of them a new connection is led to."""

    store: Store
    recheck_s: float = NEVER_S
    watches: int = 100
    watches_per_owner: int = 100
    is_narrow: bool = False
    steps: Steps = field(default_factory=Steps)
    led_to: int = 0
    replicas: list[Replica] = field(default_factory=list[Replica])
    _dead: list[Replica] = field(default_factory=list[Replica])
    _deaths: set["asyncio.Task[None]"] = field(default_factory=set["asyncio.Task[None]"])

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["World"]:
        """Start, and in the end look that nothing is left open anywhere."""
        await self.store.clear()
        for number in range(REPLICAS):
            self.replicas.append(Replica(self.store, number, self))
            await self.replicas[number].start()
        try:
            yield self
            await self.fall_quiet()
        finally:
            await asyncio.gather(*self._deaths)
            for replica in (*self.replicas, *self._dead):
                await replica.end()

    def port(self) -> int:
        """Where a new connection is led to."""
        return self.replicas[self.led_to % REPLICAS].port

    async def crash(self, replica: Replica) -> None:
        """The process dies, and another takes its place if none has yet."""
        await self._replace(replica)
        await replica.end()

    async def leave(self, replica: Replica) -> None:
        """The process is stopped and another takes its place."""
        await self._replace(replica)
        await replica.leave()

    async def _replace(self, replica: Replica) -> None:
        if self.replicas[replica.number] is replica:
            self._dead.append(replica)
            self.replicas[replica.number] = Replica(self.store, replica.number, self)
            await self.replicas[replica.number].start()

    async def dies_here(self, replica: Replica) -> None:
        """A hook: whoever runs it goes no further, for its process is gone."""
        self._deaths.add(asyncio.create_task(self.crash(replica)))
        await asyncio.get_running_loop().create_future()

    async def fall_quiet(self) -> None:
        """Return once no watch, request, connection or waiter is left; fail if one stays."""
        try:
            async with asyncio.timeout(QUIET_S_MAX):
                await until_true(lambda: not self._left_open())
        except TimeoutError:
            pytest.fail(f"left open: {self._left_open()}")

    def _left_open(self) -> list[str]:
        busy = [each.busy for each in (*self.replicas, *self._dead) if each.busy]
        return busy + self.store.waited_for()


async def until_true(holds: Callable[[], bool]) -> None:
    """Return once it holds. Callers bound it."""
    while not holds():  # noqa: ASYNC110 - a process that ends tells nobody
        await asyncio.sleep(0.005)  # noqa: TID251 - as above


@contextlib.contextmanager
def without_pauses() -> Iterator[None]:
    """Who would try again later tries again at once; and a poll brings few changes at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "BACKOFF_S_FIRST", 0.002)
        patch.setattr(source, "BACKOFF_S_MAX", 0.02)
        patch.setattr(follow, "RETRY_S", 0.01)
        patch.setattr(polling, "INTERVAL_MS_MIN", 2)
        patch.setattr(polling, "CHANGES_MAX", 3)
        yield
