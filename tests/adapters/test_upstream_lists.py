"""What real upstream servers list and offer together, and what is known of it when one is away."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from outlast.adapters import upstream as adapter, upstream_lists
from outlast.adapters.announcements import UpstreamAnnouncements
from outlast.adapters.upstream import McpUpstreams, UpstreamSettings
from outlast.adapters.upstream_link import Link
from outlast.domain import errors
from outlast.domain.passing import Kind
from outlast.tests.support.passing import listed, names, read, words
from outlast.tests.support.ports import free_port
from outlast.tests.support.upstreams import (
    WAIT_S,
    http_server,
    outcome,
    stdio,
    text,
    until,
    until_it_listens,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("patience")]

ERAS = pytest.mark.parametrize("flags", [[], ["--legacy"]], ids=["modern", "legacy"])
MUTE = [sys.executable, "-c", "import sys; sys.stdin.read()"]
DOWN = UpstreamSettings("down", command=["/nonexistent"])


@pytest.fixture
async def two() -> AsyncIterator[McpUpstreams]:
    given = [stdio("offering", name="one"), stdio("offering", "--legacy", name="Two")]
    async with McpUpstreams(given) as upstreams:
        yield upstreams


class TestLists:
    @ERAS
    async def test_entries_keep_all_that_they_came_with_and_doubles_stay(
        self, flags: list[str]
    ) -> None:
        async with McpUpstreams([stdio("offering", *flags)]) as upstreams:
            entries = (await listed(upstreams, "resources")).entries
            assert [entry["uri"] for entry in entries] == ["note://a", "note://a", "note://b"]
            assert entries[0] == {
                "name": "note_a",
                "title": "Note A",
                "uri": "note://a",
                "description": "The first",
                "mimeType": "text/markdown",
                "icons": [{"src": "https://example.com/a.png", "mimeType": "image/png"}],
                "annotations": {"priority": 0.5},
                "_meta": {"dev.example/key": {"a": None}},
                "x-unknown": {"kept": None},
            }
            assert await names(upstreams, "resource_templates", "uriTemplate") == ["act://{verb}"]
            prompts = (await listed(upstreams, "prompts")).entries
            assert [prompt["name"] for prompt in prompts] == ["greet", "consult"]
            assert prompts[0]["icons"] == [{"src": "https://example.com/p.png"}]
            assert prompts[0]["arguments"] == [{"name": "who", "required": True}]
            tools = await upstreams.tools()
            assert (await listed(upstreams, "tools")).entries == tuple(t.definition for t in tools)

    async def test_several_upstreams_are_told_apart(self, two: McpUpstreams) -> None:
        assert await names(two, "resources", "uri") == [
            *("one+note://a", "one+note://a", "one+note://b"),
            *("two+note://a", "two+note://a", "two+note://b"),
        ]
        templates = await names(two, "resource_templates", "uriTemplate")
        assert templates == ["one+act://{verb}", "two+act://{verb}"]
        prompts = await names(two, "prompts", "name")
        assert prompts == ["one_greet", "one_consult", "Two_greet", "Two_consult"]

    @ERAS
    async def test_every_page_is_read(self, flags: list[str]) -> None:
        async with McpUpstreams([stdio("offering", *flags, "--page-size", "1")]) as upstreams:
            assert len((await listed(upstreams, "resources")).entries) == 3
            assert len((await listed(upstreams, "prompts")).entries) == 2

    async def test_a_paginator_that_never_ends_is_cut_off(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(upstream_lists, "PAGES_MAX", 3)
        async with McpUpstreams([stdio("offering", "--endless")]) as upstreams:
            assert len((await listed(upstreams, "resources")).entries) == 9
            monkeypatch.setattr(upstream_lists, "ENTRIES_MAX", 4)
        async with McpUpstreams([stdio("offering", "--endless")]) as upstreams:
            assert len((await listed(upstreams, "resources")).entries) == 4

    @ERAS
    async def test_what_an_upstream_does_not_offer_is_not_asked_of_it(
        self, flags: list[str]
    ) -> None:
        async with McpUpstreams([stdio("offering", "--bare", *flags)]) as upstreams:
            kinds: list[Kind] = ["resources", "resource_templates", "prompts"]
            for kind in kinds:
                listing = await listed(upstreams, kind)
                assert (listing.entries, listing.is_offered) == ((), False)
                assert listing.unavailable == ()
        given = [stdio("offering", "--bare", name="bare"), stdio("offering", *flags, name="full")]
        async with McpUpstreams(given) as upstreams:
            listing = await listed(upstreams, "prompts")
            assert [e["name"] for e in listing.entries] == ["full_greet", "full_consult"]
            assert listing.is_offered


class TestFreshness:
    @ERAS
    async def test_a_list_is_the_same_object_until_its_change_is_announced(
        self, flags: list[str]
    ) -> None:
        async with McpUpstreams([stdio("offering", *flags)]) as upstreams:
            known = (await listed(upstreams, "resources")).entries
            prompts = (await listed(upstreams, "prompts")).entries
            await upstreams.ready("offering")
            assert (await listed(upstreams, "resources")).entries is known
            await outcome(upstreams, "grow", upstream="offering")

            async def has_grown() -> bool:
                return "note://grown" in await names(upstreams, "resources", "uri")

            await until(has_grown)
            assert (await listed(upstreams, "resources")).entries is not known
            assert len(known) == 3
            assert len((await listed(upstreams, "prompts")).entries) == len(prompts) + 1

    @ERAS
    async def test_a_list_whose_changes_nobody_announces_is_read_as_often_as_its_owner_says(
        self, flags: list[str]
    ) -> None:
        quiet = [*flags, "--quiet"]
        async with McpUpstreams([stdio("offering", *quiet)]) as upstreams:
            await listed(upstreams, "resources")
            await outcome(upstreams, "grow_silently", upstream="offering")
            assert "note://silent" in await names(upstreams, "resources", "uri")

    async def test_who_asks_while_a_list_is_read_shares_the_next_reading(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sent: list[str] = []
        request = Link.request

        async def counted(link: Link, method: str, *args: Any) -> Any:
            sent.append(method)
            return await request(link, method, *args)

        monkeypatch.setattr(Link, "request", counted)
        async with McpUpstreams([stdio("offering", "--quiet")]) as upstreams:
            await upstreams.ready("offering")
            found = await asyncio.gather(*(upstreams.listed("prompts") for _ in range(20)))
        assert {len(listing.entries) for listing in found} == {2}
        assert sent.count("prompts/list") <= 2

    async def test_a_list_is_kept_for_as_long_as_its_owner_says(self) -> None:
        async with McpUpstreams([stdio("offering", "--quiet", "--ttl", "50000")]) as upstreams:
            known = (await listed(upstreams, "resources")).entries
            await outcome(upstreams, "grow_silently", upstream="offering")
            assert (await listed(upstreams, "resources")).entries is known

    async def test_the_least_time_and_the_narrowest_scope_hold_for_all(self) -> None:
        hints: list[tuple[list[str], int, str]] = [
            (["--ttl", "9000"], 9000, "public"),
            (["--ttl", "70000"], 9000, "public"),
            ([], 0, "private"),
            (["--legacy"], 0, "private"),
        ]
        for number, (flags, ttl_ms, scope) in enumerate(hints):
            given = [stdio("offering", *hints[0][0], name="a")]
            if number:
                given.append(stdio("offering", *flags, name="b"))
            async with McpUpstreams(given) as upstreams:
                listing = await listed(upstreams, "resources")
                assert (listing.ttl_ms, listing.scope) == (ttl_ms, scope)


class TestAway:
    @pytest.mark.promise("lists-say-what-is-missing")
    async def test_a_list_says_whose_entries_are_missing(self) -> None:
        given = [DOWN, stdio("offering", "--ttl", "9000", name="up")]
        async with McpUpstreams(given) as upstreams:
            kinds: list[Kind] = ["resources", "resource_templates", "prompts", "tools"]
            for kind in kinds:
                listing = await listed(upstreams, kind)
                assert listing.unavailable == ("down",)
                assert listing.ttl_ms == 0
                assert listing.is_offered
                assert len(listing.entries) > 0

    async def test_all_down_is_an_error(self) -> None:
        async with McpUpstreams([DOWN]) as upstreams:
            with pytest.raises(errors.UpstreamUnavailable):
                await listed(upstreams, "prompts")

    async def test_one_that_hangs_is_waited_for_only_so_long(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given = [UpstreamSettings("mute", command=MUTE), stdio("offering", name="up")]
        async with McpUpstreams(given) as upstreams:
            await upstreams.ready("up")
            monkeypatch.setattr(adapter, "OFFER_S_MAX", 3.0)
            monkeypatch.setattr(upstreams, "_within_s", 3.0)
            with anyio.fail_after(WAIT_S):
                assert (await upstreams.offers()).unavailable == ("mute",)
                assert (await upstreams.listed("prompts")).unavailable == ("mute",)
                assert {tool.upstream for tool in await upstreams.tools()} == {"up"}
            assert words((await read(upstreams, "up+note://b"))[-1]) == "b"


class TestOffers:
    @ERAS
    async def test_one_upstream_speaks_for_itself(self, flags: list[str]) -> None:
        settings = stdio("offering", *flags, "--log-level", "--instructions", "Read first.")
        async with McpUpstreams([settings]) as upstreams:
            offers = await upstreams.offers()
            assert offers.capabilities == {
                "tools": {"listChanged": True},
                "resources": {"listChanged": True, "subscribe": not flags},
                "prompts": {"listChanged": True},
                "completions": {},
                "logging": {},
            }
            assert offers.instructions == "Read first."
            assert offers.servers["offering"]["version"] == "7"
            assert offers.unavailable == ()
            assert await upstreams.offers() is offers

    async def test_several_speak_together(self) -> None:
        given = [
            stdio("offering", "--bare", "--quiet", name="a"),
            stdio("offering", "--legacy", "--instructions", "Read first.", name="b"),
            stdio("offering", "--quiet", "--instructions", "Then ask.", name="c"),
        ]
        async with McpUpstreams(given) as upstreams:
            offers = await upstreams.offers()
        assert offers.capabilities == {
            "tools": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": False},
            "prompts": {"listChanged": True},
            "completions": {},
        }
        assert offers.instructions == "## b\n\nRead first.\n\n## c\n\nThen ask."
        assert list(offers.servers) == ["a", "b", "c"]

    async def test_what_is_known_is_kept_while_an_upstream_is_away(self) -> None:
        port = free_port()
        far = UpstreamSettings("far", url=f"http://127.0.0.1:{port}/mcp")
        async with McpUpstreams([far, stdio("everyday", name="near")]) as upstreams:
            with http_server("offering", port, "--instructions", "Far."):
                await until_it_listens(port)
                before = await upstreams.offers()
                assert before.unavailable == ()
                assert before.instructions == "## far\n\nFar."

            async def is_missed() -> bool:
                with anyio.move_on_after(WAIT_S):
                    await listed(upstreams, "prompts")
                return (await upstreams.offers()).unavailable == ("far",)

            await until(is_missed)
            after = await upstreams.offers()
        assert after.capabilities == before.capabilities
        assert after.instructions == before.instructions
        assert after.servers == before.servers

    async def test_what_never_answered_is_said_to_be_missing(self) -> None:
        async with McpUpstreams([DOWN]) as upstreams:
            offers = await upstreams.offers()
        assert (offers.capabilities, offers.instructions, offers.servers) == ({}, None, {})
        assert offers.unavailable == ("down",)


async def test_changes_of_several_upstreams_are_told_under_public_names() -> None:
    given = [stdio("announcing", name="one"), stdio("announcing", "--legacy", name="Two")]
    async with McpUpstreams(given) as upstreams:
        await upstreams.tools()
        announcements = UpstreamAnnouncements(upstreams)
        wanted = {"one+note://a", "two+note://a", "two+note://b", "three+note://a", "note://a"}
        async with announcements.listening(frozenset({*wanted, "promptsListChanged"})) as waiter:
            waiter.take()
            for upstream, uri in (("one", "note://a"), ("Two", "note://b")):
                touched = await outcome(upstreams, "touch", {"uri": uri}, upstream=upstream)
                assert text(touched) == "touched"
            await outcome(upstreams, "add_prompt", upstream="Two")
            told = {"one+note://a", "two+note://b", "promptsListChanged"}
            taken: set[str] = set()
            with anyio.fail_after(WAIT_S):
                while not taken >= told:
                    await waiter.wait(WAIT_S)
                    taken |= set(waiter.take())
            assert taken == told
