"""Following a task that a scripted server tells: what is asked once, again, later or not at all."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from outlast.domain import errors
from outlast.domain.clienting import TaskExpired
from outlast.service.cli.client import codes, outcomes
from outlast.service.cli.client.asking import Asker
from outlast.service.cli.client.following import Follower
from outlast.service.cli.client.interrupts import Interrupts
from outlast.service.cli.client.outcomes import Outcome, Seen

pytestmark = pytest.mark.anyio

FORM = {"method": "elicitation/create", "params": {"message": "Well?"}}
MODEL = {"method": "sampling/createMessage", "params": {}}


@dataclass(frozen=True)
class State:
    task: Mapping[str, Any]
    version: int | None = None
    task_id: str = "t-1"

    @property
    def is_terminal(self) -> bool:
        return self.task["status"] in ("completed", "failed", "cancelled")


def state(status: str, **more: Any) -> State:
    return State({"taskId": "t-1", "status": status, **more})


def asking(**requests: Any) -> State:
    return state("input_required", inputRequests=requests)


DONE = state("completed", result={"content": []})


class Handle:
    """Tells its states one by one; those after a question wait for its answer."""

    task_id, tool = "t-1", "tool"

    def __init__(self, states: Sequence[State | Exception], refusals: Sequence[Exception] = ()):
        self._states, self._refusals = states, list(refusals)
        self.given: list[Mapping[str, Any]] = []
        self.answered: frozenset[str] = frozenset()
        self.news = anyio.Event()
        self.is_cancelled = False

    async def updates(self) -> AsyncGenerator[State]:
        for each in self._states:
            if isinstance(each, Exception):
                raise each
            yield each
            if any(r["method"] == FORM["method"] for r in outcomes.questions(each.task).values()):
                await self.news.wait()

    async def cancel(self) -> None:
        self.is_cancelled = True

    async def answer(self, responses: Mapping[str, Mapping[str, Any]]) -> None:
        self.given.append(responses)
        if self._refusals:
            raise self._refusals.pop(0)
        self.answered |= responses.keys()
        self.news.set()


class Notes:
    """A screen that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.ends: list[Outcome] = []

    def began(self, task_id: str, tool: str | None) -> None: ...
    def detached(self, task_id: str) -> None: ...
    def state(self, seen: Seen) -> None: ...
    def close(self) -> None: ...

    def note(self, words: str) -> None:
        self.notes.append(words)

    def ended(self, outcome: Outcome) -> None:
        self.ends.append(outcome)

    @contextmanager
    def held(self):
        yield


class Person(Asker):
    """Somebody who declines every form."""

    def __init__(self, screen: Notes) -> None:
        super().__init__("http://server", screen, None)
        self.asked = 0

    def can_answer(self, request: Mapping[str, Any]) -> bool:
        return request.get("method") == "elicitation/create"

    async def __call__(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.asked += 1
        return {"action": "decline"}


async def follow(*handles: Handle, timeout_s: float | None = None) -> tuple[list[Outcome], Notes]:
    screen = Notes()
    follower = Follower(screen, Person(screen), Interrupts())
    with anyio.fail_after(20):
        return await follower.follow(handles, timeout_s), screen


async def test_a_question_told_again_is_answered_once():
    handle = Handle([asking(a=FORM), asking(a=FORM), DONE])
    [outcome], _ = await follow(handle)
    assert handle.given == [{"a": {"action": "decline"}}]
    assert (outcome.kind, outcome.code) == ("result", codes.DONE)


async def test_a_question_that_an_earlier_process_answered_is_not_asked():
    handle = Handle([asking(a=FORM), DONE])
    handle.answered = frozenset({"a"})
    handle.news.set()
    [outcome], _ = await follow(handle)
    assert (handle.given, outcome.code) == ([], codes.DONE)


async def test_a_refused_answer_is_asked_again_and_said():
    handle = Handle([asking(a=FORM), DONE], [errors.RequestRefused(-32602, "\x1b[31mno")])
    [outcome], screen = await follow(handle)
    assert len(handle.given) == 2
    assert screen.notes == ["the server does not take that: no"]
    assert outcome.code == codes.DONE


async def test_what_only_a_model_can_answer_is_left_waiting_and_said():
    [outcome], _ = await follow(Handle([asking(a=MODEL), DONE]))
    assert (outcome.kind, outcome.code) == ("waiting", codes.WAITING)
    [line] = outcomes.asked(outcome.detail["inputRequests"], "t-1")
    assert line == "  a: sampling/createMessage, which this command cannot do and did not offer"


async def test_a_form_beside_it_is_answered_first():
    handle = Handle([asking(a=MODEL, b=FORM), asking(a=MODEL), DONE])
    [outcome], _ = await follow(handle)
    assert handle.given == [{"b": {"action": "decline"}}]
    assert outcome.detail["inputRequests"] == {"a": MODEL}


@pytest.mark.parametrize(
    ("last", "kind", "code"),
    [
        (DONE, "result", codes.DONE),
        (state("completed", result={"isError": True}), "result", codes.FAILED),
        (state("failed", error={"code": 1, "message": "x"}), "failed", codes.FAILED),
        (state("cancelled"), "cancelled", codes.CANCELLED),
        (TaskExpired(), "unknown", codes.NO_ANSWER),
        (errors.RequestRefused(401, "who?"), "unknown", codes.NO_ANSWER),
    ],
)
async def test_every_end_has_its_kind_and_its_exit_code(
    last: State | Exception, kind: str, code: int
):
    [outcome], screen = await follow(Handle([state("working"), last]))
    assert (outcome.kind, outcome.code) == (kind, code)
    assert screen.ends == [outcome]
    assert outcome.told()["exitCode"] == code


async def test_one_deadline_holds_over_questions_too():
    class Slow(Handle):
        async def answer(self, responses: Mapping[str, Mapping[str, Any]]) -> None:
            await anyio.sleep_forever()

    quick, slow = Handle([DONE]), Slow([asking(a=FORM), DONE])
    slow.task_id = "t-2"
    [first, second], _ = await follow(quick, slow, timeout_s=3.0)
    assert (first.kind, second.kind) == ("result", "left_running")
    assert (second.code, second.task_id) == (codes.LEFT_RUNNING, "t-2")
