"""`WebhookSource` against a small real server: what is told, and what is done about the rest."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from outlast.delivery.frames import TaskState
from outlast.delivery.webhook import receiver, source as module, subscriber
from outlast.domain import errors
from outlast.tests.acceptance.waiting import until
from outlast.tests.delivery.events_server import PATIENCE_S, Client, Refusal, webhook_client

pytestmark = pytest.mark.anyio

GAP = {"type": "gap", "cursor": "c9"}
TERMINATED = {"type": "terminated", "error": {"code": -32012, "message": "Forbidden"}}


@pytest.fixture
async def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Client]:
    # A machine that stands still puts no delivery off, and cuts no letting go short.
    monkeypatch.setattr(receiver, "HOLD_S", PATIENCE_S)
    monkeypatch.setattr(module, "UNSUBSCRIBE_S_MAX", PATIENCE_S)
    async with webhook_client(tmp_path) as made:
        yield made


@dataclass
class Watching:
    """One watch, and what it has told so far."""

    told: list[TaskState] = field(default_factory=list[TaskState])
    error: Exception | None = None
    is_over: bool = False

    @property
    def versions(self) -> list[int | None]:
        return [state.version for state in self.told]

    async def until_told(self, *versions: int) -> None:
        async def is_told() -> bool:
            assert self.error is None
            return self.versions == list(versions)

        await until(is_told, PATIENCE_S)

    async def until_over(self) -> None:
        async def is_over() -> bool:
            return self.is_over

        await until(is_over, PATIENCE_S)


@asynccontextmanager
async def watching(client: Client, after: int = 0, task_id: str = "t1") -> AsyncGenerator[Watching]:
    """A watch in the background; it is closed at the end, if it has not ended."""
    seen = Watching()

    async def watch() -> None:
        try:
            async with aclosing(client.source.watch(task_id, after)) as states:
                async for state in states:
                    seen.told.append(state)
        except errors.OutlastError as error:
            seen.error = error
        seen.is_over = True

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        yield seen
        group.cancel_scope.cancel()


async def told_through(client: Client, *events: Any) -> None:
    for event in events:
        assert await client.server.deliver(event) == 204


async def until_handed_on(client: Client) -> None:
    async def is_handed_on() -> bool:
        return not await client.inbox.waiting(1)

    await until(is_handed_on, PATIENCE_S)


# What is told


async def test_each_change_is_told_and_the_end_ends_the_watch_and_the_subscription(client: Client):
    server = client.server
    server.advance("t1")
    async with watching(client) as seen:
        await seen.until_told(1)
        second = server.advance("t1", statusMessage="half")
        await told_through(client, second)
        await seen.until_told(1, 2)
        await told_through(client, server.advance("t1", "completed", result={"ok": True}))
        await seen.until_over()
    assert seen.versions == [1, 2, 3]
    # The task as `tasks/get` tells it, whichever way it came.
    assert seen.told[1].task == {k: v for k, v in server.tasks["t1"][1].items() if k != "_meta"}
    assert seen.told[2].task["result"] == {"ok": True}
    assert server.count("tasks/get") == 1
    assert (server.count("events/unsubscribe"), server.subscriptions) == (1, {})
    assert client.keyring._bound == {}


async def test_the_subscription_begins_after_the_version_that_is_known(client: Client):
    for _ in range(3):
        client.server.advance("t1")
    async with watching(client, after=1) as seen:
        await seen.until_told(2, 3)
    asked = client.server.asked("events/subscribe")[0]
    assert asked["_meta"]["dev.outlast/after"] == {"t1": 1}
    assert (asked["name"], asked["arguments"]) == ("task.updated", {"taskIds": ["t1"]})
    assert asked["cursor"] is None
    assert client.server.subscriptions == {}


async def test_what_comes_again_or_too_late_is_not_told_again(client: Client):
    first = client.server.advance("t1")
    async with watching(client) as seen:
        await seen.until_told(1)
        second, third = client.server.advance("t1"), client.server.advance("t1")
        await told_through(client, second, third)
        await seen.until_told(1, 2, 3)
        late = {**second, "eventId": "evt_again"}
        await told_through(client, first, late, client.server.advance("t1"))
        await seen.until_told(1, 2, 3, 4)


async def test_what_was_overtaken_is_read_and_told_in_order(client: Client):
    client.server.advance("t1")
    async with watching(client) as seen:
        await seen.until_told(1)
        second, third = client.server.advance("t1"), client.server.advance("t1")
        await told_through(client, third)
        await seen.until_told(1, 2, 3)
        await told_through(client, second, client.server.advance("t1"))
        await seen.until_told(1, 2, 3, 4)


async def test_an_outcome_that_was_too_large_is_read(client: Client):
    client.server.advance("t1")
    async with watching(client) as seen:
        await seen.until_told(1)
        event = client.server.advance("t1", "completed", result={"text": "long"})
        del event["data"]["result"]
        event["data"]["omitted"] = ["result"]
        await told_through(client, event)
        await seen.until_over()
    assert seen.told[-1].task["result"] == {"text": "long"}


async def test_after_a_gap_the_task_is_read(client: Client):
    client.server.advance("t1")
    async with watching(client) as seen:
        await seen.until_told(1)
        client.server.advance("t1")
        await told_through(client, GAP)
        await seen.until_told(1, 2)


async def test_a_termination_after_the_end_ends_the_watch(client: Client):
    client.server.advance("t1")
    async with watching(client) as seen:
        await seen.until_told(1)
        client.server.advance("t1", "failed", error={"code": 1, "message": "no"})
        await told_through(client, TERMINATED)
        await seen.until_over()
    assert (seen.versions, seen.error) == ([1, 2], None)


async def test_a_termination_before_the_end_is_answered_by_a_new_subscription(
    client: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(subscriber, "RETRY_S_MAX", 0.01)
    client.server.advance("t1")
    async with watching(client) as seen:
        await seen.until_told(1)
        await told_through(client, TERMINATED)
        await client.server.until_called("events/subscribe", 2)
        client.server.advance("t1")  # told by no delivery: read after the new grant
        await client.server.until_called("tasks/get", 3)
        await told_through(client, client.server.advance("t1"))
        await seen.until_told(1, 2, 3)


async def test_a_termination_whose_cause_remains_ends_the_watch_with_the_refusal(
    client: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(subscriber, "RETRY_S_MAX", 0.01)
    client.server.advance("t1")
    async with watching(client) as seen:
        await seen.until_told(1)
        client.server.faults.append(Refusal(-32012, reason="Access revoked"))
        await told_through(client, TERMINATED)
        await seen.until_over()
    assert isinstance(seen.error, errors.RequestRefused)
    assert seen.error.code == -32012


async def test_a_slow_watch_reads_what_its_mailbox_could_not_hold(
    client: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "MAIL_MAX", 2)
    server = client.server
    server.advance("t1")
    async with aclosing(client.source.watch("t1")) as states:
        assert (await anext(states)).version == 1
        events = [server.advance("t1") for _ in range(5)]
        await told_through(client, *events)
        await until_handed_on(client)
        with anyio.fail_after(PATIENCE_S):
            assert [(await anext(states)).version for _ in events] == [2, 3, 4, 5, 6]
        # The end is not lost among what comes again behind it.
        repeats = [{**events[0], "eventId": f"evt_again_{number}"} for number in range(2)]
        await told_through(client, server.advance("t1", "completed", result={}), *repeats)
        await until_handed_on(client)
        with anyio.fail_after(PATIENCE_S):
            assert [state.version async for state in states] == [7]


async def test_a_task_that_ended_before_it_could_be_subscribed_to_is_read(client: Client):
    client.server.advance("t1", "completed", result={"ok": True})
    client.server.faults.append(Refusal(-32011, kind="subscription", reason="task_terminal"))
    async with watching(client) as seen:
        await seen.until_over()
    assert (seen.versions, seen.error) == ([1], None)


# The subscription


async def test_what_overtakes_the_answer_is_taken_at_once(client: Client):
    server, statuses = client.server, list[int]()
    event = server.advance("t1")

    async def deliver(sub: str) -> None:
        delivering.append(asyncio.create_task(server.deliver(event, sub)))
        with anyio.fail_after(PATIENCE_S):
            await client.keyring.holds.wait()

    delivering: list[asyncio.Task[int]] = []
    server.before_answer = deliver
    async with watching(client) as seen:
        await seen.until_told(1)
        statuses.append(await delivering[0])
    assert statuses == [204]


@pytest.mark.parametrize("code", [-32601, -32011, -32012, -32013, -32014, -32015])
async def test_a_server_that_offers_no_webhook_is_told_from_one_that_is_away(
    client: Client, code: int
):
    client.server.advance("t1")
    client.server.faults += [503, Refusal(-32603), Refusal(code)]
    async with watching(client) as seen:
        await seen.until_over()
    assert isinstance(seen.error, errors.RequestRefused)
    assert seen.error.code == code
    assert (client.server.count("events/subscribe"), seen.told) == (3, [])
    assert client.server.count("events/unsubscribe") == 0


async def test_a_task_that_is_not_ours_is_refused_and_its_subscription_let_go(client: Client):
    async with watching(client) as seen:
        await seen.until_over()
    assert isinstance(seen.error, errors.RequestRefused)
    assert seen.error.code == -32602
    assert client.server.subscriptions == {}


async def test_a_grant_is_refreshed_in_time_from_the_last_cursor_under_the_same_secret(
    client: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(subscriber, "REFRESH_AT", 0.0)
    monkeypatch.setattr(subscriber, "REFRESH_S_MIN", 0.01)
    monkeypatch.setattr(subscriber, "RETRY_S_FIRST", 0.01)
    server = client.server
    server.advance("t1")
    async with watching(client) as seen:
        await seen.until_told(1)
        await told_through(client, server.advance("t1"))
        server.faults += [503, Refusal(-32603), Refusal(-32015, reason="timeout")]
        await server.until_called("events/subscribe", server.count("events/subscribe") + 6)
        await told_through(client, server.advance("t1", "cancelled"))
        await seen.until_over()
    asked = server.asked("events/subscribe")
    assert {call["delivery"]["secret"] for call in asked} == {asked[0]["delivery"]["secret"]}
    assert "c2" in [call["cursor"] for call in asked]
    assert asked[0]["cursor"] is None
    assert all(call["cursor"] for call in asked[1:])
    assert seen.versions == [1, 2, 3]


async def test_a_refusal_is_the_last_word_once_the_grant_has_run_out(
    client: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(subscriber, "REFRESH_S_MIN", 0.01)
    client.server.ttl_s = 0.0
    client.server.advance("t1")
    async with watching(client) as seen:
        await seen.until_told(1)
        client.server.faults.append(Refusal(-32015, reason="timeout"))
        await seen.until_over()
    assert isinstance(seen.error, errors.RequestRefused)


@pytest.mark.parametrize(
    "grant",
    [{"truncated": True}, {"deliveryStatus": {"active": False, "lastError": "timeout"}}],
    ids=["truncated", "failing"],
)
async def test_a_refresh_that_tells_of_trouble_has_the_task_read(
    client: Client, monkeypatch: pytest.MonkeyPatch, grant: dict[str, Any]
):
    monkeypatch.setattr(subscriber, "REFRESH_S_MIN", 0.01)
    server = client.server
    server.ttl_s = 0.0
    server.advance("t1")
    async with watching(client) as seen:
        await seen.until_told(1)
        server.advance("t1")
        server.grant = grant
        await seen.until_told(1, 2)


async def test_watches_of_one_task_share_a_subscription_until_the_last_has_left(client: Client):
    server = client.server
    server.advance("t1")
    async with watching(client) as first:
        await first.until_told(1)
        async with watching(client) as second:
            await second.until_told(1)
            await told_through(client, server.advance("t1"))
            await first.until_told(1, 2)
            await second.until_told(1, 2)
        await told_through(client, server.advance("t1"))
        await first.until_told(1, 2, 3)
        assert server.count("events/unsubscribe") == 0
    assert (server.count("events/subscribe"), server.count("events/unsubscribe")) == (1, 1)


async def test_a_watch_is_told_what_an_earlier_one_has_received_already(client: Client):
    event = client.server.advance("t1")
    for _ in range(2):
        async with watching(client) as seen:
            await client.server.until_subscribed()
            await told_through(client, event)
            await seen.until_told(1)


async def test_a_watch_that_begins_while_another_ends_is_not_unsubscribed_with_it(client: Client):
    server = client.server
    server.advance("t1")
    server.unsubscribe_gate = anyio.Event()
    first = client.source.watch("t1")
    assert (await anext(first)).version == 1
    async with anyio.create_task_group() as group:
        group.start_soon(first.aclose)
        await server.until_called("events/unsubscribe")
        async with watching(client) as second:
            server.unsubscribe_gate.set()
            await second.until_told(1)
            await told_through(client, server.advance("t1"))
            await second.until_told(1, 2)


async def test_many_watches_may_begin_at_once(client: Client):
    for number in range(40):
        client.server.advance(f"t{number}", "completed", result=number)
    found: list[Any] = []

    async def watch(task_id: str) -> None:
        async with aclosing(client.source.watch(task_id)) as states:
            found.extend([state.task["result"] async for state in states])

    with anyio.fail_after(2 * PATIENCE_S):
        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(watch, f"t{number}")
    assert sorted(found) == list(range(40))
    assert client.server.subscriptions == {}


async def test_a_cursor_that_cannot_be_stored_is_malformed_and_no_fault_of_ours(client: Client):
    client.server.advance("t1")
    async with watching(client) as seen:
        await seen.until_told(1)
        event = {**client.server.advance("t1"), "cursor": "\ud800"}
        assert await client.server.deliver(event) == 400
