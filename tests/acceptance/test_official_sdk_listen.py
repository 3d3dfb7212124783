"""The official client listens to Outlast: its own driver for lists, its session for task ids.

The driver knows no task ids, but its filter carries what it does not know and its extensions may
bind notifications of their own: so all that we send is parsed by somebody else's strict models.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from mcp import Client
from mcp.client.extension import ClientExtension, NotificationBinding
from mcp.client.subscriptions import SubscriptionLost, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    SubscriptionFilter,
    SubscriptionsAcknowledgedNotification,
    SubscriptionsListenRequest,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
)
from pydantic import BaseModel, ConfigDict, Field

from outlast.tests.acceptance.waiting import until
from outlast.tests.support.balancer import balancing
from outlast.tests.support.mcp import TASKS, RawClient, http_client
from outlast.tests.support.serving import Serving, command_of, serving

pytestmark = [pytest.mark.anyio, pytest.mark.promise("real-clients-drive-tasks")]

EVERYDAY = Path(__file__).parents[1] / "upstreams" / "everyday.py"
PATIENCE_S = 60.0
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


class TaskParams(BaseModel):
    """A `notifications/tasks`: the DetailedTask, and not a member more."""

    model_config = ConfigDict(extra="forbid", strict=True)

    meta: dict[str, Any] = Field(alias="_meta")
    task_id: str = Field(alias="taskId")
    status: Literal["working", "input_required", "completed", "failed", "cancelled"]
    status_message: str | None = Field(None, alias="statusMessage")
    created_at: datetime = Field(alias="createdAt", strict=False)
    updated_at: datetime = Field(alias="lastUpdatedAt", strict=False)
    ttl_ms: int | None = Field(alias="ttlMs")
    poll_interval_ms: int | None = Field(None, alias="pollIntervalMs")
    input_requests: dict[str, Any] | None = Field(None, alias="inputRequests")
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    @property
    def version(self) -> int:
        return self.meta["dev.outlast/version"]


class Heard(ClientExtension):
    """What comes in of tasks, and the acknowledgements."""

    identifier = TASKS

    def __init__(self) -> None:
        self.tasks: list[TaskParams] = []
        self.acknowledged: list[SubscriptionsAcknowledgedNotification] = []

    def notifications(self) -> list[NotificationBinding[Any]]:
        return [
            NotificationBinding(
                method="notifications/tasks", params_type=TaskParams, handler=self._heard
            )
        ]

    async def _heard(self, params: TaskParams) -> None:
        self.tasks.append(params)

    async def message(self, message: Any) -> None:
        """The client's message handler."""
        if isinstance(message, SubscriptionsAcknowledgedNotification):
            self.acknowledged.append(message)

    async def until_ended(self) -> None:
        """The client hands notifications out one by one, so the last may come after the result."""

        async def ended() -> bool:
            return any(task.status == "completed" for task in self.tasks)

        await until(ended, PATIENCE_S)


def listening_to(*task_ids: str) -> SubscriptionsListenRequest:
    wanted = SubscriptionFilter.model_validate({"taskIds": list(task_ids)})
    return SubscriptionsListenRequest(params=SubscriptionsListenRequestParams(notifications=wanted))


@pytest.mark.promise("listen-speaks-the-specification")
async def test_the_sessions_own_request_carries_task_ids_and_reads_every_frame(
    outlast_server: str,
):
    heard = Heard()
    async with (
        http_client() as http,
        Client(outlast_server, extensions=[heard], message_handler=heard.message) as client,
    ):
        raw = RawClient(outlast_server, http)
        task_id = await raw.opened("slow_echo", {"text": "hi"})
        with anyio.fail_after(PATIENCE_S):
            result = await client.session.send_request(
                listening_to(task_id, "x" * 43), SubscriptionsListenResult
            )
        await heard.until_ended()
    [acknowledged] = heard.acknowledged
    assert acknowledged.params.notifications.model_extra == {"taskIds": [task_id]}
    told = sorted(heard.tasks, key=lambda task: task.version)
    assert [task.version for task in told] == list(range(told[0].version, told[-1].version + 1))
    assert told[-1].result is not None
    assert told[-1].result["structuredContent"] == {"result": "hi"}
    ids = {task.meta[SUBSCRIPTION] for task in told}
    assert result.meta is not None
    assert acknowledged.params.meta is not None
    assert ids == {result.meta[SUBSCRIPTION]} == {acknowledged.params.meta[SUBSCRIPTION]}


@pytest.mark.promise("listen-speaks-the-specification")
async def test_a_client_without_the_extension_is_told_what_it_lacks(outlast_server: str):
    async with Client(outlast_server) as client:
        with pytest.raises(MCPError) as refused:
            await client.session.send_request(listening_to("x" * 43), SubscriptionsListenResult)
    assert refused.value.error.code == MISSING_REQUIRED_CLIENT_CAPABILITY
    assert refused.value.error.data == {"requiredCapabilities": {"extensions": {TASKS: {}}}}


# --- the client's driver


@asynccontextmanager
async def announcing(folder: Path, database_url: str) -> AsyncIterator[Serving]:
    """A server in front of an upstream whose list of tools grows."""
    config = f'[upstreams.everyday]\ncommand = {command_of(EVERYDAY)}\n[defaults]\nrun = "direct"\n'
    async with serving(folder, config, database_url) as server:
        yield server


async def test_the_drivers_stream_tells_that_the_tools_have_changed(
    database_url: str, tmp_path: Path
):
    async with announcing(tmp_path, database_url) as server, Client(server.url) as client:
        with anyio.fail_after(PATIENCE_S):
            before = {tool.name for tool in (await client.list_tools()).tools}
            async with client.listen(tools_list_changed=True) as subscription:
                assert subscription.honored.tools_list_changed is True
                await client.call_tool("grow")
                assert await anext(subscription) == ToolsListChanged()
                after = {tool.name for tool in (await client.list_tools()).tools}
    assert after - before == {"grown"}


@pytest.mark.promise("listen-speaks-the-specification")
async def test_the_driver_takes_our_end_on_sigterm_for_a_graceful_one(
    database_url: str, tmp_path: Path
):
    async with announcing(tmp_path, database_url) as server, Client(server.url) as client:
        with anyio.fail_after(PATIENCE_S):
            async with client.listen(tools_list_changed=True) as subscription:
                server.process.terminate()
                assert [event async for event in subscription] == []
                assert await server.process.wait() == 0


async def test_the_driver_takes_a_cut_connection_for_a_lost_one(database_url: str, tmp_path: Path):
    async with announcing(tmp_path, database_url) as server:
        port = int(server.base_url.rpartition(":")[2])
        async with (
            balancing([port]) as balancer,
            Client(f"{balancer.base_url}/mcp") as client,
            client.listen(tools_list_changed=True) as subscription,
        ):
            balancer.cut()
            with anyio.fail_after(PATIENCE_S), pytest.raises(SubscriptionLost):
                await anext(subscription)
