"""What happens while a subscribe call waits for the echo, and what the echo says of an endpoint."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from outlast.adapters.task_view import PostgresTaskViews
from outlast.delivery.webhook.exchange import Outcome
from outlast.domain import errors
from outlast.tests.acceptance.waiting import until
from outlast.tests.delivery.subscribing import URL, Endpoint, asks, strict
from outlast.tests.delivery.webhook_world import (
    ALICE,
    BOB,
    PATIENCE_S,
    Made,
    World,
    hook,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    """One that takes its time."""
    async with Endpoint() as made:
        made.may_answer.clear()
        yield made


async def waiting(here: World, endpoint: Endpoint, **params: Any) -> "asyncio.Task[dict[str, Any]]":
    """A subscribe call whose endpoint has been asked and has not answered."""
    call = asyncio.create_task(strict(here, endpoint).subscribe(asks(**params)))

    async def is_asked() -> bool:
        return endpoint.posted == [URL]

    await until(is_asked, PATIENCE_S)
    return call


async def place(here: World) -> str:
    """The cursor of a client that has all up to now."""
    return here.cursors.seal(ALICE, await here.events.head(ALICE))


async def test_what_is_removed_meanwhile_is_said_to_be_missing(made: Made, endpoint: Endpoint):
    here, publisher = made
    old = await publisher.opened(owner=ALICE)
    cursor = await place(here)
    await publisher.ends(old)
    call = await waiting(here, endpoint, cursor=cursor)
    await PostgresTaskViews(here.database).forget([old])
    endpoint.may_answer.set()
    assert (await call)["truncated"] is True


async def test_so_it_is_for_one_that_begins_now(made: Made, endpoint: Endpoint):
    here, publisher = made
    call = await waiting(here, endpoint)
    await PostgresTaskViews(here.database).forget([await publisher.opened(owner=ALICE)])
    endpoint.may_answer.set()
    assert (await call)["truncated"] is True


async def test_where_nothing_is_removed_nothing_is_missing(made: Made, endpoint: Endpoint):
    here, publisher = made
    await PostgresTaskViews(here.database).forget([await publisher.opened(owner=ALICE)])
    cursor = await place(here)
    removed = here.cursors.seal(ALICE, await here.events.removed_to(ALICE))
    call = await waiting(here, endpoint, cursor=removed)
    await publisher.opened(owner=ALICE)
    endpoint.may_answer.set()
    answer = await call
    assert answer["truncated"] is False
    assert cursor != answer["cursor"]
    assert len(await here.database.rows("SELECT 1 FROM outlast.webhook_deliveries")) == 2


async def test_a_named_task_that_is_removed_meanwhile_is_not_found(made: Made, endpoint: Endpoint):
    here, publisher = made
    old = await publisher.opened(owner=ALICE)
    call = await waiting(here, endpoint, arguments={"taskIds": [old]})
    await PostgresTaskViews(here.database).forget([old])
    endpoint.may_answer.set()
    with pytest.raises(errors.TaskNotFound):
        await call
    assert await here.subscriptions.find() == []


async def test_a_named_task_that_ends_meanwhile_is_told_to_its_end(made: Made, endpoint: Endpoint):
    here, publisher = made
    task_id = await publisher.opened(owner=ALICE)
    call = await waiting(here, endpoint, arguments={"taskIds": [task_id]})
    version = await publisher.ends(task_id)
    endpoint.may_answer.set()
    assert (await call)["truncated"] is False
    rows = await here.database.rows(
        "SELECT version, envelope FROM outlast.webhook_deliveries ORDER BY position DESC"
    )
    assert rows == [(version, None), (0, "terminated")]


# An endpoint that has failed for days, and is left in peace for most of an hour.
ILL = (
    "UPDATE outlast.webhook_endpoints SET failures = 30, failing_since = now() - interval '3 days',"
    " opened = 9, open_until = now() + interval '55 minutes'"
)
HEALTH = "SELECT failures, failing_since, opened, open_until FROM outlast.webhook_endpoints"
WELL = [(0, None, 0, None)]


async def test_an_endpoint_that_echoes_is_tried_at_once_whatever_was_before(made: Made):
    here, publisher = made
    async with hook() as endpoint:
        await here.subscribe(endpoint.url, owner=BOB)
        await here.database.rows(ILL)
        await here.subscribe(endpoint.url, owner=ALICE)
        assert await here.database.rows(HEALTH) == WELL
        async with here.sending():
            await publisher.opened(owner=ALICE)
            await endpoint.got(2)


async def test_one_failure_after_the_echo_suspends_nobody(made: Made):
    here, publisher = made
    async with hook() as endpoint:
        await here.subscribe(endpoint.url, owner=BOB)
        await here.database.rows(ILL)
        granted = await here.subscribe(endpoint.url, owner=ALICE)
        answers = [503]
        endpoint.behaves = lambda _: answers.pop() if answers else 204
        async with here.sending():
            await publisher.opened(owner=ALICE)
            await endpoint.got(3)
            await here.nothing_waits()
        stored = await here.subscriptions.get(granted["id"])
        assert stored is not None
        assert stored.is_active


async def test_an_endpoint_that_does_not_echo_stays_as_it_was(made: Made, endpoint: Endpoint):
    here, _ = made
    endpoint.may_answer.set()
    await strict(here, endpoint).subscribe(asks(BOB))
    await here.database.rows(ILL)
    before = await here.database.rows(HEALTH)
    endpoint.answer = Outcome(404, "http_4xx")
    with pytest.raises(errors.EndpointNotVerified):
        await strict(here, endpoint).subscribe(asks(ALICE))
    await strict(here, endpoint).subscribe(asks(BOB, name="task.finished"))  # needs no echo
    assert await here.database.rows(HEALTH) == before
