"""Connections to real upstream servers: lost, refused, found again; and what is listed on them."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from outlast.adapters import upstream_backoff, upstream_link
from outlast.adapters.upstream import McpUpstreams, UpstreamSettings, backoff_s
from outlast.domain import errors
from outlast.domain.ports import (
    HeldAsk,
    Returned,
)
from outlast.tests.support.listening import accepting
from outlast.tests.support.ports import free_port
from outlast.tests.support.upstreams import (
    FORM,
    WAIT_S,
    Era,
    begin,
    first,
    hear,
    http_server,
    is_alive,
    outcome,
    reached,
    stdio,
    text,
    until,
    until_it_exists,
    until_it_listens,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("patience")]


async def lists(upstreams: McpUpstreams, tool: str) -> bool:
    return tool in {known.name for known in await upstreams.tools()}


async def lists_only(upstreams: McpUpstreams, upstream: str) -> bool:
    return {known.upstream for known in await upstreams.tools()} == {upstream}


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
                await gateway.refuse_all_but(b'"hold"')
                with pytest.raises(errors.UpstreamUnavailable):
                    await begin(upstreams, "pid")
                await running.cancel()
                await until_it_exists(tmp_path / "stopped")
                assert await hear(running) == []  # it was cancelled, not lost

    async def test_an_upstream_that_never_starts_is_tried_ever_less_often(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(upstream_backoff, "BACKOFF_S_FIRST", WAIT_S)
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
            assert list(await upstreams.tools()) == []


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

    async def test_the_catalogue_is_the_same_object_until_a_list_has_changed(self) -> None:
        given = [stdio("everyday", name="a"), stdio("asking", name="b")]
        async with McpUpstreams(given) as upstreams:
            known = await upstreams.tools()
            names = [tool.name for tool in known]
            assert await upstreams.tools() is known
            await outcome(upstreams, "grow", upstream="a")
            await until(lambda: lists(upstreams, "a_grown"))
            grown = await upstreams.tools()
            assert await upstreams.tools() is grown
            assert [tool.name for tool in known] == names
            assert {tool.name for tool in grown} == {*names, "a_grown"}

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

    @pytest.mark.parametrize("name", ["a_b", "", "a.b", "x" * 33, "1a", "-a", "B"])
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

    async with accepting(answer) as port:
        yield port


class Gateway:
    """A TCP gateway that can be told to take no new connection and to cut the old ones."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._door = AsyncExitStack()
        self._open: dict[asyncio.StreamWriter, bytes] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, target: int) -> AsyncIterator["Gateway"]:
        gateway = cls(target)
        gateway.port = await gateway._door.enter_async_context(accepting(gateway._carry))
        try:
            yield gateway
        finally:
            await gateway.refuse_all_but(None)

    async def refuse_all_but(self, words: bytes | None) -> None:
        """Close the door, and every connection over which these words have not been sent."""
        await self._door.aclose()
        for writer, sent in list(self._open.items()):
            if words is None or words not in sent:
                writer.transport.abort()

    async def _carry(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        self._open[back] = b""
        far, forth = await asyncio.open_connection("127.0.0.1", self._target)
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


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            sink.write(data)
    except OSError:
        pass
    sink.close()
