"""An erasure on PostgreSQL: what is gone, what stays, and that it is in the log itself."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from eventsourcing.persistence import StoredEvent

from outlast.adapters.event_log import TaskEventMapper
from outlast.adapters.retention import SCRUBBED, scrub
from outlast.domain.events import TaskErased
from outlast.domain.ports import EventLog
from outlast.tests.contracts import stores
from outlast.tests.contracts.stores import Ports, happens, open_task, progresses
from outlast.tests.domain.given import OPENED, completes, starts

pytestmark = pytest.mark.anyio

WHY = 'a "reason", with marks: %s {} \\ é'


@pytest.fixture(params=[False, True], ids=["plain", "sealed"])
async def ports(database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Ports]:
    async with stores.on_postgres(database_url, seals=request.param) as ports:
        yield ports


def asked(url: str, statement: str, *params: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(statement.encode(), params).fetchall()


async def past_task(log: EventLog, ports: Ports, task_id: str) -> None:
    await happens(log, await open_task(log, task_id), starts(), completes())
    await ports.views.forget([task_id])


async def test_an_erasure_leaves_the_skeleton_and_is_the_last_event(
    database_url: str, ports: Ports
) -> None:
    await past_task(ports.log, ports, "erased")
    await past_task(ports.log, ports, "kept")
    skeleton = (
        "SELECT originator_version, topic, event_id, notification_id, recorded_at, owner, tool,"
        " status, digest FROM outlast.past_events WHERE originator_id = %s"
        " ORDER BY originator_version"
    )
    states = (
        "SELECT state FROM outlast.past_events WHERE originator_id = %s ORDER BY originator_version"
    )
    before, others = (asked(database_url, skeleton, name) for name in ("erased", "kept"))
    had = [row[0] for row in asked(database_url, states, "erased")]
    began = datetime.now(UTC)
    assert await ports.past.erase(["erased"], WHY) == 1

    *kept, last = asked(database_url, skeleton, "erased")
    assert kept == before
    assert [bytes(row[-1]) for row in kept] == [hashlib.sha256(state).digest() for state in had]
    *emptied, said = (bytes(row[0]) for row in asked(database_url, states, "erased"))
    assert emptied == [b""] * len(before)
    version, topic, _, position, recorded_at, *whose, digest = last
    assert (version, topic, whose) == (len(before) + 1, "task.erased", [None, None, None])
    assert position > max(row[3] for row in others)
    assert began <= recorded_at <= datetime.now(UTC)
    assert bytes(digest) == hashlib.sha256(said).digest()

    told = json.loads(said)
    assert told.keys() == {"at", "why"}
    event = TaskEventMapper().to_domain_event(StoredEvent("erased", version, topic, said))
    assert event == TaskErased("erased", version, told["at"], WHY)
    at = datetime.fromisoformat(told["at"])
    assert at == recorded_at.replace(microsecond=recorded_at.microsecond // 1000 * 1000)
    assert asked(database_url, skeleton, "kept") == others
    erased = asked(database_url, "SELECT task_id, erased_at FROM outlast.past_tasks ORDER BY 1")
    assert erased == [("erased", recorded_at), ("kept", None)]


async def test_an_erasure_destroys_the_data_key_of_its_task_and_no_other(
    database_url: str,
) -> None:
    async with stores.on_postgres(database_url, seals=True) as ports:
        for task_id in ("erased", "kept"):
            await past_task(ports.log, ports, task_id)
        await ports.past.erase(["erased"], WHY)
    assert asked(database_url, "SELECT task_id FROM outlast.data_keys") == [("kept",)]


async def test_positions_stay_in_the_order_of_commits_while_all_happens_at_once(
    database_url: str, ports: Ports
) -> None:
    """Appends, forgetting and erasures of one owner, against each other: nobody is a victim."""

    async def live(number: int) -> None:
        for turn in range(6):
            task = await open_task(ports.log, f"task-{number}-{turn}")
            await happens(ports.log, task, starts(), progresses(), completes())
            await ports.views.forget([task.id])
            await ports.past.erase([task.id], WHY)

    seen: list[int] = []
    done = asyncio.Event()

    async def follow() -> None:
        """What a reader of positions meets is never below what it has met."""
        both = (
            "SELECT notification_id FROM (SELECT notification_id FROM outlast.task_events"
            " UNION SELECT notification_id FROM outlast.past_events) e"
            " WHERE notification_id > %s ORDER BY 1"
        )
        while not done.is_set():
            new = await asyncio.to_thread(asked, database_url, both, seen[-1] if seen else 0)
            seen.extend(row[0] for row in new)

    following = asyncio.create_task(follow())
    try:
        await asyncio.gather(*(live(number) for number in range(6)))
    finally:
        done.set()
        await following
    stored = asked(database_url, "SELECT notification_id FROM outlast.past_events ORDER BY 1")
    last = asked(
        database_url,
        "SELECT notification_id FROM outlast.past_events WHERE notification_id > %s ORDER BY 1",
        seen[-1] if seen else 0,
    )
    assert seen + [row[0] for row in last] == [row[0] for row in stored]
    assert asked(database_url, "SELECT count(*) FROM outlast.past_owners") == [(0,)]


def subscribe(connection: psycopg.Connection[Any], name: str, owner: str, url: str) -> None:
    for statement, params in (
        (
            "INSERT INTO outlast.webhook_endpoints (url) VALUES (%s) ON CONFLICT DO NOTHING",
            [url],
        ),
        (
            "INSERT INTO outlast.webhook_subscriptions"
            " (id, owner, url, name, arguments, secret, begins)"
            " VALUES (%s, %s, %s, 'task.updated', '{}', 'x', 0)",
            [name, owner, url],
        ),
        (
            "INSERT INTO outlast.webhook_attempts (subscription_id, webhook_id, number, at,"
            " latency_ms, step, task_id, version) VALUES (%s, 'e', 1, now(), 1, 's', 't', 1)",
            [name],
        ),
    ):
        connection.execute(statement.encode(), params)


async def test_webhooks_of_an_owner_are_dropped_with_all_that_belongs_to_them(
    database_url: str, ports: Ports
) -> None:
    shared, own = "https://shared.example/", "https://own.example/"
    with psycopg.connect(database_url) as connection:
        subscribe(connection, "one", OPENED.owner, own)
        subscribe(connection, "two", OPENED.owner, shared)
        subscribe(connection, "theirs", "another", shared)
    await open_task(ports.log)
    await open_task(ports.log, "task-of-another", owner="another")
    waiting = "SELECT DISTINCT subscription_id FROM outlast.webhook_deliveries ORDER BY 1"
    assert asked(database_url, waiting) == [("one",), ("theirs",), ("two",)]
    assert await ports.owned.drop_webhooks(OPENED.owner) == 2
    assert await ports.owned.drop_webhooks(OPENED.owner) == 0
    for column, table in (
        ("id", "webhook_subscriptions"),
        ("subscription_id", "webhook_deliveries"),
        ("subscription_id", "webhook_attempts"),
    ):
        assert asked(database_url, f"SELECT {column} FROM outlast.{table}") == [("theirs",)]
    assert asked(database_url, "SELECT url FROM outlast.webhook_endpoints") == [(shared,)]


async def test_every_table_that_is_scrubbed_is_there_and_may_be(database_url: str) -> None:
    stored: Sequence[tuple[Any, ...]] = asked(
        database_url, "SELECT relname FROM pg_class WHERE relnamespace = 'outlast'::regnamespace"
    )
    assert {(name,) for name in SCRUBBED} <= set(stored)
    assert list(await scrub(database_url)) == []
