"""The processes of one `serve` are one service: what is begun at one goes on at any other."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import anyio
import httpx2
import pytest

from outlast.delivery.listen import ListenSource
from outlast.delivery.polling import PollingSource
from outlast.delivery.remote import Remote
from outlast.delivery.source import StatusSource
from outlast.delivery.websocket import WebSocketSource
from outlast.domain.clienting import TaskState
from outlast.tests.acceptance.waiting import until
from outlast.tests.delivery.webhook_world import SECRET, Hook, hook
from outlast.tests.service.conftest import desk_config, tasks_stored
from outlast.tests.support.doors import door, processes_of
from outlast.tests.support.mcp import IDEMPOTENCY_KEY, RawClient, http_client
from outlast.tests.support.serving import Serving, serving
from outlast.tests.support.streams import asking

pytestmark = [pytest.mark.anyio, pytest.mark.promise("processes-are-one-service")]

BOUND_S = 60.0
ANSWER = {"action": "accept", "content": {"name": "Ada"}}
TASKS_MAX, CALLS_MAX, POLLS_MAX = 30, 120, 80
LATE = 30  # calls let through beyond a rate before the others have heard, by way of the parent
TRIES_MAX = 3
CONFIG = f"{desk_config()}\n[quotas]\ntasks_per_owner = 400\n[events]\ndevelopment = true\n"

WAYS: dict[str, Callable[[Remote, str], StatusSource]] = {
    "poll": lambda remote, _: PollingSource(remote),
    "listen": lambda remote, _: ListenSource(remote),
    "websocket": WebSocketSource,
}


@dataclass(frozen=True)
class Pair:
    """A service of two processes, and a door to each."""

    server: Serving
    doors: tuple[int, int]
    http: httpx2.AsyncClient

    def client(self, place: int) -> RawClient:
        return RawClient(f"http://127.0.0.1:{self.doors[place]}/mcp", self.http)

    @property
    def both(self) -> tuple[RawClient, RawClient]:
        return self.client(0), self.client(1)

    def source(self, way: str, place: int) -> StatusSource:
        address = f"127.0.0.1:{self.doors[place]}"
        return WAYS[way](Remote(f"http://{address}/mcp", self.http), f"ws://{address}/ws")


async def paired(stack: AsyncExitStack, folder: Path, config: str, url: str, *flags: str) -> Pair:
    flags = ("--processes", "2", *flags)
    server = await stack.enter_async_context(serving(folder, config, url, flags))
    pids = list(processes_of(server.process.pid).values())
    port = int(server.base_url.rpartition(":")[2])
    first, second = [await stack.enter_async_context(door(port, pid, pids)) for pid in pids]
    http = await stack.enter_async_context(http_client())
    return Pair(server, (first, second), http)


@pytest.fixture(scope="module")
async def pair(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        yield await paired(stack, tmp_path_factory.mktemp("pair"), CONFIG, module_database_url)


# --- tasks


@pytest.mark.parametrize("way", WAYS)
async def test_a_watch_at_one_process_sees_answers_and_the_end_through_the_other(
    pair: Pair, way: str
):
    first, second = pair.both
    task_id = await first.opened("sign_task_during", {"document": "d"})
    states: list[TaskState] = []
    watch = cast(AsyncGenerator[TaskState], pair.source(way, 1).watch(task_id, 1))
    with anyio.fail_after(BOUND_S):
        async with aclosing(watch) as told:
            async for state in told:
                states.append(state)
                for key in state.task.get("inputRequests", ()):
                    answers = {"taskId": task_id, "inputResponses": {key: ANSWER}}
                    await first.request("tasks/update", answers)
    assert [state.version for state in states] == list(range(2, len(states) + 2))
    assert states[-1].task["result"]["content"][0]["text"] == "d signed by Ada"
    assert (await second.task(task_id))["status"] == "completed"


async def test_a_task_of_one_process_is_cancelled_through_the_other(pair: Pair, tmp_path: Path):
    first, second = pair.both
    for opener, canceller in ((first, second), (second, first)):
        task_id = await opener.opened("hold_task", {"marker": str(tmp_path / "marker")})
        await canceller.request("tasks/cancel", {"taskId": task_id})
        assert (await opener.until_status(task_id))["status"] == "cancelled"


async def test_a_state_sealed_by_one_process_is_opened_by_the_other(pair: Pair):
    for asker, answerer in (pair.both, pair.both[::-1]):
        asked = (await asker.call("sign_task_before", {"document": "d"})).result
        [key] = asked["inputRequests"]
        reply = await answerer.call(
            "sign_task_before",
            {"document": "d"},
            inputResponses={key: ANSWER},
            requestState=asked["requestState"],
        )
        ended = await asker.until_status(reply.result["taskId"])
        assert ended["result"]["content"][0]["text"] == "d signed by Ada"


async def test_a_key_used_at_both_at_once_makes_one_task(pair: Pair, tmp_path: Path):
    for number in range(10):
        meta = {IDEMPOTENCY_KEY: f"key-{number}"}
        note = {"path": str(tmp_path / "note"), "text": str(number)}
        calls = [client.call("note_task", note, meta=meta) for client in pair.both * 3]
        told = await asyncio.gather(*calls)
        assert len({reply.result["taskId"] for reply in told}) == 1


# --- events


async def test_events_of_one_process_are_streamed_by_the_other(pair: Pair, tmp_path: Path):
    first, second = pair.both
    asked = {"name": "task.finished", "cursor": None}
    async with asking(second.url, asked, method="events/stream") as stream:
        await stream.message()
        task_id = await first.opened("note_task", {"path": str(tmp_path / "note")})
        with anyio.fail_after(BOUND_S):
            while task_id not in json.dumps(await stream.message()):
                pass


async def test_a_subscription_made_at_one_process_hears_of_calls_at_both(
    pair: Pair, tmp_path: Path
):
    async with hook() as endpoint:
        delivery = {"mode": "webhook", "url": endpoint.url, "secret": SECRET}
        asked = {"name": "task.finished", "delivery": delivery}
        assert "id" in (await pair.client(0).request("events/subscribe", asked)).result
        note = {"path": str(tmp_path / "note")}
        tasks = {await client.opened("note_task", note) for client in pair.both}

        def all_came(hook: Hook) -> bool:  # and others: what an earlier test began may end only now
            return tasks <= {post.content["data"]["taskId"] for post in hook.events}

        await endpoint.until(all_came)


# --- figures and limits


def figures(page: str, name: str) -> dict[str, float]:
    """The values of this figure by the process that has them."""
    found = re.findall(rf'^{name}{{(?:limit="\w+",)?process="(\d+)"}} (\S+)$', page, re.MULTILINE)
    return {process: float(value) for process, value in found}


async def test_a_scrape_of_any_process_shows_all_of_them(pair: Pair):
    async def open_watches(place: int) -> dict[str, float]:
        reply = await pair.http.get(f"http://127.0.0.1:{pair.doors[place]}/metrics")
        return figures(reply.text, "outlast_watches_open")

    async def are_shown(*counts: int) -> bool:
        """By both: who is slow to tell its own is left out, and a watch that is left ends later."""
        told = await open_watches(0)
        is_so = sorted(told) == ["1", "2"] and sorted(told.values()) == list(counts)
        return is_so and await open_watches(1) == told

    first, second = pair.both
    await until(lambda: are_shown(0, 0), BOUND_S)
    task_id = await first.opened("sign_task_during", {"document": "d"})
    async with AsyncExitStack() as streams:
        for client in (first, second, second):
            asked = {"notifications": {"taskIds": [task_id]}}
            stream = await streams.enter_async_context(asking(client.url, asked))
            await stream.message()
        await until(lambda: are_shown(1, 2), BOUND_S)


def limits(**quotas: int) -> str:
    return desk_config() + "[quotas]\n" + "".join(f"{k} = {v}\n" for k, v in quotas.items())


async def test_a_quota_is_kept_to_the_task_by_both_together(database_url: str, tmp_path: Path):
    async with AsyncExitStack() as stack:
        config = limits(tasks_per_owner=TASKS_MAX)
        pair = await paired(stack, tmp_path, config, database_url, "--no-work")
        note = {"path": str(tmp_path / "note")}
        calls = [client.call("note_task", note) for client in pair.both * TASKS_MAX]
        told = [reply.body for reply in await asyncio.gather(*calls)]
    assert sum("result" in body for body in told) == TASKS_MAX
    assert tasks_stored(database_url) == TASKS_MAX


async def test_polls_at_one_process_count_at_the_other(database_url: str, tmp_path: Path):
    async with AsyncExitStack() as stack:
        config = limits(polls_per_minute=POLLS_MAX)
        config = config.replace('poll_interval = "50ms"', 'poll_interval = "10s"')
        pair = await paired(stack, tmp_path, config, database_url, "--no-work")
        first, second = pair.both

        async def are_counted() -> bool:
            """In one of several tries: where the parent stands still the other hears late."""
            task_id = await first.opened("note_task", {"path": str(tmp_path / "note")})
            began = anyio.current_time()
            # Within the limit, nobody is refused for having come by one connection.
            for _ in range(POLLS_MAX):
                assert "result" in (await first.request("tasks/get", {"taskId": task_id})).body
            passed = await polls_passed(second, task_id)
            refilled = (anyio.current_time() - began) * POLLS_MAX / 60
            return passed < POLLS_MAX / 2 + refilled

        await until(are_counted, BOUND_S)


async def polls_passed(client: RawClient, task_id: str) -> int:
    """How many are let through before one is refused."""
    passed: list[bool] = []

    async def is_refused() -> bool:
        reply = await client.request("tasks/get", {"taskId": task_id})
        passed.append("result" in reply.body)
        return not passed[-1]

    await until(is_refused, BOUND_S)
    return sum(passed)


async def test_calls_at_both_together_are_no_more_than_the_rate(database_url: str, tmp_path: Path):
    tried: list[str] = []
    for _ in range(TRIES_MAX):  # one hears late of the other where the parent stands still
        stored = tasks_stored(database_url)
        async with AsyncExitStack() as stack:
            config = limits(calls_per_minute=CALLS_MAX)
            pair = await paired(stack, tmp_path, config, database_url, "--no-work")
            began = anyio.current_time()
            passed = await calls_passed(pair, tmp_path)
            refilled = (anyio.current_time() - began) * CALLS_MAX / 60
        assert passed == tasks_stored(database_url) - stored
        assert passed >= CALLS_MAX
        if passed <= CALLS_MAX + LATE + refilled:
            return
        tried.append(f"{passed} passed, {refilled:.0f} of them refilled")
    pytest.fail(f"always more than the rate: {tried}")


async def calls_passed(pair: Pair, folder: Path) -> int:
    """How many of many calls at both become a task."""
    passed = 0
    for _ in range(CALLS_MAX):
        calls = [client.call("note_task", {"path": str(folder / "note")}) for client in pair.both]
        passed += sum("result" in reply.body for reply in await asyncio.gather(*calls))
    return passed
