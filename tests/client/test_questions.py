"""Questions of a task: asked once, answered once, never in the way of its end."""

import asyncio
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from outlast.adapters.journal import MemoryJournal
from outlast.delivery import polling
from outlast.domain import clienting, errors
from outlast.domain.clienting import TaskExpired
from outlast.service.client import Handlers, reach
from outlast.service.client.sync import synchronous
from outlast.tests.client.playing import (
    LOST,
    Play,
    Stalls,
    Told,
    asking,
    asks,
    completed,
    playing,
    state,
    task,
)
from outlast.tests.client.world import PATIENCE_S, Person

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "PAUSE_S_FIRST", 0.0)
    monkeypatch.setattr(polling, "INTERVAL_MS_MIN", 0)


class Parked(Play):
    """A task that asks until each key is answered, `lag` polls late, and then completes."""

    def __init__(self, *keys: str, lag: int = 0, **answers: list[Any]) -> None:
        super().__init__(tasks_get=[self._state], **answers)
        self._open, self._lag, self._polls = keys, lag, 0

    @property
    def answered(self) -> list[str]:
        return [key for sent in self.params_of("tasks/update") for key in sent["inputResponses"]]

    def _state(self, params: Mapping[str, Any]) -> Any:
        left = [key for key in self._open if key not in self.answered]
        if left:
            return asking(*left)
        self._polls += 1
        return completed() if self._polls > self._lag else asking(*self._open)


@pytest.mark.promise("client-asks-once")
async def test_a_key_is_asked_once_however_often_it_is_seen():
    play, person = Parked("a", "b", lag=5), Person()
    async with playing(play, Handlers(any=person)) as client:
        await client.task("t").result(PATIENCE_S)
    assert sorted(person.asked) == ["a", "b"]
    assert sorted(play.answered) == ["a", "b"]


async def test_an_answer_is_written_down_and_sent_until_it_is_taken():
    play = Parked("a")
    tries = [LOST, errors.RequestRefused(-32603, "hiccup")]
    play.answers["tasks/update"] = [*tries, {}]
    person, journal = Person(), MemoryJournal()
    async with playing(play, Handlers(any=person), journal) as client:
        await client.task("t").result(PATIENCE_S)
    assert person.asked == ["a"]
    [entry] = await journal.entries()
    assert (entry.task_id, entry.ended, entry.answers) == ("t", "completed", {})


@pytest.mark.promise("client-asks-once")
async def test_what_an_earlier_process_answered_is_sent_and_not_asked():
    play, person, journal = Parked("a", "b"), Person(), MemoryJournal()
    async with playing(play, Handlers(any=person), journal) as client:
        entry = client._reach.new_entry(tool="work", task_id="t", answers={"a": {"action": "ok"}})
        await journal.begin(entry)
        [handle] = await client.resume()
        await handle.result(PATIENCE_S)
    assert person.asked == ["b"]
    assert {"a": {"action": "ok"}} in [
        sent["inputResponses"] for sent in play.params_of("tasks/update")
    ]


async def test_two_who_wait_share_one_watch_and_one_question():
    person = Person()
    source = Told([asks("a"), asyncio.Event()])
    play = Play()
    async with playing(play, Handlers(any=person), source=source) as client:
        first, second = client.task("t"), client.task("t")
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(first.result)
                tasks.start_soon(second.result)
                while not person.asked:  # noqa: ASYNC110 - a turn at a time
                    await asyncio.sleep(0)  # noqa: TID251 - a turn, no time
                for _ in range(100):  # the second has come so far too, long before
                    await asyncio.sleep(0)  # noqa: TID251 - a turn, no time
                tasks.cancel_scope.cancel()
        assert (len(source.begun), source.open_now) == (1, 0)
    assert person.asked == ["a"]


async def test_a_question_that_is_withdrawn_leaves_the_screen():
    stalls = Stalls()
    source = Told([asks("a"), stalls.shown, state("completed", 2)])
    async with playing(Play(), Handlers(any=stalls), source=source) as client:
        await client.task("t").result(PATIENCE_S)
        with anyio.fail_after(PATIENCE_S):
            await stalls.left.wait()


async def test_what_a_handler_raises_the_result_raises_and_the_question_stays_open():
    class Broken(Exception):
        """It stands for any error."""

    async def breaks(request: Any) -> Any:
        raise Broken

    play, journal = Parked("a"), MemoryJournal()
    async with playing(play, Handlers(any=breaks), journal) as client:
        with pytest.raises(Broken):
            await client.task("t").result(PATIENCE_S)
        assert play.answered == []
        await client.task("t").answer({"a": {"action": "decline"}})
        await client.task("t").result(PATIENCE_S)
    assert play.answered == ["a"]


async def test_an_answer_that_is_refused_is_taken_back_and_may_be_given_anew():
    refused = errors.RequestRefused(-32602, "content is missing")
    play, journal = Play(tasks_get=[asking("a")], tasks_update=[refused, {}]), MemoryJournal()
    async with playing(play, Handlers(by_hand=True), journal) as client:
        handle = client.task("t")
        with pytest.raises(errors.RequestRefused):
            await handle.answer({"a": {"action": "accept"}})
        assert [entry.answers for entry in await journal.entries()] == [{}]
        assert handle.answered == frozenset()
        await handle.answer({"a": {"action": "decline"}})
        assert handle.answered == {"a"}
    assert play.params_of("tasks/update")[-1]["inputResponses"] == {"a": {"action": "decline"}}


async def test_updates_ask_nobody():
    person = Person()
    source = Told([asks("a"), state("completed", 2)])
    async with playing(Play(), Handlers(any=person), source=source) as client:
        told = [update.version async for update in client.task("t").updates()]
    assert (told, person.asked) == ([1, 2], [])


@pytest.mark.parametrize(("asked", "sent"), [(False, []), (True, [{"taskId": "t"}])])
async def test_whoever_stops_waiting_stops_the_task_only_if_asked(asked: bool, sent: list[Any]):
    play = Play(tasks_get=[task()])
    async with playing(play) as client:
        waiting = asyncio.create_task(client.task("t").result(cancel_on_exit=asked))
        while not play.heard:  # noqa: ASYNC110 - a turn at a time
            await asyncio.sleep(0)  # noqa: TID251 - a turn, no time
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert play.params_of("tasks/cancel") == sent


def test_code_without_a_loop_has_the_same_client_and_may_block():
    play = Parked("a", tools_call=[{"resultType": "task", **task()}])
    asked: list[Any] = []

    def blocks(request: Mapping[str, Any]) -> Any:
        asked.append(request["params"]["message"])
        return {"action": "decline"}

    def connect(url: str, **options: Any) -> Any:
        return playing(play, options["input"])

    handlers: Any = Handlers(any=blocks)  # type of a plain function, on purpose
    with synchronous(connect, "http://play/mcp", {"input": handlers}) as client:
        handle = client.call_tool("work")
        assert not isinstance(handle, dict)
        assert handle.result(PATIENCE_S) == {"content": [{"type": "text", "text": "done"}]}
        assert [update.task["status"] for update in handle.updates()] == ["completed"]
        assert [entry.ended for entry in client.journal_entries()] == ["completed"]
        assert client.resume() == []
    assert (asked, handle.task_id, handle.tool) == (["a"], "t", "work")


@pytest.mark.parametrize("code", [-32602, -32011])
async def test_that_there_is_no_task_is_told_alike_by_every_way(code: int):
    gone = errors.RequestRefused(-32602, "Task not found.")
    play, source = Play(tasks_get=[gone]), Told([errors.RequestRefused(code, "not here")])
    async with playing(play, source=source) as client:
        with pytest.raises(TaskExpired):
            await client.task("t").result(PATIENCE_S)


async def test_another_refusal_of_a_way_is_raised_as_it_is():
    refused = errors.RequestRefused(-32015, "the endpoint did not prove itself")
    async with playing(Play(tasks_get=[task()]), source=Told([refused])) as client:
        with pytest.raises(errors.RequestRefused) as raised:
            await client.task("t").result(PATIENCE_S)
    assert raised.value is refused


@pytest.mark.parametrize("answer", [task(ttlMs=0), LOST])
async def test_a_stream_that_tells_no_end_ends_with_the_time_to_live(
    answer: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(clienting, "BACKSTOP_GRACE_S", 0.01)
    source = Told([state("working", 1, ttlMs=0), asyncio.Event()])
    journal = MemoryJournal()
    async with playing(Play(tasks_get=[answer]), None, journal, source) as client:
        await journal.begin(client._reach.new_entry(task_id="t"))
        with pytest.raises(TaskExpired):
            await client.task("t").result(PATIENCE_S)
    assert [entry.ended for entry in await journal.entries()] == ["expired"]


async def test_a_task_that_was_given_more_time_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(clienting, "BACKSTOP_GRACE_S", 0.01)
    more = asyncio.Event()

    def extended(params: Mapping[str, Any]) -> Any:
        more.set()
        return task(ttlMs=3_600_000)

    source = Told([state("working", 1, ttlMs=0), more, state("completed", 2)])
    async with playing(Play(tasks_get=[extended]), source=source) as client:
        assert await client.task("t").result(PATIENCE_S)
