"""Several processes behind one port: each has its own figures, and the store has one set."""

from pathlib import Path

import pytest

from outlast.tests.acceptance.waiting import until
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.serving import serving
from outlast.tests.telemetry.conftest import config_text

pytestmark = pytest.mark.anyio


async def test_figures_with_labels_have_their_process_and_those_of_the_store_have_none(
    tmp_path: Path, database_url: str
):
    flags = ["--processes", "2"]
    async with (
        serving(tmp_path, config_text(), database_url, flags) as server,
        http_client() as http,
    ):
        client = RawClient(server.url, http)
        for _ in range(4):
            await client.call("where")
        page = ""

        async def both_tell() -> bool:  # one of them may still be starting
            nonlocal page
            page = (await http.get(f"{server.base_url}/metrics")).text
            return all(f'process="{number}"' in page for number in (1, 2))

        await until(both_tell, 60.0)
    lines = [one for one in page.splitlines() if one.startswith("outlast_request_seconds_count")]
    calls = [one for one in lines if 'method="tools/call"' in one]
    assert {'process="1"' in one for one in calls} == {True, False}
    assert sum(float(one.split()[-1]) for one in calls) == 4
    assert len([one for one in page.splitlines() if one.startswith("outlast_queue_depth ")]) == 1
