"""`outlast receive` and `WebhookSource` at the real server, over real sockets."""

import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path

import anyio
import pytest

from outlast.adapters.inbox import SqliteInbox
from outlast.delivery.remote import Remote
from outlast.delivery.webhook.keyring import MemoryKeyring
from outlast.delivery.webhook.receiver import Receiver
from outlast.delivery.webhook.source import WebhookSource
from outlast.delivery.webhook.subscriber import Subscribing
from outlast.domain import errors
from outlast.tests.acceptance.waiting import until
from outlast.tests.delivery.posting import now, served
from outlast.tests.service.conftest import desk_config
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.ports import free_port
from outlast.tests.support.receiving import PATIENCE_S, full_pipe, receiving
from outlast.tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def desk(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    """The desk's server, which sends webhooks to loopback."""
    config = desk_config() + "[events]\ndevelopment = true\n"
    async with serving(tmp_path_factory.mktemp("desk"), config, module_database_url) as server:
        yield server


@pytest.fixture
async def source(desk: Serving, client: RawClient, tmp_path: Path) -> AsyncGenerator[WebhookSource]:
    """A source that the desk's server can post to."""
    keyring, inbox = MemoryKeyring(), await SqliteInbox.open(tmp_path / "inbox.db", now)
    receiver = Receiver(inbox, keyring, now)
    shared = Subscribing(Remote(desk.url, client.http), keyring, inbox, now)
    async with served(receiver) as url:
        yield WebhookSource(shared, receiver, url)
    await inbox.close()


async def until_subscribed(folder: Path) -> None:
    async def is_subscribed() -> bool:
        return bool(list((folder / "in").glob("*.json")))

    await until(is_subscribed, PATIENCE_S)


async def until_listening(port: int) -> None:
    async def is_listening() -> bool:
        with suppress(OSError):
            await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
            return True
        return False

    await until(is_listening, PATIENCE_S)


async def noted(client: RawClient, tmp_path: Path, text: str) -> str:
    """The id of a task that has ended."""
    task_id = await client.opened("note_task", {"path": str(tmp_path / "notes"), "text": text})
    assert (await client.until_status(task_id, "completed"))["status"] == "completed"
    return task_id


async def test_every_task_that_ends_is_a_line_also_those_that_ended_while_nobody_received(
    desk: Serving, client: RawClient, tmp_path: Path
):
    port = free_port()
    async with receiving(desk.url, tmp_path, port) as ours:
        await until_subscribed(tmp_path)
        for text in ("first", "second é"):
            task_id = await noted(client, tmp_path, text)
            data = (await ours.line())["delivery"]["data"]
            bare = {k: v for k, v in (await client.task(task_id)).items() if k != "_meta"}
            told = {k: v for k, v in data.items() if k not in {"tool", "version"}}
            assert told | {"resultType": "complete"} == bare | {"resultType": "complete"}
            assert data["tool"] == "note_task"
        assert await ours.stopped() == 0
    missed = [await noted(client, tmp_path, text) for text in ("third", "fourth")]
    async with receiving(desk.url, tmp_path, port, "--unsubscribe") as ours:
        lines = [await ours.line() for _ in missed]
        assert {line["delivery"]["data"]["taskId"] for line in lines} == set(missed)
        assert await ours.stopped() == 0


async def test_a_task_that_was_stored_and_not_printed_is_printed_after_a_kill(
    desk: Serving, client: RawClient, tmp_path: Path
):
    port, (read, write) = free_port(), full_pipe()
    try:
        async with receiving(desk.url, tmp_path, port, stdout=write) as ours:
            await until_subscribed(tmp_path)
            ended = [await noted(client, tmp_path, text) for text in ("fifth", "sixth")]
            inbox = await SqliteInbox.open(tmp_path / "in" / "box.db", now)

            async def is_stored() -> bool:
                return len(await inbox.waiting(10)) == len(ended)

            await until(is_stored, PATIENCE_S)
            await inbox.close()
            assert await ours.stopped(signal.SIGKILL) == -signal.SIGKILL
    finally:
        os.close(read)
        os.close(write)
    async with receiving(desk.url, tmp_path, port, "--unsubscribe") as ours:
        await until_listening(port)  # what is refused meanwhile comes again, but not at once
        ended.append(await noted(client, tmp_path, "seventh"))
        lines = [await ours.line() for _ in ended]
        assert {line["delivery"]["data"]["taskId"] for line in lines} == set(ended)
        assert await ours.stopped() == 0


async def test_the_subscription_to_a_task_ends_with_it(
    desk: Serving, client: RawClient, tmp_path: Path
):
    marker = tmp_path / "marker"
    task_id = await client.opened("hold_task", {"marker": str(marker)})
    arguments = f'{{"taskId":"{task_id}"}}'
    flags = ["--name", "task.updated", "--arguments", arguments]
    async with receiving(desk.url, tmp_path, 0, *flags) as ours:
        await until_subscribed(tmp_path)
        await client.request("tasks/cancel", {"taskId": task_id})
        statuses: list[str] = []
        while (line := (await ours.line())["delivery"]).get("type") != "terminated":
            statuses.append(line["data"]["status"])
        assert "cancelled" in statuses
        assert await ours.ended() == 0


async def test_a_source_tells_every_version_to_the_end(
    source: WebhookSource, client: RawClient, tmp_path: Path
):
    path = str(tmp_path / "notes")
    task_id = await client.opened("note_task", {"path": path, "text": "x", "seconds": 2.0})
    with anyio.fail_after(PATIENCE_S):
        async with aclosing(source.watch(task_id)) as states:
            told = [state async for state in states]
    versions = [state.version or 0 for state in told]
    assert versions == list(range(versions[0], versions[0] + len(versions)))
    ended = {k: v for k, v in (await client.task(task_id)).items() if k in told[-1].task}
    assert told[-1].task == ended
    assert told[-1].task["status"] == "completed"


async def test_a_source_hears_of_a_question_and_of_what_its_answer_led_to(
    source: WebhookSource, client: RawClient
):
    task_id = await client.opened("sign_task_during", {"document": "contract"})
    with anyio.fail_after(PATIENCE_S):
        async with aclosing(source.watch(task_id)) as states:
            async for state in states:
                if state.task["status"] != "input_required":
                    continue
                answers = {
                    key: {"action": "accept", "content": {"name": "Ada"}}
                    for key in state.task["inputRequests"]
                }
                await client.request("tasks/update", {"taskId": task_id, "inputResponses": answers})
    assert (await client.task(task_id))["status"] == "completed"


async def test_a_task_that_has_ended_is_told_at_once(
    source: WebhookSource, client: RawClient, tmp_path: Path
):
    task_id = await noted(client, tmp_path, "done")
    with anyio.fail_after(PATIENCE_S):
        async with aclosing(source.watch(task_id)) as states:
            assert [state.task["status"] async for state in states] == ["completed"]


async def test_a_task_of_nobody_is_refused(source: WebhookSource):
    async with aclosing(source.watch("no-such-task")) as states:
        with anyio.fail_after(PATIENCE_S), pytest.raises(errors.RequestRefused) as refused:
            await anext(states)
    assert refused.value.code == -32602


async def test_a_server_without_webhooks_refuses_at_once(module_database_url: str, tmp_path: Path):
    config = desk_config() + "[events]\nwebhooks = false\n"
    keyring, inbox = MemoryKeyring(), await SqliteInbox.open(tmp_path / "inbox.db", now)
    receiver = Receiver(inbox, keyring, now)
    async with (
        serving(tmp_path, config, module_database_url) as server,
        served(receiver) as url,
        http_client() as http,
    ):
        shared = Subscribing(Remote(server.url, http), keyring, inbox, now)
        async with aclosing(WebhookSource(shared, receiver, url).watch("t1")) as states:
            with anyio.fail_after(PATIENCE_S), pytest.raises(errors.RequestRefused):
                await anext(states)
    await inbox.close()
