"""Real `outlast serve` in front of an upstream that is connected to and never lists its tools."""

import asyncio
from pathlib import Path

import anyio
import pytest

from outlast.tests.service.passing_world import UNAVAILABLE, by_stdio, config_of
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.serving import serving
from outlast.tests.support.upstreams import SERVERS

pytestmark = [pytest.mark.anyio, pytest.mark.promise("lists-say-what-is-missing")]

# The wait for one list of several, once for all, and a busy machine: a quarter of what it takes to
# wait for the whole reading once after another.
TOGETHER_S = 25.0


async def test_calls_and_lists_of_the_others_are_answered_together(
    database_url: str, tmp_path: Path
) -> None:
    gag = tmp_path / "gag"
    gag.touch()
    given = {
        "up": by_stdio(SERVERS / "everyday.py"),
        "mute": by_stdio(SERVERS / "odd_server.py", "--mute", str(gag)),
    }
    async with serving(tmp_path, config_of(given), database_url) as server, http_client() as http:
        client = RawClient(server.url, http)
        for _ in range(2):
            with anyio.fail_after(TOGETHER_S):
                calls = (client.call("up_add", {"a": 1, "b": number}) for number in range(3))
                *sums, listed = await asyncio.gather(*calls, client.request("tools/list"))
            found = [reply.result["structuredContent"]["result"] for reply in sums]
            assert found == [1, 2, 3]
            assert listed.result["_meta"][UNAVAILABLE] == ["mute"]
            assert "up_add" in [tool["name"] for tool in listed.result["tools"]]
