"""Calls on real upstream servers: child processes over stdio, other processes over HTTP, both
eras."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.lowlevel
import pytest

from outlast.adapters import upstream_link
from outlast.adapters.upstream import McpUpstreams, UpstreamSettings, backoff_s
from outlast.domain import errors
from outlast.domain.ports import (
    CallNews,
    Faulted,
    HeldAsk,
    LegEnded,
    Progress,
    Returned,
    RunningCall,
    ToolCall,
)

pytestmark = pytest.mark.anyio

SERVERS = Path(__file__).parent.parent / "upstreams"
WAIT_S = 20.0
YES = {"action": "accept", "content": {"agreed": True}}
NO = {"action": "accept", "content": {"agreed": False}}
FORM = {"elicitation": {"form": {}}}
EVERY_WAY = ["stdio-modern", "stdio-legacy", "http-modern", "http-legacy"]
Era = Literal["auto", "modern", "legacy"]


def stdio(server: str, *flags: str, name: str | None = None, era: Era = "auto") -> UpstreamSettings:
    command = [sys.executable, str(SERVERS / f"{server}.py"), *flags]
    return UpstreamSettings(name or server, command=command, era=era)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def http_server(server: str, port: int, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(SERVERS / f"{server}.py"), "--http", str(port), *flags]
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(WAIT_S):
        # Another process can set no event of ours: look again.
        while not await condition():  # noqa: ASYNC110 - see above
            await anyio.sleep(0.02)  # noqa: TID251 - see above


async def until_it_listens(port: int) -> None:
    async def listens() -> bool:
        try:
            await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
        except OSError:
            return False
        return True

    await until(listens)


async def until_it_exists(path: Path) -> None:
    await until(anyio.Path(path).exists)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def http_ports() -> Iterator[Mapping[str, int]]:
    """One HTTP process for each fixture server; both speak both eras, the client chooses."""
    ports = {"everyday": free_port(), "asking": free_port()}
    with http_server("everyday", ports["everyday"]), http_server("asking", ports["asking"]):
        yield ports


@asynccontextmanager
async def reached(way: str, server: str, ports: Mapping[str, int]) -> AsyncIterator[McpUpstreams]:
    transport, era = way.split("-")
    eras: dict[str, Era] = {"modern": "modern", "legacy": "legacy"}
    settings = stdio(server, *(["--legacy"] if era == "legacy" else []))
    if transport == "http":
        await until_it_listens(ports[server])
        settings = UpstreamSettings(
            server, url=f"http://127.0.0.1:{ports[server]}/mcp", era=eras[era]
        )
    async with McpUpstreams([settings]) as upstreams:
        yield upstreams


@pytest.fixture(scope="module", params=EVERY_WAY)
async def everyday(
    request: pytest.FixtureRequest, http_ports: Mapping[str, int]
) -> AsyncIterator[McpUpstreams]:
    async with reached(request.param, "everyday", http_ports) as upstreams:
        yield upstreams


@pytest.fixture(scope="module", params=["stdio-modern", "http-modern"])
async def modern_asking(
    request: pytest.FixtureRequest, http_ports: Mapping[str, int]
) -> AsyncIterator[McpUpstreams]:
    async with reached(request.param, "asking", http_ports) as upstreams:
        yield upstreams


@pytest.fixture(scope="module", params=["stdio-legacy", "http-legacy"])
async def legacy_asking(
    request: pytest.FixtureRequest, http_ports: Mapping[str, int]
) -> AsyncIterator[McpUpstreams]:
    async with reached(request.param, "asking", http_ports) as upstreams:
        yield upstreams


async def begin(
    upstreams: McpUpstreams,
    tool: str,
    arguments: Mapping[str, Any] | None = None,
    capabilities: Mapping[str, Any] | None = None,
    *,
    upstream: str = "everyday",
    **more: Any,
) -> RunningCall:
    with anyio.fail_after(WAIT_S):
        return await upstreams.call(
            ToolCall(upstream, tool, arguments or {}, capabilities or {}, **more)
        )


async def hear(running: RunningCall) -> list[CallNews]:
    with anyio.fail_after(WAIT_S):
        return [news async for news in running.news()]


async def first(running: RunningCall) -> CallNews:
    with anyio.fail_after(WAIT_S):
        async with aclosing(running.news()) as heard:  # type: ignore[type-var]
            return await anext(heard)


async def outcome(upstreams: McpUpstreams, tool: str, *args: Any, **more: Any) -> CallNews:
    return (await hear(await begin(upstreams, tool, *args, **more)))[-1]


def text(news: CallNews) -> str:
    assert isinstance(news, Returned)
    return news.result["content"][0]["text"]


async def lists(upstreams: McpUpstreams, tool: str) -> bool:
    return tool in {known.name for known in await upstreams.tools()}


async def lists_only(upstreams: McpUpstreams, upstream: str) -> bool:
    return {known.upstream for known in await upstreams.tools()} == {upstream}


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
        trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "x=1", "other": "no"}
        meta = json.loads(text(await outcome(everyday, "who_asks", trace=trace)))["meta"]
        assert meta["traceparent"] == trace["traceparent"]
        assert meta["tracestate"] == trace["tracestate"]
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


class TestLoss:
    @pytest.mark.parametrize(
        ("flags", "capabilities"),
        [([], FORM), (["--legacy"], {}), (["--legacy"], FORM)],
        ids=["modern", "legacy-shared", "legacy-held"],
    )
    async def test_a_killed_child_fails_its_call_and_the_next_call_has_a_new_child(
        self, flags: list[str], capabilities: Mapping[str, Any], tmp_path: Path
    ) -> None:
        async with McpUpstreams([stdio("everyday", *flags)]) as upstreams:
            pid = int(text(await outcome(upstreams, "pid", {}, capabilities)))
            running = await begin(upstreams, "hold", {"folder": str(tmp_path)}, capabilities)
            await until_it_exists(tmp_path / "started")
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(errors.UpstreamUnavailable):
                await hear(running)
            assert int(text(await outcome(upstreams, "pid", {}, capabilities))) != pid

    @pytest.mark.parametrize(
        ("era", "capabilities"),
        [("modern", FORM), ("legacy", {}), ("legacy", FORM)],
        ids=["modern", "legacy-shared", "legacy-held"],
    )
    async def test_a_killed_http_server_fails_its_call_and_serves_again_when_it_is_back(
        self, era: Era, capabilities: Mapping[str, Any], tmp_path: Path
    ) -> None:
        port = free_port()
        settings = UpstreamSettings("everyday", url=f"http://127.0.0.1:{port}/mcp", era=era)
        async with McpUpstreams([settings]) as upstreams:
            with http_server("everyday", port) as process:
                await until_it_listens(port)
                running = await begin(upstreams, "hold", {"folder": str(tmp_path)}, capabilities)
                await until_it_exists(tmp_path / "started")
                process.kill()
                with pytest.raises(errors.UpstreamUnavailable):
                    await hear(running)
            with pytest.raises(errors.UpstreamUnavailable):
                await begin(upstreams, "pid", {}, capabilities)  # not sent, and said so at once
            with http_server("everyday", port):
                await until_it_listens(port)
                assert text(await outcome(upstreams, "pid", {}, capabilities)).isdigit()

    @pytest.mark.parametrize(
        ("era", "capabilities"),
        [("modern", FORM), ("legacy", {}), ("legacy", FORM)],
        ids=["modern", "legacy-shared", "legacy-held"],
    )
    async def test_an_http_server_that_was_restarted_between_two_calls_is_not_noticed(
        self, era: Era, capabilities: Mapping[str, Any]
    ) -> None:
        port = free_port()
        settings = UpstreamSettings("everyday", url=f"http://127.0.0.1:{port}/mcp", era=era)
        async with McpUpstreams([settings]) as upstreams:
            pids: list[str] = []
            for _ in range(2):
                with http_server("everyday", port):
                    await until_it_listens(port)
                    pids.append(text(await outcome(upstreams, "pid", {}, capabilities)))
        assert pids[0] != pids[1]

    async def test_a_refused_connection_fails_one_call_and_not_those_that_run(
        self, http_ports: Mapping[str, int], tmp_path: Path
    ) -> None:
        await until_it_listens(http_ports["everyday"])
        async with Gateway.open(http_ports["everyday"]) as gateway:
            url = f"http://127.0.0.1:{gateway.port}/mcp"
            async with McpUpstreams([UpstreamSettings("everyday", url=url)]) as upstreams:
                running = await begin(upstreams, "hold", {"folder": str(tmp_path)})
                await until_it_exists(tmp_path / "started")
                gateway.refuse_all_but(b'"hold"')
                with pytest.raises(errors.UpstreamUnavailable):
                    await begin(upstreams, "pid")
                await running.cancel()
                await until_it_exists(tmp_path / "stopped")
                assert await hear(running) == []  # it was cancelled, not lost

    async def test_an_upstream_that_never_starts_is_tried_ever_less_often(self) -> None:
        async with McpUpstreams([UpstreamSettings("none", command=["/nonexistent"])]) as upstreams:
            reasons: list[str] = []
            for _ in range(3):
                with pytest.raises(errors.UpstreamUnavailable) as caught:
                    await begin(upstreams, "pid", upstream="none")
                reasons.append(caught.value.reason)
        assert ["next attempt" in reason for reason in reasons] == [False, False, True]

    async def test_a_server_that_never_speaks_is_given_up(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(upstream_link, "OPEN_S_MAX", 0.3)
        command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        async with McpUpstreams([UpstreamSettings("mute", command=command)]) as upstreams:
            with pytest.raises(errors.UpstreamUnavailable, match="no answer within"):
                await begin(upstreams, "pid", upstream="mute")

    @pytest.mark.parametrize("body", [b"<html>", b'{"detail": "no"}'])
    async def test_a_gateway_that_answers_for_the_server_is_told_from_it(self, body: bytes) -> None:
        async with answering(b"503 Service Unavailable", body) as port:
            settings = UpstreamSettings("everyday", url=f"http://127.0.0.1:{port}/mcp")
            async with McpUpstreams([settings]) as upstreams:
                with pytest.raises(errors.UpstreamUnavailable, match="HTTP 503"):
                    await begin(upstreams, "pid")

    def test_the_back_off_doubles_up_to_its_cap(self) -> None:
        assert [backoff_s(n) for n in range(6)] == [0, 0, 0.5, 1, 2, 4]
        assert backoff_s(10_000) == 30

    async def test_an_upstream_that_is_not_configured_is_unavailable(self) -> None:
        async with McpUpstreams([]) as upstreams:
            with pytest.raises(errors.UpstreamUnavailable):
                await begin(upstreams, "pid")
            assert await upstreams.tools() == []


class TestCatalogue:
    async def test_one_upstream_keeps_its_names_and_all_of_its_words(
        self, everyday: McpUpstreams
    ) -> None:
        tools = {tool.name: tool for tool in await everyday.tools()}
        assert {"add", "hold", "region"} <= tools.keys()
        assert tools["add"].definition["x-unknown"] == {"kept": None}
        assert tools["add"].definition["inputSchema"]["required"] == ["a", "b"]

    async def test_several_upstreams_are_told_apart_and_one_that_is_down_is_left_out(self) -> None:
        down = UpstreamSettings("down", url=f"http://127.0.0.1:{free_port()}/mcp")
        given = [stdio("everyday", name="a-1"), stdio("asking", "--legacy", name="b"), down]
        async with McpUpstreams(given) as upstreams:
            tools = {tool.name: tool for tool in await upstreams.tools()}
            assert {"a-1_add", "b_confirm"} <= tools.keys()
            assert {tool.upstream for tool in tools.values()} == {"a-1", "b"}
            chosen = tools["a-1_add"]
            assert chosen.definition["name"] == "a-1_add"
            news = await outcome(
                upstreams, chosen.upstream_name, {"a": 1, "b": 1}, upstream=chosen.upstream
            )
            assert isinstance(news, Returned)

    async def test_all_down_is_an_error(self) -> None:
        down = UpstreamSettings("down", url=f"http://127.0.0.1:{free_port()}/mcp")
        async with McpUpstreams([down]) as upstreams:
            with pytest.raises(errors.UpstreamUnavailable):
                await upstreams.tools()

    @pytest.mark.parametrize("flags", [[], ["--legacy"]], ids=["modern", "legacy"])
    async def test_every_page_is_read(self, flags: list[str]) -> None:
        async with McpUpstreams([stdio("everyday", "--page-size", "5")]) as upstreams:
            paged = await upstreams.tools()
        async with McpUpstreams([stdio("everyday", *flags)]) as upstreams:
            assert [tool.name for tool in await upstreams.tools()] == [tool.name for tool in paged]

    async def test_a_changed_list_is_read_anew(self) -> None:
        for flags in ([], ["--legacy"]):
            async with McpUpstreams([stdio("everyday", *flags)]) as upstreams:
                assert "grown" not in {tool.name for tool in await upstreams.tools()}
                await outcome(upstreams, "grow")
                await until(lambda: lists(upstreams, "grown"))

    async def test_a_dead_upstream_leaves_the_catalogue(self) -> None:
        port = free_port()
        given = [stdio("asking"), UpstreamSettings("everyday", url=f"http://127.0.0.1:{port}/mcp")]
        async with McpUpstreams(given) as upstreams:
            with http_server("everyday", port):
                await until_it_listens(port)
                assert len({tool.upstream for tool in await upstreams.tools()}) == 2
            await until(lambda: lists_only(upstreams, "asking"))

    async def test_an_argument_is_mirrored_into_its_header_without_a_listing_before(
        self, http_ports: Mapping[str, int]
    ) -> None:
        async with reached("http-modern", "everyday", http_ports) as upstreams:
            assert json.loads(text(await outcome(upstreams, "region", {"region": "eu"}))) == [
                "eu",
                "eu",
            ]

    @pytest.mark.parametrize("name", ["a_b", "", "a.b", "x" * 33])
    def test_a_name_that_would_blur_a_prefix_is_refused(self, name: str) -> None:
        with pytest.raises(errors.ConfigurationError):
            McpUpstreams(
                [UpstreamSettings(name, command=["x"]), UpstreamSettings("b", command=["x"])]
            )

    def test_a_command_and_a_url_exclude_each_other(self) -> None:
        for settings in (
            UpstreamSettings("a"),
            UpstreamSettings("a", command=["x"], url="http://x"),
        ):
            with pytest.raises(errors.ConfigurationError):
                McpUpstreams([settings])


class TestConnections:
    async def test_an_older_http_server_is_met_by_the_handshake(self) -> None:
        port = free_port()
        with http_server("asking", port, "--legacy"):
            await until_it_listens(port)
            settings = UpstreamSettings("asking", url=f"http://127.0.0.1:{port}/mcp")
            async with McpUpstreams([settings]) as upstreams:
                running = await begin(
                    upstreams, "confirm", {"question": "?"}, FORM, upstream="asking"
                )
                assert isinstance(await first(running), HeldAsk)

    async def test_a_modern_setting_takes_no_older_server(self) -> None:
        async with McpUpstreams([stdio("everyday", "--legacy", era="modern")]) as upstreams:
            with pytest.raises(errors.UpstreamUnavailable):
                await upstreams.tools()

    async def test_a_child_talks_to_our_stderr(self, capfd: pytest.CaptureFixture[str]) -> None:
        async with McpUpstreams([stdio("everyday")]) as upstreams:
            await outcome(upstreams, "noisy")
        captured = capfd.readouterr()
        assert "the child has something to say" in captured.err
        assert captured.out == ""

    async def test_closing_ends_calls_and_children(self, tmp_path: Path) -> None:
        upstreams = McpUpstreams([stdio("everyday", "--legacy")])
        pids = [int(text(await outcome(upstreams, "pid", {}, c))) for c in ({}, FORM)]
        running = await begin(upstreams, "hold", {"folder": str(tmp_path)}, FORM)
        with anyio.fail_after(WAIT_S):
            await upstreams.close()
            await upstreams.close()
        assert await hear(running) == []
        assert not any(is_alive(pid) for pid in pids)
        with pytest.raises(errors.UpstreamUnavailable):
            await begin(upstreams, "pid")


@asynccontextmanager
async def answering(status: bytes, body: bytes) -> AsyncIterator[int]:
    """An HTTP server that says the same to everyone; yields its port."""
    kind = b"application/json" if body.startswith(b"{") else b"text/html"
    head = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head % (status, kind, len(body)) + body)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


class Gateway:
    """A TCP gateway that can be told to take no new connection and to cut the old ones."""

    _server: asyncio.Server

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._open: dict[asyncio.StreamWriter, bytes] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, target: int) -> AsyncIterator["Gateway"]:
        gateway = cls(target)
        gateway._server = await asyncio.start_server(gateway._carry, "127.0.0.1", 0)
        gateway.port = gateway._server.sockets[0].getsockname()[1]
        try:
            yield gateway
        finally:
            gateway.refuse_all_but(None)
            await gateway._server.wait_closed()

    def refuse_all_but(self, words: bytes | None) -> None:
        """Close the door, and every connection over which these words have not been sent."""
        self._server.close()
        for writer, sent in list(self._open.items()):
            if words is None or words not in sent:
                writer.transport.abort()

    async def _carry(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, forth = await asyncio.open_connection("127.0.0.1", self._target)
        self._open[back] = b""
        answers = asyncio.create_task(_pump(far, back))
        try:
            while data := await near.read(65536):
                self._open[back] += data
                forth.write(data)
        except OSError:
            pass
        finally:
            del self._open[back]
            forth.close()
            await answers
            back.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            sink.write(data)
    except OSError:
        pass
    sink.close()
