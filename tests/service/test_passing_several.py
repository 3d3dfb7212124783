"""What passes through `outlast serve` with several upstreams, with some down, with PostgreSQL
stopped, and with upstreams that offer less."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from websockets.asyncio.client import connect

from outlast.adapters.embedded import EmbeddedServer
from outlast.domain import errors
from outlast.domain.passing import Forward, Kind, Listing, Offers
from outlast.domain.ports import RunningCall
from outlast.service.catalogue import PAGE_SIZE, Lists
from outlast.tests.acceptance.waiting import until
from outlast.tests.service.passing_world import (
    ANNOUNCING,
    BACK_S_MAX,
    FORM,
    LISTS,
    LOG_LEVEL,
    NOTHING,
    OFFERING,
    UNAVAILABLE,
    Reading,
    by_http,
    by_stdio,
    config_of,
    deaf_server,
)
from outlast.tests.support.mcp import RawClient, envelope, http_client
from outlast.tests.support.ports import free_port
from outlast.tests.support.serving import Serving, serving
from outlast.tests.support.streams import LISTEN, asking
from outlast.tests.support.upstreams import http_server, until_it_listens

pytestmark = pytest.mark.anyio

NOT_FOUND, INVALID_PARAMS, INTERNAL = -32601, -32602, -32603
DISCOVER_S_MAX = 20.0  # far more than it takes, far less than an upstream may hang
STARTED_S_MAX = 60.0
KINDS = ("tools", "resources", "prompts")
UPDATED = "notifications/resources/updated"
TOPICS = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
    "resourceSubscriptions": ["loud+note://x", "old+note://x"],
}
ARGUMENT = {"name": "n", "value": "v"}
COMPLETING = {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": ARGUMENT}
MISSING_CALLS: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("tools/call", {"name": "far_links"}),
    ("resources/read", {"uri": "far+note://a"}),
    ("prompts/get", {"name": "far_greet", "arguments": {"who": "x"}}),
    ("completion/complete", {**COMPLETING, "ref": {"type": "ref/resource", "uri": "far+x://y"}}),
)


@pytest.fixture(scope="module")
async def several(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    """Outlast in front of three upstreams: of two eras, and one that announces much."""
    upstreams = {
        "new": by_stdio(OFFERING, "--ttl", "5000"),
        "old": by_stdio(ANNOUNCING, "--legacy"),
        "loud": by_stdio(ANNOUNCING),
    }
    folder = tmp_path_factory.mktemp("several")
    async with serving(folder, config_of(upstreams), module_database_url) as started:
        async with http_client() as http:
            await _unavailable(RawClient(started.url, http, None, NOTHING), None)
        yield started


@pytest.fixture
async def reading(several: Serving) -> AsyncIterator[Reading]:
    async with http_client() as http:
        # One that can be asked something would get a legacy upstream of its own for each call.
        yield Reading(RawClient(several.url, http, None, NOTHING))


class TestNames:
    async def test_each_list_has_the_entries_of_all(self, reading: Reading):
        for method, first, second in (
            ("resources/list", "new+note://a", "new+note://b"),
            ("resources/templates/list", "new+act://{verb}", "new+act://{verb}"),
            ("prompts/list", "new_greet", "new_consult"),
            ("tools/list", "new_links", "loud_touch"),
        ):
            names = await reading.names(method)
            assert {first, second} <= set(names)
        assert await reading.missing("resources/list") is None

    @pytest.mark.promise("what-is-named-can-be-read")
    async def test_what_a_result_names_can_be_read(self, reading: Reading):
        blocks = (await reading.client.call("new_links")).result["content"]
        params: dict[str, Any] = {"name": "new_greet", "arguments": {"who": "you"}}
        got = (await reading.client.request("prompts/get", params)).result
        said = [message["content"] for message in got["messages"]]
        uris = [blocks[0]["uri"], blocks[1]["resource"]["uri"], said[1]["uri"]]
        assert uris == ["new+note://a", "new+note://b", "new+note://a"]
        for uri in uris:
            assert (await reading.get(uri)).result["contents"][0]["uri"] == uri

    async def test_an_unknown_resource_is_named_as_it_was_asked_for(self, reading: Reading):
        for uri in ("new+note://none", "note://a", "newer+note://a"):
            reply = await reading.get(uri)
            assert reply.refusal == (400, INVALID_PARAMS)
            assert reply.error.get("data") == ({"uri": uri} if "new+" in uri else None)

    async def test_a_list_is_good_for_as_long_as_its_least_part(self, reading: Reading):
        [page] = await reading.pages("prompts/list")
        assert (page["ttlMs"], page["cacheScope"]) == (0, "private")

    async def test_what_one_of_them_offers_is_offered(self, reading: Reading):
        offered = (await reading.client.request("server/discover")).result["capabilities"]
        assert offered["resources"] == {"subscribe": True, "listChanged": True}
        assert offered["completions"] == {}


class TestAnnouncements:
    @pytest.mark.promise("announcements-pass-through")
    async def test_changes_are_told_on_a_stream(self, several: Serving, reading: Reading):
        async with asking(several.url, {"notifications": TOPICS}) as stream:
            agreed = await stream.message()
            assert agreed["params"]["notifications"] == TOPICS
            for upstream in ("loud", "old"):
                await reading.client.call(f"{upstream}_touch", {"uri": "note://x"})
                await _until(stream.message, UPDATED, f"{upstream}+note://x")
                await reading.client.call(f"{upstream}_add_prompt")
                await _told_of(stream.message, reading, "prompts", f"{upstream}_added")

    @pytest.mark.promise("announcements-pass-through")
    async def test_changes_are_told_on_a_socket(self, several: Serving, reading: Reading):
        url = f"ws{several.base_url.removeprefix('http')}/ws"
        async with connect(url, proxy=None) as socket:
            await socket.send(json.dumps(envelope(LISTEN, {"notifications": TOPICS})))

            async def message() -> dict[str, Any]:
                return json.loads(await socket.recv())

            await _until(message, "notifications/subscriptions/acknowledged")
            await reading.client.call("loud_touch", {"uri": "note://x"})
            await _until(message, UPDATED, "loud+note://x")
            await reading.client.call("old_add_resource")
            await _told_of(message, reading, "resources", "old+note://added")


class TestDown:
    @pytest.mark.promise("lists-say-what-is-missing")
    @pytest.mark.promise("announcements-pass-through")
    async def test_one_that_is_down_is_named_and_comes_back(
        self, database_url: str, tmp_path: Path
    ):
        port = free_port()
        config = config_of({"near": by_stdio(OFFERING), "far": by_http(port)})
        async with serving(tmp_path, config, database_url) as server, http_client() as http:
            client = RawClient(server.url, http, None, FORM)
            reading = Reading(client)
            with http_server("offering", port):
                await until_it_listens(port)
                await reading.until_whole("resources/list")
                whole = {method: await reading.names(method) for method in LISTS}
                assert any("far" in name for name in whole["resources/list"])
            async with asking(server.url, {"notifications": TOPICS}) as stream:
                await _missing_far(reading, whole)
                with http_server("offering", port):
                    await until_it_listens(port)
                    awaited = {f"notifications/{kind}/list_changed" for kind in KINDS}
                    with anyio.fail_after(BACK_S_MAX):
                        while awaited:
                            awaited.discard((await stream.message())["method"])
                    for method, names in whole.items():
                        await reading.until_whole(method)
                        assert await reading.names(method) == names
                    assert "result" in (await reading.get("far+note://a")).body

    @pytest.mark.promise("discover-never-hangs")
    async def test_discover_answers_while_upstreams_hang_and_are_down(
        self, database_url: str, tmp_path: Path
    ):
        async with deaf_server() as deaf:
            upstreams = {
                "deaf": by_http(deaf),
                "dead": by_http(free_port()),
                "good": by_stdio(OFFERING, "--instructions", "Greet."),
            }
            async with (
                serving(tmp_path, config_of(upstreams), database_url) as server,
                http_client() as http,
            ):
                client = RawClient(server.url, http, None, FORM)
                said = await _unavailable(client, ["deaf", "dead"])
                assert said["ttlMs"] == 0
                assert said["capabilities"]["prompts"] == {"listChanged": True}
                assert said["instructions"].startswith("## good\n\nGreet.\n\n")
                with anyio.fail_after(DISCOVER_S_MAX):
                    page = (await client.request("prompts/list")).result
                assert page["_meta"][UNAVAILABLE] == ["deaf", "dead"]
                assert (page["prompts"][0]["name"], page["ttlMs"]) == ("good_greet", 0)

    async def test_all_down_is_an_error_and_discover_says_so(
        self, database_url: str, tmp_path: Path
    ):
        config = config_of({"dead": by_http(free_port())})
        async with serving(tmp_path, config, database_url) as server, http_client() as http:
            client = RawClient(server.url, http, None, FORM)
            said = (await client.request("server/discover")).result
            assert said["_meta"][UNAVAILABLE] == ["dead"]
            assert said["capabilities"]["tools"] == {}
            for method in LISTS:
                reply = await client.request(method)
                assert (reply.error["code"], "'dead'" in reply.error["message"]) == (INTERNAL, True)


class TestLess:
    async def test_what_no_upstream_offers_is_no_method_here(
        self, database_url: str, tmp_path: Path
    ):
        bare = by_stdio(OFFERING, "--bare")
        for upstreams in ({"bare": bare}, {"bare": bare, "other": bare}):
            async with (
                serving(tmp_path, config_of(upstreams), database_url) as server,
                http_client() as http,
            ):
                client = RawClient(server.url, http, None, FORM)
                offered = (await _unavailable(client, None))["capabilities"]
                assert {"resources", "prompts", "completions"}.isdisjoint(offered)
                for method, params in (
                    ("resources/list", {}),
                    ("resources/templates/list", {}),
                    ("prompts/list", {}),
                    ("resources/read", {"uri": "note://a"}),
                    ("prompts/get", {"name": "greet"}),
                    ("completion/complete", COMPLETING),
                ):
                    assert (await client.request(method, params)).refusal == (404, NOT_FOUND)
                assert await Reading(client).names("tools/list") != []

    @pytest.mark.promise("no-store-on-the-way")
    async def test_a_stopped_postgresql_stops_nothing_of_this(self, tmp_path: Path):
        store = EmbeddedServer.start(tmp_path / "store")
        stopped = False
        try:
            async with (
                serving(tmp_path, config_of({"o": by_stdio(OFFERING)}), store.url) as server,
                http_client() as http,
            ):
                client = RawClient(server.url, http, None, FORM)
                store.stop()
                stopped = True
                assert (await http.get(f"{server.base_url}/readyz")).status_code == 503
                reading = Reading(client)
                for method in LISTS:
                    assert await reading.names(method) != []
                called = (await client.call("links", meta={LOG_LEVEL: "debug"})).result
                assert called["content"][0]["uri"] == "note://a"
                for method, params in (
                    ("server/discover", {}),
                    ("resources/read", {"uri": "note://a"}),
                    ("prompts/get", {"name": "greet", "arguments": {"who": "x"}}),
                    ("completion/complete", COMPLETING),
                ):
                    assert "result" in (await client.request(method, params)).body
                asked = (await reading.get("act://ask")).result
                assert asked["resultType"] == "input_required"
        finally:
            if not stopped:
                store.stop()


@dataclass
class Named:
    """Upstreams that list resources of these names."""

    names: Sequence[str] = field(default_factory=list[str])
    unavailable: Sequence[str] = ()
    is_offered: bool = True

    async def listed(self, kind: Kind) -> Listing:
        del kind
        entries = [{"uri": name} for name in self.names]
        return Listing(entries, self.is_offered, self.unavailable, 7, "public")

    async def forward(self, request: Forward) -> RunningCall:
        raise NotImplementedError

    async def offers(self) -> Offers:
        raise NotImplementedError

    def upstream_of(self, name: str) -> str | None:
        raise NotImplementedError


class TestPages:
    @pytest.mark.parametrize(
        "names",
        [
            [],
            [f"note://{number}" for number in range(PAGE_SIZE)],
            [f"note://{number}" for number in range(3 * PAGE_SIZE + 1)],
            ["note://same"] * (2 * PAGE_SIZE + 1),
            [f"note:é:\ud800:{number % 7}" for number in range(2 * PAGE_SIZE)],
        ],
        ids=["none", "one page", "four pages", "one name", "strange names"],
    )
    async def test_the_pages_together_hold_every_entry_once(self, names: list[str]):
        lists, found, cursor, pages = Lists(Named(names)), list[str](), None, 0
        while True:
            page = cast("dict[str, Any]", await lists.page("resources", cursor))
            assert (page["ttlMs"], page["cacheScope"]) == (7, "public")
            found += [entry["uri"] for entry in page["resources"]]
            pages, cursor = pages + 1, page.get("nextCursor")
            if cursor is None:
                break
        assert found == names
        assert pages == max(1, -(-len(names) // PAGE_SIZE))

    async def test_a_list_that_has_grown_goes_on_after_the_last_entry(self):
        named = Named([f"note://{number}" for number in range(PAGE_SIZE + 1)])
        page = await Lists(named).page("resources", None)
        assert page is not None
        named.names = ["note://first", *named.names]
        rest = await Lists(named).page("resources", page["nextCursor"])
        assert rest is not None
        assert rest["resources"] == [{"uri": f"note://{PAGE_SIZE}"}]
        named.names = []
        with pytest.raises(errors.InvalidCall):
            await Lists(named).page("resources", page["nextCursor"])

    async def test_a_cursor_of_another_list_is_refused(self):
        lists = Lists(Named(["x"] * (PAGE_SIZE + 1)))
        page = await lists.page("tools", None)
        assert page is not None
        assert await lists.page("tools", page["nextCursor"]) is not None
        with pytest.raises(errors.InvalidCall):
            await lists.page("prompts", page["nextCursor"])

    async def test_one_that_may_be_offered_by_what_is_down_is_an_empty_list(self):
        page = await Lists(Named([], ("far",), is_offered=False)).page("prompts", None)
        assert page is not None
        assert (page["prompts"], page["_meta"]) == ([], {UNAVAILABLE: ["far"]})
        assert await Lists(Named([], is_offered=False)).page("prompts", None) is None


async def _missing_far(reading: Reading, whole: Mapping[str, Sequence[str]]) -> None:
    """The upstream `far` is down: all lists are without it and say so, and so do calls."""
    for method, names in whole.items():

        async def is_missing(method: str = method) -> bool:
            return await reading.missing(method) == ["far"]

        await until(is_missing, BACK_S_MAX)  # once it has been noticed
        near = [name for name in names if not name.startswith("far")]
        assert await reading.names(method) == near != []
    for method, params in MISSING_CALLS:
        reply = await reading.client.request(method, params)
        assert (reply.error["code"], "'far'" in reply.error["message"]) == (INTERNAL, True)
    said = (await reading.client.request("server/discover")).result
    assert said["_meta"][UNAVAILABLE] == ["far"]
    assert (await reading.client.call("near_nothing")).refusal == (400, INVALID_PARAMS)


async def _unavailable(client: RawClient, names: Sequence[str] | None) -> dict[str, Any]:
    """What discovery says, always in time, once these alone are missing and all others started."""
    said: list[dict[str, Any]] = []

    async def is_so() -> bool:
        with anyio.fail_after(DISCOVER_S_MAX):
            said.append((await client.request("server/discover")).result)
        return said[-1]["_meta"].get(UNAVAILABLE) == names

    await until(is_so, STARTED_S_MAX)
    return said[-1]


async def _told_of(message: Any, reading: Reading, kind: str, name: str) -> None:
    """Read until a change is told after which the list has it; a new connection tells one too."""
    await _until(message, f"notifications/{kind}/list_changed")
    while name not in await reading.names(f"{kind}/list"):
        await _until(message, f"notifications/{kind}/list_changed")


async def _until(message: Any, method: str, uri: str | None = None) -> None:
    """Read until a message of this method, and of this resource; others are passed over."""
    with anyio.fail_after(30):
        while True:
            told = await message()
            if told["method"] == method and told["params"].get("uri") == uri:
                return
