"""Delivery under limits: seats, readers that stop reading, and several watches on one socket.

A webhook holds no connection and takes no seat: its limits are a sender's, and proven beside it.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace

import httpx2
import pytest

from outlast.adapters import codec
from outlast.adapters.bus import Bus
from outlast.adapters.memory import MemoryAnnouncements, MemoryStore
from outlast.delivery import bells
from outlast.delivery.feed import Feed
from outlast.delivery.frames import SUBSCRIPTION_META_KEY
from outlast.delivery.limits import WatchLimits
from outlast.delivery.listen import Listening, ListenMethod, listen_params
from outlast.delivery.port import VERSION_META_KEY, ListenRequest
from outlast.delivery.remote import Remote
from outlast.delivery.webhook.keyring import MemoryKeyring
from outlast.delivery.webhook.receiver import Received
from outlast.delivery.webhook.source import WebhookSource
from outlast.delivery.webhook.subscriber import Subscribing
from outlast.delivery.websocket import Switchboard
from outlast.domain import decisions, draft
from outlast.domain.task import fold
from outlast.service import carriers
from outlast.service.waits import turns
from outlast.tests.contracts.delivery_histories import Fault, History, unroll
from outlast.tests.contracts.delivery_observers import (
    LISTEN_WAY,
    PUSHED,
    Client,
    Way,
    client,
)
from outlast.tests.contracts.delivery_telling import Telling, judge, lengthy, until_knows, watched
from outlast.tests.contracts.delivery_world import (
    OWNERS,
    InMemory,
    World,
    the_clock,
    until_true,
    without_pauses,
)
from outlast.tests.domain.given import OPENED, starts

pytestmark = pytest.mark.anyio

BOUND_S = 40.0
TAKE_S_MAX = 4.0  # in which the others are told all, also where the machine stalls
ANN, BOB = (owner.key for owner in OWNERS)
STARTS, SAYS_MUCH = (0, 0), (0, 1)
REQUEST = ListenRequest(ANN, "w-1", listen_params({OPENED.task_id: 0}), declares_tasks=True)
STALLS = Fault(after_bytes=1_000, upward=False, kind="stall")
ids_of_pushed = [way.name for way in PUSHED]


@pytest.fixture(autouse=True, scope="module")
def at_once() -> Iterator[None]:
    with without_pauses():
        yield


@pytest.mark.parametrize("way", PUSHED, ids=ids_of_pushed)
async def test_a_seat_that_is_taken_is_refused_and_a_cut_gives_it_back(way: Way) -> None:
    ids = ["of-ann", "of-bob"]
    history = unroll(ids, [ANN, BOB], [])
    world = World(InMemory(), watches=3, watches_per_owner=2)
    async with asyncio.timeout(BOUND_S), world.open(), AsyncExitStack() as stack:
        telling = Telling(world, history)
        await telling.more(2)
        limits = world.replicas[0].limits

        async def sit(owner: int) -> Client:
            ours = await stack.enter_async_context(client(world, owner))
            frames = await stack.enter_async_context(aclosing(ours.frames(way, ids[owner])))
            assert "method" in await anext(frames)
            return ours

        async def refusal(owner: int) -> str:
            async with client(world, owner) as ours:
                (answer,) = await ours.all_frames(way, ids[owner])
            return answer["error"]["message"]

        leaving = await sit(0)
        await sit(0)
        assert "2 watches of one owner" in await refusal(0)
        await sit(1)
        assert "3 watches of this process" in await refusal(1)
        leaving.wire.cut()
        await until_true(lambda: limits.open_count < 3)
        await sit(1)
        assert limits.open_count == 3


@asynccontextmanager
async def telling_much(changes: int) -> AsyncGenerator[tuple[History, World, Telling]]:
    """A task that has begun, and so many long changes of it still to be told."""
    history = lengthy(unroll(["task"], [ANN], [STARTS, *[SAYS_MUCH] * changes]))
    world = World(InMemory(), is_narrow=True)
    async with asyncio.timeout(BOUND_S), world.open():
        telling = Telling(world, history)
        await telling.more(2)
        yield history, world, telling


@pytest.mark.promise("slow-reader-is-cut-off-and-loses-nothing")
@pytest.mark.parametrize("way", PUSHED, ids=ids_of_pushed)
async def test_a_reader_that_stops_reading_is_cut_off_and_loses_nothing(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken on purpose: no bound on a send, over SSE and over a socket; a seat kept after the cut;
    a change left out, told twice, under a wrong number or with a newer state; a source that comes
    back from 0, or one version too late. And found: who was cut off over a socket kept its waiter.
    """
    monkeypatch.setattr(carriers, "TAKE_S_MAX", TAKE_S_MAX)
    async with telling_much(12) as (history, world, telling):
        limits = world.replicas[0].limits
        async with (
            watched(way, world, "task", 1) as (fast, _),
            watched(way, world, "task", 1, faults=[STALLS], is_narrow=True) as (slow, theirs),
        ):
            for _ in range(12):
                await telling.more()
                await until_knows(fast, telling)
            assert limits.open_count == 2  # the slow one is still held up, and held up nobody
            assert slow.versions[-1:] < fast.versions[-1:]
            await until_true(lambda: limits.open_count < 2)
            theirs.wire.flowing.set()
            await telling.more(len(history.steps))
        judge(history, fast, 1)
        judge(history, slow, 1)


@pytest.mark.promise("slow-reader-is-cut-off-and-loses-nothing")
async def test_a_reader_that_takes_not_even_a_sign_of_life_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found: a sign of life that came behind what had filled the wire was waited for without end,
    and with it the seat and every later change.
    """
    monkeypatch.setattr(carriers, "TAKE_S_MAX", 0.5)
    monkeypatch.setattr(bells, "KEEP_ALIVE_S", 0.1)
    async with telling_much(2) as (history, world, telling):
        limits = world.replicas[0].limits
        way = watched(LISTEN_WAY, world, "task", 1, faults=[STALLS], is_narrow=True)
        async with way as (slow, theirs):
            await until_true(lambda: limits.open_count == 1)
            await telling.more(2)  # the second fills the wire, and is held up by nothing yet
            await until_true(lambda: limits.open_count == 0)
            theirs.wire.flowing.set()
            await telling.more(len(history.steps))
    judge(history, slow, 1)


async def test_watches_on_one_socket_are_told_apart_by_their_requests() -> None:
    """Broken on purpose: the acknowledgement after the first change; a known version told again."""
    history = unroll(["one", "two"], [ANN, ANN], [(0, 0), (1, 0), (0, 0), (1, 0)])
    ids: dict[str | int, str] = {"a": "one", 7: "two", "7": "two"}
    async with asyncio.timeout(BOUND_S), World(InMemory()).open() as world:
        telling = Telling(world, history)
        await telling.more(2)
        async with client(world, 0) as ours, ours.socket() as socket:
            for request_id, task_id in ids.items():
                await socket.send(json.dumps({**ours.listen_request(task_id), "id": request_id}))
            messages = [json.loads(await socket.recv()) for _ in ids]  # who was agreed with
            await telling.more(len(history.steps))
            while [message.get("id") for message in messages].count(None) > len(messages) - 3:
                messages.append(json.loads(await socket.recv()))
    for request_id, task_id in ids.items():
        metas = [(m.get("params") or m["result"])["_meta"] for m in messages]
        own = [
            message
            for message, meta in zip(messages, metas, strict=True)
            if meta[SUBSCRIPTION_META_KEY] == request_id
            and type(meta[SUBSCRIPTION_META_KEY]) is type(request_id)
        ]
        agreed, *changes, end = own
        assert agreed["params"]["notifications"] == {"taskIds": [task_id]}
        versions = [change["params"]["_meta"][VERSION_META_KEY] for change in changes]
        assert versions == list(range(versions[0], max(history.told(task_id)) + 1))
        assert {change["params"]["taskId"] for change in changes} == {task_id}
        assert end["id"] == request_id


@pytest.mark.parametrize("end", ["cancelled", "close"])
async def test_a_watch_that_is_ended_before_it_began_gives_its_seat_back(end: str) -> None:
    """Found: a pump that was cancelled before its first step kept its seat and its id for ever."""
    async with listening() as (listener, bus, limits, _):
        sent: list[bytes] = []

        async def send(frame: bytes) -> None:
            sent.append(frame)

        board = Switchboard(listener, send, lambda _id, error: str(error).encode())
        for _ in range(2):  # the id and the seat can be had again
            await board.received(REQUEST)
            assert limits.open_count == 1
            await (board.cancelled(REQUEST.request_id) if end == "cancelled" else board.close())
            assert limits.open_count == 0
            assert board.is_idle
    assert sent == []
    assert bus.watched() == []


async def test_a_watch_that_is_cancelled_twice_keeps_no_waiter() -> None:
    """Broken on purpose: the second cancellation leaves the cleaning up half done."""
    async with listening() as (listener, bus, _, store), asyncio.timeout(BOUND_S):
        watch = await listener.open(REQUEST)
        has_first = asyncio.Event()

        async def read() -> None:
            async with aclosing(watch.frames()) as frames:
                assert b"acknowledged" in await anext(frames)
                await anext(frames)
                has_first.set()
                await asyncio.Event().wait()  # it takes no more

        reading = asyncio.create_task(read())
        await has_first.wait()
        opened = fold(await store.read(OPENED.task_id))
        assert opened is not None
        await store.append(opened, starts()(opened))
        await turns()  # the next change has been read, and is not taken
        reading.cancel()
        await asyncio.sleep(0)  # noqa: TID251 - one turn: it has begun to clean up, and no more
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert bus.watched() == []


class Quiet:
    """`Deliveries` that never come, and `Cursors` that are none."""

    has_reader = False

    async def received(self) -> AsyncGenerator[Received]:
        self.has_reader = True
        try:
            await asyncio.Event().wait()
        finally:
            self.has_reader = False
        yield Received("", "", None, None, {})

    async def cursor_of(self, subscription_id: str) -> str | None:
        return None


async def test_a_watch_by_webhook_that_is_cancelled_twice_keeps_no_reader() -> None:
    """Found: cancelled again while it let go of its subscription, it left its reader behind."""
    letting_go, quiet = asyncio.Event(), Quiet()

    async def answer(request: httpx2.Request) -> httpx2.Response:
        message = json.loads(request.content)
        if message["method"] == draft.UNSUBSCRIBE:
            letting_go.set()
            await asyncio.Event().wait()
        told = {"status": "working", "lastUpdatedAt": OPENED.at, "taskId": OPENED.task_id}
        result = {"id": "sub_1", "cursor": "c"} if message["method"] == draft.SUBSCRIBE else told
        return httpx2.Response(200, json={"jsonrpc": "2.0", "id": 1, "result": result})

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer), trust_env=False)
    async with http, asyncio.timeout(BOUND_S):
        remote = Remote("http://server.example/mcp", http)
        shared = Subscribing(remote, MemoryKeyring(), quiet, the_clock)
        states = WebhookSource(shared, quiet, "http://client.example/hook").watch(OPENED.task_id)
        await anext(states)
        await until_true(lambda: quiet.has_reader)
        closing = asyncio.ensure_future(states.aclose())
        await letting_go.wait()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert not quiet.has_reader


@asynccontextmanager
async def listening() -> AsyncGenerator[tuple[ListenMethod, Bus, WatchLimits, MemoryStore]]:
    """A listener over one task, with one seat, and no carrier."""
    bus, limits = Bus(), WatchLimits(1, 1)
    store = MemoryStore(bus)
    await store.append(None, decisions.open_task(replace(OPENED, owner=ANN)))
    feed = Feed(store, store, codec.wire_of, the_clock)
    yield ListenMethod(Listening(feed, bus, MemoryAnnouncements(), limits)), bus, limits, store
