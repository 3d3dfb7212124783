"""One process dies or stalls at a chosen moment; the others bring its tasks to an honest end."""

import signal
from dataclasses import dataclass

import pytest

from outlast.tests.acceptance.waiting import until
from outlast.tests.chaos.client import Client, Json, text_of, word
from outlast.tests.chaos.nodes import Cluster, Node, now

pytestmark = pytest.mark.anyio

RECOVERY_S_MAX = 15.0
PAST_THE_LEASE_S = 20.0


@dataclass(frozen=True)
class Pair:
    """A server that runs no task, the worker that has claimed one, and one that waits to help."""

    chaos: Cluster
    client: Client
    server: Node
    first: Node
    second: Node

    async def call(self, tool: str, **more: Json | float) -> str:
        return await self.client.call(tool, {"path": str(self.chaos.journal), "key": "k", **more}, "k")


@pytest.fixture
async def pair(chaos: Cluster, client: Client) -> Pair:
    """The first worker runs; the second is there but not yet started."""
    server, first = chaos.serve(work=False), chaos.worker("first")
    server.start()
    first.start()
    await chaos.until_ready(server)
    await first.until_said("waiting for tasks")
    return Pair(chaos, client, server, first, chaos.worker("second"))


async def start_second(pair: Pair) -> None:
    pair.second.start()
    await pair.second.until_said("waiting for tasks")


@pytest.mark.promise("killed-worker-is-recovered")
async def test_a_safe_call_of_a_killed_worker_is_run_again_by_another(pair: Pair):
    task_id = await pair.call("new_safe", seconds=2)
    await pair.chaos.until_noted("start k")
    await start_second(pair)
    pair.first.kill()
    killed_at = now()
    task = await pair.client.ended(task_id)
    took = now() - killed_at
    print(f"killed, and completed by another worker {took:.1f} s later (2 s of it the work)")  # noqa: T201
    assert (task["status"], text_of(task)) == ("completed", "safe k")
    assert took < RECOVERY_S_MAX
    assert pair.chaos.lines("start", "end").count("start k") == 2


@pytest.mark.promise("killed-worker-is-recovered")
@pytest.mark.promise("unsafe-tool-never-runs-twice")
async def test_an_unsafe_call_of_a_killed_worker_fails_and_says_why(pair: Pair):
    task_id = await pair.call("new_unsafe", seconds=3)
    await pair.chaos.until_noted("start k")
    await start_second(pair)
    pair.first.kill()
    killed_at = now()
    task = await pair.client.ended(task_id)
    took = now() - killed_at
    print(f"killed, and failed by another worker {took:.1f} s later")  # noqa: T201
    assert task["status"] == "failed"
    assert task["error"]["data"] == {"reason": "worker_lost"}
    assert took < RECOVERY_S_MAX
    await pair.first.until_childless()
    assert pair.chaos.lines("start") == ["start k"]


@pytest.mark.promise("answered-is-never-asked-again")
async def test_a_parked_task_survives_the_death_of_every_process(pair: Pair):
    task_id = await pair.call("new_asks", seconds=0)
    key = await pair.client.asked(task_id)
    pair.first.kill()
    pair.server.kill()
    pair.server.start()
    await start_second(pair)
    await pair.chaos.until_ready(pair.server)
    assert await pair.client.asked(task_id) == key
    await pair.client.update(task_id, {key: word("again")})
    task = await pair.client.ended(task_id)
    assert (task["status"], text_of(task)) == ("completed", "asks k again")
    assert pair.chaos.lines("answer") == ["answer k again True"]


@pytest.mark.promise("answered-is-never-asked-again")
async def test_a_question_that_a_call_holds_survives_its_worker_and_is_asked_once(pair: Pair):
    task_id = await pair.call("old_asks_legacy", seconds=1)
    key = await pair.client.asked(task_id)
    await start_second(pair)
    pair.first.kill()
    await pair.chaos.until_noted("start k", times=2)
    assert await pair.client.asked(task_id) == key
    await pair.client.update(task_id, {key: word("held")})
    task = await pair.client.ended(task_id)
    assert (task["status"], text_of(task)) == ("completed", "asks_legacy k held")
    assert pair.chaos.lines("answer") == ["answer k held True"]


@pytest.mark.promise("answered-is-never-asked-again")
async def test_an_answer_is_given_again_to_the_call_that_replaces_a_lost_one(pair: Pair):
    task_id = await pair.call("old_asks_legacy", seconds=3)
    key = await pair.client.asked(task_id)
    await pair.client.update(task_id, {key: word("twice")})
    await pair.chaos.until_noted("answer k twice True")
    await start_second(pair)
    pair.first.kill()
    asked: list[Json] = []

    async def watch() -> bool:
        task = await pair.client.get(task_id)
        asked.extend([task["inputRequests"]] if "inputRequests" in task else [])
        return task["status"] == "completed"

    await until(watch, 30)
    assert not asked
    assert pair.chaos.lines("answer") == ["answer k twice True"] * 2


@pytest.mark.promise("stale-attempt-is-refused")
async def test_the_result_of_a_stalled_worker_comes_too_late(pair: Pair):
    task_id = await pair.call("new_safe", seconds=3)
    await pair.chaos.until_noted("start k")
    pair.first.send(signal.SIGSTOP)
    await start_second(pair)
    # The stalled worker's own call ends meanwhile: its result waits in the pipe.
    await pair.chaos.until_noted("end k", times=2, seconds=PAST_THE_LEASE_S)
    task = await pair.client.ended(task_id)
    pair.first.send(signal.SIGCONT)
    await pair.first.until_said("the attempt was overtaken")
    assert await pair.client.get(task_id) == task
    assert pair.chaos.lines("start") == ["start k"] * 2


@pytest.mark.promise("stale-attempt-is-refused")
async def test_a_stalled_worker_stops_its_call_when_it_finds_itself_replaced(pair: Pair):
    task_id = await pair.call("new_hold_safe")
    await pair.chaos.until_noted("start k")
    pair.first.send(signal.SIGSTOP)
    await start_second(pair)
    await pair.chaos.until_noted("start k", times=2, seconds=PAST_THE_LEASE_S)
    pair.first.send(signal.SIGCONT)
    await pair.chaos.until_noted("stop k")
    assert (await pair.client.get(task_id))["status"] == "working"
    await pair.client.cancel(task_id)
    assert (await pair.client.ended(task_id))["status"] == "cancelled"
    await pair.chaos.until_noted("stop k", times=2)
    assert len(pair.chaos.lines()) == 4
