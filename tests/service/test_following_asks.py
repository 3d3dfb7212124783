"""A followed job that asks: it is found, and the time that its owner takes is not the job's."""

from datetime import datetime, timedelta

import pytest

from outlast.adapters.bus import Bus
from outlast.adapters.memory import MemoryStore
from outlast.domain import decisions, jobs
from outlast.domain.jobs import Sight
from outlast.domain.task import Task, TaskStatus
from outlast.service.bridging.following import UNKNOWN_SINCE, Following
from outlast.service.bridging.port import Asks, Away, Completed, Pace, Seen, Unknown, Working
from outlast.service.commands import Commands
from outlast.tests.domain.given import DEPLOY, OPENED, RESULT, TTL_MS, YES, at
from outlast.tests.service.test_following import Fake

pytestmark = pytest.mark.anyio

MISSED = Unknown("what job?")


class World:
    """A store in memory, a clock that stands, and a job that is looked at since its second 4."""

    def __init__(self) -> None:
        self.seconds = 4.0
        self.commands = Commands(MemoryStore(Bus()), lambda: at(self.seconds))
        self.bridge = Fake(own_pace=Pace(lost_after_ms=120_000))
        self.following = Following(self.commands, [self.bridge])

    async def begun(self, until: datetime | None = None) -> Task:
        job, now = {"kind": "fake", "id": "job-1"}, self.commands.now
        task = await self.commands.open((OPENED,))
        for wish in (
            lambda task: decisions.start_work(task, "worker-a", now()),
            lambda task: jobs.follow(task, 1, job, until, at(5), now()),
        ):
            task = await self.commands.change(task.id, wish)
        return task

    async def task(self) -> Task:
        return await self.commands.load(OPENED.task_id)

    async def look(self, seen: Seen, at_s: float) -> float | None:
        self.seconds, self.bridge.seen = at_s, seen
        return await self.following.look(await self.task())

    async def answer(self, at_s: float) -> Task:
        self.seconds = at_s
        given = {question.key: YES for question in (await self.task()).outstanding}
        return await self.commands.change(
            OPENED.task_id,
            lambda task: decisions.receive_input(task, given, self.commands.now()),
        )


# --- found, and missed


async def test_a_look_that_finds_the_job_asking_is_a_break_of_its_being_unknown() -> None:
    world = World()
    await world.begun()
    await world.look(MISSED, 6)
    assert UNKNOWN_SINCE in ((await world.task()).job or {})
    for seconds in (60, 120):
        await world.look(Asks([DEPLOY]), seconds)
        assert UNKNOWN_SINCE not in ((await world.task()).job or {})
    await world.look(MISSED, 180)
    assert (await world.task()).status is TaskStatus.INPUT_REQUIRED
    await world.look(MISSED, 300)
    assert ((await world.task()).error or {})["data"] == {"reason": "job_lost"}


async def test_a_look_that_reaches_nobody_is_no_break() -> None:
    world = World()
    await world.begun()
    await world.look(MISSED, 6)
    await world.look(Away("gone"), 60)
    await world.look(MISSED, 126)
    assert ((await world.task()).error or {})["data"] == {"reason": "job_lost"}


async def test_a_job_that_still_asks_what_was_answered_is_found_too() -> None:
    """It has not taken the answer yet: nothing is asked, and it is not said to be missing."""
    world = World()
    await world.begun()
    await world.look(Asks([DEPLOY]), 6)
    await world.answer(10)
    await world.look(MISSED, 20)
    assert (await world.task()).status_message == "what job?"
    await world.look(Asks([DEPLOY]), 30)
    task = await world.task()
    assert (task.status, task.status_message) == (TaskStatus.WORKING, None)
    assert UNKNOWN_SINCE not in (task.job or {})


async def test_a_look_at_a_job_that_was_not_missed_and_asks_nothing_new_records_nothing() -> None:
    world = World()
    await world.begun()
    await world.look(Asks([DEPLOY]), 6)
    before = await world.task()
    await world.look(Asks([DEPLOY]), 20)
    assert await world.task() == before


# --- its time, and its client's

AT_WORK = Working(Sight("at work"))


async def test_a_job_that_waits_for_its_client_does_not_run_out_of_time() -> None:
    world = World()
    await world.begun(until=at(30))
    await world.look(Asks([DEPLOY]), 20)
    for seconds in (31, 200, 500):
        assert await world.look(Asks([DEPLOY]), seconds) is not None
    assert (await world.task()).status is TaskStatus.INPUT_REQUIRED
    assert world.bridge.cancels == 0
    await world.answer(520)
    assert await world.look(AT_WORK, 529) == 1  # it had ten seconds left, and has one
    assert await world.look(AT_WORK, 530) is None
    assert ((await world.task()).error or {})["data"] == {"reason": "timeout"}
    assert world.bridge.cancels == 1


async def test_a_result_after_a_long_wait_is_the_tasks() -> None:
    world = World()
    await world.begun(until=at(30))
    await world.look(Asks([DEPLOY]), 29)
    await world.answer(500)
    await world.look(Completed(RESULT), 500.5)
    assert (await world.task()).result == RESULT


async def test_a_job_that_waits_is_looked_at_at_its_pace_although_its_time_was_up() -> None:
    """And not ten times a second, as if its end were to be met."""
    world = World()
    await world.begun(until=at(30))
    await world.look(Asks([DEPLOY]), 20)
    assert await world.look(Asks([DEPLOY]), 404) == 40


async def test_a_job_that_asks_when_its_time_is_up_has_failed() -> None:
    world = World()
    await world.begun(until=at(30))
    assert await world.look(Asks([DEPLOY]), 31) is None
    task = await world.task()
    assert ((task.error or {})["data"], task.questions) == ({"reason": "timeout"}, ())


async def test_the_first_look_after_a_wait_gives_the_task_time_to_live_for_its_job() -> None:
    world = World()
    await world.begun(until=at(500))
    await world.look(Asks([DEPLOY]), 20)
    await world.look(Asks([DEPLOY]), 390)
    assert (await world.task()).ttl_ms == TTL_MS  # as long as it waits it has what was told
    await world.answer(400)
    await world.look(AT_WORK, 401)
    task = await world.task()
    assert task.expires_at == at(880) + timedelta(milliseconds=decisions.EXTENSION_MS_MIN)
    version = task.version
    await world.look(AT_WORK, 402)
    assert (await world.task()).version == version


async def test_a_job_whose_client_never_answers_ends_with_its_time_to_live() -> None:
    world = World()
    await world.begun(until=at(30))
    await world.look(Asks([DEPLOY]), 20)
    world.seconds = TTL_MS / 1000
    task = await world.commands.change(
        OPENED.task_id, lambda task: decisions.expire(task, world.commands.now())
    )
    assert (task.error or {})["data"] == {"reason": "expired"}
