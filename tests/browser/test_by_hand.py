"""What people do in the console, done by a browser: sign in, look, approve, resend, come back."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from playwright.async_api import Page, expect

from outlast.tests.acceptance.waiting import until
from outlast.tests.browser.looking import Desk, signs_in
from outlast.tests.browser.site import BROKEN, DEPLOY, LINT, QUESTION, TASK_S_MAX, TEST
from outlast.tests.delivery.webhook_world import SECRET, Hook, hook

pytestmark = [pytest.mark.anyio, pytest.mark.promise("the-console-works-in-a-browser")]

SECOND_MS = 1_000.0
LIVE_MS = 45 * SECOND_MS


@pytest.fixture
async def endpoint() -> AsyncIterator[Hook]:
    async with hook() as served:
        yield served


def form_of(task_id: str) -> str:
    return f"/console/inbox/{task_id}/{QUESTION}"


async def says_yes(page: Page, note: str = "") -> None:
    """The approval's form filled in and sent."""
    await page.get_by_role("radio", name="Yes").check()
    if note:
        await page.locator("[name='f.note']").fill(note)
    await page.get_by_role("button", name="Approve").click()
    await page.wait_for_load_state()


async def test_a_person_approves_a_deployment_and_the_waiting_client_has_its_result(desk: Desk):
    task_id = await desk.site.asking("alice")
    results: list[dict[str, object]] = []

    async def waits() -> None:
        client = desk.site.client("alice")
        results.append(await client.until_status(task_id, "completed", seconds=TASK_S_MAX))

    async with anyio.create_task_group() as client, desk.visitor("alice") as page:
        client.start_soon(waits)
        await page.goto("/console/inbox")
        await page.locator(f"a[href*='{task_id}']").first.click()
        await says_yes(page, "looks good")
        await page.wait_for_url("**/console/inbox*")
    (task,) = results
    report = task["result"]["structuredContent"]  # pyright: ignore[reportIndexIssue] - plain JSON
    assert (report["outcome"], report["note"]) == ("passed", "looks good")
    assert report["stages"][-1]["status"] == "passed"


async def test_an_open_inbox_shows_a_question_without_being_asked_again(desk: Desk):
    async with desk.visitor("alice") as page:
        await page.goto("/console/inbox")
        task_id = await desk.site.asking("alice")
        await expect(page.locator(f"a[href*='{task_id}']").first).to_be_visible(timeout=LIVE_MS)


async def test_of_two_people_who_answer_at_once_one_wins_and_the_other_is_told(desk: Desk):
    task_id = await desk.site.asking("alice")
    async with desk.visitor("alice") as first, desk.visitor("alice") as second:
        for page in (first, second):
            await page.goto(form_of(task_id))
        for page in (first, second):
            await page.get_by_role("radio", name="Yes").check()
        approves = [page.get_by_role("button", name="Approve") for page in (first, second)]
        async with anyio.create_task_group() as both:
            for button in approves:
                both.start_soon(button.click)
        for page in (first, second):
            await page.wait_for_load_state()
        told = [page for page in (first, second) if "/console/inbox/" in page.url]
        assert len(told) == 1, [first.url, second.url]
        late = told[0].get_by_role("alert")
        await expect(late).to_contain_text("Somebody was first")
        await expect(late).to_contain_text("Your answer was not recorded")


async def test_the_form_of_the_inbox_is_reached_and_sent_with_keys_alone(desk: Desk):
    task_id = await desk.site.asking("alice")
    async with desk.visitor("alice") as page:
        await page.goto("/console/inbox")
        await tabs_to(page, f"a[href*='{task_id}']")
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**{form_of(task_id)}*")
        await tabs_to(page, "[name='f.approve'][value=yes]")
        await page.keyboard.press("Space")
        await tabs_to(page, "#answer button[value=accept]")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/console/inbox*")
    task = await desk.site.client("alice").until_status(task_id, "completed", seconds=TASK_S_MAX)
    assert task["status"] == "completed"


async def tabs_to(page: Page, selector: str, most: int = 60) -> None:
    """Presses Tab until the focus is there."""
    for _ in range(most):
        await page.keyboard.press("Tab")
        if await page.evaluate("s => document.activeElement.matches(s)", selector):
            return
    raise AssertionError(f"{selector} is not reached by {most} tabs on {page.url}")


async def test_the_slider_shows_version_two_of_a_finished_task(desk: Desk):
    task_id = await desk.site.finished("alice", TEST, LINT)
    async with desk.visitor("alice") as page:
        await page.goto(f"/console/tasks/{task_id}")
        state = page.locator("[data-part=state]")
        await expect(state.locator("[data-status]")).to_have_attribute("data-status", "completed")
        await page.locator("input[type=range]").focus()
        await page.keyboard.press("Home")
        await page.keyboard.press("ArrowRight")
        await expect(state.get_by_role("heading")).to_contain_text("Version 2 of")
        await expect(state.locator("[data-status]")).to_have_attribute("data-status", "working")
        by_slider = await state.inner_text()
        await page.goto(f"/console/tasks/{task_id}/versions/2")  # the same without the script
        assert await state.inner_text() == by_slider


async def test_filters_leave_what_is_wanted_and_stand_in_the_address(desk: Desk):
    passed = await desk.site.finished("alice", TEST)
    asking = await desk.site.asking("alice")
    async with desk.visitor("alice") as page:
        await page.goto("/console/tasks")
        await page.get_by_role("checkbox", name="completed").check()
        await page.get_by_role("button", name="Show", exact=True).click()
        await page.wait_for_url("**status=completed*")
        await expect(page.locator(f"a[href$='{passed}']").first).to_be_visible()
        await expect(page.locator(f"a[href$='{asking}']")).to_have_count(0)
        await page.goto("/console/tasks?status=input_required")
        await expect(page.locator(f"a[href$='{asking}']").first).to_be_visible()
        await expect(page.locator(f"a[href$='{passed}']")).to_have_count(0)


async def test_a_second_user_sees_nothing_of_the_firsts_tasks(desk: Desk):
    task_id = await desk.site.asking("alice")
    async with desk.visitor("bob") as page:
        for path in ("/console", "/console/tasks", "/console/inbox"):
            await page.goto(path)
            await expect(page.locator("main")).not_to_contain_text(task_id)
        for path in (f"/console/tasks/{task_id}", form_of(task_id)):
            answer = await page.goto(path)
            assert answer is not None
            assert answer.status == 404, path
        for path in ("/console/workers", "/console/proofs"):
            answer = await page.goto(path)
            assert answer is not None
            assert answer.status == 403, path


async def test_who_is_not_signed_in_is_asked_to_and_then_led_on(desk: Desk):
    async with desk.visitor() as page:
        await page.goto("/console/inbox")
        assert "/console/sign-in" in page.url
        await page.locator("input[name=token]").fill("not-a-token-of-anybody")
        await page.locator("main form button[type=submit]").first.click()
        await expect(page.get_by_role("alert").first).to_be_visible()
        await signs_in(page, "alice", "/console/inbox")
        cookies = await page.context.cookies()
        assert all(each.get("httpOnly") and each.get("sameSite") == "Lax" for each in cookies)
        await page.get_by_role("button", name=re.compile("sign out", re.IGNORECASE)).click()
        await page.goto("/console/inbox")
        assert "/console/sign-in" in page.url


async def test_the_list_is_right_after_the_server_was_killed_and_started_again(desk: Desk):
    task_id = await desk.site.asking("alice")
    async with desk.visitor("alice") as page:
        await page.goto("/console/tasks")
        row = page.locator(f":is(tr, li):has(a[href$='{task_id}'])").first
        await expect(row.locator("[data-status=input_required]")).to_be_visible()
        await desk.site.restarted()
        answers = {QUESTION: {"action": "accept", "content": {"approve": True}}}
        client = desk.site.client("alice")
        await client.request("tasks/update", {"taskId": task_id, "inputResponses": answers})
        await client.until_status(task_id, "completed", seconds=TASK_S_MAX)
        await expect(row.locator("[data-status=completed]")).to_be_visible(timeout=2 * LIVE_MS)
        told = page.locator("#fresh")  # says so while the connection is lost
        await expect(told).to_have_text("", timeout=2 * LIVE_MS)
    desk.faults.forgive_the_lost()


async def test_a_webhook_that_failed_is_sent_again_by_a_button(desk: Desk, endpoint: Hook):
    wish = {"mode": "webhook", "url": endpoint.url, "secret": SECRET}
    params = {"name": "task.finished", "arguments": {}, "delivery": wish}
    granted = (await desk.site.client("olga").request("events/subscribe", params)).result
    endpoint.behaves = lambda _: 413  # given up at once
    await desk.site.finished("olga", TEST)
    await endpoint.got(1)
    endpoint.behaves = lambda _: 204
    async with desk.visitor("olga") as page:

        async def is_shown(outcome: str) -> bool:  # of an attempt: what was answered is told later
            await page.goto(f"/console/webhooks/{granted['id']}")
            return await page.locator("td .badge", has_text=outcome).count() > 0

        await until(lambda: is_shown("abandoned"), TASK_S_MAX)
        await page.get_by_role("button", name="Send again", exact=True).click()
        await endpoint.got(2)
        await until(lambda: is_shown("delivered"), TASK_S_MAX)


async def test_an_operator_sees_a_proof_and_takes_it_away(desk: Desk):
    task_id = await desk.site.finished("olga", BROKEN, DEPLOY)
    async with desk.visitor("olga") as page:
        link = page.get_by_role("link", name="Download as JSON")

        async def proven() -> bool:
            await page.goto(f"/console/proofs?event={task_id}")
            return await link.count() > 0

        await until(proven, TASK_S_MAX)
        async with page.expect_download() as download:
            await link.click()
        taken = await download.value
        assert taken.suggested_filename == "proof.json"
        proofs = json.loads(Path(await taken.path()).read_text())
        assert {proof["event"]["task"] for proof in proofs} == {task_id}


async def test_nothing_was_asked_of_others_and_no_page_had_an_error(desk: Desk):
    """Stands last: what all pages of this file did."""
    assert desk.faults.abroad == []
    assert desk.faults.errors == []
