"""The webhook pages over real HTTP: endpoints that fail and are mended, by whoever operates."""

from collections.abc import AsyncIterator

import httpx2
import psycopg
import pytest

from outlast.tests.console.visitor import Visitor
from outlast.tests.delivery.webhook_world import Hook, hook
from outlast.tests.service.operators_world import ADMIN_TOKEN, ALICES_TOKEN, Operated, operated
from outlast.tests.support.mcp import http_client

pytestmark = pytest.mark.anyio

OK, NOT_FOUND, FORBIDDEN = httpx2.codes.OK, httpx2.codes.NOT_FOUND, httpx2.codes.FORBIDDEN


@pytest.fixture(scope="module")
async def made(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Operated]:
    async with operated(tmp_path_factory.mktemp("hooks"), module_database_url) as world:
        yield world


@pytest.fixture
async def endpoint() -> AsyncIterator[Hook]:
    async with hook() as served:
        yield served


@pytest.fixture
async def operator(made: Operated) -> AsyncIterator[Visitor]:
    async with http_client() as http:
        visitor = Visitor(made.server.base_url, http)
        await visitor.sign_in(ADMIN_TOKEN)
        yield visitor


def page_of(subscription_id: str) -> str:
    return f"/console/webhooks/{subscription_id}"


async def test_an_endpoint_is_listed_with_its_health_and_its_attempts(
    made: Operated, endpoint: Hook, operator: Visitor
) -> None:
    ours = await made.subscribed(endpoint)
    task_id = await ours.finished()
    await endpoint.got(1)
    await ours.settled()
    seen: list[str] = []
    path: str | None = "/console/webhooks"
    while path is not None:
        page = await operator.get(path)
        seen += [link["href"] for link in page.links]
        further = [link["href"] for link in page.links if "after=" in link.get("href", "")]
        path = further[0] if further else None
    assert page_of(ours.id) in seen
    page = await operator.get(page_of(ours.id))
    assert endpoint.url in page.text
    assert "delivered 2xx" in page.text
    links = [link["href"] for link in page.links]
    assert f"/console/tasks/{task_id}/versions/3" in links


async def test_a_suspended_one_is_resumed_and_goes_on_from_where_it_stood(
    made: Operated, endpoint: Hook, operator: Visitor
) -> None:
    ours = await made.subscribed(endpoint)
    endpoint.behaves = lambda _: 410
    await ours.finished()
    await made.until_shown(ours.id, active=False)
    listed = await operator.get("/console/webhooks?only=suspended")
    assert page_of(ours.id) in [link["href"] for link in listed.links]
    page = await operator.get(page_of(ours.id))
    assert "suspended" in page.text
    assert not [form for form in page.forms if form.action.endswith("/resend")]
    endpoint.behaves = lambda _: 204
    endpoint.posted.clear()
    after = await operator.send(page.form("/resume"))
    assert (after.status, after.url) == (OK, operator.base_url + page_of(ours.id))
    assert "Resumed" in after.text
    await endpoint.got(1)
    assert (await ours.settled())["active"]


async def test_one_event_is_sent_again_under_its_own_id(
    made: Operated, endpoint: Hook, operator: Visitor
) -> None:
    ours = await made.subscribed(endpoint)
    await ours.finished()
    (sent,) = await endpoint.got(1)
    await ours.settled()
    page = await operator.get(page_of(ours.id))
    (form,) = [each for each in page.forms if each.fields.get("event") == [sent.webhook_id]]
    assert (await operator.send(form)).status == OK
    assert [post.webhook_id for post in await endpoint.got(2)] == [sent.webhook_id] * 2


async def test_all_since_a_time_are_sent_again_and_what_arrived_is_no_failed_one(
    made: Operated, endpoint: Hook, operator: Visitor
) -> None:
    ours = await made.subscribed(endpoint)
    for _ in range(3):
        await ours.finished()
    await endpoint.got(3)
    await ours.settled()
    page = await operator.get(page_of(ours.id))
    (form,) = [each for each in page.forms if "since" in each.fields]
    none = await operator.send(form, which="failed", since="1h")
    assert "Nothing was to be sent again" in none.text
    told = await operator.send(form, which="all", since="1h")
    assert "3 events were queued" in told.text
    again = await endpoint.got(6)
    assert {post.webhook_id for post in again[3:]} == {post.webhook_id for post in again[:3]}


async def test_what_was_given_up_is_sent_again_and_nothing_else(
    made: Operated, endpoint: Hook, operator: Visitor
) -> None:
    ours = await made.subscribed(endpoint)
    arrived, given_up = await ours.finished(), await ours.finished()
    await endpoint.got(2)
    await ours.settled()
    for task_id, steps in ((arrived, ("abandoned", "delivered")), (given_up, ("abandoned",))):
        for step in steps:
            note_attempt(made.server.database_url, ours.id, task_id, step)
    endpoint.posted.clear()
    page = await operator.get(page_of(ours.id))
    (form,) = [each for each in page.forms if "since" in each.fields]
    told = await operator.send(form, which="failed", since="1h")
    assert "1 event was queued" in told.text
    (sent,) = await endpoint.got(1)
    await ours.settled()
    assert sent.content["data"]["taskId"] == given_up
    assert len(endpoint.events) == 1


def note_attempt(database_url: str, subscription_id: str, task_id: str, step: str) -> None:
    """The last attempt for this task, as days of trying would have left it."""
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO outlast.webhook_attempts (subscription_id, webhook_id, number, at,"
            " latency_ms, step, task_id, version) SELECT subscription_id, webhook_id, number + 1,"
            " clock_timestamp(), 1, %s, task_id, version FROM outlast.webhook_attempts"
            " WHERE subscription_id = %s AND task_id = %s ORDER BY id DESC LIMIT 1",
            [step, subscription_id, task_id],
        )


async def test_a_test_says_how_the_endpoint_does(
    made: Operated, endpoint: Hook, operator: Visitor
) -> None:
    ours = await made.subscribed(endpoint)
    page = await operator.get(page_of(ours.id))
    assert "it is well" in (await operator.send(page.form("/test"))).text
    endpoint.echoes = False
    assert "did not echo" in (await operator.send(page.form("/test"))).text


async def test_who_does_not_operate_sees_no_webhooks(made: Operated, endpoint: Hook) -> None:
    ours = await made.subscribed(endpoint)
    async with http_client() as http:
        alice = Visitor(made.server.base_url, http)
        await alice.sign_in(ALICES_TOKEN)
        for path in ("/console/webhooks", page_of(ours.id)):
            page = await alice.get(path)
            assert page.status == FORBIDDEN
            assert endpoint.url not in page.html


async def test_an_unknown_one_is_not_there(operator: Visitor) -> None:
    for name in ("sub_" + "0" * 32, "..%2f", "a b"):
        assert (await operator.get(page_of(name))).status == NOT_FOUND
    assert (await operator.get("/console/webhooks?after=a%20b")).status == NOT_FOUND
