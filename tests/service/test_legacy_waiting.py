"""Waiting for a task on behalf of an older client: what comes first is up to the test."""

import json
from collections.abc import AsyncGenerator, Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import ClientCapabilities

from outlast.delivery.port import ListenRequest, Receipt
from outlast.domain.owner import LOCAL_CALLER
from outlast.service.exchange import Exchange
from outlast.service.legacy.asking import Context, NotAnswered
from outlast.service.legacy.waiting import Waiting
from outlast.tests.domain.given import DEPLOY

pytestmark = [pytest.mark.anyio, pytest.mark.promise("older-clients-are-served")]


class Refusing:
    """The session of a client that answers each question with an error."""

    can_send_request = True
    client_capabilities = ClientCapabilities.model_validate({"elicitation": {}})

    async def send_request(self, *_given: Any, **_more: Any) -> Any:
        raise MCPError(-1, "no")


class Told:
    """A task that asks, and is told of as cancelled before its cancel is answered."""

    def __init__(self) -> None:
        self.receipt = Receipt(("t",))
        self.is_cancelled, self._is_told = anyio.Event(), anyio.Event()

    async def open(self, request: ListenRequest) -> "Told":
        return self

    async def frames(self) -> AsyncGenerator[bytes]:
        yield framed({"status": "input_required", "inputRequests": {"q": DEPLOY.request}})
        await self.is_cancelled.wait()
        yield framed({"status": "cancelled"})

    async def close(self) -> None:
        self._is_told.set()

    async def cancelled(self, exchange: Exchange) -> dict[str, Any]:
        self.is_cancelled.set()
        await self._is_told.wait()
        return {}


def framed(state: Mapping[str, Any]) -> bytes:
    message = {"method": "notifications/tasks", "params": {"taskId": "t", **state}}
    return json.dumps(message).encode()


async def no_moments(_task_id: str, _versions: Collection[int]) -> Mapping[int, Any]:
    return {}


async def test_a_client_that_refuses_hears_of_that_and_not_of_the_cancel_that_follows():
    told = Told()
    waiting = Waiting(told, no_moments, {"tasks/cancel": told.cancelled})
    seen = SimpleNamespace(session=Refusing(), protocol_version="2025-11-25", request_id=1)
    exchange = Exchange(LOCAL_CALLER, 1, "tools/call", {}, {}, None)
    with anyio.fail_after(20), pytest.raises(NotAnswered, match="answered with an error: no"):
        await waiting.result(cast(Context, seen), exchange, "t")
    assert told.is_cancelled.is_set()
