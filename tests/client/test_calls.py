"""One call: what is sent when, what is asked of whom, what is written down before."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest

from outlast.adapters.journal import MemoryJournal
from outlast.domain import errors
from outlast.domain.clienting import (
    IDEMPOTENCY_META_KEY,
    ClientTimeout,
    Entry,
    InputRequired,
    InvalidAnswer,
)
from outlast.service import exchange
from outlast.service.client import Handlers, TaskHandle, calls, reach
from outlast.tests.client.playing import LOST, OUTLAST, Play, completed, playing, task
from outlast.tests.client.world import PATIENCE_S, Person

pytestmark = pytest.mark.anyio

PLAIN = {"resultType": "complete", "content": [], "isError": False}
CREATED = {"resultType": "task", **task()}
ASKED = {"name": {"method": "elicitation/create", "params": {"message": "Name?"}}}


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "PAUSE_S_FIRST", 0.0)


class Diary(MemoryJournal):
    """Tells the server's log when something was written down."""

    def __init__(self, play: Play) -> None:
        super().__init__()
        self._heard = play.heard

    async def begin(self, entry: Entry) -> None:
        self._heard.append(("begin", {}))
        await super().begin(entry)

    async def accept(self, entry_id: str, task_id: str) -> None:
        self._heard.append(("accept", {}))
        await super().accept(entry_id, task_id)

    async def answer(self, entry_id: str, answers: Mapping[str, Any]) -> None:
        self._heard.append(("answer", {}))
        await super().answer(entry_id, answers)


async def ended(journal: MemoryJournal) -> list[str | None]:
    return [entry.ended for entry in await journal.entries()]


def test_the_name_of_the_key_is_the_servers():
    assert IDEMPOTENCY_META_KEY == exchange.IDEMPOTENCY_META_KEY


async def test_the_intent_is_written_before_the_call_and_the_task_before_the_handle():
    play = Play(server_discover=[OUTLAST], tools_call=[CREATED], tasks_get=[completed()])
    journal = Diary(play)
    async with playing(play, journal=journal) as client:
        handle = await client.call_tool("work", {"a": 1})
        assert isinstance(handle, TaskHandle)
        names = [name for name, _ in play.heard]
        assert names == ["server/discover", "begin", "tools/call", "accept"]
        [entry] = await journal.entries()
        assert (entry.task_id, entry.tool, entry.arguments) == ("t", "work", None)
        assert await ended(journal) == [None]
        assert await handle.result(PATIENCE_S) == {"content": [{"type": "text", "text": "done"}]}
    assert await ended(journal) == ["completed"]


async def test_a_plain_result_is_given_as_it_came_and_owes_nothing():
    journal = MemoryJournal()
    async with playing(Play(tools_call=[PLAIN]), journal=journal) as client:
        assert await client.call_tool("work") == {"content": [], "isError": False}
    assert await ended(journal) == ["answered"]


async def test_a_server_that_knows_keys_is_sent_a_lost_call_again_under_the_same_key():
    play = Play(server_discover=[LOST, OUTLAST], tools_call=[LOST, LOST, CREATED])
    async with playing(play) as client:
        await client.call_tool("work")
    sent = play.params_of("tools/call")
    keys = {params["_meta"][IDEMPOTENCY_META_KEY] for params in sent}
    assert (len(sent), len(keys)) == (3, 1)


async def test_any_other_server_is_not():
    play, journal = Play(tools_call=[LOST, CREATED]), MemoryJournal()
    async with playing(play, journal=journal) as client:
        with pytest.raises(errors.ConnectionLost):
            await client.call_tool("work", idempotency_key="mine")
        assert len(play.params_of("tools/call")) == 1
        assert await ended(journal) == [None]
        [lost] = (await client.resume()).lost
    assert (lost.tool, lost.idempotency_key) == ("work", "mine")
    assert len(play.params_of("tools/call")) == 1


async def test_a_call_of_long_ago_is_not_sent_again():
    play, journal = Play(server_discover=[OUTLAST], tools_call=[CREATED]), MemoryJournal()
    async with playing(play, journal=journal) as client:
        entry = client._reach.new_entry(tool="work", is_keyed=True, idempotency_key="k")
        await journal.begin(replace(entry, made_at=entry.made_at - timedelta(days=2)))
        found = await client.resume()
    assert (list(found), len(found.lost), play.params_of("tools/call")) == ([], 1, [])


@pytest.mark.parametrize("code", [401, 403, -32603])
async def test_a_refusal_that_may_pass_does_not_lose_a_call_that_was_sent(code: int):
    refused = errors.RequestRefused(code, "not now")
    play = Play(server_discover=[OUTLAST], tools_call=[refused, CREATED])
    journal = MemoryJournal()
    async with playing(play, journal=journal) as client:
        entry = client._reach.new_entry(tool="work", is_keyed=True, idempotency_key="k")
        await journal.begin(entry)
        found = await client.resume()
        assert [error for _, error in found.failures] == [refused]
        [handle] = await client.resume()
    assert handle.task_id == "t"


async def test_a_refused_call_raises_the_very_error_and_owes_nothing():
    refused = errors.RequestRefused(-32602, "no such tool", {"known": []})
    journal = MemoryJournal()
    async with playing(Play(tools_call=[refused]), journal=journal) as client:
        with pytest.raises(errors.RequestRefused) as raised:
            await client.call_tool("work")
    assert raised.value is refused
    assert await ended(journal) == ["refused"]


@pytest.mark.parametrize("answer", [{"resultType": "odd"}, {"resultType": "task"}])
async def test_an_answer_of_no_known_shape_is_none(answer: Any):
    async with playing(Play(tools_call=[answer])) as client:
        with pytest.raises(InvalidAnswer):
            await client.call_tool("work")


async def test_rounds_on_the_call_echo_the_state_as_it_is_and_only_if_there_is_one():
    rounds = [
        {"resultType": "input_required", "inputRequests": ASKED, "requestState": "opaque"},
        {"resultType": "input_required", "inputRequests": ASKED},
        {"resultType": "input_required", "requestState": ""},
        PLAIN,
    ]
    play, person = Play(tools_call=rounds), Person()
    journal = Diary(play)
    async with playing(play, Handlers(elicitation=person), journal) as client:
        await client.call_tool("work", {"a": 1})
    first, second, third, fourth = play.params_of("tools/call")
    given = {"name": {"action": "accept", "content": {"name": "name?"}}}
    assert first == {"name": "work", "arguments": {"a": 1}}
    assert second == first | {"inputResponses": given, "requestState": "opaque"}
    assert third == first | {"inputResponses": given}
    assert fourth == first | {"requestState": ""}
    assert person.asked == ["Name?", "Name?"]  # a server may ask again in another round
    names = [name for name, _ in play.heard if name != "server/discover"]
    assert names[:4] == ["begin", "tools/call", "answer", "tools/call"]


async def test_a_round_that_is_lost_is_sent_again_without_asking_again():
    rounds = [{"resultType": "input_required", "inputRequests": ASKED}, LOST, PLAIN]
    play, person = Play(server_discover=[OUTLAST], tools_call=rounds), Person()
    async with playing(play, Handlers(any=person)) as client:
        await client.call_tool("work")
    assert person.asked == ["Name?"]


async def test_a_server_that_is_never_content_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(calls, "ROUNDS_MAX", 5)
    asks = {"resultType": "input_required", "inputRequests": ASKED}
    play = Play(tools_call=[asks])
    async with playing(play, Handlers(any=Person())) as client:
        with pytest.raises(InvalidAnswer):
            await client.call_tool("work")
    assert len(play.params_of("tools/call")) == 5


@pytest.mark.parametrize(("handlers", "ask"), [(Handlers(), True), (Handlers(any=Person()), False)])
async def test_a_call_that_asks_where_nobody_answers_says_what(handlers: Handlers, ask: bool):
    asks = {"resultType": "input_required", "inputRequests": ASKED}
    async with playing(Play(tools_call=[asks]), handlers) as client:
        with pytest.raises(InputRequired) as required:
            await client.call_tool("work", ask=ask)
    assert required.value.requests == ASKED


async def test_one_deadline_holds_over_the_call_and_its_handlers():
    async def stalls(request: Any) -> Any:
        await anyio.sleep_forever()

    asks = {"resultType": "input_required", "inputRequests": ASKED}
    async with playing(Play(tools_call=[asks]), Handlers(any=stalls)) as client:
        with pytest.raises(ClientTimeout):
            await client.call_tool("work", timeout_s=0.05)


async def test_a_call_under_way_is_no_business_of_resume():
    may_answer = asyncio.Event()

    class Slow(Play):
        async def call(self, params: Mapping[str, Any]) -> Any:
            await may_answer.wait()
            return await super().call(params)

    async with playing(Slow(tools_call=[PLAIN])) as client:
        calling = asyncio.create_task(client.call_tool("work"))
        while not client._calls.in_flight:  # noqa: ASYNC110 - a turn at a time
            await asyncio.sleep(0)  # noqa: TID251 - a turn, no time
        found = await client.resume()
        assert (list(found), found.lost) == ([], [])
        may_answer.set()
        await calling


def test_what_has_a_handler_is_declared_and_no_more():
    person = Person()
    assert Handlers().capabilities == {}
    assert set(Handlers(roots=person).capabilities) == {"roots"}
    assert Handlers(elicitation=person).capabilities == {"elicitation": {"form": {}, "url": {}}}
    everything = {"elicitation", "sampling", "roots"}
    assert set(Handlers(any=person).capabilities) == everything
    assert set(Handlers(by_hand=True).capabilities) == everything
