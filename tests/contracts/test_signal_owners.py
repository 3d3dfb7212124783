"""`Signal` for an owner and for the outbox: woken by whatever moves there, and by nothing else."""

import asyncio

import pytest

from outlast.tests.contracts.stores import (
    Ports,
    forget_old_moves,
    happens,
    open_task,
    progresses,
)
from outlast.tests.contracts.test_signal import BOUND_S, SHORT_S
from outlast.tests.domain.given import completes, starts

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("unlooked"),
    pytest.mark.promise("twins-keep-the-same-contract"),
]

# Owners are keys of any length and content, and neither their ends nor their case may count.
ALICE, MALICE, OTHER = '["local","alice","desk"]', '["local","malice","desk"]', "alice"


async def test_every_move_of_any_task_of_an_owner_wakes_who_watches_the_owner(ports: Ports) -> None:
    async with ports.signal.watching_owner(ALICE) as one, ports.signal.watching_owner(ALICE) as two:
        for number in range(2):
            task = await open_task(ports.log, f"task-{number}", owner=ALICE)
            assert await one.wait(BOUND_S)
            for wish in (starts(), progresses(), completes()):
                task = await happens(ports.log, task, wish)
                assert await one.wait(BOUND_S)
        assert await two.wait(BOUND_S)


async def test_moves_of_another_owner_do_not_wake(ports: Ports) -> None:
    async with (
        ports.signal.watching_owner(MALICE) as similar,
        ports.signal.watching_owner(OTHER) as shorter,
        ports.signal.watching_outbox() as outbox,
        ports.signal.watching_owner(ALICE) as watcher,
    ):
        await forget_old_moves(ports, similar, shorter, outbox, watcher)
        await happens(ports.log, await open_task(ports.log, owner=ALICE), starts())
        assert await watcher.wait(BOUND_S)
        for unmoved in (similar, shorter, outbox):
            assert not await unmoved.wait(SHORT_S)


async def test_who_watches_a_task_named_like_an_owner_is_not_taken_for_one(ports: Ports) -> None:
    async with ports.signal.watching(ALICE) as named, ports.signal.watching_owner(ALICE) as watcher:
        await forget_old_moves(ports, named, watcher)
        await open_task(ports.log, owner=ALICE)
        assert await watcher.wait(BOUND_S)
        assert not await named.wait(SHORT_S)


async def test_after_the_exit_nobody_is_woken(ports: Ports) -> None:
    async with ports.signal.watching_owner(ALICE) as left:
        await forget_old_moves(ports, left)
    async with ports.signal.watching_owner(ALICE) as witness:
        waiting = asyncio.create_task(left.wait(SHORT_S))
        await open_task(ports.log, owner=ALICE)
        assert await witness.wait(BOUND_S)
        assert not await waiting
