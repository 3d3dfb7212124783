"""Looks at one job that end in another order than they began, and what our own acts bring back."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from outlast.adapters.bus import Bus
from outlast.adapters.memory import MemoryStore
from outlast.domain import decisions, errors, jobs
from outlast.domain.events import TaskFailed
from outlast.domain.jobs import Sight
from outlast.domain.task import Task, TaskStatus
from outlast.service.bridging.following import UNKNOWN_SINCE, Following
from outlast.service.bridging.port import Cancelled, Failed, Seen, Unknown, Working
from outlast.service.commands import Commands
from outlast.tests.domain.given import at
from outlast.tests.service import test_following_asks
from outlast.tests.service.played import Eventful
from outlast.tests.service.test_following import Fake

pytestmark = pytest.mark.anyio

Then = Callable[[], Awaitable[object]]
UNKNOWN = Unknown("what job?")


class World(test_following_asks.World):
    """The same with its log at hand, and changes by others."""

    def __init__(self) -> None:
        super().__init__()
        self.log = MemoryStore(Bus())
        self.commands = Commands(self.log, lambda: at(self.seconds))
        self.following = Following(self.commands, [self.bridge])

    async def overdue(self) -> None:
        """A task whose job has had its time."""
        await self.begun(self.commands.now() + timedelta(seconds=30))
        self.seconds += 31

    async def cancelled(self) -> None:
        """Its owner wants it stopped."""
        now, task = self.commands.now(), await self.task()
        await self.commands.change(task.id, lambda task: decisions.request_cancel(task, now))

    async def advanced(self) -> None:
        """Another look has seen that it is further."""
        now, task, sight = self.commands.now(), await self.task(), Sight("on", 5)
        await self.commands.change(
            task.id, lambda task: jobs.see_job(task, 1, sight, task.job or {}, now)
        )

    async def look_until_its_end(self, bridge: Fake) -> Task:
        for _ in range(3):
            if await Following(self.commands, [bridge]).look(await self.task()) is None:
                break
        return await self.task()


class Overtaken(Fake):
    """A job of which a look is answered only after this has happened."""

    def __init__(self, seen: Seen, then: Then) -> None:
        super().__init__(seen=seen)
        self._then = then

    async def look(self, task: Task) -> Seen:
        await self._then()
        return self.seen


class Obedient(Fake):
    """A job that is cancelled when it is told to stop; before the first answer, this happens."""

    def __init__(self, then: Then) -> None:
        super().__init__()
        self._then = then
        self.told: list[Any] = []

    async def cancel(self, task: Task) -> bool | None:
        self.seen = Cancelled()
        self.told.append(task.job)
        self.cancels += 1
        if self.cancels == 1:
            await self._then()
        return True


async def nothing() -> None:
    """Happens."""


def has_timed_out(task: Task) -> bool:
    return (task.error or {}).get("data") == {"reason": "timeout"}


async def test_a_job_that_another_look_has_found_is_not_lost_by_one_that_began_before() -> None:
    world = World()
    await world.begun()
    await world.look(UNKNOWN, 5)
    assert UNKNOWN_SINCE in ((await world.task()).job or {})
    world.seconds = 500
    late = Overtaken(UNKNOWN, lambda: world.look(Working(Sight("at work")), 500))
    assert await Following(world.commands, [late]).look(await world.task()) is not None
    task = await world.task()
    assert (task.is_followed, task.status_message) == (True, "at work")
    assert UNKNOWN_SINCE not in (task.job or {})


async def test_a_job_that_we_stop_when_its_time_is_up_has_timed_out_whatever_comes_between():
    world = World()
    await world.overdue()
    task = await world.look_until_its_end(Obedient(world.advanced))
    assert has_timed_out(task), task


@pytest.mark.parametrize("seconds_back", [0, 3])
async def test_a_job_that_we_stop_when_its_time_is_up_has_timed_out_although_none_could_store_it(
    seconds_back: int,
):
    world = World()
    await world.overdue()

    async def away(_task_id: str) -> None:
        raise errors.StoreUnavailable

    bridge = Obedient(nothing)
    commands = Commands(Eventful(world.log, TaskFailed, before=away), world.commands.now)
    with pytest.raises(errors.StoreUnavailable):
        await Following(commands, [bridge]).look(await world.task())
    assert bridge.cancels == 1
    world.seconds -= seconds_back  # another process looks next, by a clock of its own
    assert has_timed_out(await world.look_until_its_end(bridge))


async def test_a_job_that_was_cancelled_by_somebody_before_its_time_was_up_is_cancelled() -> None:
    world = World()
    await world.overdue()
    bridge = Fake(seen=Cancelled())
    task = await world.look_until_its_end(bridge)
    assert (task.status, bridge.cancels) == (TaskStatus.CANCELLED, 0)


async def test_a_job_that_its_owner_cancels_while_we_stop_it_is_cancelled() -> None:
    world = World()
    await world.overdue()
    task = await world.look_until_its_end(Obedient(world.cancelled))
    assert task.status is TaskStatus.CANCELLED


async def test_a_job_that_can_never_end_is_told_to_stop_once_it_is_known_why() -> None:
    world = World()
    await world.begun()
    told: list[TaskStatus] = []

    async def stopping() -> None:
        told.append((await world.task()).status)

    bridge = Obedient(stopping)
    error = {"code": -32021, "message": "it asks for a form"}
    bridge.seen = Failed(error, is_to_stop=True)
    await Following(world.commands, [bridge]).look(await world.task())
    assert (told, (await world.task()).error) == ([TaskStatus.FAILED], error)
    assert [job["id"] for job in bridge.told] == ["job-1"]
