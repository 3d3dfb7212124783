"""SIGTERM: nothing more is claimed, calls end or are handed back, and the exit is in time."""

import asyncio
import random
import signal
from datetime import UTC, datetime

import pytest

from outlast.tests.chaos.client import Client, Json, text_of, word
from outlast.tests.chaos.nodes import Cluster, Node, now

pytestmark = [pytest.mark.anyio, pytest.mark.promise("sigterm-drains")]

# An exit that waits for nothing: connections and upstreams are closed. A grace is 20 s.
EXIT_S_MAX = 15.0
GRACE_S = 12.0  # what surrounds a drain takes less than this once more
STOPS_WHILE_STARTING = 6


async def started(node: Node) -> Node:
    node.start()
    await node.until_said("outlast: serving" if node.name == "serve" else "waiting for tasks")
    return node


def call(chaos: Cluster, key: str, **more: Json | float) -> Json:
    return {"path": str(chaos.journal), "key": key, **more}


async def drained(node: Node, seconds: float) -> None:
    """Told to, it exits with 0 in this time, and leaves no child behind."""
    assert node.children(), "it runs no upstream"
    node.send(signal.SIGTERM)
    await gone(node, seconds)


async def gone(node: Node, seconds: float) -> None:
    """Told before, it exits with 0 in this time, and leaves none of its known children behind."""
    assert await node.until_ended(seconds) == 0, node.log.read_text()
    await node.until_childless()


async def test_a_call_that_ends_within_the_grace_is_finished_by_its_own_worker(
    chaos: Cluster, client: Client
):
    await started(chaos.serve(work=False))
    worker = await started(chaos.worker())
    waits = await client.call("old_asks_legacy", call(chaos, "w", seconds=0), "w")
    await client.asked(waits)
    unsafe = await client.call("new_unsafe", call(chaos, "a", seconds=3), "a")
    safe = await client.call("new_safe", call(chaos, "b", seconds=1), "b")
    await chaos.until_noted("start a")
    await chaos.until_noted("start b")
    assert worker.children(), "it runs no upstream"
    worker.send(signal.SIGTERM)  # once: a second one could meet a process that hears none any more
    # What only waits is handed back as soon as nothing more is claimed, and not before.
    await chaos.until_recorded(waits, "task.work_lost")
    late = await client.call("new_safe", call(chaos, "late", seconds=0), "late")
    await gone(worker, 3 + EXIT_S_MAX)
    for task_id in (unsafe, safe):
        assert (await client.get(task_id))["status"] == "completed"
    assert (await client.get(late))["status"] == "working"
    assert "start late" not in chaos.lines()


async def test_a_server_with_a_worker_drains_as_a_worker_does(chaos: Cluster, client: Client):
    server = await started(chaos.serve())
    unsafe = await client.call("new_unsafe", call(chaos, "a", seconds=2), "a")
    await chaos.until_noted("start a")
    await drained(server, 2 + EXIT_S_MAX)
    assert chaos.lines() == ["start a", "end a"]
    await started(server)
    assert (await client.get(unsafe))["status"] == "completed"


async def test_requests_and_tasks_that_do_not_end_share_one_grace(chaos: Cluster, client: Client):
    with (chaos.folder / "outlast.toml").open("a") as config:
        config.write('[tools.new_hold]\nrun = "direct"\n')
    server = await started(chaos.serve(drain_s=str(GRACE_S)))
    request = asyncio.create_task(client.call("new_hold", call(chaos, "direct"), "direct"))
    await client.call("old_hold", call(chaos, "task"), "task")
    await chaos.until_noted("start direct")
    await chaos.until_noted("start task")
    told_at = now()
    await drained(server, 4 * GRACE_S)
    took_s = now() - told_at
    # As long as promised, and no second time: whoever deploys it kills what takes longer.
    assert GRACE_S <= took_s < 2 * GRACE_S
    await asyncio.gather(request, return_exceptions=True)
    assert chaos.lines("end") == []


async def test_what_does_not_end_in_the_grace_is_handed_back_or_fails_honestly(
    chaos: Cluster, client: Client
):
    await started(chaos.serve(work=False))
    worker, other = chaos.worker("short", drain_s="0.5"), chaos.worker("other")
    await started(other)
    other.send(signal.SIGSTOP)  # it is there, and takes nothing yet
    await started(worker)
    unsafe = await client.call("new_hold", call(chaos, "a"), "a")
    safe = await client.call("new_stuck_once", call(chaos, "b"), "b")
    await chaos.until_noted("start a")
    await chaos.until_noted("start b")
    other.send(signal.SIGCONT)
    told_at = now()
    await drained(worker, 0.5 + EXIT_S_MAX)
    # Handed back, not lost: nobody had to wait for a lease to run out.
    gone_at = datetime.now(UTC)
    failed = await client.get(unsafe)
    assert (failed["status"], failed["error"]["data"]) == ("failed", {"reason": "worker_lost"})
    assert dict(chaos.recorded(safe))["task.work_lost"] < gone_at
    await chaos.until_noted("start b", times=2)
    print(f"handed back and begun again {now() - told_at:.1f} s after SIGTERM")
    completed = await client.ended(safe)
    assert (completed["status"], text_of(completed)) == ("completed", "stuck_once b")
    assert chaos.lines("start a", "stop a") == ["start a", "stop a"]
    assert "stop b" in chaos.lines()


@pytest.mark.promise("parked-task-holds-no-slot")
async def test_tasks_that_wait_for_an_answer_do_not_delay_the_exit(chaos: Cluster, client: Client):
    await started(chaos.serve(work=False))
    worker = await started(chaos.worker())
    parked = [
        await client.call(tool, call(chaos, tool, seconds=0), tool)
        for tool in ("new_asks", "old_asks_legacy")
    ]
    keys = [await client.asked(task_id) for task_id in parked]
    await drained(worker, EXIT_S_MAX)
    for task_id, key in zip(parked, keys, strict=True):
        assert await client.asked(task_id) == key
        await client.update(task_id, {key: word("late")})
    await started(worker)
    for task_id in parked:
        assert (await client.ended(task_id))["status"] == "completed"


async def test_a_stop_in_the_first_moments_is_not_missed(chaos: Cluster):
    chance, serve, worker = random.Random(7), chaos.serve(), chaos.worker()
    for number in range(STOPS_WHILE_STARTING):
        node = (serve, worker)[number % 2]
        node.start()
        with pytest.raises(TimeoutError):
            await node.until_ended(chance.uniform(0.001, 2.0))
        node.send(signal.SIGTERM)
        # Before Python can hear it, the signal ends the process by itself.
        assert await node.until_ended(60.0) in {0, -signal.SIGTERM}, node.log.read_text()
        await node.until_childless()
