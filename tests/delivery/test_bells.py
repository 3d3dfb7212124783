"""What wakes a stream beside its tasks, and what an idle or closed one leaves behind."""

import asyncio
from contextlib import AsyncExitStack, ExitStack

import anyio
import pytest

from outlast.adapters import codec
from outlast.adapters.bus import Bus
from outlast.adapters.memory import MemoryAnnouncements, MemoryStore
from outlast.delivery import bells
from outlast.delivery.bells import Bell, Clock, Closing
from outlast.delivery.feed import Feed
from outlast.delivery.limits import WatchLimits
from outlast.delivery.listen import Listening, ListenMethod
from outlast.delivery.port import KEEP_ALIVE, ListenRequest, OpenWatch
from outlast.tests.contracts.stores import open_task
from outlast.tests.domain.given import OPENED, at

pytestmark = pytest.mark.anyio

SOON_S_MAX = 20.0
PERIOD_S = 0.2


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bells, "KEEP_ALIVE_S", PERIOD_S)
    monkeypatch.setattr(bells, "SLOTS", 4)


async def rung_times(bell: Bell) -> int:
    """How many waits end at once."""
    times = 0
    with anyio.move_on_after(0):
        while True:
            await bell.wait()
            times += 1
    return times


async def test_a_bell_ends_the_wait_that_is_on_or_else_the_next_one_and_only_that():
    bell = Bell()
    waiting = asyncio.ensure_future(bell.wait())
    await asyncio.wait({waiting}, timeout=0)
    assert not waiting.done()
    bell.ring()
    with anyio.fail_after(SOON_S_MAX):
        await waiting
    assert await rung_times(bell) == 0
    bell.ring()
    bell.ring()
    with anyio.fail_after(SOON_S_MAX):
        await bell.wait()
    assert await rung_times(bell) == 0


async def test_a_wait_that_is_given_up_loses_no_ring():
    bell = Bell()
    with anyio.move_on_after(0.01):
        await bell.wait()
    bell.ring()
    with anyio.fail_after(SOON_S_MAX):
        await bell.wait()


class Noted(Bell):
    """Notes its beats in a list."""

    def __init__(self, number: int, beats: list[int], heard: Bell) -> None:
        super().__init__()
        self._number, self._beats, self._heard = number, beats, heard

    def beat(self) -> None:
        self._beats.append(self._number)
        self._heard.ring()


async def test_the_clock_beats_each_bell_once_a_period_and_a_part_of_them_at_a_time():
    clock, heard, beats = Clock(), Bell(), list[int]()
    together: list[list[int]] = []
    with ExitStack() as stack:
        for number in range(8):
            stack.enter_context(clock.ringing(Noted(number, beats, heard)))
        with anyio.fail_after(SOON_S_MAX):
            while len(together) < 12:
                await heard.wait()
                together.append(sorted(beats))
                beats.clear()
    assert together == [[1, 5], [2, 6], [3, 7], [0, 4]] * 3


async def test_a_bell_that_has_left_is_beaten_no_more():
    clock, left, stays = Clock(), Bell(), Bell()
    with clock.ringing(stays):
        with clock.ringing(left):
            pass
        with anyio.fail_after(SOON_S_MAX):
            for _ in range(2):
                await stays.wait()
    assert (stays.take_due(), left.take_due()) == (True, False)


async def test_closing_rings_those_that_are_there_and_is_known_to_all_others():
    closing, there, gone = Closing(), Bell(), Bell()
    with closing.ringing(there):
        with closing.ringing(gone):
            pass
        assert not closing.is_set()
        closing.set()
        with anyio.fail_after(SOON_S_MAX):
            await there.wait()
    assert closing.is_set()
    assert await rung_times(gone) == 0


async def opened(stack: AsyncExitStack) -> OpenWatch:
    """A watch of one task that nobody works on."""
    bus = Bus()
    store = MemoryStore(bus)
    await open_task(store)
    feed = Feed(store, store, codec.wire_of, lambda: at(1))
    shared = Listening(feed, bus, MemoryAnnouncements(), WatchLimits(1, 1))
    wanted = {"notifications": {"taskIds": [OPENED.task_id]}}
    watch = await ListenMethod(shared).open(ListenRequest(OPENED.owner, 1, wanted, True))
    stack.push_async_callback(watch.close)
    return watch


async def test_a_quiet_watch_says_that_it_lives():
    async with AsyncExitStack() as stack:
        frames = (await opened(stack)).frames()
        with anyio.fail_after(SOON_S_MAX):
            told = [await anext(frames) for _ in range(5)]
        await frames.aclose()
    assert [frame == KEEP_ALIVE for frame in told] == [False, False, True, True, True]


async def test_a_watch_that_is_closed_ends_at_once_and_without_a_result(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(bells, "KEEP_ALIVE_S", 100 * SOON_S_MAX)  # what ends it is the close alone
    async with AsyncExitStack() as stack:
        watch = await opened(stack)
        frames = watch.frames()
        with anyio.fail_after(SOON_S_MAX):
            for _ in range(2):
                await anext(frames)
            reading = asyncio.ensure_future(anext(frames, None))
            await asyncio.wait({reading}, timeout=0)
            await watch.close()
            assert await reading is None
