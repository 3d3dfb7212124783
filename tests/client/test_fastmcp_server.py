"""Our client at a server of `fastmcp-tasks`: no versions, no streams of tasks, no call keys."""

import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from outlast.adapters.journal import MemoryJournal
from outlast.domain.clienting import InputRequired, TaskCancelled, TaskExpired, TaskFailed
from outlast.service.client.client import Via
from outlast.tests.acceptance.waiting import until, until_file_says
from outlast.tests.client.world import PATIENCE_S, Person, called, client_of, text_of
from outlast.tests.support.ports import free_port

pytestmark = pytest.mark.anyio

SERVER = Path(__file__).with_name("fastmcp_server.py")
both = pytest.mark.parametrize("via", ["polling", "auto"])


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    port = free_port()
    process = await anyio.open_process(
        [sys.executable, str(SERVER), str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    async def listens() -> bool:
        assert process.returncode is None
        try:
            await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
        except OSError:
            return False
        return True

    try:
        await until(listens, PATIENCE_S)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        await process.wait()


@pytest.mark.promise("client-drives-any-server")
@both
async def test_a_task_is_polled_to_its_result_and_a_plain_call_answers(url: str, via: Via):
    async with client_of(url, via) as client:
        assert await text_of(await called(client, "slow", text="later")) == "later"
        result = await client.call_tool("plain", {"text": "now"})
        assert isinstance(result, dict)
        assert result["content"][0]["text"] == "now"


@both
async def test_updates_tell_no_state_twice(url: str, via: Via):
    """This server stamps the task anew at every poll, so only the very same state is a repeat."""
    async with client_of(url, via) as client:
        handle = await called(client, "slow", text="x")
        with anyio.fail_after(PATIENCE_S):
            told = [state.task async for state in handle.updates()]
    instants = [datetime.fromisoformat(task["lastUpdatedAt"]) for task in told]
    assert instants == sorted(set(instants))
    assert {task["status"] for task in told[:-1]} <= {"working"}
    assert told[-1]["status"] == "completed"


@pytest.mark.promise("client-drives-any-server")
@both
async def test_each_question_of_a_task_is_asked_once(url: str, via: Via):
    person = Person()
    async with client_of(url, via, person) as client:
        assert await text_of(await called(client, "ask")) == "first and second"
    assert sorted(person.asked) == ["first", "second"]


async def test_questions_before_the_result_are_asked_on_the_call(url: str):
    person = Person()
    async with client_of(url, "polling", person) as client:
        result = await client.call_tool("ask_plain")
        assert isinstance(result, dict)
        assert result["content"][0]["text"] == "first and second"
    async with client_of(url) as client:
        with pytest.raises(InputRequired) as required:
            await client.call_tool("ask_plain")
    assert sorted(person.asked) == sorted(required.value.requests) == ["first", "second"]


@pytest.mark.promise("client-drives-any-server")
@both
async def test_a_cancelled_task_raises_that_it_was(url: str, via: Via, tmp_path: Path):
    async with client_of(url, via) as client:
        handle = await called(client, "hold", marker=str(tmp_path / "marker"))
        await until_file_says(tmp_path / "marker", "started", PATIENCE_S)
        await handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle.result(PATIENCE_S)


@pytest.mark.promise("client-drives-any-server")
@both
async def test_a_failed_task_raises_the_very_error_and_an_error_result_is_one(url: str, via: Via):
    async with client_of(url, via) as client:
        with pytest.raises(TaskFailed) as failed:
            await (await called(client, "fails")).result(PATIENCE_S)
        result = await (await called(client, "is_error")).result(PATIENCE_S)
    error = failed.value
    assert (error.code, str(error), error.data) == (
        -32050,
        "Quota exceeded",
        {"retryAfterMs": 1500},
    )
    assert result["isError"] is True


async def test_a_task_that_never_was_is_gone(url: str):
    async with client_of(url) as client:
        with pytest.raises(TaskExpired):
            await client.task("x" * 43).result(PATIENCE_S)


async def test_a_call_that_perhaps_arrived_is_lost_and_not_sent_again(url: str):
    class Dying(MemoryJournal):
        """Its process dies as soon as the call is answered."""

        async def accept(self, entry_id: str, task_id: str) -> None:
            raise KeyboardInterrupt

    journal = Dying()
    async with client_of(url, "polling", None, journal) as client:
        with pytest.raises(KeyboardInterrupt):
            await client.call_tool("slow", {"text": "x"})
    asked: list[str] = []

    async with client_of(url, "polling", None, journal) as client:
        calls: Any = client._calls  # none may be made
        calls.carry_out = asked.append
        found = await client.resume()
        assert [entry.tool for entry in found.lost] == ["slow"]
        assert (list(found), asked) == ([], [])
        assert (await client.resume()).lost == []  # said once
        assert [entry.ended async for entry in client.journal_entries()] == ["lost"]
