"""A call that its upstream answers with a task of its own while our store is away."""

from pathlib import Path

import pytest

from outlast.tests.service.tasking_world import TOOLS, Tasking
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.proxy import between
from outlast.tests.support.serving import serving

pytestmark = pytest.mark.anyio

STORE_IS_AWAY = {"code": -32603, "message": "The task store cannot be reached; try again shortly."}


@pytest.mark.parametrize("grace", ["20s", "1ms"], ids=["answered-before", "answered-meanwhile"])
async def test_the_upstreams_task_is_stopped_where_ours_cannot_be_stored(
    grace: str, tmp_path: Path, database_url: str
):
    tasking = Tasking(tmp_path)
    file = (tasking.config + TOOLS).replace('grace = "20s"', f'grace = "{grace}"')
    async with (
        tasking.running(),
        between(database_url) as wire,
        serving(tmp_path, file, wire.url) as server,
        http_client() as http,
    ):
        client = RawClient(server.url, http)
        wire.block()
        refused = await client.call("must", {"name": "nobodys"})
        assert refused.error == STORE_IS_AWAY
        # While the store is still away: the upstream need not wait for it to come back.
        await tasking.until_noted("tasks/cancel ")
        wire.unblock()
        # Nothing is left that would hold the next call up, or stop its task.
        assert await client.opened("must", {"name": "ours"})
        assert tasking.count("tools/call must") == 2
        assert tasking.count("tasks/cancel ") == 1
