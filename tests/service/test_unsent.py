"""A call whose connection takes long to open is not sent once nobody wants it any more."""

from pathlib import Path
from typing import Any

import pytest

from outlast.tests.acceptance.waiting import until
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.serving import command_of, serving

pytestmark = pytest.mark.anyio

LATE = Path(__file__).parents[1] / "upstreams" / "late_server.py"
PATIENCE_S = 60.0


class Late:
    """The server's folder, and the configuration that has it behind us."""

    def __init__(self, folder: Path, timeout: str) -> None:
        self._folder = folder
        self.config = (
            f'[defaults]\nrun = "task"\npoll_interval = "50ms"\ntimeout = "{timeout}"\n'
            f'[upstreams.late]\nera = "legacy"\ncommand = {command_of(LATE, str(folder))}\n'
        )

    def count(self, line: str) -> int:
        return (self._folder / "heard").read_text().splitlines().count(line)

    async def hold(self, client: RawClient) -> str:
        """A task whose call waits for a connection of its own, which does not open."""
        assert "result" in (await client.call("work", {}, capabilities={})).body  # it is there
        started = self.count("started")
        (self._folder / "hold").touch()
        task_id = await client.opened("work", {})

        async def is_starting() -> bool:
            return self.count("started") > started

        await until(is_starting, PATIENCE_S)
        return task_id

    def release(self) -> None:
        (self._folder / "hold").unlink()


@pytest.mark.promise("cancel-reaches-upstream")
async def test_a_cancel_is_heard_while_the_connection_opens(tmp_path: Path, database_url: str):
    late = Late(tmp_path, "10m")
    async with serving(tmp_path, late.config, database_url) as server, http_client() as http:
        client = RawClient(server.url, http)
        task_id = await late.hold(client)
        await client.request("tasks/cancel", {"taskId": task_id})
        assert (await client.until_status(task_id))["status"] == "cancelled"
        late.release()
    assert late.count("tools/call") == 1


async def test_a_timeout_is_not_outlasted_by_the_connection(tmp_path: Path, database_url: str):
    late = Late(tmp_path, "5s")
    async with serving(tmp_path, late.config, database_url) as server, http_client() as http:
        client = RawClient(server.url, http)
        task: dict[str, Any] = await client.until_status(await late.hold(client))
        assert (task["status"], task["error"]["data"]) == ("failed", {"reason": "timeout"})
        late.release()
    assert late.count("tools/call") == 1
