"""A server that wants to be asked more slowly: all parts of the client wait, and none gives up."""

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import anyio
import httpx2
import pytest

from outlast.delivery import auto, source
from outlast.delivery.auto import AutoSource
from outlast.delivery.calling import CallingRemote
from outlast.delivery.listen import ListenSource
from outlast.delivery.polling import PollingSource
from outlast.delivery.remote import Remote
from outlast.domain import errors
from outlast.service.client import reach
from outlast.service.client.reach import Pauses
from outlast.tests.acceptance.waiting import until
from outlast.tests.client.playing import OUTLAST, Play, playing

pytestmark = [pytest.mark.anyio, pytest.mark.promise("limits-have-names")]

PATIENCE_S = 20.0
ASKED_S = 0.2
TOLD = 3
WORKING = {
    "taskId": "t",
    "status": "working",
    "createdAt": "2026-07-28T12:00:00Z",
    "lastUpdatedAt": "2026-07-28T12:00:00Z",
    "ttlMs": None,
    "pollIntervalMs": 1,
}


Answer = Callable[[], httpx2.Response]


class Server:
    """Answers as it is told, in turn, and then with the task's end; knows when it was asked."""

    def __init__(self, *answers: Answer) -> None:
        self._answers: Iterator[Answer] = iter(answers)
        self.asked_at: list[float] = []

    def handle(self, request: httpx2.Request) -> httpx2.Response:
        self.asked_at.append(anyio.current_time())
        message = json.loads(request.content)
        answer = next(self._answers, None)
        if answer is not None:
            return answer()
        ended = {**WORKING, "status": "completed", "result": {"content": []}}
        return httpx2.Response(200, json={"jsonrpc": "2.0", "id": message["id"], "result": ended})

    def remote(self, kind: type[Remote] = CallingRemote) -> Any:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self.handle))
        return kind("http://server/mcp", http)

    @property
    def pauses(self) -> list[float]:
        return [b - a for a, b in zip(self.asked_at, self.asked_at[1:], strict=False)]


def page(status: int = 429, **given: Any) -> Answer:
    return lambda: httpx2.Response(status, **given)


def ours(wait_ms: int | float, **headers: str) -> Answer:
    data = {"reason": "too_many_requests", "limit": "x", "most": 1, "retryAfterMs": wait_ms}
    error = {"code": -32603, "message": "slower", "data": data}
    return page(json={"jsonrpc": "2.0", "error": error}, headers=headers)


def tomorrow() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True)


@pytest.mark.parametrize("kind", [Remote, CallingRemote])
@pytest.mark.parametrize(
    ("answer", "least_s", "most_s"),
    [
        (ours(1_500, **{"Retry-After": "2"}), 1.5, 1.5),
        (page(text="<html>", headers={"Retry-After": "7"}), 7, 7),
        (page(headers={"Retry-After": tomorrow()}), 600, 600),
        (page(json={"error": {"data": 5}}, headers={"Retry-After": "x"}), 0, 0),
        (page(), 0, 0),
        (page(headers={"Retry-After": "9" * 30}), 600, 600),
        (ours(1e300), 600, 600),
        (ours(10**400), 600, 600),
    ],
)
async def test_how_long_to_wait_is_read_from_whoever_says_it(
    kind: type[Remote], answer: Answer, least_s: float, most_s: float
):
    with pytest.raises(errors.SlowDown) as slowed:
        await Server(answer).remote(kind).request("tasks/get", {"taskId": "t"})
    assert least_s <= slowed.value.after_s <= most_s
    with pytest.raises(errors.SlowDown):
        async for _ in Server(answer).remote(kind).stream("subscriptions/listen", {}):
            pass


async def test_a_tools_own_error_that_looks_alike_is_the_tools():
    error = {"code": -32050, "message": "Quota exceeded", "data": {"retryAfterMs": 1500}}
    answer = page(200, json={"jsonrpc": "2.0", "id": 1, "error": error})
    with pytest.raises(errors.RequestRefused) as refused:
        await Server(answer).remote().call({"name": "work"})
    assert refused.value.code == -32050


@pytest.mark.parametrize("kind", [PollingSource, ListenSource])
async def test_a_watch_waits_as_long_as_it_is_told_and_goes_on(
    kind: type[PollingSource | ListenSource], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(source, "BACKOFF_S_FIRST", 0.0)
    server = Server(*[ours(ASKED_S * 1000)] * TOLD)
    watch = kind(server.remote()).watch("t")
    pulling = asyncio.ensure_future(anext(watch))

    async def has_gone_on() -> bool:
        return len(server.asked_at) > TOLD

    await until(has_gone_on, PATIENCE_S)
    pulling.cancel()
    await asyncio.gather(pulling, return_exceptions=True)
    await watch.aclose()
    assert min(server.pauses[:TOLD]) >= ASKED_S


async def test_who_watches_in_the_best_way_leaves_a_busy_server_in_peace(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(auto, "CLIMB_S_FIRST", 0.05)
    monkeypatch.setattr(source, "BACKOFF_S_FIRST", 0.0)
    server = Server(*[ours(ASKED_S * 1000)] * 4)
    remote = server.remote()
    watch = AutoSource(remote, PollingSource(remote), [ListenSource(remote)]).watch("t")
    with anyio.fail_after(PATIENCE_S):
        assert [state.task["status"] async for state in watch] == ["completed"]
    # Two ways, each of which waits: the stream and the polls beside it.
    assert server.asked_at[-1] - server.asked_at[0] >= ASKED_S


@pytest.mark.parametrize("discovered", [{}, OUTLAST], ids=["another server", "keyed"])
async def test_a_call_that_came_too_soon_is_sent_again_for_it_has_not_run(
    discovered: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reach, "PAUSE_S_FIRST", 0.0)
    plain = {"resultType": "complete", "content": [], "isError": False}
    play = Play(server_discover=[discovered], tools_call=[errors.SlowDown(0.0)] * 3 + [plain])
    async with playing(play) as client:
        with anyio.fail_after(PATIENCE_S):
            await client.call_tool("work", {})
    assert len(play.params_of("tools/call")) == 4


async def test_pauses_between_tries_are_as_long_as_the_server_wants(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(reach, "PAUSE_S_FIRST", 0.0)
    pauses, began = Pauses(None), anyio.current_time()
    await pauses.after(errors.SlowDown(ASKED_S))
    assert anyio.current_time() - began >= ASKED_S
