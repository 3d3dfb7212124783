"""What an upstream offers beside tools, through `outlast serve`: over HTTP, in front of each kind
of upstream. Several upstreams: `test_passing_several.py`."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from outlast.tests.service.passing_world import (
    ASKING,
    FORM,
    LISTS,
    LOG_LEVEL,
    NOTHING,
    OFFERING,
    YES,
    Reading,
    by_http,
    by_stdio,
    config_of,
    folder_uri,
    own,
)
from outlast.tests.service.test_owners import ALICE, BOB, TOKENS, token_file
from outlast.tests.support.mcp import RawClient, envelope, http_client
from outlast.tests.support.ports import free_port
from outlast.tests.support.serving import Serving, serving
from outlast.tests.support.streams import asking
from outlast.tests.support.upstreams import http_server, until_it_exists, until_it_listens

pytestmark = pytest.mark.anyio

NOT_FOUND, INVALID_PARAMS, MISSING_CAPABILITY = -32601, -32602, -32021
WAYS = ("stdio-modern", "stdio-legacy", "http-modern")
PROGRESS, LOG = "notifications/progress", "notifications/message"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    number = free_port()
    with http_server("offering", number):
        yield number


@pytest.fixture(scope="module", params=WAYS)
async def way(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
async def server(
    way: str, port: int, module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    """Outlast in front of one upstream, for three owners."""
    await until_it_listens(port)
    upstream = {
        "stdio-modern": by_stdio(OFFERING, "--instructions", "Read the notes."),
        "stdio-legacy": by_stdio(OFFERING, "--legacy", "--instructions", "Read the notes."),
        "http-modern": by_http(port),
    }[way]
    folder = tmp_path_factory.mktemp("passing")
    (folder / "tokens.toml").write_text(token_file(TOKENS))
    config = config_of({"offering": upstream}, 'tokens_file = "tokens.toml"')
    async with serving(folder, config, module_database_url) as started:
        yield started


@pytest.fixture
async def client(server: Serving) -> AsyncIterator[RawClient]:
    async with http_client() as http:
        yield RawClient(server.url, http, ALICE, FORM)


@pytest.fixture
def reading(client: RawClient) -> Reading:
    return Reading(client)


class TestLists:
    @pytest.mark.promise("results-pass-as-they-came")
    async def test_entries_come_as_the_upstream_wrote_them(self, reading: Reading):
        [page] = await reading.pages("resources/list")
        first, same, second = page["resources"][:3]
        assert (
            first
            == same
            == {
                "uri": "note://a",
                "name": "note_a",
                "title": "Note A",
                "description": "The first",
                "mimeType": "text/markdown",
                "icons": [{"src": "https://example.com/a.png", "mimeType": "image/png"}],
                "annotations": {"priority": 0.5},
                "_meta": {"dev.example/key": {"a": None}},
                "x-unknown": {"kept": None},
            }
        )
        assert second["uri"] == "note://b"
        [template] = (await reading.pages("resources/templates/list"))[0]["resourceTemplates"]
        assert (template["uriTemplate"], template["x-unknown"]) == ("act://{verb}", {"kept": None})
        prompt = (await reading.pages("prompts/list"))[0]["prompts"][0]
        assert (prompt["name"], prompt["icons"]) == (
            "greet",
            [{"src": "https://example.com/p.png"}],
        )

    async def test_each_list_says_how_long_and_for_whom_it_is_good(self, reading: Reading):
        for method in LISTS:
            for page in await reading.pages(method):
                assert (page["ttlMs"], page["cacheScope"]) == (0, "private")
                assert page["resultType"] == "complete"

    async def test_a_cursor_of_another_list_is_refused(self, client: RawClient):
        for method in LISTS:
            reply = await client.request(method, {"cursor": "cHJvbXB0czoxOmE="})
            assert reply.refusal == (400, INVALID_PARAMS)


class TestResults:
    @pytest.mark.promise("results-pass-as-they-came")
    async def test_a_result_keeps_all_that_the_upstream_wrote(self, reading: Reading):
        assert own((await reading.get("act://odd")).result) == {
            "resultType": "complete",
            "contents": [{"uri": "act://odd", "text": "odd", "x-part": 1}],
            "x-unknown": {"deep": [1, None, "act://odd"]},
            "_meta": {"dev.example/uri": "act://odd"},
            "ttlMs": 77,
            "cacheScope": "public",
        }

    async def test_a_resource_always_says_how_long_it_may_be_kept(self, reading: Reading):
        result = (await reading.get("note://a")).result
        assert result["contents"][0]["text"] == "the text of note://a"
        assert (result["ttlMs"], result["cacheScope"]) == (0, "private")

    @pytest.mark.promise("results-pass-as-they-came")
    async def test_an_error_is_the_upstreams_own(self, reading: Reading):
        failed = (await reading.get("act://fail")).error
        assert failed == {"code": -32050, "message": "no such thing", "data": {"thing": 7}}
        unknown = await reading.get("note://none")
        assert unknown.refusal == (400, INVALID_PARAMS)
        assert unknown.error["data"] == {"uri": "note://none"}
        gone = await reading.get("act://gone")  # by the code that this revision has for it
        assert (gone.refusal, gone.error["data"]) == ((400, INVALID_PARAMS), {"uri": "act://gone"})
        nobody = await reading.client.request("prompts/get", {"name": "nobody"})
        assert "error" in nobody.body  # some servers say no more of it

    async def test_a_prompt_is_got_and_an_argument_completed(self, client: RawClient):
        params: dict[str, Any] = {"name": "greet", "arguments": {"who": "you"}}
        got = (await client.request("prompts/get", params)).result
        said = [message["content"] for message in got["messages"]]
        assert said[0]["text"] == "Hello you, see note://a"
        assert (said[1]["uri"], said[2]["resource"]["uri"]) == ("note://a", "note://b")
        for ref, named in (
            ({"type": "ref/prompt", "name": "greet"}, "greet"),
            ({"type": "ref/resource", "uri": "act://{verb}"}, "act://{verb}"),
        ):
            params = {"ref": ref, "argument": {"name": "n", "value": "v"}}
            result = (await client.request("completion/complete", params)).result
            assert result["completion"] == {"values": [f"{named} n v"], "total": 1}
            assert result["resultType"] == "complete"

    async def test_the_name_in_the_header_is_held_against_the_request(self, client: RawClient):
        for method, params in (
            ("resources/read", {"uri": "note://a"}),
            ("prompts/get", {"name": "greet"}),
        ):
            reply = await client.request(method, params)
            assert "result" in reply.body or reply.error["code"] != -32020
            wrong = await client.send(_body(method, params), mcp_name="another")
            assert wrong.refusal == (400, -32020)

    async def test_what_is_offered_is_said(self, client: RawClient, way: str):
        said = (await client.request("server/discover")).result
        offered = said["capabilities"]
        assert offered["resources"] == {"subscribe": way != "stdio-legacy", "listChanged": True}
        assert offered["prompts"] == offered["tools"] == {"listChanged": True}
        assert offered["completions"] == {}
        assert "io.modelcontextprotocol/tasks" in offered["extensions"]
        assert "durable tasks" in said["instructions"]
        assert said["instructions"].startswith("Read the notes.\n\n") == (way != "http-modern")
        assert (said["ttlMs"], said["cacheScope"]) == (60_000, "public")


class TestNews:
    @pytest.mark.promise("logs-reach-their-own-request")
    async def test_logs_and_progress_come_in_order_on_the_requests_stream(self, reading: Reading):
        reply = await reading.get("act://work", meta={"progressToken": "p", LOG_LEVEL: "info"})
        assert reply.is_stream
        *told, answer = reply.messages
        assert sorted(_words(told)) == sorted(["step 1", "step 2", "info", "warning"])
        assert [word for word in _words(told) if "step" in word] == ["step 1", "step 2"]
        assert [word for word in _words(told) if "step" not in word] == ["info", "warning"]
        assert {m["params"]["progressToken"] for m in told if m["method"] == PROGRESS} == {"p"}
        assert answer["result"]["contents"][0]["text"] == "done"

    async def test_who_asks_for_nothing_is_told_nothing(self, reading: Reading):
        reply = await reading.get("act://work")
        assert (reply.is_stream, len(reply.messages)) == (False, 1)
        only = await reading.get("act://work", meta={"progressToken": 1})
        assert {m.get("method") for m in only.messages[:-1]} == {PROGRESS}

    async def test_logs_of_a_quick_answer_are_not_lost(self, reading: Reading):
        for _ in range(5):
            reply = await reading.get("act://work", meta={LOG_LEVEL: "debug"})
            assert _words(reply.messages[:-1]) == ["debug", "info", "warning"]

    @pytest.mark.promise("logs-reach-their-own-request")
    async def test_each_of_two_direct_calls_is_told_its_own_logs(self, client: RawClient):
        told: dict[str, list[str]] = {}

        async def chat(word: str) -> None:
            arguments = {"count": 5, "word": word}
            reply = await client.call("chat", arguments, meta={LOG_LEVEL: "info"})
            assert reply.result["content"][0]["text"] == word
            told[word] = [message["params"]["data"] for message in reply.messages[:-1]]

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(chat, "one")
            tasks.start_soon(chat, "two")
        assert told == {word: [f"{word} {n}" for n in range(5)] for word in ("one", "two")}

    async def test_a_burst_of_logs_ends_with_the_answer(self, client: RawClient):
        arguments = {"count": 400, "word": "w"}
        reply = await client.call("chat", arguments, meta={LOG_LEVEL: "info"})
        numbers = [int(m["params"]["data"].split()[1]) for m in reply.messages[:-1]]
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == 399
        assert reply.result["content"][0]["text"] == "w"

    @pytest.mark.promise("cancel-by-closing-reaches-upstream")
    async def test_a_client_that_leaves_stops_the_upstream(self, server: Serving, tmp_path: Path):
        for number, headers in enumerate(({}, {"accept": "application/json"})):
            folder = tmp_path / str(number)
            folder.mkdir()
            with anyio.move_on_after(60) as left:
                async with http_client() as http, anyio.create_task_group() as tasks:
                    client = RawClient(server.url, http, ALICE, FORM)
                    body = _body("resources/read", {"uri": folder_uri(folder)})
                    tasks.start_soon(partial(client.send, body, **headers))
                    await until_it_exists(folder / "started")
                    tasks.cancel_scope.cancel()
            assert not left.cancelled_caught
            await until_it_exists(folder / "stopped")

    async def test_a_stream_that_is_left_stops_the_upstream(self, server: Serving, tmp_path: Path):
        how: dict[str, Any] = {"method": "resources/read", "token": ALICE}
        uri = folder_uri(tmp_path)
        # A head comes after some seconds without an answer: by then it is a stream.
        async with asking(server.url, {"uri": uri}, headers={"mcp-name": uri}, **how) as stream:
            assert stream.header("content-type") == "text/event-stream"
            # An upstream that is slow to start has not begun by then, and would have no end to say.
            await until_it_exists(tmp_path / "started")
        await until_it_exists(tmp_path / "stopped")


class TestRounds:
    @pytest.mark.promise("rounds-pass-through")
    @pytest.mark.parametrize(("method", "params"), ASKING, ids=["read", "get"])
    async def test_a_question_is_asked_and_its_answer_goes_back(
        self, client: RawClient, way: str, method: str, params: Mapping[str, Any]
    ):
        asked = (await client.request(method, params)).result
        assert asked["resultType"] == "input_required"
        [(key, question)] = asked["inputRequests"].items()
        assert question["method"] == "elicitation/create"
        assert "half-way" not in asked["requestState"]
        again = {**params, "inputResponses": {key: YES}, "requestState": asked["requestState"]}
        for _ in range(2):  # nothing is kept here between the rounds
            answered = (await client.request(method, again)).result
            assert answered["resultType"] == "complete"
            assert ("accept half-way" if "modern" in way else "accept") in json.dumps(answered)
        unanswered = {**params, "requestState": asked["requestState"]}
        repeated = (await client.request(method, unanswered)).result
        assert repeated["resultType"] == "input_required"

    @pytest.mark.promise("states-are-sealed")
    @pytest.mark.parametrize(("method", "params"), ASKING, ids=["read", "get"])
    async def test_a_state_is_good_for_its_owner_and_request_alone(
        self, client: RawClient, method: str, params: Mapping[str, Any]
    ):
        asked = (await client.request(method, params)).result
        state, answers = asked["requestState"], dict.fromkeys(asked["inputRequests"], YES)
        again = {**params, "inputResponses": answers, "requestState": state}
        bob = RawClient(client.url, client.http, BOB, FORM)
        others = {
            "another owner": (bob, method, again),
            "another name": (client, method, {**again, "name": "greet", "uri": "act://work"}),
            "tampered": (client, method, {**again, "requestState": state[:-6] + "AAAAAA"}),
            "no string": (client, method, {**again, "requestState": 7}),
            "the upstream's own": (client, method, {**again, "requestState": "half-way"}),
            "a tool": (client, "tools/call", {**again, "name": "links"}),
        }
        for what, (who, way_in, changed) in others.items():
            reply = await who.request(way_in, changed)
            assert reply.refusal == (400, INVALID_PARAMS), what
            assert "requestState" in reply.error["message"], what

    async def test_who_cannot_be_asked_is_told_what_it_takes(self, client: RawClient, way: str):
        for method, params in ASKING:
            reply = await client.request(method, params, capabilities=NOTHING)
            if "modern" in way:
                assert reply.refusal == (400, MISSING_CAPABILITY)
                needed = reply.error["data"]["requiredCapabilities"]
                assert needed == {"elicitation": {"form": {}}}
            else:  # it asks, is refused, and says so in its own words
                assert "error" in reply.body


def _body(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    return envelope(method, params, FORM)


def _words(messages: list[dict[str, Any]]) -> list[str]:
    """What each notification says."""
    return [
        m["params"]["message"] if m["method"] == PROGRESS else m["params"]["data"]["at"]
        for m in messages
    ]
