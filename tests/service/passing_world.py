"""Real `outlast serve` in front of real upstreams that offer more than tools, and what is asked."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from outlast.tests.acceptance.waiting import until
from outlast.tests.support.mcp import PREFIX, SERVER_INFO, RawClient, Reply
from outlast.tests.support.serving import command_of
from outlast.tests.support.upstreams import SERVERS

OFFERING, ANNOUNCING = SERVERS / "offering.py", SERVERS / "announcing.py"
LOG_LEVEL = f"{PREFIX}logLevel"
UNAVAILABLE = "dev.outlast/unavailable"
BACK_S_MAX = 30.0  # an upstream that was down is tried again after some seconds at most
FORM: Mapping[str, Any] = {"elicitation": {"form": {}}}
NOTHING: Mapping[str, Any] = {}
YES = {"action": "accept", "content": {"agreed": True}}
ASKING: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("resources/read", {"uri": "act://ask"}),
    ("prompts/get", {"name": "consult", "arguments": {"topic": "t"}}),
)
LISTS = {
    "tools/list": ("tools", "name"),
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
    "prompts/list": ("prompts", "name"),
}


def config_of(upstreams: Mapping[str, str], server: str = "", run: str = "direct") -> str:
    """A file with these upstreams, each the body of its table."""
    tables = "\n".join(f"[upstreams.{name}]\n{body}" for name, body in upstreams.items())
    return f'[server]\n{server}\n[defaults]\nrun = "{run}"\n{tables}\n'


def by_stdio(server: Path, *flags: str) -> str:
    """An upstream that Outlast starts."""
    return f"command = {command_of(server, *flags)}"


def by_http(port: int) -> str:
    """One that is started by itself."""
    return f'url = "http://127.0.0.1:{port}/mcp"'


def own(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result without what Outlast says of itself in it."""
    meta = {key: value for key, value in result["_meta"].items() if key != SERVER_INFO}
    rest = {key: value for key, value in result.items() if key != "_meta"}
    return {**rest, "_meta": meta} if meta else rest


def folder_uri(folder: Path) -> str:
    """The resource that is never read to its end, and writes of itself into this folder."""
    return f"act://hold-{str(folder).replace('/', '|')}"


@dataclass(frozen=True)
class Reading:
    """What one client reads, whatever the method's own form is."""

    client: RawClient

    async def get(self, uri: str, **how: Any) -> Reply:
        """Read a resource."""
        return await self.client.request("resources/read", {"uri": uri}, **how)

    async def names(self, method: str) -> list[str]:
        """What the entries of a list are called, of all pages."""
        member, key = LISTS[method]
        return [entry[key] for page in await self.pages(method) for entry in page[member]]

    async def pages(self, method: str) -> list[dict[str, Any]]:
        """Every page of a list."""
        found: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        while True:
            page = (await self.client.request(method, params)).result
            found.append(page)
            if "nextCursor" not in page:
                return found
            params = {"cursor": page["nextCursor"]}

    async def missing(self, method: str) -> Any:
        """The upstreams that this answer says it is without; None when it says nothing."""
        return (await self.client.request(method)).result["_meta"].get(UNAVAILABLE)

    async def until_whole(self, method: str) -> None:
        """Return once no upstream is missing."""

        async def whole() -> bool:
            return await self.missing(method) is None

        await until(whole, BACK_S_MAX)


@asynccontextmanager
async def deaf_server() -> AsyncGenerator[int]:
    """The port of a server that takes connections and never says a word."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")

    async def hold(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            async for _ in stream:
                pass

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, hold)
        port: int = listener.extra(anyio.abc.SocketAttribute.local_port)
        yield port
        tasks.cancel_scope.cancel()
    await listener.aclose()


async def messages_of(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, Any]]:
    """The messages of a stream, as they come."""
    async for line in lines:
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
