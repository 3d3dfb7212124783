"""A client that waits on its request: by stream or in JSON, with progress, until it leaves."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from outlast.tests.acceptance.waiting import until_file_says
from outlast.tests.service.conftest import GRACE_S
from outlast.tests.support.mcp import (
    SERVER_INFO,
    UNDECLARED,
    RawClient,
    envelope,
    headers_of,
    http_client,
)
from outlast.tests.support.serving import Serving

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


async def test_an_undeclared_client_that_asks_for_progress_reads_it_on_a_stream(
    client: RawClient, notes: Path
):
    arguments = {"path": str(notes), "seconds": 0.5}
    for token in ("p-1", 7, 0):
        reply = await client.call(
            "note_task", arguments, capabilities=UNDECLARED, meta={"progressToken": token}
        )
        assert reply.is_stream
        assert reply.headers["x-accel-buffering"] == "no"
        *told, answer = reply.messages
        assert [(m["method"], m["params"]["progressToken"]) for m in told] == [
            ("notifications/progress", token)
        ] * len(told)
        steps = [m["params"]["progress"] for m in told]
        assert steps == sorted(set(steps))
        first = {"progressToken": token, "progress": 0, "total": 5, "message": "step 0"}
        assert told[0]["params"] == first
        assert answer["result"]["resultType"] == "complete"
        assert answer["result"]["_meta"][SERVER_INFO]["name"] == "outlast"


async def test_who_asks_for_no_progress_gets_one_answer_in_json(client: RawClient, notes: Path):
    arguments = {"path": str(notes), "seconds": 0.2}
    reply = await client.call("note_task", arguments, capabilities=UNDECLARED)
    assert (reply.is_stream, reply.result["resultType"]) == (False, "complete")


@pytest.mark.parametrize("token", [None, True, 1.5, [], {}])
async def test_a_progress_token_of_another_type_is_refused_and_nothing_runs(
    client: RawClient, notes: Path, token: Any
):
    meta, arguments = {"progressToken": token}, {"path": str(notes), "seconds": 0.2}
    reply = await client.call("note_task", arguments, capabilities=UNDECLARED, meta=meta)
    assert reply.refusal == (400, -32602)
    assert not notes.exists()


async def test_who_reads_no_streams_gets_one_answer_in_json(client: RawClient, notes: Path):
    arguments = {"path": str(notes), "seconds": 0.2}
    params = {"name": "note_task", "arguments": arguments}
    body = envelope("tools/call", params, UNDECLARED, {"progressToken": 1})
    reply = await client.send(body, accept="application/json")
    assert (reply.is_stream, reply.result["resultType"]) == (False, "complete")


async def test_a_declared_client_that_asks_for_progress_still_gets_its_task(
    client: RawClient, notes: Path
):
    # Far longer than the grace: both ends at once, seen late, would be an answer and no task.
    for tool, seconds in (("note_task", 0.5), ("note_auto", GRACE_S + 3.0)):
        arguments = {"path": str(notes), "seconds": seconds}
        reply = await client.call(tool, arguments, meta={"progressToken": 1})
        assert reply.result["resultType"] == "task"
        ended = await client.until_status(reply.result["taskId"])
        assert ended["status"] == "completed"
    assert len(notes.read_text().splitlines()) == 2


async def test_a_fault_at_the_end_of_a_stream_is_told_on_the_stream(client: RawClient):
    reply = await client.call("fault", capabilities=UNDECLARED, meta={"progressToken": 1})
    assert reply.error["code"] == -32050


@pytest.mark.parametrize("accept", ["application/json", "application/json, text/event-stream"])
async def test_an_undeclared_client_that_leaves_stops_the_tool(
    desk: Serving, notes: Path, accept: str
):
    params = {"name": "hold_task", "arguments": {"marker": str(notes)}}
    body = envelope("tools/call", params, UNDECLARED, {"progressToken": 1})
    async with http_client() as http:
        headers, told = {**headers_of(body), "accept": accept}, asyncio.Event()
        waiting = asyncio.ensure_future(read_all(http, desk.url, body, headers, told))
        await until_file_says(notes, "started", PATIENCE_S)
        if "stream" in accept:
            await asyncio.wait_for(told.wait(), PATIENCE_S)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await until_file_says(notes, "stopped", PATIENCE_S)
    assert "unexpected" not in desk.log.read_text()


async def read_all(
    http: httpx2.AsyncClient,
    url: str,
    body: dict[str, Any],
    headers: dict[str, str],
    told: asyncio.Event,
) -> None:
    content = json.dumps(body).encode()
    async with http.stream("POST", url, content=content, headers=headers) as reply:
        async for _ in reply.aiter_raw():
            told.set()
