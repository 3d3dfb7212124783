"""The best way there is: streams first, polls at once when they fail, and up again."""

import asyncio
from typing import Any, cast

import anyio
import pytest

from outlast.delivery import auto
from outlast.delivery.auto import AutoSource
from outlast.delivery.remote import Remote
from outlast.delivery.source import Backoff
from outlast.domain import errors
from outlast.tests.client.playing import LOST, Play, Told, completed, state, task

pytestmark = pytest.mark.anyio

PATIENCE_S = 20.0
NEVER = asyncio.Event


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "CLIMB_S_FIRST", 0.01)


async def versions(source: AutoSource, after: int = 0) -> list[Any]:
    with anyio.fail_after(PATIENCE_S):
        return [told.version async for told in source.watch("t", after)]


def auto_of(polls: Told, *streams: Any, server: Play | None = None) -> AutoSource:
    return AutoSource(cast(Remote, server or Play(tasks_get=[LOST])), polls, streams)


async def test_a_sound_stream_is_all_that_is_used():
    polls, stream = Told([LOST]), Told([state("working", 1), state("completed", 2)])
    assert await versions(auto_of(polls, stream)) == [1, 2]
    assert polls.begun == []


async def test_polls_take_over_where_a_stream_broke_and_hand_back(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(auto, "CLIMB_S_FIRST", 0.3)  # time for the polls to tell theirs
    stream = Told([state("working", 1), LOST], [LOST], [state("working", 3), state("completed", 4)])
    polls = Told([state("working", 2), NEVER()])
    assert await versions(auto_of(polls, stream)) == [1, 2, 3, 4]
    assert polls.begun[0] == 1
    assert stream.begun[-1] == 2
    assert (polls.open_now, stream.open_now) == (0, 0)


async def test_a_refused_way_is_left_alone_and_the_next_one_tried():
    refused = Told([errors.RequestRefused(-32601, "Method not found")])
    sound = Told([state("working", 1), LOST], [state("completed", 2)])
    assert await versions(auto_of(Told([NEVER()]), refused, sound)) == [1, 2]
    assert len(refused.begun) == 1


async def test_polls_go_on_to_the_end_when_there_is_nothing_better():
    refused = Told([errors.RequestRefused(-32602, "not agreed to")])
    polls = Told([state("working", 1), state("completed", 2)])
    assert await versions(auto_of(polls, refused)) == [1, 2]


async def test_that_there_is_no_task_is_for_polls_to_say():
    gone = errors.RequestRefused(-32602, "Task not found.")
    with pytest.raises(errors.RequestRefused):
        await versions(auto_of(Told([gone]), Told([gone])))


async def test_a_stream_does_not_pause_while_there_are_polls(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(auto, "CLIMB_S_FIRST", 10.0)  # not again before the polls have told all

    class Patient:
        """As every source does, it pauses and tries again, for ever."""

        tries = 0

        async def watch(self, task_id: str, after: int = 0) -> Any:
            backoff = Backoff()
            while True:
                self.tries += 1
                await backoff.pause(LOST)
            yield

    patient = Patient()
    assert await versions(auto_of(Told([state("completed", 1)]), patient)) == [1]
    assert patient.tries == 1


@pytest.mark.parametrize("version", [7, None])
async def test_a_stream_that_holds_back_is_left(
    monkeypatch: pytest.MonkeyPatch, version: int | None
):
    monkeypatch.setattr(auto, "TRUTH_S_FIRST", 0.01)
    monkeypatch.setattr(auto, "CLIMB_S_FIRST", 10.0)
    meta = {} if version is None else {"_meta": {"dev.outlast/version": version}}
    server = Play(tasks_get=[task() | meta])
    polls = Told([state("completed", None if version is None else 8)])
    told = await versions(auto_of(polls, Told([NEVER()]), server=server))
    assert told[-1] == (None if version is None else 8)
    assert told[0] == version
    assert len(polls.begun) == 1


async def test_a_truth_read_beside_the_stream_may_be_the_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(auto, "TRUTH_S_FIRST", 0.01)
    source = auto_of(Told([LOST]), Told([NEVER()]), server=Play(tasks_get=[completed()]))
    assert await versions(source) == [None]


async def test_a_watch_that_begins_after_the_end_ends():
    assert await versions(auto_of(Told([LOST]), Told([])), after=9) == []
    refused = Told([errors.RequestRefused(-32601, "no")])
    assert await versions(auto_of(Told([]), refused), after=9) == []
