"""Answers that are written down and could not be sent: they go out, once, while anybody follows."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from outlast.adapters.journal import MemoryJournal
from outlast.domain import errors
from outlast.service.client import Handlers, TaskHandle, handle as handles, inputs, reach
from outlast.tests.acceptance.waiting import until
from outlast.tests.client.playing import (
    LOST,
    SOON_S,
    Play,
    Stalls,
    Told,
    all_of,
    asks,
    playing,
    state,
)
from outlast.tests.client.world import PATIENCE_S, Person, World, called, client_of

pytestmark = pytest.mark.anyio

DECLINED = {"a": {"action": "decline"}}
B = {"b": {"action": "decline"}}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "ANSWER_S_MAX", 0.0)


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "PAUSE_S_FIRST", 0.0)


hasty = pytest.mark.usefixtures("_hasty")


def parked() -> Told:
    """A question, and from there on nothing new."""
    return Told([asks("a"), asyncio.Event()], [asyncio.Event()])


class Held(Play):
    """Says what became of an answer only when it may."""

    def __init__(self, **answers: list[Any]) -> None:
        super().__init__(**answers)
        self.may_answer = asyncio.Event()

    async def request(self, method: str, params: Mapping[str, Any]) -> Any:
        try:
            return await super().request(method, params)
        finally:
            if method == "tasks/update":
                await self.may_answer.wait()


async def until_sent(play: Play, times: int) -> None:
    async def is_sent() -> bool:
        return len(play.params_of("tasks/update")) >= times

    await until(is_sent, SOON_S)


async def first_question(handle: TaskHandle) -> str:
    async with aclosing(handle.updates()) as states:
        async for told in states:
            for key in told.task.get("inputRequests", {}):
                return key
    raise AssertionError("it asks nothing")


@asynccontextmanager
async def reading(handle: TaskHandle) -> AsyncGenerator[list[int | None]]:
    """Somebody reads the states; the versions that were read, the first of them at once."""
    told: list[int | None] = []

    async def read() -> None:
        async with aclosing(handle.updates()) as states:
            async for update in states:
                told.append(update.version)  # noqa: PERF401 - others look at it meanwhile

    reader = asyncio.create_task(read())
    await until_told(told, 1)
    yield told
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)


async def until_told(told: list[int | None], version: int) -> None:
    async def is_told() -> bool:
        return version in told

    await until(is_told, PATIENCE_S)


async def turns() -> None:
    for _ in range(100):
        await asyncio.sleep(0)  # noqa: TID251 - a turn, no time


@pytest.mark.promise("client-loses-no-task")
@pytest.mark.parametrize("reads", [False, True], ids=["result", "updates"])
async def test_it_goes_out_when_the_task_is_followed_again(reads: bool):
    play = Play(tasks_update=[LOST, {}])
    async with playing(play, Handlers(by_hand=True), source=parked()) as client:
        handle = client.task("t")
        await first_question(handle)
        with pytest.raises(errors.ConnectionLost):
            await handle.answer(DECLINED)
        following = asyncio.create_task(all_of(handle) if reads else handle.result())
        await until_sent(play, 2)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


@pytest.mark.promise("client-loses-no-task")
async def test_a_real_server_gets_it_when_the_task_is_read_again(lone: World, tmp_path: Path):
    async with client_of(lone.url, "listen") as client:
        handle = await called(client, "ask", path=str(tmp_path / "lines"))
        with anyio.fail_after(PATIENCE_S):
            key = await first_question(handle)
        ports, lone.ports[:] = list(lone.ports), []
        lone.balancer.cut()
        with pytest.raises(errors.ConnectionLost):
            await handle.answer({key: {"action": "accept", "content": {"name": "Ada"}}})
        lone.ports[:] = ports
        with anyio.fail_after(PATIENCE_S):
            told = await all_of(handle)
    assert told[-1].task["status"] == "completed"
    assert (tmp_path / "lines").read_text() == "greeted\n"


@hasty
async def test_while_somebody_reads_it_is_tried_on_and_sent_once():
    ends = asyncio.Event()
    play = Play(tasks_update=[LOST, LOST, LOST, {}])
    source = Told([asks("a"), ends, asks("a", version=2), state("completed", 3)])
    async with (
        playing(play, Handlers(by_hand=True), source=source) as client,
        reading(client.task("t")) as told,
    ):
        with pytest.raises(errors.ConnectionLost):
            await client.task("t").answer(DECLINED)
        await until_sent(play, 4)
        ends.set()
        await until_told(told, 3)
    assert [sent["inputResponses"] for sent in play.params_of("tasks/update")] == [DECLINED] * 4


async def test_so_it_is_when_whoever_answers_gives_up():
    play = Held()
    async with (
        playing(play, Handlers(by_hand=True), source=parked()) as client,
        reading(client.task("t")),
    ):
        answering = asyncio.create_task(client.task("t").answer(DECLINED))
        await until_sent(play, 1)
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        await until_sent(play, 2)


@hasty
async def test_it_is_tried_no_more_once_nobody_follows():
    play = Play(tasks_update=[LOST])
    async with playing(play, Handlers(by_hand=True), source=parked()) as client:
        async with reading(client.task("t")):
            with pytest.raises(errors.ConnectionLost):
                await client.task("t").answer(DECLINED)
            await until_sent(play, 3)
        tries = len(play.params_of("tasks/update"))
        await turns()
        assert len(play.params_of("tasks/update")) == tries


async def test_what_fails_once_nobody_follows_is_kept_for_later():
    play = Held(tasks_update=[LOST])
    async with playing(play, Handlers(by_hand=True), source=parked()) as client:
        async with reading(client.task("t")):
            answering = asyncio.create_task(client.task("t").answer(DECLINED))
            await until_sent(play, 1)
        play.may_answer.set()
        with pytest.raises(errors.ConnectionLost):
            await answering
        await turns()
    assert len(play.params_of("tasks/update")) == 1


@pytest.mark.parametrize("by_hand", [True, False], ids=["by hand", "by a handler"])
async def test_what_is_asked_no_more_is_sent_no_more(by_hand: bool):
    play, withdrawn = Held(tasks_update=[LOST]), asyncio.Event()
    source = Told([asks("a"), withdrawn, state("working", 2), asyncio.Event()])
    handlers = Handlers(by_hand=True) if by_hand else Handlers(any=Person())
    async with playing(play, handlers, source=source) as client:
        handle = client.task("t")
        async with reading(handle) as told:
            sending = asyncio.create_task(handle.answer(DECLINED) if by_hand else handle.result())
            await until_sent(play, 1)
            withdrawn.set()
            await until_told(told, 2)
            play.may_answer.set()
            await turns()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    assert len(play.params_of("tasks/update")) == 1


async def test_what_is_on_its_way_is_not_sent_again_when_the_question_is_told_again():
    play, again = Held(), asyncio.Event()
    source = Told([asks("a"), again, asks("a", version=2), asyncio.Event()])
    async with (
        playing(play, Handlers(by_hand=True), source=source) as client,
        reading(client.task("t")) as told,
    ):
        answering = asyncio.create_task(client.task("t").answer(DECLINED))
        await until_sent(play, 1)
        again.set()
        await until_told(told, 2)
        await turns()
        play.may_answer.set()
        await answering
        await turns()
    assert len(play.params_of("tasks/update")) == 1


async def test_what_is_tried_on_ends_with_the_answer_that_went_out_otherwise(
    monkeypatch: pytest.MonkeyPatch,
):
    may_go_on = asyncio.Event()

    class Paused(reach.Pauses):
        """Who tries on without end pauses for as long as the test wants."""

        async def after(self, error: errors.OutlastError) -> None:
            if self._until is not None:
                await super().after(error)
            await may_go_on.wait()

    monkeypatch.setattr(inputs, "Pauses", Paused)
    play = Play(tasks_update=[LOST, LOST, {}])
    async with (
        playing(play, Handlers(by_hand=True), source=parked()) as client,
        reading(client.task("t")),
    ):
        with pytest.raises(errors.ConnectionLost):
            await client.task("t").answer(DECLINED)
        await until_sent(play, 2)  # and pauses now
        await client.task("t").answer(DECLINED)
        may_go_on.set()

        async def has_ended() -> bool:
            return not client._following("t").desk._at_work

        await until(has_ended, PATIENCE_S)
    assert len(play.params_of("tasks/update")) == 3


@hasty
async def test_who_waited_for_the_result_leaves_and_what_was_answered_is_still_sent():
    play, person = Play(tasks_update=[LOST]), Person()
    async with playing(play, Handlers(any=person), source=parked()) as client:
        handle = client.task("t")
        async with reading(handle):
            asking_one = asyncio.create_task(handle.result())
            await until_sent(play, 1)
            asking_one.cancel()
            await asyncio.gather(asking_one, return_exceptions=True)
            await until_sent(play, len(play.params_of("tasks/update")) + 1)
    assert person.asked == ["a"]


async def test_who_waited_for_the_result_leaves_and_nobody_is_asked_for_it_any_more():
    stalls = Stalls()
    async with playing(Play(), Handlers(any=stalls), source=parked()) as client:
        handle = client.task("t")
        async with reading(handle):
            asking_one = asyncio.create_task(handle.result())
            with anyio.fail_after(PATIENCE_S):
                await stalls.shown.wait()
                asking_one.cancel()
                await asyncio.gather(asking_one, return_exceptions=True)
            assert stalls.left.is_set()


@hasty
async def test_what_the_server_cannot_take_now_is_tried_on():
    away = errors.RequestRefused(-32603, "The store is away")
    play = Play(tasks_update=[away, away, {}])
    async with (
        playing(play, Handlers(by_hand=True), source=parked()) as client,
        reading(client.task("t")),
    ):
        with pytest.raises(errors.RequestRefused):
            await client.task("t").answer(DECLINED)
        await until_sent(play, 3)


class Slow(MemoryJournal):
    """Takes as long to write an answer down as it may, and may fail then."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.is_writing, self.may_end, self._error = asyncio.Event(), asyncio.Event(), error

    async def answer(self, entry_id: str, answers: Mapping[str, Any]) -> None:
        self.is_writing.set()
        await self.may_end.wait()
        if self._error is not None:
            raise self._error
        await super().answer(entry_id, answers)


@pytest.mark.promise("client-loses-no-task")
@pytest.mark.parametrize("error", [None, errors.StoreUnavailable()])
async def test_nothing_is_sent_before_it_is_written_down(error: Exception | None):
    """Whoever gives it once more meanwhile, with another one, and whatever is told meanwhile."""
    play, journal, again = Play(), Slow(error), asyncio.Event()
    source = Told([asks("a"), again, asks("a", version=2), asyncio.Event()])
    async with playing(play, Handlers(by_hand=True), journal, source) as client:
        handle = client.task("t")
        async with reading(handle) as told:
            giving = [asyncio.create_task(handle.answer(DECLINED))]
            await asyncio.wait_for(journal.is_writing.wait(), PATIENCE_S)
            giving += [asyncio.create_task(handle.answer({**DECLINED, **more})) for more in ({}, B)]
            again.set()
            await until_told(told, 2)
            await turns()
            assert play.params_of("tasks/update") == []
            journal.may_end.set()
            raised = await asyncio.gather(*giving, return_exceptions=True)
            await turns()
    assert raised == [error] * 3
    sent = [key for one in play.params_of("tasks/update") for key in one["inputResponses"]]
    assert set(sent) == (set() if error else {"a", "b"})


async def test_who_gives_up_while_it_is_written_down_has_answered():
    play, journal = Play(), Slow()
    async with playing(play, Handlers(by_hand=True), journal, parked()) as client:
        handle = client.task("t")
        async with reading(handle):
            giving = asyncio.create_task(handle.answer(DECLINED))
            await asyncio.wait_for(journal.is_writing.wait(), PATIENCE_S)
            giving.cancel()
            await asyncio.gather(giving, return_exceptions=True)
            assert handle.answered == {"a"}
            journal.may_end.set()
            await until_sent(play, 1)
    [entry] = await journal.entries()
    assert entry.answers == DECLINED
