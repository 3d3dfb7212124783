"""The fixture upstream servers as processes, and what a test says to a call on one."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.lowlevel

from outlast.adapters.upstream import McpUpstreams, UpstreamSettings
from outlast.domain.ports import (
    CallNews,
    Returned,
    RunningCall,
    ToolCall,
)

SERVERS = Path(__file__).parent.parent / "upstreams"
WAIT_S = 60.0
YES = {"action": "accept", "content": {"agreed": True}}
NO = {"action": "accept", "content": {"agreed": False}}
FORM = {"elicitation": {"form": {}}}
EVERY_WAY = ["stdio-modern", "stdio-legacy", "http-modern", "http-legacy"]
Era = Literal["auto", "modern", "legacy"]


def stdio(server: str, *flags: str, name: str | None = None, era: Era = "auto") -> UpstreamSettings:
    command = [sys.executable, str(SERVERS / f"{server}.py"), *flags]
    return UpstreamSettings(name or server, command=command, era=era)


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
        return await anext(aiter(running.news()))


async def outcome(upstreams: McpUpstreams, tool: str, *args: Any, **more: Any) -> CallNews:
    return (await hear(await begin(upstreams, tool, *args, **more)))[-1]


def text(news: CallNews) -> str:
    assert isinstance(news, Returned)
    return news.result["content"][0]["text"]
