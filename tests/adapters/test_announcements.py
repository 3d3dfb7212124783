"""What real upstream servers announce while they run: who is woken by it, and what the servers
see of us."""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from outlast.adapters.announcements import UpstreamAnnouncements
from outlast.adapters.upstream import McpUpstreams, UpstreamSettings
from outlast.domain.ports import Announcements, Wakeup
from outlast.tests.support.ports import free_port
from outlast.tests.support.upstreams import (
    EVERY_WAY,
    SERVERS,
    WAIT_S,
    Era,
    http_server,
    is_alive,
    outcome,
    stdio,
    text,
    until,
    until_it_listens,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("patience")]

TOOLS, PROMPTS, RESOURCES = "toolsListChanged", "promptsListChanged", "resourcesListChanged"
LISTS = frozenset({TOOLS, PROMPTS, RESOURCES})
LISTS_LISTEN = "listen promptsListChanged resourcesListChanged toolsListChanged"
A, B = "note://a", "note://b"
ERAS: dict[str, Era] = {"modern": "modern", "legacy": "legacy"}


class Upstream:
    """One announcing server, reached in one way, and what it has seen of us."""

    def __init__(self, way: str, folder: Path, *flags: str) -> None:
        self.transport, self.era = way.split("-")
        self._log, self._port, self._http = folder / "log", free_port(), ExitStack()
        self._flags = ["--log", str(self._log), *flags]
        self.settings = UpstreamSettings(
            "announcing", url=f"http://127.0.0.1:{self._port}/mcp", era=ERAS[self.era]
        )
        if self.transport == "stdio":
            legacy = ["--legacy"] if self.era == "legacy" else []
            self.settings = stdio("announcing", *self._flags, *legacy)

    @contextmanager
    def running(self) -> Iterator["Upstream"]:
        with self._http:
            self.start()
            yield self

    def start(self) -> None:
        if self.transport == "http":
            self._http.enter_context(http_server("announcing", self._port, *self._flags))

    async def until_up(self) -> None:
        if self.transport == "http":
            await until_it_listens(self._port)

    async def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self._http.close()  # reaps it

    def log(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    async def until_logged(self, *lines: str) -> None:
        async def logged() -> bool:
            return not Counter(lines) - Counter(self.log())

        await until(logged)

    def opens(self, *uris: str) -> str:
        return " ".join(["listen" if self.era == "modern" else "subscribe", *uris])

    def ends(self, *uris: str) -> str:
        return f"un{self.opens(*uris)}"


@pytest.fixture(params=EVERY_WAY)
async def upstream(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Upstream]:
    with Upstream(request.param, tmp_path).running() as running:
        await running.until_up()
        yield running


@asynccontextmanager
async def reached(upstream: Upstream) -> AsyncIterator[tuple[McpUpstreams, Announcements]]:
    async with McpUpstreams([upstream.settings]) as upstreams:
        # A listener waits only so long for a slow start, and is then woken by its end.
        await upstreams.ready("announcing")
        yield upstreams, UpstreamAnnouncements(upstreams)


async def do(upstreams: McpUpstreams, tool: str, **arguments: str) -> str:
    return text(await outcome(upstreams, tool, arguments, upstream="announcing"))


async def heard(waiter: Wakeup, *topics: str) -> set[str]:
    """All that has been heard once these topics have been."""
    taken: set[str] = set()
    with anyio.fail_after(WAIT_S):
        while not taken.issuperset(topics):
            await waiter.wait(WAIT_S)
            taken |= set(waiter.take())
    return taken


@pytest.mark.parametrize(
    ("tool", "topic"), [("add_tool", TOOLS), ("add_prompt", PROMPTS), ("add_resource", RESOURCES)]
)
async def test_a_changed_list_wakes_those_who_listen_to_it_and_nobody_else(
    upstream: Upstream, tool: str, topic: str
) -> None:
    async with (
        reached(upstream) as (upstreams, announcements),
        announcements.listening(frozenset({topic})) as concerned,
        announcements.listening((LISTS - {topic}) | {A}) as others,
    ):
        assert await do(upstreams, tool) == "added"
        assert await heard(concerned, topic) == {topic}
        assert others.take() == {}
        names = {known.name for known in await upstreams.tools()}
        assert ("added" in names) == (topic == TOOLS)


async def test_who_asks_while_a_changed_list_is_read_waits_for_the_new_one(
    upstream: Upstream,
) -> None:
    async with (
        reached(upstream) as (upstreams, announcements),
        announcements.listening(frozenset({TOOLS})) as waiter,
    ):
        assert await do(upstreams, "add_tool") == "added"
        await heard(waiter, TOOLS)
        asked = [asyncio.ensure_future(upstreams.tools())]
        with anyio.fail_after(WAIT_S):
            while not asked[0].done():
                await anyio.lowlevel.checkpoint()
                asked.append(asyncio.ensure_future(upstreams.tools()))
            for told in await asyncio.gather(*asked):
                assert "added" in {known.name for known in told}


async def test_an_updated_resource_wakes_those_who_listen_to_it_and_nobody_else(
    upstream: Upstream,
) -> None:
    async with (
        reached(upstream) as (upstreams, announcements),
        announcements.listening(frozenset({A})) as concerned,
        announcements.listening(frozenset({B}) | LISTS) as others,
    ):
        for uri in (A, "note://c", A, B):
            await do(upstreams, "touch", uri=uri)
        assert await heard(others, B) == {B}
        assert await heard(concerned, A) == {A}


async def test_a_second_resource_does_not_disturb_those_who_listen_to_the_first(
    upstream: Upstream,
) -> None:
    async with (
        reached(upstream) as (upstreams, announcements),
        announcements.listening(frozenset({A})) as first,
    ):
        async with announcements.listening(frozenset({B})) as second:
            assert (first.take(), second.take()) == ({}, {})
        await upstream.until_logged(upstream.ends(*([A, B] if upstream.era == "modern" else [B])))
        await do(upstreams, "touch", uri=A)
        assert await heard(first, A) == {A}


async def test_what_is_below_a_resource_is_told_to_those_who_listen_to_the_resource(
    upstream: Upstream,
) -> None:
    part = f"{A}/part"
    async with (
        reached(upstream) as (upstreams, announcements),
        announcements.listening(frozenset({A, B, part})) as waiter,
    ):
        await do(upstreams, "touch", uri=part)
        assert await heard(waiter, part) == {part, A}


async def test_a_resource_is_subscribed_to_while_anybody_listens_to_it(upstream: Upstream) -> None:
    before = [LISTS_LISTEN] if upstream.era == "modern" else []
    async with reached(upstream) as (_, announcements):
        assert await announcements.offered() == LISTS | {"resourceSubscriptions"}
        async with announcements.listening(frozenset({A})):
            async with announcements.listening(frozenset({A, TOOLS})):
                pass
            async with announcements.listening(LISTS):
                pass
            assert upstream.log() == [*before, upstream.opens(A)]
        await upstream.until_logged(upstream.ends(A))
        async with announcements.listening(frozenset({A})):
            assert upstream.log()[-1] == upstream.opens(A)
        await upstream.until_logged(*[upstream.ends(A)] * 2)
    after = [f"un{line}" for line in before]
    await upstream.until_logged(*after)
    opened = [upstream.opens(A), upstream.ends(A)] * 2
    assert Counter(upstream.log()) == Counter([*before, *after, *opened])


async def test_a_restart_wakes_and_what_is_wanted_is_subscribed_to_again(
    upstream: Upstream,
) -> None:
    async with (
        reached(upstream) as (upstreams, announcements),
        announcements.listening(LISTS | {A}) as waiter,
    ):
        await upstream.kill(int(await do(upstreams, "pid")))
        upstream.start()
        assert await heard(waiter, A, *LISTS) == LISTS | {A}
        await upstream.until_logged(*[upstream.opens(A)] * 2)
        waiter.take()
        await do(upstreams, "touch", uri=A)
        await heard(waiter, A)
        await do(upstreams, "add_prompt")
        await heard(waiter, PROMPTS)


async def test_an_upstream_that_comes_up_later_wakes_those_who_listen(tmp_path: Path) -> None:
    upstream = Upstream("http-modern", tmp_path)
    async with McpUpstreams([upstream.settings]) as upstreams:
        announcements = UpstreamAnnouncements(upstreams)
        assert await announcements.offered() == frozenset()
        async with announcements.listening(LISTS | {A}) as waiter:
            assert waiter.take() == {}
            with upstream.running():
                assert await heard(waiter, A, *LISTS) == LISTS | {A}
                await upstream.until_logged(upstream.opens(A))


@pytest.mark.parametrize("way", EVERY_WAY)
async def test_an_upstream_that_announces_nothing_is_asked_for_nothing(
    way: str, tmp_path: Path
) -> None:
    with Upstream(way, tmp_path, "--quiet").running() as upstream:
        await upstream.until_up()
        async with reached(upstream) as (upstreams, announcements):
            assert await announcements.offered() == frozenset()
            async with announcements.listening(LISTS | {A}):
                await do(upstreams, "pid")
            assert upstream.log() == []


async def test_an_upstream_that_is_down_or_refuses_takes_nothing_from_the_others(
    tmp_path: Path,
) -> None:
    refusing = stdio("announcing", "--legacy", "--forbid", A, name="refusing")
    down = UpstreamSettings("down", url=f"http://127.0.0.1:{free_port()}/mcp")
    gone = UpstreamSettings("gone", command=[sys.executable, str(SERVERS / "none.py")])
    good = stdio("announcing", "--legacy", "--log", str(tmp_path / "log"))
    async with McpUpstreams([down, refusing, gone, good]) as upstreams:
        announcements = UpstreamAnnouncements(upstreams)
        await upstreams.tools()
        assert await announcements.offered() == LISTS | {"resourceSubscriptions"}
        public = f"announcing+{A}"
        async with announcements.listening(frozenset({public, f"down+{A}"})) as waiter:
            await do(upstreams, "touch", uri=A)
            assert await heard(waiter, public) == {public}


async def test_closing_ends_all_that_listens(upstream: Upstream) -> None:
    tasks = asyncio.all_tasks()
    async with reached(upstream) as (upstreams, announcements):
        pid = int(await do(upstreams, "pid"))
        async with announcements.listening(LISTS | {A}):
            with anyio.fail_after(WAIT_S):
                await upstreams.close()
        async with announcements.listening(LISTS | {A}):
            assert await announcements.offered() == frozenset()
        assert asyncio.all_tasks() == tasks
    assert is_alive(pid) == (upstream.transport == "http")


async def test_a_listener_that_is_cancelled_leaves_nothing_behind(upstream: Upstream) -> None:
    async with reached(upstream) as (_, announcements):
        with anyio.CancelScope() as scope:
            async with announcements.listening(frozenset({A})) as waiter:
                scope.cancel()
                await waiter.wait(WAIT_S)
        await upstream.until_logged(upstream.opens(A), upstream.ends(A))
