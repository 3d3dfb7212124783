"""A task's page on a real server: what it shows, to whom, and whose its versions are."""

import html
import json
import re
from collections.abc import AsyncIterator

import httpx2
import pytest

from outlast.domain import decisions
from outlast.domain.decisions import Events
from outlast.domain.events import ProgressReported
from outlast.domain.task import Task
from outlast.service.console.redaction import HIDDEN, SHOWN_CHARS_MAX
from outlast.service.console.timeline import WINDOW
from outlast.tests.console.task_world import (
    NOT_FOUND,
    OK,
    SEE_OTHER,
    Console,
    inputs_of,
    is_what_was_told,
    seen,
    text_of,
)
from outlast.tests.support.publishing import QUESTION, now

pytestmark = pytest.mark.anyio

FORBIDDEN = httpx2.codes.FORBIDDEN
SECRET = "this-is-for-nobody's-eyes"


@pytest.fixture(scope="module")
async def console(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Console]:
    async with seen(tmp_path_factory.mktemp("console"), module_database_url) as world:
        yield world


@pytest.mark.promise("replay-is-what-the-client-saw")
async def test_each_version_is_to_the_byte_what_tasks_get_answered_then(console: Console):
    task_id, publisher = await console.opened(), console.publisher
    answers = {2: await console.told(task_id)}
    await publisher.progresses(task_id, 'half <b>"way"</b> & ünï')
    answers[3] = await console.told(task_id)
    await publisher.asks(task_id)
    answers[4] = await console.told(task_id)
    question = publisher.tasks[task_id].outstanding[0].key
    reply = {question: {"action": "accept", "content": {"name": "A"}}}
    await publisher.happens(task_id, lambda task: decisions.receive_input(task, reply, now()))
    answers[5] = await console.told(task_id)
    await publisher.ends(task_id)
    ended = publisher.tasks[task_id].version
    answers[ended] = await console.told(task_id)
    for version, answer in answers.items():
        page = await console["alice"].page(f"/tasks/{task_id}/versions/{version}")
        exact = re.search(r'<pre[^>]*id="wire"[^>]*>(.*?)</pre>', page, re.DOTALL)
        assert exact is not None
        assert is_what_was_told(answer, html.unescape(exact[1]).encode())
        file = await console["alice"].get(f"/tasks/{task_id}/versions/{version}/state.json")
        assert is_what_was_told(answer, file.content)
        assert file.headers["content-disposition"].startswith("attachment")


async def test_the_page_shows_what_happened_in_order(console: Console):
    task_id = await console.opened()
    await console.publisher.progresses(task_id, "nearly there")
    await console.publisher.ends(task_id)
    page = await console["alice"].page(f"/tasks/{task_id}")
    topics = re.findall(r'data-topic="([^"]+)"', page)
    assert topics[:3] == ["task.opened", "task.work_started", "task.progress_reported"]
    assert topics[-1] == "task.completed"
    text = text_of(page)
    assert "Called run_ci_pipeline on ci" in text
    assert "Progress 1: nearly there" in text
    assert "attempt 1" in text
    assert "after the one before" in text
    assert '"branch": "main"' in text


@pytest.mark.promise("console-shows-nobody-anothers-task")
async def test_anothers_task_is_not_there_on_any_of_its_pages(console: Console):
    task_id = await console.opened("alice", tool="a_tool_of_alices")
    ours = await console["bob"].get("/tasks/no-such-task")
    assert ours.status_code == NOT_FOUND
    for path in (
        "",
        "?part=1",
        "/versions/1",
        "/versions/1?part=1",
        "/versions?n=1",
        "/versions/1/state.json",
        "/arguments.json",
        "/result.json",
    ):
        reply = await console["bob"].get(f"/tasks/{task_id}{path}")
        assert reply.status_code == NOT_FOUND, path
        assert "a_tool_of_alices" not in reply.text
        there = await console["alice"].get(f"/tasks/{task_id}{path}")
        assert (there.status_code == NOT_FOUND) == (path == "/result.json"), path


@pytest.mark.promise("console-shows-nobody-anothers-task")
@pytest.mark.parametrize("who", ["bob", "operator"])
async def test_nobody_cancels_anothers_task(console: Console, who: str):
    task_id = await console.opened()
    own = await console.opened(who)
    fields = inputs_of(await console[who].page(f"/tasks/{own}"))
    reply = await console[who].post(f"/tasks/{task_id}/cancel", fields)
    assert reply.status_code == NOT_FOUND
    assert b"Cancellation requested" not in await console.told(task_id)


async def test_a_cancellation_is_the_same_event_as_by_tasks_cancel(console: Console):
    by_page, by_method = await console.opened(), await console.opened()
    page = await console["alice"].page(f"/tasks/{by_page}")
    assert "Cancel this task" in page
    reply = await console["alice"].post(f"/tasks/{by_page}/cancel", inputs_of(page))
    assert reply.status_code == SEE_OTHER
    assert reply.headers["location"].startswith(f"/console/tasks/{by_page}")
    await console.client("alice").request("tasks/cancel", {"taskId": by_method})
    for task_id in (by_page, by_method):
        shown = await console["alice"].page(f"/tasks/{task_id}")
        assert re.findall(r'data-topic="([^"]+)"', shown)[2:] == ["task.cancel_requested"]
        assert "Cancel this task" not in shown
        assert b'"statusMessage":"Cancellation requested"' in await console.told(task_id)


async def test_who_may_only_watch_cannot_cancel(console: Console):
    task_id = await console.opened("watcher")
    page = await console["watcher"].page(f"/tasks/{task_id}")
    reply = await console["watcher"].post(f"/tasks/{task_id}/cancel", inputs_of(page))
    assert reply.status_code == httpx2.codes.FORBIDDEN
    assert b"Cancellation requested" not in await console.told(task_id, "watcher")


async def test_a_cancellation_without_the_pages_own_field_is_refused(console: Console):
    task_id = await console.opened()
    reply = await console["alice"].post(f"/tasks/{task_id}/cancel", {"csrf": "guessed"})
    assert reply.status_code == httpx2.codes.FORBIDDEN
    assert b"Cancellation requested" not in await console.told(task_id)


@pytest.mark.promise("console-hides-secrets")
async def test_secrets_are_hidden_and_the_owner_may_have_the_whole(console: Console):
    arguments = {
        "password": SECRET,
        "national_id": SECRET,
        "card": {"number": SECRET, "name": "n"},
        "branch": "main",
    }
    result = {
        "content": [{"type": "text", "text": json.dumps({"token": SECRET})}],
        "structuredContent": {"token": SECRET},
        "isError": False,
    }
    task_id = await console.opened(arguments=arguments)
    await console.publisher.progresses(task_id, f"went with password={SECRET}")
    await console.publisher.ends(task_id, result)
    ended = console.publisher.tasks[task_id].version
    for who in ("alice", "operator", "auditor", "examiner"):
        for path in ("", "?part=1", f"/versions/{ended}", f"/versions/{ended}?part=1"):
            page = await console[who].page(f"/tasks/{task_id}{path}")
            assert SECRET not in html.unescape(page)
            assert HIDDEN in page
    for who in ("alice", "auditor", "examiner"):
        whole = await console[who].get(f"/tasks/{task_id}/arguments.json")
        assert json.loads(whole.content) == arguments
        whole = await console[who].get(f"/tasks/{task_id}/result.json")
        assert json.loads(whole.content) == result
    page = await console["operator"].page(f"/tasks/{task_id}")
    assert "Download" not in page
    for path in ("/arguments.json", "/result.json", f"/versions/{ended}/state.json"):
        reply = await console["operator"].get(f"/tasks/{task_id}{path}")
        assert reply.status_code == NOT_FOUND


async def test_who_operates_sees_anothers_task_and_its_worker_and_its_owner_no_worker(
    console: Console,
):
    task_id = await console.opened()
    page = text_of(await console["operator"].page(f"/tasks/{task_id}"))
    assert "alice" in page
    assert "by tests" in page  # the worker's name
    own = text_of(await console["alice"].page(f"/tasks/{task_id}"))
    assert "by tests" not in own
    assert "by worker" in own


async def test_what_is_large_is_shown_in_part_with_its_size(console: Console):
    text = "x" * 3_000_000
    task_id = await console.opened(arguments={"text": text})
    page = await console["alice"].page(f"/tasks/{task_id}")
    assert len(page) < 4 * SHOWN_CHARS_MAX
    assert "2.9 MiB, shown in part" in text_of(page)
    whole = await console["alice"].get(f"/tasks/{task_id}/arguments.json")
    assert json.loads(whole.content) == {"text": text}


async def test_markup_in_what_a_tool_says_is_text(console: Console):
    evil = "<script>alert(1)</script>"
    task_id = await console.opened(arguments={evil: evil}, tool=evil)
    await console.publisher.progresses(task_id, evil)
    page = await console["alice"].page(f"/tasks/{task_id}")
    assert evil not in page
    assert evil in html.unescape(page)


async def test_what_no_page_can_carry_is_shown_escaped(console: Console):
    task_id = await console.opened(arguments={"lone": "\ud800", "big": 2**70})
    page = await console["alice"].page(f"/tasks/{task_id}")
    assert "\\ud800" in page
    assert str(2**70) in page


def many(task: Task, count: int) -> Events:
    """So much progress at once."""
    at = decisions.instant(now())
    return tuple(
        ProgressReported(task.id, task.version + n, at, 1, n / count, None, f"step {n}")
        for n in range(1, count + 1)
    )


async def test_a_long_task_is_shown_in_windows_that_leave_nothing_out(console: Console):
    task_id, count = await console.opened(), 990
    for _ in range(10):
        await console.publisher.happens(task_id, lambda task: many(task, count))
    newest = console.publisher.tasks[task_id].version
    page = await console["alice"].page(f"/tasks/{task_id}")
    shown = [int(n) for n in re.findall(r'<li id="v(\d+)"', page)]
    assert shown == list(range(newest - WINDOW + 1, newest + 1))
    older = re.search(r'href="([^"]*)" rel="prev">Older', page)
    assert older is not None
    page = await console["alice"].page(html.unescape(older[1]).removeprefix("/console"))
    shown = [int(n) for n in re.findall(r'<li id="v(\d+)"', page)]
    assert shown == list(range(newest - 2 * WINDOW + 1, newest - WINDOW + 1))
    first = await console["alice"].page(f"/tasks/{task_id}?upto=1")
    assert [int(n) for n in re.findall(r'<li id="v(\d+)"', first)] == [1]
    middle = await console["alice"].page(f"/tasks/{task_id}/versions/5000")
    assert "Version 5000 of" in text_of(middle)


async def test_the_slider_works_as_a_form_and_as_links(console: Console):
    task_id = await console.opened()
    await console.publisher.progresses(task_id, "on")
    browser = console["alice"]
    page = await browser.page(f"/tasks/{task_id}/versions/2")
    for version in (1, 3):
        assert f'href="/console/tasks/{task_id}/versions/{version}"' in page
    assert re.search(r'<input type="range" name="n" min="1" max="3" step="1" value="2"', page)
    for n, version in (("2", 2), ("99", 3), ("x", 3), ("", 3)):
        reply = await browser.get(f"/tasks/{task_id}/versions?n={n}")
        assert reply.status_code == SEE_OTHER
        assert reply.headers["location"].endswith(f"/versions/{version}")


@pytest.mark.parametrize("version", ["0", "-1", "3", "x", "1.5", "99999999999", "%EF%BC%91"])
async def test_a_version_that_is_not_there_is_not_there(console: Console, version: str):
    task_id = await console.opened()
    for path in (f"/versions/{version}", f"/versions/{version}/state.json"):
        reply = await console["alice"].get(f"/tasks/{task_id}{path}")
        assert reply.status_code == NOT_FOUND


@pytest.mark.parametrize("task_id", ["%00", "a" * 500, "%F0%9F%A6%86", ".."])
async def test_an_id_that_is_no_tasks_is_not_there(console: Console, task_id: str):
    for who in ("alice", "operator", "auditor", "examiner"):
        reply = await console[who].get(f"/tasks/{task_id}/versions/1")
        assert reply.status_code == NOT_FOUND


async def test_a_forgotten_task_is_the_audits_alone_and_an_erased_one_tells_that(console: Console):
    task_id = await console.opened()
    told = await console.told(task_id)
    await console.publisher.ends(task_id)
    console.does("SELECT outlast.forget_tasks(%s)", [task_id])
    for who in ("alice", "operator"):
        assert (await console[who].get(f"/tasks/{task_id}")).status_code == NOT_FOUND
    auditor = console["auditor"]
    page = text_of(await auditor.page(f"/tasks/{task_id}"))
    assert "kept for the audit log alone" in page
    assert "Called run_ci_pipeline on ci" in page
    assert "Cancel this task" not in page
    file = await auditor.get(f"/tasks/{task_id}/versions/2/state.json")
    assert is_what_was_told(told, file.content)
    console.does("SELECT outlast.erase_tasks(%s, 'on request')", [task_id])
    page = text_of(await auditor.page(f"/tasks/{task_id}"))
    assert "An attempt began (erased)" in page
    assert "All payloads were erased: on request" in page
    version = text_of(await auditor.page(f"/tasks/{task_id}/versions/2"))
    assert "cannot be told any more" in version
    gone = await auditor.get(f"/tasks/{task_id}/versions/2/state.json")
    assert gone.status_code == NOT_FOUND


PAGES_OF_A_TASK = (
    "",
    "?part=1",
    "/versions?n=1",
    "/versions/1",
    "/versions/1/state.json",
    "/arguments.json",
    "/result.json",
)


@pytest.mark.promise("console-shows-nobody-anothers-task")
async def test_audit_alone_opens_every_page_of_any_task_and_no_list(console: Console):
    task_id = await console.opened()
    await console.publisher.ends(task_id)
    examiner, starter = console["examiner"], console["starter"]
    for path in PAGES_OF_A_TASK:
        assert (await examiner.get(f"/tasks/{task_id}{path}")).status_code in (OK, SEE_OTHER), path
        assert (await examiner.get(f"/tasks/no-such-task{path}")).status_code == NOT_FOUND, path
        # Whoever may neither watch nor audit is told the same of every id.
        refused = [await starter.get(f"/tasks/{one}{path}") for one in (task_id, "no-such-task")]
        assert {reply.status_code for reply in refused} == {FORBIDDEN}, path
        assert refused[0].content == refused[1].content, path
    assert (await examiner.get("/tasks")).status_code == FORBIDDEN
    fields = inputs_of(await examiner.page(f"/tasks/{task_id}"))
    reply = await examiner.post(f"/tasks/{task_id}/cancel", fields)
    assert reply.status_code == FORBIDDEN


@pytest.mark.parametrize("who", ["alice", "watcher", "operator", "auditor", "examiner", "starter"])
async def test_no_page_leads_to_one_that_its_visitor_may_not_see(console: Console, who: str):
    task_id = await console.opened()
    for start in ("", f"/tasks/{task_id}", f"/tasks/{task_id}/versions/1"):
        reply = await console[who].get(start)
        links = re.findall(r'href="/console([^"#]*)"', reply.text)
        for link in {html.unescape(each) for each in links}:
            assert (await console[who].get(link)).status_code in (OK, SEE_OTHER), (start, link)
    sees = text_of(await console[who].page(""))
    assert ("Inbox" in sees) == (who not in {"examiner", "starter"})


async def test_a_question_is_shown_at_its_version_and_gone_at_the_next(console: Console):
    task_id = await console.opened()
    asked = await console.publisher.asks(task_id)
    await console.publisher.ends(task_id)
    page = text_of(await console["alice"].page(f"/tasks/{task_id}/versions/{asked}"))
    assert QUESTION.request["params"]["message"] in page
    after = text_of(await console["alice"].page(f"/tasks/{task_id}/versions/{asked + 1}"))
    assert QUESTION.request["params"]["message"] not in after
