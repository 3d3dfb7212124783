"""The inbox over real HTTP and PostgreSQL: who sees what, what an answer becomes, who was first."""

import asyncio
from collections.abc import AsyncIterator

import httpx2
import pytest

from outlast.tests.console.inbox_world import (
    ALICE,
    BOB,
    OLGA,
    WINSTON,
    InboxWorld,
    elicitation,
    inbox_world,
)
from outlast.tests.domain.given import cancels

pytestmark = pytest.mark.anyio

OK, NOT_FOUND, FORBIDDEN = httpx2.codes.OK, httpx2.codes.NOT_FOUND, httpx2.codes.FORBIDDEN
CONFLICT, UNFIT = 409, 422
BOUND_S = 60.0
NAME = {"type": "string", "title": "Your name", "minLength": 3, "maxLength": 20}
APPROVAL = elicitation("Deploy to production?", name=NAME, required=["name"])


@pytest.fixture(scope="module")
async def made(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[InboxWorld]:
    folder = tmp_path_factory.mktemp("inbox")
    async with inbox_world(folder, module_database_url, "--no-work") as world:
        yield world


def page_of(task_id: str, key: str = "in-1") -> str:
    return f"/console/inbox/{task_id}/{key}"


@pytest.mark.promise("the-inbox-answers-as-the-client-would")
async def test_an_approval_in_the_inbox_gives_the_waiting_client_its_result(
    database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("worked")
    async with inbox_world(folder, database_url) as world:
        client, alice = await world.client(ALICE), await world.visitor(ALICE)
        task_id = await client.opened("sign_task_during", {"document": "the lease"})
        await client.until_status(task_id, "input_required", seconds=BOUND_S)
        inbox = await alice.get("/console/inbox")
        assert "Who signs?" in inbox.text
        page = await alice.get(page_of(task_id))
        done = await alice.send(page.form(page_of(task_id)), "accept", f__name="Ada")
        assert (done.status, done.url) == (OK, f"{alice.base_url}/console/inbox"), done.text
        ended = await client.until_status(task_id, "completed", seconds=BOUND_S)
        assert ended["result"]["content"][0]["text"] == "the lease signed by Ada"
        (event,) = await world.received(task_id)
        assert (event.by, event.answers["in-1"]["content"]) == (ALICE.key, {"name": "Ada"})


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_who_declines_or_cancels_needs_to_fill_in_nothing(
    made: InboxWorld, action: str
) -> None:
    task_id, alice = await made.asked(APPROVAL), await made.visitor(ALICE)
    page = await alice.get(page_of(task_id))
    done = await alice.send(page.form(page_of(task_id)), action)
    assert (done.status, done.url) == (OK, f"{alice.base_url}/console/inbox")
    (event,) = await made.received(task_id)
    assert event.answers == {"in-1": {"action": action}}


async def test_what_does_not_fit_is_told_beside_its_field_and_what_was_typed_is_kept(
    made: InboxWorld,
) -> None:
    count = {"type": "integer", "title": "Machines", "minimum": 1, "maximum": 9}
    request = elicitation("How?", name=NAME, count=count, required=["name", "count"])
    task_id, alice = await made.asked(request), await made.visitor(ALICE)
    form = (await alice.get(page_of(task_id))).form(page_of(task_id))
    refused = await alice.send(form, "accept", f__name="Al", f__count="7")
    assert refused.status == UNFIT
    assert "Give at least 3 characters" in refused.text
    again = refused.form(page_of(task_id))
    assert (again.fields["f.name"], again.fields["f.count"]) == (["Al"], ["7"])
    told = again.attributes["f.name"]
    assert told["aria-invalid"] == "true"
    assert f'id="{told["aria-describedby"].split()[-1]}"' in refused.html
    assert "aria-invalid" not in again.attributes["f.count"]
    assert await made.received(task_id) == []
    await alice.send(again, "accept", f__name="Ada")
    (event,) = await made.received(task_id)
    assert event.answers["in-1"]["content"] == {"name": "Ada", "count": 7}


async def test_the_summary_of_errors_leads_to_each_field_that_has_one(made: InboxWorld) -> None:
    count = {"type": "integer", "title": "Machines"}
    request = elicitation("How?", name=NAME, count=count, required=["name", "count"])
    task_id, alice = await made.asked(request), await made.visitor(ALICE)
    form = (await alice.get(page_of(task_id))).form(page_of(task_id))
    refused = await alice.send(form, "accept", f__name="Ada", f__count="many")
    field = refused.form(page_of(task_id)).attributes["f.count"]
    summary = [link["href"] for link in refused.links if link.get("href", "").startswith("#f-")]
    assert summary == [f"#{field['id']}"]


async def test_a_form_that_nobody_can_fill_in_has_a_page_and_can_be_declined(
    made: InboxWorld,
) -> None:
    most = {"type": "integer", "minimum": 10**400, "default": 5}
    task_id = await made.asked(elicitation("How many?", count=most, required=["count"]))
    alice = await made.visitor(ALICE)
    form = (await alice.get(page_of(task_id))).form(page_of(task_id))
    refused = await alice.send(form, "accept", f__count="5")
    assert refused.status == UNFIT
    again = refused.form(page_of(task_id))
    done = await alice.send(again, "decline")
    assert (done.status, done.url) == (OK, f"{alice.base_url}/console/inbox")
    (event,) = await made.received(task_id)
    assert event.answers == {"in-1": {"action": "decline"}}


@pytest.mark.promise("the-first-answer-wins-and-the-other-is-told")
async def test_of_two_who_answer_at_once_one_wins_and_the_other_is_told_who(
    made: InboxWorld,
) -> None:
    alice, olga = await made.visitor(ALICE), await made.visitor(OLGA)
    for _ in range(5):
        task_id = await made.asked(APPROVAL)
        forms = [(await who.get(page_of(task_id))).form(page_of(task_id)) for who in (alice, olga)]
        replies = await asyncio.gather(
            alice.send(forms[0], "accept", f__name="From Alice"),
            olga.send(forms[1], "accept", f__name="From Olga"),
        )
        (event,) = await made.received(task_id)
        assert sorted(reply.status for reply in replies) == [OK, CONFLICT]
        late = 0 if replies[0].status == CONFLICT else 1
        winner, lost_name = (OLGA, "From Alice") if late == 0 else (ALICE, "From Olga")
        assert event.by == winner.key
        told = replies[late]
        assert f"{winner.subject} approved it" in told.text
        assert f'datetime="{event.at[:19]}' in told.html
        assert lost_name in told.text


async def test_a_late_answer_is_told_that_the_tasks_own_client_was_first(
    made: InboxWorld,
) -> None:
    task_id, alice = await made.asked(APPROVAL), await made.visitor(ALICE)
    form = (await alice.get(page_of(task_id))).form(page_of(task_id))
    client = await made.client(ALICE)
    answer = {"in-1": {"action": "accept", "content": {"name": "Client"}}}
    await client.request("tasks/update", {"taskId": task_id, "inputResponses": answer})
    late = await alice.send(form, "accept", f__name="Ada")
    assert late.status == CONFLICT
    assert "The task's own client approved it" in late.text
    (event,) = await made.received(task_id)
    assert (event.by, event.answers) == (None, answer)


async def test_a_question_that_was_taken_back_takes_no_answer(made: InboxWorld) -> None:
    task_id, alice = await made.asked(APPROVAL), await made.visitor(ALICE)
    form = (await alice.get(page_of(task_id))).form(page_of(task_id))
    await made.publisher.happens(task_id, cancels())
    late = await alice.send(form, "accept", f__name="Ada")
    assert late.status == CONFLICT
    assert "was taken back" in late.text
    assert (await alice.get(page_of(task_id))).status == OK
    assert await made.received(task_id) == []


async def test_another_owners_requests_are_neither_listed_nor_shown_nor_answered(
    made: InboxWorld,
) -> None:
    request = elicitation("Only for Alice?", name=NAME, required=["name"])
    task_id = await made.asked(request)
    alice, bob = await made.visitor(ALICE), await made.visitor(BOB)
    assert "Only for Alice?" not in (await bob.get("/console/inbox")).text
    strange = await bob.get(page_of("no-such-task"))
    hidden = await bob.get(page_of(task_id))
    assert (hidden.status, hidden.text) == (NOT_FOUND, strange.text)
    stolen = (await alice.get(page_of(task_id))).form(page_of(task_id))
    own = await made.asked(APPROVAL, owner=BOB)
    csrf = (await bob.get(page_of(own))).form(page_of(own)).fields
    hidden_fields = {name: value for name, value in csrf.items() if not name.startswith("f.")}
    stolen.fields.update(hidden_fields)
    assert (await bob.send(stolen, "accept", f__name="Bob")).status == NOT_FOUND
    assert await made.received(task_id) == []


async def test_who_operates_sees_all_and_whose_they_are_and_may_answer(made: InboxWorld) -> None:
    request = elicitation("Whose is this?", name=NAME, required=["name"])
    task_id, olga = await made.asked(request, owner=BOB), await made.visitor(OLGA)
    page = await olga.get(page_of(task_id))
    assert "task of bob" in page.text
    assert (await olga.send(page.form(page_of(task_id)), "decline")).status == OK
    (event,) = await made.received(task_id)
    assert event.by == OLGA.key


async def test_who_only_watches_sees_the_question_and_may_not_answer(made: InboxWorld) -> None:
    task_id, winston = await made.asked(APPROVAL, owner=WINSTON), await made.visitor(WINSTON)
    page = await winston.get(page_of(task_id))
    assert "Deploy to production?" in page.text
    assert not [form for form in page.forms if form.action == page_of(task_id)]
    other = next(form for form in page.forms if form.method.lower() == "post")
    other.action, other.fields = page_of(task_id), {**other.fields, "action": ["decline"]}
    assert (await winston.send(other)).status == FORBIDDEN
    assert await made.received(task_id) == []


async def test_a_url_is_shown_whole_and_opens_only_by_a_link_that_gives_nothing_away(
    made: InboxWorld,
) -> None:
    url = "https://pay.example.com:8443/checkout?order=7#top"
    params = {"mode": "url", "message": "Pay first", "url": url}
    task_id = await made.asked({"method": "elicitation/create", "params": params})
    alice = await made.visitor(ALICE)
    page = await alice.get(page_of(task_id))
    assert "https://<strong>pay.example.com</strong>:8443/checkout?order=7#top" in page.html
    (link,) = [link for link in page.links if link["href"] == url]
    assert {"noopener", "noreferrer"} <= set(link["rel"].split())
    await alice.send(page.form(page_of(task_id)), "accept")
    (event,) = await made.received(task_id)
    assert event.answers == {"in-1": {"action": "accept"}}


@pytest.mark.parametrize("method", ["sampling/createMessage", "roots/list"])
async def test_other_kinds_are_shown_as_not_answerable_here(made: InboxWorld, method: str) -> None:
    task_id, alice = await made.asked({"method": method, "params": {}}), await made.visitor(ALICE)
    page = await alice.get(page_of(task_id))
    assert "cannot be answered here" in page.text
    assert not [form for form in page.forms if form.action == page_of(task_id)]


async def test_a_servers_markup_is_shown_as_text(made: InboxWorld) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    field = {"type": "string", "title": evil, "description": evil, "default": f'"{evil}'}
    task_id = await made.asked(elicitation(evil, **{evil: field}))
    page = await (await made.visitor(ALICE)).get(page_of(task_id))
    assert page.status == OK
    assert "<script>alert" not in page.html
    assert "<img src=x" not in page.html


async def test_the_list_goes_in_pages_that_repeat_none_and_leave_none_out(
    made: InboxWorld,
) -> None:
    bob = await made.visitor(BOB)
    wanted = [await made.asked(APPROVAL, owner=BOB) for _ in range(23)]
    seen: list[str] = []
    path: str | None = "/console/inbox"
    while path is not None:
        page = await bob.get(path)
        marked = [link["href"] for link in page.links if "/console/inbox/" in link.get("href", "")]
        seen += [href.split("/")[3] for href in marked]
        hrefs = [link.get("href", "") for link in page.links]
        further = [href for href in hrefs if href.startswith("/console/inbox?")]
        path = further[0] if further else None
    assert [task_id for task_id in seen if task_id in wanted] == wanted
