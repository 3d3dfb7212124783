"""One suite of scenarios over every way to hear of a task: the same results, whichever it is."""

from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from outlast.domain.clienting import ClientTimeout, TaskCancelled, TaskExpired, TaskFailed
from outlast.service.client.client import Via
from outlast.tests.acceptance.waiting import until, until_file_says
from outlast.tests.client.world import (
    PATIENCE_S,
    VIAS,
    Person,
    World,
    called,
    client_of,
    text_of,
)
from outlast.tests.support.mcp import RawClient, http_client

pytestmark = pytest.mark.anyio

every_way = pytest.mark.parametrize("via", VIAS)


@pytest.mark.promise("every-source-gives-the-same")
@every_way
async def test_a_fast_and_a_slow_tool_give_their_results(lone: World, via: Via):
    async with client_of(lone.url, via) as client:
        fast = await called(client, "fast", text="now")
        slow = await called(client, "slow", text="later")
        assert await text_of(fast) == "now"
        assert await text_of(slow) == "later"
        assert await text_of(slow) == "later"  # asked again, it is known


@pytest.mark.promise("every-source-gives-the-same")
@every_way
async def test_updates_tell_each_state_once_and_in_order(lone: World, via: Via):
    async with client_of(lone.url, via) as client:
        handle = await called(client, "slow", text="x")
        with anyio.fail_after(PATIENCE_S):
            async with aclosing(handle.updates()) as states:
                told = [state async for state in states]
    versions = [state.version for state in told]
    assert versions == sorted(set(versions), key=lambda version: version or 0)
    assert told[-1].task["status"] == "completed"
    assert [state.is_terminal for state in told].count(True) == 1


@pytest.mark.promise("client-asks-once")
@every_way
async def test_a_question_is_asked_once(lone: World, via: Via, tmp_path: Path):
    person = Person()
    async with client_of(lone.url, via, person) as client:
        handle = await called(client, "ask", path=str(tmp_path / "lines"))
        assert await text_of(handle) == "Hello, name?"
    assert person.asked == ["Name?"]
    assert (tmp_path / "lines").read_text() == "greeted\n"


@pytest.mark.promise("every-source-gives-the-same")
@every_way
async def test_partial_answers_are_sent_as_they_come(lone: World, via: Via):
    """The second question is answered only once the server has the answer to the first."""
    async with client_of(lone.url, via) as client:
        handle = await called(client, "ask_two")
        with anyio.fail_after(PATIENCE_S):
            async with aclosing(handle.updates()) as states:
                async for state in states:
                    asked = state.task.get("inputRequests", {})
                    if asked:  # the first of those that are still open
                        key = next(iter(asked))
                        name = asked[key]["params"]["message"]
                        await handle.answer({key: {"action": "accept", "content": {"name": name}}})
        assert await text_of(handle) == "first and second"


@pytest.mark.promise("every-source-gives-the-same")
@every_way
async def test_a_failed_task_raises_the_very_error(lone: World, via: Via):
    async with client_of(lone.url, via) as client:
        handle = await called(client, "fails")
        with pytest.raises(TaskFailed) as failed:
            await handle.result(PATIENCE_S)
    error = failed.value
    assert (error.code, str(error), error.data) == (
        -32050,
        "Quota exceeded",
        {"retryAfterMs": 1500},
    )


@pytest.mark.promise("every-source-gives-the-same")
@every_way
async def test_a_cancelled_task_raises_that_it_was(lone: World, via: Via, tmp_path: Path):
    async with client_of(lone.url, via) as client:
        handle = await called(client, "hold", path=str(tmp_path / "marker"))
        await until_file_says(tmp_path / "marker", "started", PATIENCE_S)
        await handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle.result(PATIENCE_S)


@every_way
async def test_an_expired_task_raises_that_it_is_gone(lone: World, via: Via):
    async with client_of(lone.url, via) as client:
        handle = await called(client, "fast", text="soon forgotten")
        await until_status(lone, handle.task_id, "completed")
        lone.expire(handle.task_id)
        with pytest.raises(TaskExpired):
            await handle.result(PATIENCE_S)


@every_way
async def test_one_deadline_holds_over_a_handler_that_never_answers(
    lone: World, via: Via, tmp_path: Path
):
    async def stalls(request: Any) -> Any:
        await anyio.sleep_forever()

    async with client_of(lone.url, via, stalls) as client:
        handle = await called(client, "ask", path=str(tmp_path / "lines"))
        with pytest.raises(ClientTimeout):
            await handle.result(1.0)
        await until_status(lone, handle.task_id, "input_required")


async def until_status(world: World, task_id: str, status: str) -> None:
    async with http_client() as http:
        raw = RawClient(world.url, http)
        assert (await raw.until_status(task_id, status, seconds=PATIENCE_S))["status"] == status


@pytest.mark.promise("every-source-gives-the-same")
async def test_a_replica_is_switched_under_every_source(lone: World, tmp_path: Path):
    texts: list[str] = []
    async with lone.server("--no-work"), AsyncExitStack() as stack:
        handles = await waiting_on(lone, stack, tmp_path / "file")
        async with anyio.create_task_group() as tasks:
            for handle in handles:
                tasks.start_soon(collect, handle, texts)
            await first_states(handles)
            lone.balancer.first = 1
            lone.balancer.cut()
            (tmp_path / "file").write_text("done")
        lone.balancer.first = 0
        lone.balancer.cut()
    assert texts == ["done"] * len(VIAS)


@pytest.mark.promise("every-source-gives-the-same")
async def test_the_server_is_restarted_under_every_source(lone: World, tmp_path: Path):
    """The tasks run on elsewhere; the address has no server for a while, then another one."""
    async with AsyncExitStack() as stack:
        handles = await waiting_on(lone, stack, tmp_path / "file")
        texts: list[str] = []
        async with anyio.create_task_group() as tasks:
            for handle in handles:
                tasks.start_soon(collect, handle, texts)
            await first_states(handles)
            ports, lone.ports[:] = list(lone.ports), []
            lone.balancer.cut()
            (tmp_path / "file").write_text("done")
            async with lone.server("--no-work"):

                async def all_told() -> bool:
                    return len(texts) == len(handles)

                await until(all_told, PATIENCE_S)
            lone.ports[:] = ports
    assert texts == ["done"] * len(VIAS)


async def waiting_on(world: World, stack: AsyncExitStack, file: Path) -> list[Any]:
    """One task for each source, which waits for the file."""
    handles = []
    for via in VIAS:
        client = await stack.enter_async_context(client_of(world.url, via))
        handles.append(await called(client, "wait", file=str(file)))
    return handles


async def first_states(handles: list[Any]) -> None:
    async def told() -> bool:
        return all(handle.state is not None for handle in handles)

    await until(told, PATIENCE_S)


async def collect(handle: Any, texts: list[str]) -> None:
    texts.append(await text_of(handle))
