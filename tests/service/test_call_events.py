"""What events have to do with a call: the source of its task, and the webhook that it brings."""

import base64
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from outlast.tests.acceptance.waiting import until
from outlast.tests.delivery.posting import served
from outlast.tests.service.conftest import desk_config, tasks_stored
from outlast.tests.support.mcp import (
    DECLARED,
    IDEMPOTENCY_KEY,
    TASKS,
    UNDECLARED,
    RawClient,
    http_client,
)
from outlast.tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

EVENTS = "io.modelcontextprotocol/events"
WEBHOOK = "dev.outlast/webhook"
BOTH = {**DECLARED, "extensions": {TASKS: {}, EVENTS: {}}}
SOON_S_MAX = 20.0


@pytest.fixture(scope="module")
async def desk(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    """A server that works, and posts to loopback."""
    config = f"{desk_config()}[events]\ndevelopment = true\n"
    folder = tmp_path_factory.mktemp("call-events")
    async with serving(folder, config, module_database_url) as started:
        yield started


@pytest.fixture
async def client(desk: Serving) -> AsyncIterator[RawClient]:
    async with http_client() as http:
        yield RawClient(desk.url, http, capabilities=BOTH)


@dataclass
class Endpoint:
    """Takes what is posted to it, and echoes challenges unless it is `mute`."""

    mute: bool = False
    url: str = ""
    challenges: int = 0
    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    async def take(self, request: Request) -> Response:
        body = await request.json()
        if body.get("type") == "verification":
            self.challenges += 1
            return JSONResponse({} if self.mute else {"challenge": body["challenge"]})
        if "type" not in body:
            self.events.append(body)
        return Response(status_code=204)

    def given(self) -> dict[str, Any]:
        """What a call brings to be told here."""
        secret = "whsec_" + base64.b64encode(os.urandom(32)).decode()
        return {WEBHOOK: {"url": self.url, "secret": secret}}

    def versions(self, task_id: str) -> list[int]:
        """Which events of this task have arrived, each once."""
        mine = [event["data"] for event in self.events if event["data"]["taskId"] == task_id]
        return sorted({data["version"] for data in mine})

    async def until_ended(self, task_id: str) -> list[int]:
        """The versions up to the last one, which is the end of the task, once all are there."""

        async def is_whole() -> bool:
            mine = [event["data"] for event in self.events if event["data"]["taskId"] == task_id]
            last = [data["version"] for data in mine if data["status"] == "completed"]
            return bool(last) and self.versions(task_id) == list(range(1, last[0] + 1))

        await until(is_whole, SOON_S_MAX)
        return self.versions(task_id)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    route = Route("/{path:path}", endpoint.take, methods=["POST"])
    async with served(Starlette(routes=[route])) as url:
        # Each test its own, for what is verified stays so while a subscription is there.
        endpoint.url = f"{url.rstrip('/')}/{os.urandom(8).hex()}"
        yield endpoint


def note(folder: Path) -> dict[str, Any]:
    return {"path": str(folder / "notes"), "text": "x"}


@pytest.mark.parametrize("form", [{"events": {}}, {"extensions": {TASKS: {}, EVENTS: {}}}])
async def test_a_task_has_an_event_source_from_its_very_beginning(
    client: RawClient, tmp_path: Path, form: dict[str, Any]
):
    capabilities = {**DECLARED, **form}
    created = (
        await client.call("hold_task", {"marker": str(tmp_path / "m")}, capabilities=capabilities)
    ).result
    task_id, source = created["taskId"], created["eventSource"]
    listed = (await client.request("events/list")).result["events"]
    assert source["name"] in {kind["name"] for kind in listed}
    assert source["input"] == {"taskId": task_id}
    asked = {"name": source["name"], "arguments": source["input"]}
    place, found = source["initialCursor"], list[dict[str, Any]]()

    async def has_progress() -> bool:
        answer = (await client.request("events/poll", {**asked, "cursor": place})).result
        assert not answer["truncated"]
        found[:] = answer["events"]
        return bool(found)

    await until(has_progress, SOON_S_MAX)
    data = found[0]["data"]
    assert (data["taskId"], data["progress"], data["message"]) == (task_id, 1, "holding")
    await client.request("tasks/cancel", {"taskId": task_id})
    await client.until_status(task_id, "cancelled")
    whole = await client.request("events/stream", {**asked, "cursor": place})
    methods = [message.get("method", "result").rpartition("/")[2] for message in whole.messages]
    assert methods == ["active", "event", "terminated", "result"]


async def test_who_does_not_declare_events_is_told_of_no_source(client: RawClient, tmp_path: Path):
    for capabilities in (DECLARED, {**DECLARED, "events": True}):
        created = await client.call("note_task", note(tmp_path), capabilities=capabilities)
        assert "eventSource" not in created.result


async def test_a_call_brings_a_webhook_that_is_told_all_of_its_task(
    client: RawClient, endpoint: Endpoint, tmp_path: Path
):
    created = (await client.call("note_task", note(tmp_path), meta=endpoint.given())).result
    versions = await endpoint.until_ended(created["taskId"])
    assert versions[0] == 1
    assert endpoint.challenges == 1
    assert {event["name"] for event in endpoint.events} == {"task.updated"}


@pytest.mark.parametrize("tool", ["note_task", "note_auto"])
async def test_a_webhook_that_is_refused_has_created_nothing(
    client: RawClient, desk: Serving, endpoint: Endpoint, tmp_path: Path, tool: str
):
    stored = tasks_stored(desk.database_url)
    endpoint.mute = True
    url = endpoint.url
    secret = endpoint.given()[WEBHOOK]["secret"]
    for given, code in (
        (endpoint.given()[WEBHOOK], -32015),
        ({"url": url, "secret": "whsec_short"}, -32602),
        ({"url": "http://example.com/", "secret": secret}, -32602),
        ({"url": url}, -32602),
        ("https://example.com/", -32602),
    ):
        refused = (await client.call(tool, note(tmp_path), meta={WEBHOOK: given})).error
        assert refused["code"] == code
    assert tasks_stored(desk.database_url) == stored
    assert not (tmp_path / "notes").exists()
    assert endpoint.challenges == 1


async def test_a_call_without_a_task_has_no_use_for_a_webhook(
    client: RawClient, endpoint: Endpoint, tmp_path: Path
):
    given = {WEBHOOK: {"url": "not a url"}}
    for tool, capabilities in (("note_direct", BOTH), ("note_task", UNDECLARED)):
        answer = await client.call(tool, note(tmp_path), meta=given, capabilities=capabilities)
        assert answer.result["resultType"] == "complete"
    assert endpoint.challenges == 0


async def test_a_repeated_call_brings_its_webhook_to_the_task_that_is_there(
    client: RawClient, endpoint: Endpoint, tmp_path: Path
):
    key = {IDEMPOTENCY_KEY: os.urandom(8).hex()}
    first = (await client.call("note_task", note(tmp_path), meta=key)).result
    await client.until_status(first["taskId"], "completed")
    again = await client.call("note_task", note(tmp_path), meta={**key, **endpoint.given()})
    assert again.result["taskId"] == first["taskId"]
    await endpoint.until_ended(first["taskId"])
