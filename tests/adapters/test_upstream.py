"""Calls on real upstream servers: child processes, and other processes over HTTP, in both eras."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from opentelemetry import trace

from outlast.adapters import upstream_server
from outlast.adapters.upstream import McpUpstreams
from outlast.adapters.upstream_request import of_tool
from outlast.adapters.upstream_wire import outcome_of, without_transport_meta
from outlast.domain import errors
from outlast.domain.decisions import Ask
from outlast.domain.ports import (
    Faulted,
    HeldAsk,
    LegEnded,
    Progress,
    Returned,
    RunningCall,
    ToolCall,
)
from outlast.tests.support.upstreams import (
    FORM,
    NO,
    WAIT_S,
    YES,
    begin,
    first,
    hear,
    outcome,
    stdio,
    text,
    until_it_exists,
)

pytestmark = pytest.mark.anyio


class TestWhatComesBack:
    async def test_a_call_returns_the_result_of_the_tool(self, everyday: McpUpstreams) -> None:
        news = await outcome(everyday, "add", {"a": 1, "b": 2})
        assert isinstance(news, Returned)
        assert news.result["structuredContent"] == {"result": 3}

    async def test_a_result_keeps_every_field_that_nobody_knows(
        self, everyday: McpUpstreams
    ) -> None:
        assert await outcome(everyday, "strange") == Returned(
            {
                "resultType": "complete",
                "content": [{"type": "text", "text": "odd", "x-part": 1}],
                "structuredContent": {"nothing": None},
                "x-unknown": {"deep": [1, None, "two"]},
                "_meta": {"dev.example/key": {"a": None}},
            }
        )

    async def test_progress_comes_in_order_and_before_the_result(
        self, everyday: McpUpstreams
    ) -> None:
        *progress, last = await hear(await begin(everyday, "steps", {"count": 5}))
        assert progress == [Progress(n, 5, f"step {n}") for n in range(1, 6)]
        assert text(last) == "done"

    async def test_a_failing_tool_is_a_result(self, everyday: McpUpstreams) -> None:
        news = await outcome(everyday, "grumble")
        assert isinstance(news, Returned)
        assert news.result["isError"] is True

    async def test_a_protocol_error_comes_through_whole(self, everyday: McpUpstreams) -> None:
        assert await outcome(everyday, "fault") == Faulted(-32050, "no such thing", {"thing": 7})

    async def test_an_error_that_looks_like_a_closed_connection_is_an_answer(
        self, everyday: McpUpstreams
    ) -> None:
        assert await outcome(everyday, "closed_code") == Faulted(-32000, "Connection closed")

    async def test_an_unknown_tool_is_for_the_upstream_to_refuse(
        self, everyday: McpUpstreams
    ) -> None:
        assert "Unknown tool" in text(await outcome(everyday, "no_such_tool"))

    async def test_null_arguments_reach_the_tool(self, everyday: McpUpstreams) -> None:
        news = await outcome(everyday, "add", {"a": None, "b": 2})
        assert "input_value=None" in text(news)

    async def test_the_trace_goes_with_the_request(self, everyday: McpUpstreams) -> None:
        given = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "x=1", "other": "no"}
        meta = json.loads(text(await outcome(everyday, "who_asks", trace=given)))["meta"]
        assert meta["traceparent"] == given["traceparent"]
        assert meta["tracestate"] == given["tracestate"]
        assert "other" not in meta

    async def test_the_server_sees_what_this_client_can_answer(
        self, everyday: McpUpstreams
    ) -> None:
        for capabilities in (FORM, {"sampling": {}, "roots": {}}, {}):
            seen = json.loads(text(await outcome(everyday, "who_asks", {}, capabilities)))
            assert seen["capabilities"] == capabilities

    async def test_the_tasks_extension_is_not_passed_on(self) -> None:
        extensions = {"io.modelcontextprotocol/tasks": {}, "dev.example/other": {"x": 1}}
        async with McpUpstreams([stdio("everyday")]) as upstreams:
            seen = json.loads(
                text(await outcome(upstreams, "who_asks", {}, {"extensions": extensions}))
            )
        assert seen["capabilities"] == {"extensions": {"dev.example/other": {"x": 1}}}

    async def test_many_calls_share_one_connection(self) -> None:
        async with McpUpstreams([stdio("everyday")]) as upstreams:
            running = [await begin(upstreams, "pid", {}, FORM) for _ in range(50)]
            assert len({text((await hear(call))[-1]) for call in running}) == 1


class TestNews:
    async def test_a_slow_reader_gets_the_last_progress_and_the_outcome(self) -> None:
        async with McpUpstreams([stdio("everyday")]) as upstreams:
            running = await upstreams.call(ToolCall("everyday", "steps", {"count": 500}, {}))
            await asyncio.wait({running.task}, timeout=WAIT_S)
            *progress, last = await hear(running)
        assert len(progress) <= 64
        assert progress[-1] == Progress(500, 500, "step 500")
        assert text(last) == "done"

    async def test_a_call_is_handed_from_one_reader_to_the_next(self, tmp_path: Path) -> None:
        async with McpUpstreams([stdio("asking", "--legacy")]) as upstreams:
            running = await begin(upstreams, "confirm", {"question": "?"}, FORM, upstream="asking")
            held = await first(running)
            with anyio.move_on_after(0.05):
                _ = [news async for news in running.news()]
            assert isinstance(held, HeldAsk)
            held.reply(YES)
            assert [text(news) for news in await hear(running)] == ["yes"]
            assert [text(news) for news in await hear(running)] == ["yes"]

    async def test_a_call_outlives_the_scope_that_began_it(self, everyday: McpUpstreams) -> None:
        begun: list[RunningCall] = []
        with anyio.CancelScope() as request:
            begun.append(await begin(everyday, "steps", {"count": 3}))
            request.cancel()
            await anyio.lowlevel.checkpoint()
        assert text((await hear(begun[0]))[-1]) == "done"

    async def test_a_call_takes_nothing_along_from_the_request_that_began_it(
        self, everyday: McpUpstreams
    ) -> None:
        span = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False))
        with trace.use_span(span):
            seen = json.loads(text(await outcome(everyday, "who_asks")))
        assert "traceparent" not in seen["meta"]


class TestModernLegs:
    async def test_two_legs_ask_and_answer(self, modern_asking: McpUpstreams) -> None:
        leg = await outcome(modern_asking, "two_questions", {}, FORM, upstream="asking")
        assert isinstance(leg, LegEnded)
        assert [ask.name for ask in leg.asks] == ["first", "second"]
        assert leg.asks[0].request["method"] == "elicitation/create"
        assert leg.asks[0].request["params"]["message"] == "First?"
        assert leg.request_state is not None
        last = await outcome(
            modern_asking,
            "two_questions",
            {},
            FORM,
            upstream="asking",
            answers={"first": YES, "second": NO},
            request_state=leg.request_state,
        )
        assert text(last) == "yes no half-way"

    async def test_a_leg_may_carry_a_state_alone(self, modern_asking: McpUpstreams) -> None:
        leg = await outcome(modern_asking, "checkpoint", upstream="asking")
        assert isinstance(leg, LegEnded)
        assert leg.asks == []
        last = await outcome(
            modern_asking, "checkpoint", upstream="asking", request_state=leg.request_state
        )
        assert text(last) == "resumed from mark"

    async def test_sampling_and_roots_are_asked_for_in_legs(
        self, modern_asking: McpUpstreams
    ) -> None:
        capabilities = {"sampling": {}, "roots": {}}
        for tool, arguments, name, answer, result in ASKED:
            leg = await outcome(modern_asking, tool, arguments, capabilities, upstream="asking")
            assert isinstance(leg, LegEnded)
            assert [ask.name for ask in leg.asks] == [name]
            last = await outcome(
                modern_asking,
                tool,
                arguments,
                capabilities,
                upstream="asking",
                answers={name: answer},
            )
            assert text(last) == result


PARIS = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "Paris"}}
HOME = {"roots": [{"uri": "file:///home/me"}]}
ASKED: list[tuple[str, dict[str, Any], str, dict[str, Any], str]] = [
    ("capital", {"country": "France"}, "draft", PARIS, "Paris"),
    ("folders", {}, "roots", HOME, "file:///home/me"),
]


class TestLegacyAsks:
    async def test_a_question_is_held_until_it_is_answered(
        self, legacy_asking: McpUpstreams
    ) -> None:
        running = await begin(
            legacy_asking, "confirm", {"question": "Go?"}, FORM, upstream="asking"
        )
        held = await first(running)
        assert isinstance(held, HeldAsk)
        assert held.ask.request["method"] == "elicitation/create"
        assert held.ask.request["params"]["message"] == "Go?"
        held.reply(YES)
        assert [text(news) for news in await hear(running)] == ["yes"]

    async def test_asking_again_is_the_same_request(self, legacy_asking: McpUpstreams) -> None:
        requests: list[Any] = []
        for _ in range(2):
            running = await begin(
                legacy_asking, "confirm", {"question": "Go?"}, FORM, upstream="asking"
            )
            held = await first(running)
            assert isinstance(held, HeldAsk)
            requests.append(held.ask.request)
            await running.cancel()
        assert requests[0] == requests[1]

    async def test_each_of_two_calls_gets_its_own_answer(self, legacy_asking: McpUpstreams) -> None:
        calls = [
            await begin(legacy_asking, "confirm", {"question": q}, FORM, upstream="asking")
            for q in ("one", "two")
        ]
        held = [await first(running) for running in calls]
        for ask, question, answer in zip(held, ("one", "two"), (YES, NO), strict=True):
            assert isinstance(ask, HeldAsk)
            assert ask.ask.request["params"]["message"] == question
            ask.reply(answer)
        assert [text((await hear(running))[-1]) for running in calls] == ["yes", "no"]

    async def test_a_refusal_reaches_the_tool(self, legacy_asking: McpUpstreams) -> None:
        running = await begin(legacy_asking, "patient", {"question": "?"}, FORM, upstream="asking")
        held = await first(running)
        assert isinstance(held, HeldAsk)
        held.refuse(-32042, "nobody is there")
        held.reply(YES)  # too late
        assert [text(news) for news in await hear(running)] == ["refused -32042"]

    @pytest.mark.parametrize("capabilities", [{}, {"sampling": {}}, {"elicitation": {"url": {}}}])
    async def test_what_the_client_cannot_answer_is_refused_unheard(
        self, legacy_asking: McpUpstreams, capabilities: Mapping[str, Any]
    ) -> None:
        running = await begin(
            legacy_asking, "patient", {"question": "?"}, capabilities, upstream="asking"
        )
        assert [text(news) for news in await hear(running)] == ["refused -32601"]

    async def test_sampling_and_roots_are_held(self, legacy_asking: McpUpstreams) -> None:
        for tool, arguments, _, answer, result in ASKED:
            running = await begin(
                legacy_asking, tool, arguments, {"sampling": {}, "roots": {}}, upstream="asking"
            )
            held = await first(running)
            assert isinstance(held, HeldAsk)
            held.reply(answer)
            assert [text(news) for news in await hear(running)] == [result]

    async def test_a_call_for_which_no_connection_is_left_is_not_sent(
        self, legacy_asking: McpUpstreams, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(upstream_server, "HELD_LINKS_MAX", 1)
        question = {"question": "?"}
        running = await begin(legacy_asking, "confirm", question, FORM, upstream="asking")
        with pytest.raises(errors.UpstreamUnavailable):
            await begin(legacy_asking, "confirm", question, FORM, upstream="asking")
        await running.cancel()

    async def test_a_connection_is_used_again_but_not_after_a_cancel(self, tmp_path: Path) -> None:
        async with McpUpstreams([stdio("everyday", "--legacy")]) as upstreams:
            pids = [text(await outcome(upstreams, "pid", {}, FORM)) for _ in range(2)]
            assert pids[0] == pids[1]
            running = await begin(upstreams, "hold", {"folder": str(tmp_path)}, FORM)
            await until_it_exists(tmp_path / "started")
            await running.cancel()
            assert text(await outcome(upstreams, "pid", {}, FORM)) != pids[0]


class TestCancel:
    async def test_a_cancel_reaches_the_tool(self, everyday: McpUpstreams, tmp_path: Path) -> None:
        running = await begin(everyday, "hold", {"folder": str(tmp_path)})
        await until_it_exists(tmp_path / "started")
        with anyio.fail_after(WAIT_S):
            await running.cancel()
            await running.cancel()
        await until_it_exists(tmp_path / "stopped")
        assert await hear(running) == []
        assert text(await outcome(everyday, "steps", {"count": 1})) == "done"

    async def test_an_outcome_that_came_first_stays(self, everyday: McpUpstreams) -> None:
        running = await begin(everyday, "steps", {"count": 1})
        assert text((await hear(running))[-1]) == "done"
        await running.cancel()
        assert text((await hear(running))[-1]) == "done"


class TestWire:
    """What no fixture server does, and a server of the world may."""

    def test_the_trace_is_written_down_and_nothing_beside_it(self) -> None:
        call = ToolCall("u", "t", {}, {}, trace={"baggage": "k=v", "other": "no"})
        request = of_tool(call, lambda result: result)
        assert request.wire(modern=True)["_meta"] == {"baggage": "k=v"}

    def test_a_question_is_the_same_whatever_its_transport_adds(self) -> None:
        meta = {"progressToken": 7, "traceparent": "00-1", "dev.example/kept": 1}
        assert without_transport_meta({"message": "?", "_meta": meta}) == {
            "message": "?",
            "_meta": {"dev.example/kept": 1},
        }
        assert without_transport_meta({"_meta": {"progressToken": 8}}) == {}

    @pytest.mark.parametrize(
        "result",
        [
            {"resultType": "task", "taskId": "x"},
            {"resultType": "input_required", "inputRequests": ["?"]},
            {"resultType": "input_required", "inputRequests": {"a": {"params": {}}}},
            {"resultType": "input_required", "inputRequests": {"a": "elicitation/create"}},
        ],
    )
    def test_a_result_that_cannot_be_meant_is_a_fault(self, result: dict[str, Any]) -> None:
        assert isinstance(outcome_of(result), Faulted)

    def test_a_request_may_lack_parameters(self) -> None:
        leg = outcome_of({"resultType": "input_required", "inputRequests": {"r": {"method": "m"}}})
        assert leg == LegEnded([Ask("r", {"method": "m"})], None)
