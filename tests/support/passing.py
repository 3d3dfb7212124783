"""What a test asks of upstreams beside tools."""

import json
from collections.abc import Mapping
from typing import Any

import anyio

from outlast.adapters.upstream import McpUpstreams
from outlast.domain.passing import Forward, Kind, Listing
from outlast.domain.ports import CallNews, Returned, RunningCall

from .upstreams import WAIT_S, hear

LOG_LEVEL = "io.modelcontextprotocol/logLevel"


async def send(
    upstreams: McpUpstreams,
    method: str,
    params: Mapping[str, Any],
    capabilities: Mapping[str, Any] | None = None,
) -> RunningCall:
    """Begin a request that is passed on."""
    with anyio.fail_after(WAIT_S):
        return await upstreams.forward(Forward(method, params, capabilities or {}))


async def read(
    upstreams: McpUpstreams,
    uri: str,
    capabilities: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
    **more: Any,
) -> list[CallNews]:
    """All that reading a resource has to say."""
    params = {"uri": uri, **more} if meta is None else {"uri": uri, "_meta": meta, **more}
    return await hear(await send(upstreams, "resources/read", params, capabilities))


def words(news: CallNews) -> str:
    """The text of the first content of a read resource."""
    assert isinstance(news, Returned)
    return news.result["contents"][0]["text"]


async def echo(
    upstreams: McpUpstreams, meta: Mapping[str, Any], capabilities: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What the server saw of a request with this `_meta`."""
    return json.loads(words((await read(upstreams, "act://echo", capabilities, meta))[-1]))


async def listed(upstreams: McpUpstreams, kind: Kind) -> Listing:
    """One list of all upstreams."""
    with anyio.fail_after(WAIT_S):
        return await upstreams.listed(kind)


async def names(upstreams: McpUpstreams, kind: Kind, key: str) -> list[str]:
    """What the entries of a list are called."""
    return [str(entry[key]) for entry in (await listed(upstreams, kind)).entries]
