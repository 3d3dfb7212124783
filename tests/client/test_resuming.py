"""`resume` beside calls that go on: in this process, or in another one that shares the journal."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
import pytest

from outlast.adapters.journal import MemoryJournal
from outlast.domain import errors
from outlast.domain.clienting import Entry
from outlast.tests.client.playing import Play, playing, task
from outlast.tests.client.world import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.promise("client-loses-no-task")]

PLAIN = {"resultType": "complete", "content": [], "isError": False}
CREATED = {"resultType": "task", **task()}


class Overtaken(MemoryJournal):
    """Something happens `meanwhile`, right after this one has been read for the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], Awaitable[Any]] | None = None

    async def entries(self) -> Sequence[Entry]:
        read = await super().entries()
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return read


class Stalling(MemoryJournal):
    """Has made the change, or is about to make it, and takes its time to say so."""

    def __init__(self, stalls_at: str) -> None:
        super().__init__()
        self._stalls_at = stalls_at
        self.stalled, self.may_go = asyncio.Event(), asyncio.Event()

    async def begin(self, entry: Entry) -> None:
        await super().begin(entry)
        await self._stall("begin")

    async def end(self, entry_id: str, how: str) -> bool:
        await self._stall(how)
        return await super().end(entry_id, how)

    async def _stall(self, step: str) -> None:
        if step == self._stalls_at:
            self.stalled.set()
            await self.may_go.wait()


class Silent(MemoryJournal):
    """A journal of somebody else's, from before `end` told anything."""

    async def end(self, entry_id: str, how: str) -> Any:
        await super().end(entry_id, how)


class Slow(Play):
    """Answers a call when it may."""

    def __init__(self, **answers: list[Any]) -> None:
        super().__init__(**answers)
        self.heard_it, self.may_answer = asyncio.Event(), asyncio.Event()

    async def call(self, params: Mapping[str, Any]) -> Any:
        self.heard_it.set()
        await self.may_answer.wait()
        return await super().call(params)


@pytest.mark.parametrize(
    ("answer", "resumed", "ended"),
    [(CREATED, ["t"], None), (PLAIN, [], "answered")],
    ids=["a task", "a result"],
)
async def test_a_call_that_was_answered_meanwhile_is_not_lost(
    answer: Any, resumed: list[str], ended: str | None
):
    server, journal = Slow(tools_call=[answer]), Overtaken()
    async with playing(server, journal=journal) as one, playing(Play(), journal=journal) as other:
        calling = asyncio.create_task(one.call_tool("work"))
        with anyio.fail_after(PATIENCE_S):
            await server.heard_it.wait()

            async def is_answered() -> None:
                server.may_answer.set()
                await calling

            journal.meanwhile = is_answered
            found = await other.resume()
    assert ([handle.task_id for handle in found], found.lost) == (resumed, [])
    assert [handle.tool for handle in found] == ["work"] * len(resumed)
    [entry] = await journal.entries()
    assert entry.ended == ended


async def test_a_call_that_another_process_called_lost_is_called_so_once():
    journal = Overtaken()
    async with (
        playing(Play(tools_call=[errors.ConnectionLost("cut")]), journal=journal) as one,
        playing(Play(), journal=journal) as other,
    ):
        with pytest.raises(errors.ConnectionLost):
            await one.call_tool("work")
        journal.meanwhile = one.resume
        found = await other.resume()
        assert (list(found), found.lost) == ([], [])
    [entry] = await journal.entries()
    assert entry.ended == "lost"


async def test_a_journal_that_tells_nothing_of_an_end_is_believed():
    journal = Silent()
    play = Play(tools_call=[errors.ConnectionLost("cut")])
    async with playing(play, journal=journal) as client:
        with pytest.raises(errors.ConnectionLost):
            await client.call_tool("work")
        assert [entry.tool for entry in (await client.resume()).lost] == ["work"]
        assert (await client.resume()).lost == []


@pytest.mark.parametrize("step", ["begin", "answered"])
async def test_a_call_under_way_is_left_alone_from_its_first_note_to_its_last(step: str):
    journal = Stalling(step)
    async with playing(Play(tools_call=[PLAIN]), journal=journal) as client:
        calling = asyncio.create_task(client.call_tool("work"))
        with anyio.fail_after(PATIENCE_S):
            await journal.stalled.wait()
            found = await client.resume()
            journal.may_go.set()
            await calling
    assert (list(found), found.lost) == ([], [])
    [entry] = await journal.entries()
    assert entry.ended == "answered"
