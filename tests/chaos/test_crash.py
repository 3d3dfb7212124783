"""Servers and workers killed at any moment, again and again, while a client keeps tasks flowing.

`OUTLAST_CHAOS_ROUNDS` sets how many are killed (20), `OUTLAST_CHAOS_SEED` repeats a plan; the seed
is printed.
"""

import os
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import anyio
import pytest

from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.postgres import Database
from outlast.domain import events
from outlast.domain.decisions import LOSSES_MAX
from outlast.domain.events import TaskEvent
from outlast.domain.task import Task
from outlast.tests.chaos.client import TERMINAL, Client, Json, pause, word
from outlast.tests.chaos.nodes import Cluster, Node, now
from outlast.tests.domain import invariants

pytestmark = pytest.mark.anyio

ROUNDS = int(os.environ.get("OUTLAST_CHAOS_ROUNDS", "20"))
TASKS = max(50, 5 * ROUNDS // 2)
KINDS = ("new_safe", "new_unsafe", "new_asks", "old_asks_legacy")
KILL_AFTER_S = (0.2, 2.0)
WORK_BEGINS_S_MAX = 1.5
WORK_S = (0.2, 3.0)
IN_FLIGHT_MAX = 12
ROUND_S_MAX = 15.0  # nearly all of it is the start of a process
SETTLE_S_MAX = 120.0  # after the last kill: a lease runs out, upstreams start, the work is done


@dataclass
class Told:
    """What the servers have told the client: they will be held to it."""

    ids: dict[str, str] = field(default_factory=dict)
    ended: dict[str, Json] = field(default_factory=dict)
    asked: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    answered: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    complaints: list[str] = field(default_factory=list)


class Owner:
    """Creates tasks, answers what they ask, and writes down what was acknowledged."""

    def __init__(self, chaos: Cluster, client: Client, chance: random.Random) -> None:
        self._chaos, self._client, self._chance = chaos, client, chance
        self.told = Told()

    async def drive(self, key: str, tool: str) -> None:
        """One task, from its creation to its end."""
        task_id = await self.create(key, tool)
        while True:
            task = await self._client.surely(lambda: self._client.get(task_id))
            if task["status"] in TERMINAL:
                self.told.ended[key] = task
                return
            for question in task.get("inputRequests", {}):
                await self._answer(key, task_id, question)
            await pause(0.1)

    async def create(self, key: str, tool: str) -> str:
        """The id of this key's task, checked against what was told before."""
        seconds = random.Random(key).uniform(*WORK_S)
        arguments = {"path": str(self._chaos.journal), "key": key, "seconds": seconds}
        task_id = await self._client.surely(lambda: self._client.call(tool, arguments, key))
        if self.told.ids.setdefault(key, task_id) != task_id:
            self.told.complaints.append(f"{key} is {task_id} and {self.told.ids[key]}")
        return task_id

    async def _answer(self, key: str, task_id: str, question: str) -> None:
        if question in self.told.answered[key]:
            self.told.complaints.append(f"{key}: {question} is asked after its answer")
            return
        self.told.asked[key].add(question)
        if self._chance.random() < 0.3:
            return  # answered on a later look: it stays parked through some kills
        answer = {question: word(f"w-{key}")}
        await self._client.surely(lambda: self._client.update(task_id, answer))
        self.told.answered[key].add(question)


async def kill_and_start_again(chaos: Cluster, victim: Node, chance: random.Random) -> None:
    """Some die while they start, some as they wait, and most soon after some call has begun."""
    mood = chance.random()
    if mood > 0.15:
        await victim.until_said("outlast: serving" if victim.name == "serve" else "waiting for")
    if mood > 0.5:
        await until_work_begins(chaos)
    await pause(chance.uniform(*KILL_AFTER_S))
    victim.kill()
    victim.start()


async def until_work_begins(chaos: Cluster) -> None:
    """Return once one more call has begun, or when none does for a while."""
    begun = len(chaos.lines("start"))
    with anyio.move_on_after(WORK_BEGINS_S_MAX):
        while len(chaos.lines("start")) == begun:
            await pause()


@pytest.mark.promise("no-task-is-left-working")
@pytest.mark.promise("unsafe-tool-never-runs-twice")
@pytest.mark.promise("answered-is-never-asked-again")
async def test_every_acknowledged_task_ends_once_whatever_is_killed(chaos: Cluster, client: Client):
    seed = int(os.environ.get("OUTLAST_CHAOS_SEED", random.SystemRandom().randrange(10**9)))
    print(f"OUTLAST_CHAOS_SEED={seed} OUTLAST_CHAOS_ROUNDS={ROUNDS}")
    chance, began_at = random.Random(seed), now()
    owner, nodes = Owner(chaos, client, chance), [chaos.serve(), chaos.worker()]
    for node in nodes:
        node.start()
    plan = [(f"job-{number}", KINDS[number % len(KINDS)]) for number in range(TASKS)]
    room = anyio.CapacityLimiter(IN_FLIGHT_MAX)

    async def drive(key: str, tool: str) -> None:
        async with room:
            await owner.drive(key, tool)

    with anyio.fail_after(ROUNDS * ROUND_S_MAX + 2 * SETTLE_S_MAX):
        async with anyio.create_task_group() as driving:
            for number in range(ROUNDS):
                share = slice(number * TASKS // ROUNDS, (number + 1) * TASKS // ROUNDS)
                for key, tool in plan[share]:
                    driving.start_soon(drive, key, tool)
                await kill_and_start_again(chaos, chance.choice(nodes), chance)
            print(f"{TASKS} tasks, {ROUNDS} kills in {now() - began_at:.0f} s,")
            took = await settled(owner, [key for key, _ in plan], chaos)
            print(f"all ended {took:.1f} s after the last")
    for key, tool in plan:
        await owner.create(key, tool)
    assert not owner.told.complaints
    await judge(chaos, owner.told)


async def settled(owner: Owner, keys: list[str], chaos: Cluster) -> float:
    """Return once every task has ended, with the seconds that it took."""
    began_at = now()
    with anyio.move_on_after(SETTLE_S_MAX):
        while len(owner.told.ended) < len(keys):
            await pause(0.1)
    missing = [key for key in keys if key not in owner.told.ended]
    assert not missing, f"not ended: {missing}\n{chaos.logs()}"
    return now() - began_at


async def judge(chaos: Cluster, told: Told) -> None:
    """Hold what is stored, what was told and what the tools did against the promises."""
    histories = await read(chaos.database_url, told.ids)
    outcomes, starts = Counter[str](), Counter[str]()
    for key, history in histories.items():
        task = invariants.check(history)
        assert task.status == told.ended[key]["status"], key
        assert task.updated_at == told.ended[key]["lastUpdatedAt"], key
        outcomes[f"{task.opened.tool} {task.status}"] += 1
        judge_questions(key, history, told)
        if task.status == "failed":
            judge_failure(key, task)
        starts[key] = chaos.lines("start").count(f"start {key}")
        assert starts[key] <= 1 or task.opened.tool != "unsafe", key
        assert starts[key] >= 1 or task.status == "failed", key
    again = sum(count - 1 for count in starts.values())
    print(f"{dict(outcomes)}; {again} runs were repeated")


def judge_failure(key: str, task: Task) -> None:
    """Only what may not run again, or has cost too many workers, fails for the loss of one."""
    assert task.error is not None
    assert task.error["data"] == {"reason": "worker_lost"}, (key, task.error)
    may_run_again = task.opened.rerun_is_safe or task.has_checkpoint
    assert not may_run_again or task.losses >= LOSSES_MAX, (key, task)


def judge_questions(key: str, history: list[TaskEvent], told: Told) -> None:
    """One question a task, asked under one key, and the answer that was acknowledged."""
    asked = [k for e in history if isinstance(e, events.InputRequested) for k in e.questions]
    stored = {k for e in history if isinstance(e, events.InputReceived) for k in e.answers}
    assert set(asked) >= told.asked[key], (key, asked)
    assert len(asked) <= 1, (key, asked)
    assert stored >= told.answered[key], (key, stored)


async def read(url: str, ids: dict[str, str]) -> dict[str, list[TaskEvent]]:
    """The history of each key's task, as PostgreSQL has it."""
    database = Database(url)
    log = PostgresEventLog(database)
    await database.open()
    try:
        return {key: list(await log.read(task_id)) for key, task_id in ids.items()}
    finally:
        log.close()
        await database.close()
