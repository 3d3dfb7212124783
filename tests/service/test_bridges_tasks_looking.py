"""One look at an upstream's own task: what its answer is taken for, and when the next look is."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from outlast.adapters.bus import Bus
from outlast.adapters.memory import MemoryStore
from outlast.domain import decisions, errors, jobs
from outlast.domain.jobs import Sight
from outlast.domain.passing import Forward, Kind, Listing, Offers
from outlast.domain.ports import CallNews, Faulted, LegEnded, Returned, RunningCall
from outlast.domain.task import Task
from outlast.service.bridging import answering, upstream_tasks
from outlast.service.bridging.following import Following
from outlast.service.bridging.port import (
    Asks,
    Away,
    Cancelled,
    Completed,
    Failed,
    Seen,
    Unknown,
    Working,
)
from outlast.service.bridging.upstream_tasks import UpstreamTasks
from outlast.service.commands import Commands
from outlast.tests.domain.given import DEPLOY, OPENED, RESULT, YES, after, at, running
from outlast.tests.service.callback_bench import Scripted

pytestmark = pytest.mark.anyio

HANDLE = {"resultType": "task", "taskId": "theirs", "status": "working", "createdAt": "?"}
MISSING = Faulted(-32021, "The server asked for roots/list", {"requiredCapabilities": {}})
GONE = Faulted(-32602, "Task theirs not found")


class Silent(Scripted):
    """A request that is never answered."""

    async def news(self) -> AsyncIterator[CallNews]:
        await anyio.sleep_forever()
        yield GONE


Answer = CallNews | Exception | Silent


class Upstream:
    """Answers each method with what it was told, and keeps the requests."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self.requests: list[Forward] = []

    async def forward(self, request: Forward) -> RunningCall:
        self.requests.append(request)
        answer = self.answers[request.method.removeprefix("tasks/")]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Silent) else Scripted(answer)

    async def listed(self, kind: Kind) -> Listing:
        raise NotImplementedError

    async def offers(self) -> Offers:
        raise NotImplementedError

    def upstream_of(self, name: str) -> str | None:
        raise NotImplementedError


def followed(**told: Any) -> Task:
    task = running(trace={"traceparent": "t"}, client_capabilities={"elicitation": {}})
    job = {"kind": "upstream_task", "id": "theirs", **told}
    return after(task, jobs.follow(task, 1, job, None, at(4), at(3)))


async def look(answer: Answer, task: Task | None = None) -> Seen:
    upstream = Upstream(get=answer, cancel=Returned({}))
    return await UpstreamTasks(upstream).look(task or followed())


async def seen(**told: Any) -> Seen:
    return await look(Returned({"resultType": "complete", "taskId": "theirs", **told}))


@pytest.mark.parametrize(
    ("told", "sight"),
    [
        ({}, Sight()),
        ({"statusMessage": "linking"}, Sight("linking")),
        ({"statusMessage": 7}, Sight()),
        ({"statusMessage": "x" * 5_000}, Sight("x" * answering.MESSAGE_CHARS_MAX)),
    ],
)
async def test_a_task_that_goes_on_is_told_of(told: dict[str, Any], sight: Sight) -> None:
    found = await seen(status="working", **told)
    assert isinstance(found, Working)
    assert found.sight == sight


async def test_a_task_that_ended_well_has_the_upstreams_own_result() -> None:
    assert await seen(status="completed", result=RESULT) == Completed(
        {"resultType": "complete", **RESULT}
    )


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ({"error": {"code": -1, "message": "m", "data": [1]}}, {"code": -1, "message": "m"}),
        ({"error": {"code": "x"}, "statusMessage": "no"}, {"code": -32603, "message": "no"}),
        ({}, {"code": -32603, "message": "The task failed at its upstream"}),
    ],
)
async def test_a_task_that_failed_has_the_upstreams_own_error_if_it_is_one(
    told: dict[str, Any], error: dict[str, Any]
) -> None:
    given = told.get("error", {})
    data = {"data": given["data"]} if "data" in given else {"data": given} if given else {}
    assert await seen(status="failed", **told) == Failed({**error, **data})


async def test_a_task_that_was_cancelled_there_is_cancelled_here() -> None:
    assert await seen(status="cancelled") == Cancelled()


@pytest.mark.parametrize(
    "told", [{"status": "paused"}, {}, {"status": "completed"}, {"status": ["x"]}]
)
async def test_an_answer_that_is_no_task_counts_as_if_there_were_none(told: Any) -> None:
    assert isinstance(await seen(**told), Unknown)


async def test_what_it_asks_is_asked() -> None:
    assert await look(LegEnded([DEPLOY], None)) == Asks([DEPLOY])


@pytest.mark.parametrize("code", [-32602, -32601])
async def test_a_task_that_the_upstream_does_not_know_is_unknown(code: int) -> None:
    found = await look(Faulted(code, "Task theirs not found"))
    assert found == Unknown("The upstream answered: Task theirs not found")


async def test_one_that_was_told_to_stop_and_is_gone_has_stopped() -> None:
    task = followed()
    task = after(task, decisions.request_cancel(task, at(5)))
    assert await look(GONE, task) == Cancelled()


@pytest.mark.parametrize(
    "answer", [Faulted(-32603, "redis is away"), errors.UpstreamUnavailable("ci", "refused")]
)
async def test_an_upstream_that_cannot_tell_is_asked_later(answer: Answer) -> None:
    assert isinstance(await look(answer), Away)


async def test_an_upstream_that_says_nothing_is_asked_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answering, "ANSWER_S_MAX", 0.0)
    assert isinstance(await look(Silent()), Away)


async def test_a_task_that_asks_what_the_client_cannot_answer_is_to_stop_and_fails() -> None:
    upstream = Upstream(get=MISSING, cancel=Returned({}))
    found = await UpstreamTasks(upstream).look(followed())
    error = {"code": -32021, "message": MISSING.message, "data": MISSING.data}
    assert found == Failed(error, is_to_stop=True)
    assert [request.method for request in upstream.requests] == ["tasks/get"]


async def test_each_request_says_whose_task_it_is_for_whom_and_why() -> None:
    upstream = Upstream(update=Returned({}))
    assert await UpstreamTasks(upstream).answer(followed(), {DEPLOY.name: YES})
    params = {
        "taskId": "theirs",
        "inputResponses": {DEPLOY.name: YES},
        "_meta": {"traceparent": "t"},
    }
    assert upstream.requests == [Forward("tasks/update", params, {"elicitation": {}}, "ci")]


@pytest.mark.parametrize(
    ("answer", "is_told"),
    [
        (Returned({}), True),
        (GONE, True),
        (Faulted(-32603, "redis is away"), False),
        (errors.UpstreamUnavailable("ci", "refused"), False),
    ],
)
async def test_answers_and_cancels_are_told_again_until_the_upstream_has_them(
    answer: Answer, is_told: bool
) -> None:
    bridge = UpstreamTasks(Upstream(update=answer, cancel=answer))
    assert await bridge.answer(followed(), {DEPLOY.name: YES}) is is_told
    assert await bridge.cancel(followed()) is is_told


def test_a_handle_is_a_job_and_no_other_answer_is() -> None:
    bridge = UpstreamTasks(Upstream())
    times = {"pollIntervalMs": 250, "ttlMs": None}
    job = {"kind": "upstream_task", "id": "theirs", "pollIntervalMs": 250}
    assert bridge.job_in(running(), {**HANDLE, **times}) == job
    assert bridge.job_in(running(), RESULT) is None


@pytest.mark.parametrize(
    ("told", "pace"),
    [
        ({}, (1_000, 60_000, None)),
        ({"pollIntervalMs": 5_000, "ttlMs": 90_000}, (5_000, 60_000, 90_000)),
        ({"pollIntervalMs": 0}, (100, 60_000, None)),
        ({"pollIntervalMs": 10**12}, (1_000, 60_000, None)),
        ({"pollIntervalMs": 900_000.5}, (300_000, 300_000, None)),
        ({"pollIntervalMs": True, "ttlMs": "soon"}, (1_000, 60_000, None)),
        ({"pollIntervalMs": -1, "ttlMs": float("nan")}, (1_000, 60_000, None)),
    ],
)
async def test_the_upstream_has_its_say_in_how_often_it_is_asked(
    told: dict[str, Any], pace: tuple[int, int, int | None]
) -> None:
    known = UpstreamTasks(Upstream()).pace(followed(**told))
    newest = await seen(status="working", **told)
    assert isinstance(newest, Working)
    for given in (known, newest.pace):
        assert given is not None
        assert (given.shortest_ms, given.longest_ms, given.kept_ms) == pace


# --- in the following of a task


class World:
    """A store in memory, a clock that stands, and a task of the upstream's that is followed."""

    def __init__(self) -> None:
        self.seconds = 4.0
        self.commands = Commands(MemoryStore(Bus()), lambda: at(self.seconds))

    def following(self, answer: CallNews = GONE) -> Following:
        return Following(self.commands, [UpstreamTasks(Upstream(get=answer))])

    async def begun(self, **told: Any) -> Task:
        job = {"kind": "upstream_task", "id": "theirs", **told}
        task = await self.commands.open((OPENED,))
        for wish in (
            lambda task: decisions.start_work(task, "worker-a", self.commands.now()),
            lambda task: self.following().begun(task, 1, job, at(3_600)),
        ):
            task = await self.commands.change(task.id, wish)
        return task

    async def look(self, answer: CallNews, *, after_s: float) -> float | None:
        self.seconds += after_s
        return await self.following(answer).look(await self.commands.load(OPENED.task_id))


@pytest.mark.parametrize(
    ("told", "first_s"),
    [({"pollIntervalMs": 5_000}, 5), ({"pollIntervalMs": 5_000, "ttlMs": 3_000}, 1.5)],
)
async def test_the_first_look_is_in_time(told: dict[str, Any], first_s: float) -> None:
    task = await World().begun(**told)
    assert task.waits_until == at(4 + first_s)


async def test_looks_come_closer_before_the_upstream_may_forget_the_task() -> None:
    world = World()
    times: dict[str, Any] = {"pollIntervalMs": 40_000, "ttlMs": 100_000}
    await world.begun(**times)
    working = Returned({"status": "working", **times})
    assert await world.look(working, after_s=20) == 40
    assert await world.look(working, after_s=50) == 15
    assert await world.look(working, after_s=20) == 5
    assert await world.look(working, after_s=20) == 40  # its time is over, and it is there


async def test_an_interval_that_the_upstream_has_changed_is_kept_to() -> None:
    world = World()
    await world.begun(pollIntervalMs=200)
    slower = Returned({"status": "working", "pollIntervalMs": 30_000})
    assert await world.look(slower, after_s=1) == 30


async def test_a_task_is_lost_once_two_looks_apart_have_not_found_it() -> None:
    world = World()
    await world.begun()
    assert await world.look(GONE, after_s=600) is not None
    assert not (await world.commands.load(OPENED.task_id)).status.is_terminal
    assert await world.look(GONE, after_s=upstream_tasks.LOST_AFTER_MS / 1000) is None
    task = await world.commands.load(OPENED.task_id)
    assert task.error is not None
    assert task.error["data"] == {"reason": "job_lost"}
