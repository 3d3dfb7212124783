"""`outlast receive` as a process of its own: what it prints, and what it goes on with."""

import json
import os
import signal
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from outlast.tests.acceptance.waiting import until
from outlast.tests.delivery.events_server import EventsServer, Refusal, events_server
from outlast.tests.support import receiving as support
from outlast.tests.support.ports import free_port
from outlast.tests.support.receiving import PATIENCE_S, Receiving, full_pipe

pytestmark = pytest.mark.anyio

TOKEN = "a-token-that-nobody-may-see"


@pytest.fixture
async def server() -> AsyncGenerator[EventsServer]:
    async with events_server() as fake:
        fake.token = f"Bearer {TOKEN}"
        yield fake


@asynccontextmanager
async def receiving(
    server: EventsServer, folder: Path, port: int, *flags: str, stdout: int = subprocess.PIPE
) -> AsyncGenerator[Receiving]:
    async with support.receiving(
        server.url, folder, port, *flags, token=TOKEN, stdout=stdout
    ) as ours:
        yield ours


def finished(number: int, cursor: str | None = None, **data: Any) -> dict[str, Any]:
    return {
        "eventId": f"evt_{number}",
        "name": "task.finished",
        "timestamp": "2026-11-29T12:00:00Z",
        "data": {"taskId": f"t{number}", "status": "completed", **data},
        "cursor": cursor or f"c{number}",
    }


async def test_each_delivery_is_a_line_and_a_signal_ends_it_cleanly(
    server: EventsServer, tmp_path: Path
):
    gap = {"type": "gap", "cursor": "c2"}
    arguments = {"taskIds": ["t1"], "statuses": ["completed"]}
    flags = ["--arguments", json.dumps(arguments), "--ttl", "30m"]
    async with receiving(server, tmp_path, 0, *flags) as ours:
        await server.until_subscribed()
        sub = next(iter(server.subscriptions))
        odd = finished(1, text="\ud800", count=2**70)
        assert await server.deliver(odd) == 204
        assert await server.deliver(gap) == 204
        first, second = await ours.line(), await ours.line()
        assert first == {"subscriptionId": sub, "webhookId": "evt_1", "delivery": odd}
        assert (second["subscriptionId"], second["delivery"]) == (sub, gap)
        assert await ours.stopped() == 0
    asked = server.asked("events/subscribe")[0]
    assert (asked["name"], asked["arguments"]) == ("task.finished", arguments)
    assert (asked["ttlMs"], asked["cursor"]) == (30 * 60_000, None)
    assert server.count("events/unsubscribe") == 0
    secret = asked["delivery"]["secret"]
    assert not any(word in ours.log.read_text() for word in (TOKEN, secret))
    assert all(file.stat().st_mode & 0o077 == 0 for file in (tmp_path / "in").iterdir())


async def test_unsubscribe_lets_go_on_the_way_out(server: EventsServer, tmp_path: Path):
    async with receiving(server, tmp_path, 0, "--unsubscribe") as ours:
        await server.until_subscribed()
        assert await ours.stopped(signal.SIGINT) == 0
    assert (server.count("events/unsubscribe"), server.subscriptions) == (1, {})


async def test_what_was_stored_and_not_printed_is_printed_after_a_kill(
    server: EventsServer, tmp_path: Path
):
    port = free_port()
    read, write = full_pipe()
    try:
        async with receiving(server, tmp_path, port, stdout=write) as ours:
            await server.until_subscribed()
            await _record(tmp_path)  # what the next process goes on with
            for number in (1, 2):
                assert await server.deliver(finished(number)) == 204
            assert await ours.stopped(signal.SIGKILL) == -signal.SIGKILL
    finally:
        os.close(read)
        os.close(write)
    async with receiving(server, tmp_path, port) as ours:
        assert [(await ours.line())["webhookId"] for _ in range(2)] == ["evt_1", "evt_2"]
        await server.until_called("events/subscribe", 2)
        assert await server.deliver(finished(2)) == 204  # it was acknowledged before
        assert await server.deliver(finished(3)) == 204
        assert (await ours.line())["webhookId"] == "evt_3"
        assert await ours.stopped() == 0
    first, second = server.asked("events/subscribe")
    assert (first["cursor"], second["cursor"]) == (None, "c2")
    assert first["delivery"] == second["delivery"]


async def test_after_a_restart_nothing_is_printed_again_and_the_answer_counts_as_a_place(
    server: EventsServer, tmp_path: Path
):
    port = free_port()
    server.cursor = 7
    for _ in range(2):
        async with receiving(server, tmp_path, port) as ours:
            await server.until_called("events/subscribe", server.count("events/subscribe") + 1)
            (record,) = await _record(tmp_path)
            assert record["cursor"] == "g7"
            assert await ours.stopped() == 0
    assert server.asked("events/subscribe")[1]["cursor"] == "g7"
    for number in (1, 2):
        async with receiving(server, tmp_path, port) as ours:
            assert await server_takes(server, finished(number)) == 204
            assert (await ours.line())["webhookId"] == f"evt_{number}"
            assert await ours.stopped() == 0


async def _record(folder: Path) -> Sequence[dict[str, Any]]:
    async def is_there() -> bool:
        return bool(list((folder / "in").glob("*.json")))

    await until(is_there, PATIENCE_S)
    return [json.loads(file.read_text()) for file in (folder / "in").glob("*.json")]


async def server_takes(server: EventsServer, content: dict[str, Any]) -> int:
    """Deliver, as often as it takes a process to come up."""
    status: list[int] = []

    async def is_taken() -> bool:
        try:
            status.append(await server.deliver(content))
        except httpx2.ConnectError:
            return False
        return True

    await until(is_taken, PATIENCE_S)
    return status[-1]


async def test_an_answer_that_tells_of_lost_events_is_a_gap(server: EventsServer, tmp_path: Path):
    server.grant = {"truncated": True}
    async with receiving(server, tmp_path, 0) as ours:
        assert (await ours.line())["delivery"] == {"type": "gap", "cursor": "g0"}


@pytest.mark.parametrize(("code", "status"), [(-32012, 1), (-32011, 0)])
async def test_the_end_of_the_subscription_is_printed_and_ends_the_process(
    server: EventsServer, tmp_path: Path, code: int, status: int
):
    end = {"type": "terminated", "error": {"code": code, "message": "m"}}
    port = free_port()
    async with receiving(server, tmp_path, port) as ours:
        await server.until_subscribed()
        await _record(tmp_path)  # the next process is asked under the secret in it
        assert await server.deliver(end) == 204
        assert (await ours.line())["delivery"] == end
        assert await ours.ended() == status
    # It is done with: the next process has a new subscription, and no end.
    async with receiving(server, tmp_path, port) as ours:
        assert await server_takes(server, finished(1)) == 204
        assert (await ours.line())["webhookId"] == "evt_1"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--arguments", "{"], "--arguments"),
        (["--arguments", "[]"], "--arguments"),
        (["--ttl", "soon"], "--ttl"),
        (["--host", "203.0.113.1"], "cannot listen"),
    ],
)
async def test_a_mistake_in_the_options_is_one_line(
    server: EventsServer, tmp_path: Path, flags: list[str], said: str
):
    async with receiving(server, tmp_path, 0, *flags) as ours:
        assert await ours.ended() == 2
    assert said in ours.log.read_text()
    assert ours.log.read_text().count("\n") == 1


async def test_a_refusal_is_said_with_its_code_and_reason(server: EventsServer, tmp_path: Path):
    server.faults.append(Refusal(-32014, feature="deliveryMode", value="webhook"))
    async with receiving(server, tmp_path, 0) as ours:
        assert await ours.ended() == 2
    said = ours.log.read_text().splitlines()[-1]
    assert "-32014" in said
    assert "deliveryMode" in said


async def test_a_server_that_is_away_is_waited_for(server: EventsServer, tmp_path: Path):
    server.faults += [503, 502]
    async with receiving(server, tmp_path, 0) as ours:
        await server.until_called("events/subscribe", 3)
        assert await ours.stopped() == 0


async def test_without_a_reader_it_ends_and_keeps_what_it_could_not_print(
    server: EventsServer, tmp_path: Path
):
    port = free_port()
    read, write = os.pipe()
    async with receiving(server, tmp_path, port, stdout=write) as ours:
        os.close(write)
        os.close(read)
        await server.until_subscribed()
        assert await server.deliver(finished(1)) == 204
        assert await ours.ended() == 2
    async with receiving(server, tmp_path, port) as ours:
        assert (await ours.line())["webhookId"] == "evt_1"
