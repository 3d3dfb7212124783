"""Requests that are passed on to real upstream servers, in both eras, over stdio and HTTP."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from outlast.adapters.upstream import McpUpstreams, UpstreamSettings
from outlast.domain import errors
from outlast.domain.ports import (
    CallNews,
    Faulted,
    HeldAsk,
    LegEnded,
    Logged,
    Progress,
    Returned,
    ToolCall,
)
from outlast.tests.support.passing import LOG_LEVEL, echo, read, send, words
from outlast.tests.support.ports import free_port
from outlast.tests.support.upstreams import (
    EVERY_WAY,
    FORM,
    YES,
    first,
    hear,
    http_server,
    outcome,
    reached,
    stdio,
    text,
    until_it_exists,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("patience")]

MODERN = ["stdio-modern", "http-modern"]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    number = free_port()
    with http_server("offering", number):
        yield number


@pytest.fixture(scope="module", params=EVERY_WAY)
async def way(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
async def offering(way: str, port: int) -> AsyncIterator[McpUpstreams]:
    async with reached(way, "offering", {"offering": port}) as upstreams:
        yield upstreams


@pytest.fixture
async def two() -> AsyncIterator[McpUpstreams]:
    given = [stdio("offering", name="one"), stdio("offering", "--legacy", name="Two")]
    async with McpUpstreams(given) as upstreams:
        yield upstreams


class TestResults:
    async def test_a_resource_is_read(self, offering: McpUpstreams) -> None:
        [news] = await read(offering, "note://a")
        assert isinstance(news, Returned)
        assert news.result["contents"] == [
            {
                "uri": "note://a",
                "mimeType": "text/markdown",
                "text": "the text of note://a",
                "_meta": {"dev.example/key": {"a": None}},
            }
        ]

    @pytest.mark.promise("results-pass-as-they-came")
    async def test_a_result_keeps_every_field_that_nobody_knows(
        self, offering: McpUpstreams
    ) -> None:
        assert await read(offering, "act://odd") == [
            Returned(
                {
                    "resultType": "complete",
                    "contents": [{"uri": "act://odd", "text": "odd", "x-part": 1}],
                    "x-unknown": {"deep": [1, None, "act://odd"]},
                    "_meta": {"dev.example/uri": "act://odd"},
                    "ttlMs": 77,
                    "cacheScope": "public",
                }
            )
        ]

    @pytest.mark.promise("results-pass-as-they-came")
    async def test_an_error_comes_through_whole(self, offering: McpUpstreams) -> None:
        fault = Faulted(-32050, "no such thing", {"thing": 7})
        assert await read(offering, "act://fail") == [fault]
        [unknown] = await read(offering, "note://none")
        assert unknown == Faulted(-32602, "Unknown resource: note://none", {"uri": "note://none"})

    async def test_a_method_that_the_upstream_has_not_is_its_own_to_refuse(
        self, offering: McpUpstreams
    ) -> None:
        [news] = await hear(await send(offering, "prompts/nothing", {}))
        assert isinstance(news, Faulted)
        assert news.code == -32601

    async def test_a_prompt_is_got(self, offering: McpUpstreams) -> None:
        params = {"name": "greet", "arguments": {"who": "you"}}
        [news] = await hear(await send(offering, "prompts/get", params))
        assert isinstance(news, Returned)
        said = [message["content"] for message in news.result["messages"]]
        assert said[0]["text"] == "Hello you, see note://a"
        assert (said[1]["uri"], said[2]["resource"]["uri"]) == ("note://a", "note://b")

    @pytest.mark.parametrize(
        ("ref", "named"),
        [
            ({"type": "ref/prompt", "name": "greet"}, "greet"),
            ({"type": "ref/resource", "uri": "act://{verb}"}, "act://{verb}"),
        ],
    )
    async def test_an_argument_is_completed(
        self, offering: McpUpstreams, ref: dict[str, Any], named: str
    ) -> None:
        params = {"ref": ref, "argument": {"name": "n", "value": "v"}}
        [news] = await hear(await send(offering, "completion/complete", params))
        assert isinstance(news, Returned)
        assert news.result["completion"]["values"] == [f"{named} n v"]


class TestWhatGoesAlong:
    async def test_the_clients_meta_goes_along_but_for_what_is_ours(
        self, offering: McpUpstreams, way: str
    ) -> None:
        trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "x=1"}
        seen = await echo(
            offering,
            {
                **trace,
                "dev.example/key": {"a": None},
                "dev.outlast/idempotencyKey": "secret",
                "io.modelcontextprotocol/clientInfo": {"name": "theirs", "version": "1"},
                "io.modelcontextprotocol/protocolVersion": "1999-01-01",
            },
        )
        meta = seen["meta"]
        assert meta.items() >= {**trace, "dev.example/key": {"a": None}}.items()
        assert "secret" not in str(seen)
        assert "theirs" not in str(seen)
        assert "1999" not in str(seen)
        assert "progressToken" not in meta
        assert ("io.modelcontextprotocol/clientInfo" in meta) == ("modern" in way)

    async def test_the_header_names_what_is_asked_for(
        self, offering: McpUpstreams, way: str
    ) -> None:
        headers = (await echo(offering, {}))["headers"]
        if way == "http-modern":
            assert headers["mcp-name"] == "act://echo"
            assert headers["mcp-method"] == "resources/read"
        else:
            assert "mcp-name" not in headers

    async def test_a_tools_call_takes_the_clients_meta_along(self, offering: McpUpstreams) -> None:
        call = ToolCall("offering", "chat", {"count": 2, "word": "w"}, {}, meta={LOG_LEVEL: "info"})
        *logs, last = await hear(await offering.call(call))
        assert [_data(log) for log in logs] == ["w 0", "w 1"]
        assert text(last) == "w"


class TestNews:
    async def test_progress_is_told_to_who_asked_for_it(self, offering: McpUpstreams) -> None:
        told = await read(offering, "act://work", meta={"progressToken": "p"})
        assert told[:-1] == [Progress(1, 2, "step 1"), Progress(2, 2, "step 2")]
        assert words(told[-1]) == "done"
        assert len(await read(offering, "act://work")) == 1

    async def test_logs_are_told_in_order_to_who_asked_for_them(
        self, offering: McpUpstreams
    ) -> None:
        for level, loud in (("debug", 0), ("info", 1), ("warning", 2), ("emergency", 3)):
            meta = {LOG_LEVEL: level, "progressToken": 1}
            told = await read(offering, "act://work", meta=meta)
            logs = [news.params for news in told if isinstance(news, Logged)]
            assert logs == [
                {"level": each, "logger": "offering", "data": {"at": each}}
                for each in ("debug", "info", "warning")[loud:]
            ]
            assert [news for news in told if isinstance(news, Progress)] != []
            assert isinstance(told[-1], Returned)

    @pytest.mark.promise("logs-reach-their-own-request")
    async def test_each_of_many_requests_is_told_its_own_logs(self, offering: McpUpstreams) -> None:
        calls = [
            await offering.call(
                ToolCall(
                    "offering", "chat", {"count": 5, "word": word}, {}, meta={LOG_LEVEL: "info"}
                )
            )
            for word in ("one", "two", "three")
        ]
        silent = await offering.call(ToolCall("offering", "chat", {"count": 5, "word": "no"}, {}))
        for running, word in zip(calls, ("one", "two", "three"), strict=True):
            *logs, _ = await hear(running)
            assert [_data(log) for log in logs] == [f"{word} {n}" for n in range(5)]
        assert [text(news) for news in await hear(silent)] == ["no"]

    async def test_a_legacy_server_is_told_the_level_if_it_wants_to_know(self) -> None:
        async with McpUpstreams([stdio("offering", "--legacy", "--log-level")]) as upstreams:
            for level, loud in (("warning", 2), ("debug", 0)):
                told = await read(upstreams, "act://work", meta={LOG_LEVEL: level})
                assert [_data(log) for log in told[:-1]] == [
                    {"at": each} for each in ("debug", "info", "warning")[loud:]
                ]

    async def test_a_slow_reader_gets_the_last_logs_and_the_outcome(self) -> None:
        async with McpUpstreams([stdio("offering")]) as upstreams:
            call = ToolCall(
                "offering", "chat", {"count": 500, "word": "w"}, {}, meta={LOG_LEVEL: "info"}
            )
            running = await upstreams.call(call)
            with anyio.fail_after(20):
                await _over(running.task)
            *logs, last = await hear(running)
        assert 0 < len(logs) <= 64
        assert _data(logs[-1]) == "w 499"
        assert text(last) == "w"


class TestQuestions:
    @pytest.mark.parametrize(
        ("method", "params"),
        [
            ("resources/read", {"uri": "act://ask"}),
            ("prompts/get", {"name": "consult", "arguments": {"topic": "t"}}),
        ],
    )
    async def test_a_question_is_asked_and_its_answer_goes_back(
        self, offering: McpUpstreams, way: str, method: str, params: dict[str, Any]
    ) -> None:
        running = await send(offering, method, params, FORM)
        asked = await first(running)
        if way in MODERN:
            assert isinstance(asked, LegEnded)
            assert [ask.name for ask in asked.asks] == ["ask"]
            assert asked.asks[0].request["method"] == "elicitation/create"
            again = {**params, "inputResponses": {"ask": YES}, "requestState": asked.request_state}
            [last] = await hear(await send(offering, method, again, FORM))
            expected = "accept half-way"
        else:
            assert isinstance(asked, HeldAsk)
            assert asked.ask.request["method"] == "elicitation/create"
            asked.reply(YES)
            [last] = await hear(running)
            expected = "accept"
        assert isinstance(last, Returned)
        assert expected in str(last.result)

    async def test_a_legacy_server_is_sent_no_answers_of_legs(self) -> None:
        async with McpUpstreams([stdio("offering", "--legacy")]) as upstreams:
            [news] = await read(upstreams, "note://b", inputResponses="?", requestState=7)
            assert words(news) == "b"


class TestEnds:
    async def test_a_cancel_reaches_the_upstream(
        self, offering: McpUpstreams, tmp_path: Path
    ) -> None:
        uri = f"act://hold-{str(tmp_path).replace('/', '|')}"
        running = await send(offering, "resources/read", {"uri": uri})
        await until_it_exists(tmp_path / "started")
        with anyio.fail_after(20):
            await running.cancel()
        await until_it_exists(tmp_path / "stopped")
        assert await hear(running) == []
        assert words((await read(offering, "note://b"))[-1]) == "b"

    async def test_what_is_for_an_upstream_that_is_down_names_it(self) -> None:
        down = UpstreamSettings("down", url=f"http://127.0.0.1:{free_port()}/mcp")
        async with McpUpstreams([down, stdio("offering", name="up")]) as upstreams:
            with pytest.raises(errors.UpstreamUnavailable, match="down"):
                await read(upstreams, "down+note://a")
            assert words((await read(upstreams, "up+note://b"))[-1]) == "b"


class TestSeveral:
    @pytest.mark.promise("what-is-named-can-be-read")
    async def test_what_a_result_names_can_be_read(self, two: McpUpstreams) -> None:
        for upstream in ("one", "Two"):
            links = await outcome(two, "links", upstream=upstream)
            prompt = {"name": f"{upstream}_greet", "arguments": {"who": "you"}}
            [greeting] = await hear(await send(two, "prompts/get", prompt))
            assert isinstance(links, Returned)
            assert isinstance(greeting, Returned)
            blocks = links.result["content"]
            said = [message["content"] for message in greeting.result["messages"]]
            uris = [blocks[0]["uri"], blocks[1]["resource"]["uri"], said[1]["uri"]]
            assert uris == [f"{upstream.lower()}+note://{name}" for name in "aba"]
            for uri in uris:
                [news] = await read(two, uri)
                assert isinstance(news, Returned)
                assert news.result["contents"][0]["uri"] == uri

    async def test_words_are_left_alone(self, two: McpUpstreams) -> None:
        links = await outcome(two, "links", upstream="one")
        assert isinstance(links, Returned)
        assert links.result["content"][2]["text"] == "note://a"
        assert links.result["structuredContent"] == {"uri": "note://a"}
        assert links.result["_meta"]["dev.example/uri"] == "note://a"
        assert words((await read(two, "one+note://a"))[-1]) == "the text of note://a"

    async def test_a_completion_is_asked_for_under_its_own_name(self, two: McpUpstreams) -> None:
        for ref in (
            {"type": "ref/prompt", "name": "one_greet"},
            {"type": "ref/resource", "uri": "two+act://{verb}"},
        ):
            params = {"ref": ref, "argument": {"name": "n", "value": "v"}}
            [news] = await hear(await send(two, "completion/complete", params))
            assert isinstance(news, Returned)
            [value] = news.result["completion"]["values"]
            assert value in {"greet n v", "act://{verb} n v"}

    async def test_what_no_upstream_can_have_is_refused(self, two: McpUpstreams) -> None:
        for uri in ("note://a", "three+note://a"):
            with pytest.raises(errors.InvalidCall):
                await read(two, uri)

    async def test_a_name_tells_whose_it_would_be(self, two: McpUpstreams) -> None:
        assert two.upstream_of("one_nothing_like_it") == "one"
        assert two.upstream_of("three_x") is None


def _data(news: CallNews) -> Any:
    assert isinstance(news, Logged)
    return news.params["data"]


async def _over(task: Any) -> None:
    done = anyio.Event()
    task.add_done_callback(lambda _: done.set())
    if not task.done():
        await done.wait()
