"""The loop that the follower runs in: it outlives what fails, says it once, and ends when told."""

import asyncio
import logging

import pytest

from outlast.domain import errors
from outlast.service.auditing.following import Loop

pytestmark = pytest.mark.anyio

SOON_S = 10.0


class Work:
    """Fails as often as it is told to, and counts."""

    def __init__(self, *failures: Exception | None) -> None:
        self._failures = list(failures)
        self.is_done = asyncio.Event()

    async def __call__(self) -> None:
        if not self._failures:
            self.is_done.set()
            return
        failure = self._failures.pop(0)
        if failure is not None:
            raise failure


async def ran(work: Work) -> None:
    loop = Loop(work, "the loop", 0.001)
    loop.start()
    async with asyncio.timeout(SOON_S):
        await work.is_done.wait()
        await loop.stop()


async def test_an_outage_is_passed_over_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    await ran(Work(errors.StoreUnavailable(), errors.StoreUnavailable()))
    assert caplog.records == []


async def test_a_contradiction_is_said_once_and_again_when_it_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wrong = errors.TreeContradicts()
    with caplog.at_level(logging.ERROR):
        await ran(Work(wrong, wrong, errors.WitnessUnavailable("away"), wrong, None, wrong))
    said = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert said == [str(wrong), "away", str(wrong), str(wrong)]


async def test_a_defect_is_told_with_its_traceback_and_is_not_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await ran(Work(ZeroDivisionError("defect")))
    assert [record.exc_info is not None for record in caplog.records] == [True]


async def test_a_loop_that_never_began_ends_at_once() -> None:
    await Loop(Work(), "the loop", 1).stop()


async def test_a_loop_that_pauses_ends_at_once() -> None:
    work = Work()
    loop = Loop(work, "the loop", 3_600)
    loop.start()
    async with asyncio.timeout(SOON_S):
        await work.is_done.wait()
        await loop.stop()
