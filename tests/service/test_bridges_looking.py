"""One look by the status tool: what of each answer is taken for what."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest

from outlast.domain import errors, jobs
from outlast.domain.jobs import Sight
from outlast.domain.ports import (
    CallNews,
    Faulted,
    HeldAsk,
    LegEnded,
    Progress,
    Returned,
    RunningCall,
    Tool,
    ToolCall,
)
from outlast.domain.task import Task
from outlast.service.bridging import answering
from outlast.service.bridging.port import Away, Cancelled, Completed, Seen, Unknown, Working
from outlast.service.bridging.status_tool import StatusTools
from outlast.service.policy import StatusBridge
from outlast.tests.domain.given import DEPLOY, after, at, running
from outlast.tests.service.callback_bench import Scripted

pytestmark = pytest.mark.anyio

POLICY = StatusBridge(
    job_id="structuredContent.id",
    job_argument="job",
    repeat=("branch", "missing"),
    status_tool="status",
    status="structuredContent.state",
    working=("running", "false"),
    completed=("done", "true", "2"),
    failed=("error",),
    cancelled=("cancelled",),
    message="structuredContent.message",
    progress="structuredContent.percent",
    total="structuredContent.of",
    cancel_tool="cancel",
)
FETCHING = POLICY.model_copy(update={"result_tool": "result"})


class Silent(Scripted):
    """A call that says nothing and does not end."""

    async def news(self) -> AsyncIterator[CallNews]:
        await anyio.sleep_forever()
        yield Progress(1, None, None)


class Upstream:
    """Answers each tool with what it was told, and keeps the calls."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.calls: list[ToolCall] = []

    async def tools(self) -> Sequence[Tool]:
        return [Tool(f"ci_{name}", "ci", name, {}) for name in ("status", "cancel")]

    async def ready(self, upstream: str, capabilities: Any = None) -> None:
        del upstream, capabilities

    async def call(self, call: ToolCall) -> RunningCall:
        self.calls.append(call)
        answer = self.answers[call.tool]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Silent):
            return answer
        news: list[CallNews] = (
            answer if isinstance(answer, list) else [Progress(1, 2, None), answer]
        )
        return Scripted(*news)

    async def close(self) -> None:
        """Nothing is open."""


def followed(job_id: Any = "job-1") -> Task:
    task = running(arguments={"branch": "main", "other": 1})
    job = {"kind": "status_tool", "id": job_id}
    return after(task, jobs.follow(task, 1, job, None, at(4), at(3)))


def tells(**facts: Any) -> Returned:
    return Returned({"content": [], "structuredContent": facts})


async def look(policy: StatusBridge = POLICY, **answers: Any) -> Seen:
    return await StatusTools(Upstream(**answers), lambda _upstream, _tool: policy).look(followed())


@pytest.mark.parametrize(
    ("facts", "sight"),
    [
        ({"state": "running"}, Sight("running")),
        ({"state": "asleep"}, Sight("asleep")),
        ({"state": False}, Sight("false")),
        ({"state": 3.0}, Sight("3")),
        ({"state": "running", "message": "linking"}, Sight("linking")),
        ({"state": "running", "percent": 4, "of": 9}, Sight("running, 4 of 9", 4, 9)),
        ({"state": "running", "percent": " 42% "}, Sight("running, 42", 42)),
        ({"state": "running", "percent": "soon"}, Sight("running")),
        ({"state": "running", "percent": "nan"}, Sight("running")),
        ({"state": "running", "percent": True}, Sight("running")),
    ],
)
async def test_a_job_that_goes_on_is_told_of(facts: dict[str, Any], sight: Sight) -> None:
    assert await look(status=tells(**facts)) == Working(sight)


@pytest.mark.parametrize("state", ["done", True, 2, 2.0])
async def test_a_state_is_compared_as_it_would_be_written(state: Any) -> None:
    seen = await look(status=tells(state=state))
    result = {"resultType": "complete", "content": [], "structuredContent": {"state": state}}
    assert seen == Completed(result)


async def test_the_result_tool_has_the_last_word() -> None:
    seen = await look(FETCHING, status=tells(state="done"), result=tells(built=1))
    assert isinstance(seen, Completed)
    assert seen.result["structuredContent"] == {"built": 1}


async def test_a_failed_job_is_an_error_as_a_result() -> None:
    seen = await look(FETCHING, status=tells(state="error"))
    assert isinstance(seen, Completed)
    assert seen.result["isError"] is True


async def test_a_state_counts_although_the_answer_is_an_error() -> None:
    failed = Returned({"content": [], "structuredContent": {"state": "error"}, "isError": True})
    assert isinstance(await look(status=failed), Completed)


async def test_a_cancelled_job_is_that() -> None:
    assert await look(status=tells(state="cancelled")) == Cancelled()


GONE = Returned({"content": [{"type": "text", "text": "no such job"}], "isError": True})


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (GONE, "no such job"),
        (Faulted(-32602, "Unknown tool: status"), "Unknown tool: status"),
        (LegEnded([DEPLOY], None), "wants to ask"),
        (tells(state=None), "nothing that is known here"),
        (tells(), "nothing that is known here"),
    ],
    ids=["an error", "a fault", "a question", "no state", "nothing"],
)
async def test_an_answer_without_a_state_is_no_sight_of_the_job(answer: Any, why: str) -> None:
    for seen in (
        await look(status=answer),
        await look(FETCHING, status=tells(state="done"), result=answer)
        if isinstance(answer, Faulted | LegEnded) or answer is GONE
        else None,
    ):
        assert seen is None or (isinstance(seen, Unknown) and why in seen.why), seen


async def test_an_upstream_that_is_away_says_nothing_of_the_job() -> None:
    assert isinstance(await look(status=errors.UpstreamUnavailable("ci", "gone")), Away)


async def test_a_tool_that_does_not_answer_says_nothing_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answering, "ANSWER_S_MAX", 0.05)
    seen = await look(status=Silent())
    assert isinstance(seen, Away)
    assert "status did not answer" in seen.why


async def test_a_question_of_the_status_tool_is_refused() -> None:
    refused: list[str] = []
    asks = HeldAsk(DEPLOY, lambda _result: None, lambda _code, message: refused.append(message))
    assert isinstance(await look(status=[asks, tells(state="running")]), Working)
    assert refused == ["Nobody can be asked anything here"]


async def test_the_tools_are_called_with_the_id_as_it_came_and_what_is_to_be_repeated() -> None:
    upstream = Upstream(status=tells(state="done"), result=tells(), cancel=tells())
    bridge = StatusTools(upstream, lambda _upstream, _tool: FETCHING)
    task = followed(7)
    await bridge.look(task)
    assert await bridge.cancel(task) is True
    assert [call.tool for call in upstream.calls] == ["status", "result", "cancel"]
    assert [call.upstream for call in upstream.calls] == [task.opened.upstream] * 3
    for call in upstream.calls:
        assert call.arguments == {"job": 7, "branch": "main"}


@pytest.mark.parametrize(
    ("answer", "told"),
    [(GONE, True), (errors.UpstreamUnavailable("ci", "gone"), False), (tells(), True)],
    ids=["refused", "away", "done"],
)
async def test_a_cancel_is_told_once_the_upstream_was_reached(answer: Any, told: bool) -> None:
    bridge = StatusTools(Upstream(cancel=answer), lambda _upstream, _tool: POLICY)
    assert await bridge.cancel(followed()) is told


@pytest.mark.parametrize(
    ("result", "job_id"),
    [
        ({"structuredContent": {"id": "a"}}, "a"),
        ({"structuredContent": {"id": 0}}, 0),
        ({"structuredContent": {"id": ""}}, None),
        ({"structuredContent": {"id": True}}, None),
        ({"structuredContent": {"id": 1.5}}, None),
        ({"structuredContent": {"id": "a"}, "isError": True}, None),
        ({"structuredContent": None}, None),
        ({}, None),
    ],
)
def test_a_first_answer_names_a_job_or_is_the_result(result: Any, job_id: Any) -> None:
    bridge = StatusTools(Upstream(), lambda _upstream, _tool: POLICY)
    job = bridge.job_in(running(), result)
    assert job == (None if job_id is None else {"kind": "status_tool", "id": job_id})


def test_a_tool_without_a_bridge_starts_no_job() -> None:
    bridge = StatusTools(Upstream(), lambda _upstream, _tool: None)
    assert bridge.job_in(running(), {"structuredContent": {"id": "a"}}) is None


async def test_a_job_whose_policy_is_gone_is_not_given_up() -> None:
    bridge = StatusTools(Upstream(), lambda _upstream, _tool: None)
    assert isinstance(await bridge.look(replace(followed())), Away)
    assert await bridge.cancel(followed()) is None


async def test_a_tool_that_the_upstream_does_not_have_is_named_before_it_is_needed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bridge = StatusTools(Upstream(status=tells(state="running")), lambda _upstream, _tool: FETCHING)
    for _ in range(2):
        await bridge.look(followed())
    assert [record.message for record in caplog.records] == [
        f"tool {followed().opened.tool} of ci: its upstream has no tool result"
    ]
