"""A sender is killed, or frozen, between any two steps of a delivery; another one goes on.

Every event arrives, under one `webhook-id`, and comes twice only where a crash explains it.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from outlast.delivery.events import types
from outlast.delivery.webhook.signing import parse_secret
from outlast.delivery.webhook.subscriptions import derived_id
from outlast.delivery.webhook.vault import Vault
from outlast.domain import draft
from outlast.domain.owner import LOCAL_OWNER
from outlast.domain.push import Filter, SubscriptionKey, SubscriptionWish
from outlast.tests.acceptance.waiting import until
from outlast.tests.chaos.nodes import Node
from outlast.tests.delivery.posting import bound, url_of
from outlast.tests.delivery.webhook_world import KEY, SECRET, Hook, World, hook, world
from outlast.tests.support.hasty import hasty
from outlast.tests.support.ports import free_port
from outlast.tests.support.publishing import Publisher
from outlast.tests.support.serving import command_of

pytestmark = [pytest.mark.anyio, pytest.mark.promise("webhooks-outlive-their-sender")]

PATIENCE_S = 40.0
LEASE_S = 600.0  # none runs out by itself here
UPSTREAM = Path(__file__).with_name("upstream.py")
CONFIG = f"""
[server]
secret_key = "{KEY}"
[events]
development = true
[upstreams.new]
command = {command_of(UPSTREAM)}
"""
SETTLING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND wait_event_type = 'Lock' AND query LIKE '%%settle_delivery%%'"
)
LEASED = "SELECT count(*) FROM outlast.webhook_deliveries WHERE is_leased"
LEASES_END = "UPDATE outlast.webhook_deliveries SET due = clock_timestamp() WHERE is_leased"


@dataclass
class Stage:
    """Two senders to be, an endpoint, and what is told to it."""

    folder: Path
    here: World
    publisher: Publisher
    endpoint: Hook
    nodes: list[Node] = field(default_factory=list[Node])

    async def sender(self) -> Node:
        """One more process that sends; it runs no tasks."""
        name = f"sender-{len(self.nodes)}"
        arguments = ["serve", "--config", str(self.folder / "outlast.toml"), "--no-work"]
        arguments += ["--port", str(free_port())]
        env = {"OUTLAST_DATABASE_URL": self.here.url}
        node = Node(self.folder, name, arguments, env, hasty(lease=LEASE_S))
        self.nodes.append(node)
        node.start()
        await node.until_said("outlast: serving")
        return node

    async def subscribed(self) -> str:
        """A task whose changes are told to the endpoint; the two it has are not."""
        task_id = await self.publisher.opened()
        await self.here.subscribe(self.endpoint.url, {"taskId": task_id}, owner=LOCAL_OWNER.key)
        return task_id

    async def store(self, url: str, task_id: str) -> None:
        """The same for an endpoint that could not answer a challenge now."""
        owner, arguments = LOCAL_OWNER.key, types.canonical({"taskId": task_id})
        key = SubscriptionKey(owner, url, draft.TASK_UPDATED, arguments)
        sealed = Vault(KEY).seal(parse_secret(SECRET), derived_id(key))
        wanted = Filter(key.name, task_ids=(task_id,))
        start = await self.here.events.head(owner)
        wish = SubscriptionWish(derived_id(key), key, wanted, sealed, None, start)
        await self.here.subscriptions.put(wish, 10, 0.0)

    async def counts(self, statement: str, least: int = 1) -> None:
        async def reached() -> bool:
            rows = await self.here.database.rows(statement)
            return int(rows[0][0]) >= least

        await until(reached, PATIENCE_S)

    async def leases_end(self) -> None:
        """So much time has passed that every claim has run out."""
        await self.here.database.rows(LEASES_END)

    async def all_told(self) -> None:
        await self.endpoint.until(lambda seen: bool(seen.envelopes))
        await self.here.nothing_waits()

    def versions(self) -> list[int]:
        return [post.version for post in self.endpoint.events]


@pytest.fixture
async def stage(database_url: str, tmp_path: Path) -> AsyncIterator[Stage]:
    (tmp_path / "outlast.toml").write_text(CONFIG)
    async with world(database_url) as (here, publisher), hook() as endpoint:
        made = Stage(tmp_path, here, publisher, endpoint)
        try:
            yield made
        finally:
            for node in made.nodes:
                await node.make_gone()


async def test_killed_before_it_is_connected(stage: Stage):
    """Its endpoint takes no connection yet: the queue of those that wait to be taken is full."""
    task_id = await stage.publisher.opened()
    listener = bound()
    listener.listen(0)
    waiting = [_knocking(listener) for _ in range(2)]
    await stage.store(url_of(listener), task_id)
    first = await stage.sender()
    await stage.publisher.ends(task_id)
    await stage.counts(LEASED)
    first.kill()
    await stage.leases_end()
    for knocking in waiting:
        knocking.close()
    async with hook(listener) as stage.endpoint:
        await stage.sender()
        await stage.all_told()
    assert stage.versions() == [3]


def _knocking(listener: socket.socket) -> socket.socket:
    client = socket.socket()
    client.setblocking(False)
    with suppress(BlockingIOError):
        client.connect(listener.getsockname())
    return client


async def test_killed_after_the_body_was_sent(stage: Stage):
    task_id = await stage.subscribed()
    first = await stage.sender()
    stage.endpoint.may_answer = asyncio.Event()
    await stage.publisher.ends(task_id)
    await stage.endpoint.got(1)
    first.kill()
    await stage.leases_end()
    stage.endpoint.may_answer.set()
    await stage.sender()
    await stage.all_told()
    assert stage.versions() == [3, 3]
    assert len({post.webhook_id for post in stage.endpoint.events}) == 1


async def test_killed_after_the_answer_and_before_the_commit(stage: Stage):
    task_id = await stage.subscribed()
    first = await stage.sender()
    stage.endpoint.may_answer = asyncio.Event()
    await stage.publisher.ends(task_id)
    await stage.endpoint.got(1)
    async with await psycopg.AsyncConnection.connect(stage.here.url) as holder:
        await holder.execute("SELECT * FROM outlast.webhook_deliveries FOR UPDATE")
        stage.endpoint.may_answer.set()
        await stage.counts(SETTLING)
        first.kill()
        # What the dead had asked for would still be done once the lock is gone.
        await holder.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND query LIKE '%settle_delivery%'"
        )
        await holder.rollback()
    await stage.leases_end()
    await stage.sender()
    await stage.all_told()
    assert stage.versions() == [3, 3]
    assert len({post.webhook_id for post in stage.endpoint.events}) == 1


async def test_killed_after_the_commit(stage: Stage):
    task_id = await stage.subscribed()
    first = await stage.sender()
    await stage.publisher.progresses(task_id, "half")
    await stage.endpoint.got(1)
    await stage.here.nothing_waits()
    first.kill()
    await stage.publisher.ends(task_id)
    await stage.sender()
    await stage.all_told()
    assert stage.versions() == [3, 4]


async def test_frozen_past_its_lease_it_changes_nothing_when_it_wakes(stage: Stage):
    task_id = await stage.subscribed()
    first = await stage.sender()
    stage.endpoint.may_answer = asyncio.Event()
    await stage.publisher.ends(task_id)
    await stage.endpoint.got(1)
    first.send(signal.SIGSTOP)
    await stage.leases_end()
    await stage.sender()
    await stage.endpoint.got(2)
    # Both have posted. The frozen one gets its answer first and cannot use it.
    stage.endpoint.may_answer.set()
    await stage.all_told()
    first.send(signal.SIGCONT)
    again = await stage.publisher.opened()
    await stage.here.subscribe(stage.endpoint.url, {"taskId": again}, owner=LOCAL_OWNER.key)
    await stage.publisher.ends(again)
    await stage.endpoint.until(lambda seen: len(seen.envelopes) == 2)
    await stage.here.nothing_waits()
    steps = await stage.here.database.rows(
        "SELECT step, number FROM outlast.webhook_attempts WHERE webhook_id = %s",
        stage.endpoint.events[0].webhook_id,
    )
    assert steps == [("delivered", 2)]
    assert [post.version for post in stage.endpoint.events] == [3, 3, 3]
