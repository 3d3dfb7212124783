"""The patience with a store that is away is measured in time, however long each try takes."""

import asyncio

import pytest

from outlast.adapters import codec
from outlast.adapters.bus import Bus
from outlast.adapters.memory import MemoryStore
from outlast.delivery import follow
from outlast.delivery.events import stream
from outlast.delivery.feed import Feed
from outlast.domain import errors
from outlast.domain.ports import TaskView
from outlast.tests.delivery.events_world import World

pytestmark = pytest.mark.anyio

TRY_S, PATIENCE_S = 0.1, 0.3
TRIES_MAX = 5  # of a tenth of a second each, and not thirty of a hundredth


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (follow, stream):
        monkeypatch.setattr(module, "RETRY_S", PATIENCE_S / 30)
        monkeypatch.setattr(module, "STORE_PATIENCE_S", PATIENCE_S)


class Away:
    """Silent: whoever asks waits until it is clear that no answer comes."""

    def __init__(self) -> None:
        self.asked = 0

    async def answers(self, *_: object) -> TaskView | None:
        self.asked += 1
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=TRY_S)
        raise errors.StoreUnavailable


async def test_a_watch_of_tasks(monkeypatch: pytest.MonkeyPatch):
    bus, away = Bus(), Away()
    store = MemoryStore(bus)
    monkeypatch.setattr(store, "get", away.answers)
    feed = Feed(store, store, codec.wire_of, World().now)
    with pytest.raises(errors.StoreUnavailable):
        async for _ in follow.follow(feed, bus, {"task": 1}):
            pass
    assert 1 < away.asked <= TRIES_MAX


async def test_a_stream_of_events(monkeypatch: pytest.MonkeyPatch):
    world, away = World(), Away()
    watch = await world.stream("task.updated", None)
    monkeypatch.setattr(world.store, "after", away.answers)
    with pytest.raises(errors.StoreUnavailable):
        async for _ in watch.frames():
            pass
    await watch.close()
    assert 1 < away.asked <= TRIES_MAX
