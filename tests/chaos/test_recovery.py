"""One process dies or stalls at a chosen moment; the others bring its tasks to an honest end."""

import signal
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from outlast.tests.acceptance.waiting import until
from outlast.tests.chaos.client import Client, Json, text_of, word
from outlast.tests.chaos.nodes import Cluster, Node, now

pytestmark = pytest.mark.anyio

RECOVERY_S_MAX = 15.0
LONG_S = 600.0  # longer than any test


@dataclass(frozen=True)
class Pair:
    """A server that runs no task, the worker that has claimed one, and one that waits to help."""

    chaos: Cluster
    client: Client
    server: Node
    first: Node
    second: Node

    async def call(self, tool: str, key: str, **more: Json | float) -> str:
        arguments = {"path": str(self.chaos.journal), "key": key, **more}
        return await self.client.call(tool, arguments, key)


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


def leases(chaos: Cluster, *task_ids: str) -> set[tuple[str, str]]:
    """Which of these tasks a worker has, and which worker that is."""
    with psycopg.connect(chaos.database_url) as connection:
        rows = connection.execute(
            "SELECT task_id, worker FROM outlast.run_queue"
            " WHERE worker IS NOT NULL AND task_id = ANY(%s)",
            (list(task_ids),),
        ).fetchall()
    return {(task_id, worker) for task_id, worker in rows}


async def are_taken_over(chaos: Cluster, held: set[tuple[str, str]]) -> bool:
    """Whether none of these tasks is in the hands of who had it."""
    return not held & leases(chaos, *(task_id for task_id, _ in held))


@pytest.mark.promise("killed-worker-is-recovered")
@pytest.mark.promise("unsafe-tool-never-runs-twice")
@pytest.mark.promise("answered-is-never-asked-again")
async def test_every_call_of_a_killed_worker_is_brought_to_an_honest_end(pair: Pair):
    """A safe call, an unsafe one, one that waits for an answer, and one that has had its answer."""
    chaos, client = pair.chaos, pair.client
    waits = await pair.call("old_asks_legacy", "w", seconds=0)
    heard = await pair.call("old_asks_legacy", "h", seconds=LONG_S)
    key, answered = await client.asked(waits), await client.asked(heard)
    await client.update(heard, {answered: word("heard")})
    await chaos.until_noted("answer h heard True")
    safe = await pair.call("new_stuck_once", "s")
    unsafe = await pair.call("new_unsafe", "u", seconds=LONG_S)
    for line in ("start s", "start u"):
        await chaos.until_noted(line)
    await start_second(pair)
    held = leases(chaos, safe, unsafe)
    assert len(held) == 2
    pair.first.kill()
    killed_at = now()

    # How long the upstream then takes to start, the machine alone decides.
    await until(lambda: are_taken_over(chaos, held), RECOVERY_S_MAX)
    print(f"taken over {now() - killed_at:.1f} s after the kill")
    failed = await client.ended(unsafe)
    completed = await client.ended(safe)
    print(f"failed and completed {now() - killed_at:.1f} s after the kill")
    assert failed["error"]["data"] == {"reason": "worker_lost"}
    assert (completed["status"], text_of(completed)) == ("completed", "stuck_once s")

    await chaos.until_noted("start w", times=2)
    assert await client.asked(waits) == key
    await client.update(waits, {key: word("waited")})
    assert text_of(await client.ended(waits)) == "asks_legacy w waited"
    await chaos.until_noted("answer h heard True", times=2)
    task = await client.get(heard)
    assert task["status"] == "working", "it was asked again"
    await client.cancel(heard)
    assert chaos.lines("answer w") == ["answer w waited True"]
    assert chaos.lines("start u") == ["start u"]
    assert chaos.lines("start s") == ["start s"] * 2
    await pair.first.until_childless()


@pytest.mark.promise("answered-is-never-asked-again")
async def test_a_parked_task_survives_the_death_of_every_process(pair: Pair):
    task_id = await pair.call("new_asks", "k", seconds=0)
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


@pytest.mark.promise("stale-attempt-is-refused")
async def test_a_stalled_worker_neither_reports_nor_goes_on_once_it_is_replaced(pair: Pair):
    chaos, client = pair.chaos, pair.client
    ends, lasts = await pair.call("new_gated", "e"), await pair.call("new_hold_safe", "l")
    for line in ("start e", "start l"):
        await chaos.until_noted(line)
    pair.first.send(signal.SIGSTOP)
    Path(f"{chaos.journal}.e.go").touch()
    await chaos.until_noted("end e")  # the stalled worker's own: its result waits in the pipe
    await start_second(pair)
    for line in ("end e", "start l"):
        await chaos.until_noted(line, times=2)
    task = await client.ended(ends)
    pair.first.send(signal.SIGCONT)
    await pair.first.until_said("the attempt was overtaken")
    await chaos.until_noted("stop l")
    assert await client.get(ends) == task
    assert (await client.get(lasts))["status"] == "working"
    await client.cancel(lasts)
    assert (await client.ended(lasts))["status"] == "cancelled"
    await chaos.until_noted("stop l", times=2)
    assert sorted(chaos.lines()) == sorted(["start e", "end e", "start l", "stop l"] * 2)
