"""The overview: what calls for somebody, told to who may deal with it, and to nobody else."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import psycopg
import pytest

from outlast.tests.acceptance.waiting import until
from outlast.tests.console.inbox_world import ALICE, BOB, OLGA, InboxWorld, elicitation, inbox_world
from outlast.tests.console.visitor import Seen, Visitor
from outlast.tests.delivery.webhook_world import hook
from outlast.tests.service.operators_world import ADMIN_TOKEN, operated
from outlast.tests.support.mcp import http_client
from outlast.tests.support.proxy import between

pytestmark = [pytest.mark.anyio, pytest.mark.promise("overview-tells-what-calls")]

MANY = 101
BOUND_S = 60.0
AWAY = "The store cannot be reached"


def figures(page: Seen) -> dict[str, str]:
    """The badges that lead somewhere, by where they lead."""
    found = [link for link in page.links if link.get("class") == "badge"]
    words = page.html.split('<a class="badge"')[1:]
    told = [each.partition(">")[2].partition("<")[0] for each in words]
    return {link["href"]: text for link, text in zip(found, told, strict=True)}


@pytest.fixture
async def inbox(database_url: str, tmp_path: Path) -> AsyncIterator[InboxWorld]:
    async with inbox_world(tmp_path, database_url, "--no-work") as world:
        yield world


async def test_everybody_is_told_of_their_own_questions_and_operators_of_all(inbox: InboxWorld):
    alice, bob, olga = [await inbox.visitor(owner) for owner in (ALICE, BOB, OLGA)]
    assert figures(await olga.get("/console"))["/console/inbox"] == "nobody waits"
    await inbox.asked(elicitation("Deploy?"), owner=ALICE)
    await inbox.asked(elicitation("Delete?"), owner=BOB)
    assert figures(await alice.get("/console")) == {"/console/inbox": "1 waits"}
    assert figures(await bob.get("/console")) == {"/console/inbox": "1 waits"}
    of_all = figures(await olga.get("/console"))
    assert of_all["/console/inbox"] == "2 wait"
    assert {"/console/webhooks", "/console/workers", "/console/proofs"} < set(of_all)


async def test_more_than_anybody_counts_is_said_to_be_more(inbox: InboxWorld):
    olga = await inbox.visitor(OLGA)
    for _ in range(MANY):
        await inbox.asked(elicitation("Deploy?"))
    assert figures(await olga.get("/console"))["/console/inbox"] == "99+ wait"


async def test_a_worker_that_fell_silent_and_what_waits_too_long_are_said(
    inbox: InboxWorld, database_url: str
):
    olga = await inbox.visitor(OLGA)
    lost, waits = [await inbox.publisher.opened(owner=ALICE.key) for _ in "ab"]
    with psycopg.connect(database_url, autocommit=True) as store:
        store.execute(
            "UPDATE outlast.run_queue SET worker = 'gone',"
            " lease_until = clock_timestamp() - interval '1 s' WHERE task_id = %s",
            [lost],
        )
        store.execute(
            "UPDATE outlast.run_queue SET worker = NULL, lease_until = NULL,"
            " due = clock_timestamp() - interval '2 min' WHERE task_id = %s",
            [waits],
        )
    page = await olga.get("/console")
    for word in ("0 held", "2 queued", "a worker is silent"):
        assert word in page.text
    assert 'data-status="input_required" href="/console/workers">2 queued' in page.html


async def test_endpoints_that_fail_lead_to_their_list(database_url: str, tmp_path: Path):
    async with (
        operated(tmp_path, database_url) as made,
        hook() as endpoint,
        http_client() as http,
    ):
        operator = Visitor(made.server.base_url, http)
        await operator.sign_in(ADMIN_TOKEN)
        assert figures(await operator.get("/console"))["/console/webhooks"] == "none fails"
        ours = await made.subscribed(endpoint)
        with psycopg.connect(database_url, autocommit=True) as store:
            store.execute("UPDATE outlast.webhook_subscriptions SET is_active = false")
        found = figures(await operator.get("/console"))
        assert found["/console/webhooks?only=suspended"] == "1 suspended"
        page = await operator.get("/console/webhooks?only=suspended")
        assert f"/console/webhooks/{ours.id}" in [link["href"] for link in page.links]


async def test_without_the_store_all_ways_are_shown_and_it_is_said(
    database_url: str, tmp_path: Path
):
    async with between(database_url) as wire, inbox_world(tmp_path, wire.url, "--no-work") as inbox:
        olga = await inbox.visitor(OLGA)
        assert AWAY not in (await olga.get("/console")).text
        wire.is_refusing = True
        wire.cut()
        page = await olga.get("/console")
        assert page.status == httpx2.codes.OK
        assert AWAY in page.text
        assert figures(page) == {}
        assert "/console/workers" in [link.get("href") for link in page.links]
        wire.is_refusing = False

        async def is_back() -> bool:
            return figures(await olga.get("/console?part=1")) != {}

        await until(is_back, BOUND_S)
