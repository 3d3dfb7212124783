"""The list of tasks as a person uses it: filters, pages, and nothing of another owner's."""

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import httpx2
import psycopg
import pytest

from outlast.service.console.tasks import MESSAGE_CHARACTERS_MAX, TASKS_SHOWN
from outlast.tests.console.inbox_world import ALICE, BOB, OLGA, elicitation, inbox_world
from outlast.tests.console.visitor import Seen, Visitor
from outlast.tests.domain.given import cancels, stops

pytestmark = pytest.mark.anyio

PATH = "/console/tasks"
OK = httpx2.codes.OK
MANY = TASKS_SHOWN + 10  # alice's, beside those that are named below
ROW = re.compile(r'<tr data-task="([^"]+)">')
OLD_DAY, NEXT_DAY = "2024-02-28", "2024-02-29"
LONG = "long and <b>loud</b> " * 50


@dataclass(frozen=True)
class Made:
    """Who has what. `many` are alice's of the tool `bulk`, newest first."""

    alice: Visitor
    bob: Visitor
    olga: Visitor
    many: Sequence[str]
    asking: str
    cancelled: str
    old: str
    told: str
    bobs: str


@pytest.fixture(scope="module")
async def made(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Made]:
    folder = tmp_path_factory.mktemp("tasks")
    async with inbox_world(folder, module_database_url, "--no-work") as world:
        store = world.publisher
        old = await store.opened(owner=ALICE.key, tool="archive")
        with psycopg.connect(module_database_url) as connection:
            connection.execute(
                "UPDATE outlast.task_view SET created_at = %s WHERE task_id = %s",
                (f"{OLD_DAY}T12:00:00Z", old),
            )
        many = [await store.opened(owner=ALICE.key, tool="bulk") for _ in range(MANY)]
        asking = await world.asked(elicitation("Which colour?"), owner=ALICE, tool="deploy")
        cancelled = await store.opened(owner=ALICE.key, tool="deploy")
        await store.happens(cancelled, cancels())
        await store.happens(cancelled, stops())
        told = await store.opened(owner=ALICE.key, tool="report")
        await store.progresses(told, LONG)
        bobs = await store.opened(owner=BOB.key, tool="deploy", idempotency_key="bobs-key")
        alice, bob, olga = [await world.visitor(owner) for owner in (ALICE, BOB, OLGA)]
        yield Made(alice, bob, olga, many[::-1], asking, cancelled, old, told, bobs)


def rows(page: Seen) -> list[str]:
    assert page.status == OK, page.text
    return ROW.findall(page.html)


def link(page: Seen, rel: str) -> str | None:
    found = [each["href"] for each in page.links if each.get("rel") == rel]
    return found[0] if found else None


async def listed(visitor: Visitor, *query: tuple[str, str]) -> list[str]:
    return rows(await visitor.get(f"{PATH}?{urlencode(query)}"))


async def test_each_task_is_shown_with_what_it_is(made: Made) -> None:
    page = await made.alice.get(PATH)
    assert rows(page)[:3] == [made.told, made.cancelled, made.asking]
    for text in ("deploy", "cancelled", "input required", "working"):
        assert text in page.text
    assert any(each.get("href") == f"{PATH}/{made.told}" for each in page.links)


async def test_a_message_is_shown_as_text_and_not_at_any_length(made: Made) -> None:
    page = await made.alice.get(f"{PATH}?tool=report")
    assert "<b>loud" not in page.html
    assert "<b>loud" in page.text
    assert LONG[: MESSAGE_CHARACTERS_MAX // 2].strip() in page.text
    assert LONG[: MESSAGE_CHARACTERS_MAX * 2].strip() not in page.text


@pytest.mark.promise("the-list-of-tasks-shows-nobody-another-owners")
async def test_nobody_without_the_scope_sees_another_owners_tasks(made: Made) -> None:
    assert await listed(made.bob) == [made.bobs]
    for query in (
        ("owner", ALICE.key),
        ("q", made.asking),
        ("tool", "bulk"),
        ("status", "input_required"),
    ):
        assert made.asking not in await listed(made.bob, query)
        assert not set(await listed(made.bob, query)) & set(made.many)
    page = await made.bob.get(PATH)
    assert "owner" not in page.form(PATH).fields


async def test_who_operates_sees_all_owners_and_may_choose_one(made: Made) -> None:
    everybody = await listed(made.olga)
    assert everybody[:2] == [made.bobs, made.told]
    assert await listed(made.olga, ("owner", BOB.key)) == [made.bobs]
    page = await made.olga.get(PATH)
    assert any(
        each.get("href") == f"{PATH}?{urlencode([('owner', BOB.key)])}" for each in page.links
    )


async def test_pages_go_on_to_the_end_and_back(made: Made) -> None:
    query = f"{PATH}?tool=bulk"
    first = await made.alice.get(query)
    assert (rows(first), link(first, "prev")) == (list(made.many[:TASKS_SHOWN]), None)
    second = await made.alice.get(link(first, "next") or "")
    assert (rows(second), link(second, "next")) == (list(made.many[TASKS_SHOWN:]), None)
    back = await made.alice.get(link(second, "prev") or "")
    assert rows(back) == list(made.many[:TASKS_SHOWN])
    assert link(back, "prev") is None


@pytest.mark.parametrize("cursor", ["", "x", "!!", "WyJvIl0", "W10", "e30", "WyJvIiwxLDJd", "é"])
async def test_a_place_that_is_none_shows_the_newest(made: Made, cursor: str) -> None:
    assert await listed(made.alice, ("at", cursor)) == await listed(made.alice)


async def test_each_filter_finds_its_own(made: Made) -> None:
    alice = made.alice
    assert await listed(alice, ("status", "cancelled")) == [made.cancelled]
    both = [("status", "cancelled"), ("status", "input_required")]
    assert await listed(alice, *both) == [made.cancelled, made.asking]
    assert await listed(alice, ("question", "1")) == [made.asking]
    assert await listed(alice, ("question", "1"), ("status", "cancelled")) == []
    assert await listed(alice, ("tool", "deploy")) == [made.cancelled, made.asking]
    assert await listed(alice, ("since", OLD_DAY), ("until", OLD_DAY)) == [made.old]
    assert await listed(alice, ("until", NEXT_DAY)) == [made.old]
    assert made.old not in await listed(alice, ("since", NEXT_DAY), ("tool", "archive"))


async def test_a_search_finds_an_id_a_message_and_a_key(made: Made) -> None:
    assert await listed(made.alice, ("q", made.asking)) == [made.asking]
    assert await listed(made.alice, ("q", made.asking[:10])) == [made.asking]
    assert await listed(made.alice, ("q", "LOUD"), ("by", "message")) == [made.told]
    assert await listed(made.bob, ("q", "bobs-key"), ("by", "key")) == [made.bobs]
    assert await listed(made.alice, ("q", "bobs-key"), ("by", "key")) == []
    named = [("q", "bobs-key"), ("by", "key"), ("owner", BOB.key)]
    assert await listed(made.olga, *named) == [made.bobs]


async def test_what_cannot_be_looked_for_is_told_beside_its_field(made: Made) -> None:
    page = await made.olga.get(f"{PATH}?q=bobs-key&by=key")
    assert rows(page) == []
    assert "a key belongs to its owner" in page.text
    page = await made.alice.get(f"{PATH}?since=yesterday")
    assert rows(page) == []
    assert "Give a day like" in page.text
    assert page.form(PATH).fields["since"] == ["yesterday"]


async def test_the_form_keeps_what_was_asked(made: Made) -> None:
    page = await made.alice.get(f"{PATH}?status=failed&tool=bulk&q=abc&by=message&question=1")
    fields = page.form(PATH).fields
    assert (fields["tool"], fields["q"], fields["by"]) == (["bulk"], ["abc"], ["message"])
    assert (fields["status"], fields["question"]) == (["failed"], ["1"])
    assert "No task is like that" in page.text


async def test_the_rows_alone_are_had_for_a_refresh(made: Made) -> None:
    page = await made.alice.get(f"{PATH}?tool=deploy")
    (part,) = re.findall(r'data-part="([^"]+)"', page.html)
    address = urlsplit(part.replace("&amp;", "&"))
    alone = await made.alice.get(f"{address.path}?{address.query}")
    assert rows(alone) == rows(page)
    assert "<html" not in alone.html


async def test_who_has_no_tasks_is_told_so(database_url: str, tmp_path: Path) -> None:
    async with inbox_world(tmp_path, database_url, "--no-work") as world:
        page = await (await world.visitor(ALICE)).get(PATH)
        assert rows(page) == []
        assert "There are no tasks yet" in page.text
