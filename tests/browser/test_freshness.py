"""Pages say it when what they show may be old: a session that ends, a service that is away."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Page, Route, expect

from outlast.tests.browser.looking import Desk, enters, signs_in
from outlast.tests.browser.site import DEPLOY, PIPELINE, QUESTION, TASK_S_MAX
from outlast.tests.support.mcp import RawClient

pytestmark = [pytest.mark.anyio, pytest.mark.promise("the-console-works-in-a-browser")]

SESSION_S = 40.0  # to open every page in
AN_HOUR_S = 3600.0
LIVE_MS = 45_000.0


@asynccontextmanager
async def tabs(page: Page, *places: str) -> AsyncGenerator[Sequence[Page]]:
    """Pages that are live, beside this one."""
    opened = [await page.context.new_page() for _ in places]
    for tab, place in zip(opened, places, strict=True):
        await tab.goto(f"/console{place}")
        assert "sign-in" not in tab.url
        await expect(tab.locator("#fresh")).to_have_text("")
    yield opened


async def carols_task(desk: Desk) -> str:
    client = RawClient(f"{desk.site.url}/mcp", desk.site.http, desk.site.token_for(AN_HOUR_S))
    arguments = {"repository": str(desk.site.repository), "stages": [DEPLOY]}
    task_id = await client.opened(PIPELINE, arguments)
    await client.until_status(task_id, "input_required", seconds=TASK_S_MAX)
    return task_id


async def test_a_session_that_ends_is_said_on_every_page_and_leads_back_to_it(desk: Desk):
    task_id = await carols_task(desk)
    form = f"/console/inbox/{task_id}/{QUESTION}"
    wait = SESSION_S * 1000 + LIVE_MS
    async with desk.visitor() as page:
        await page.goto(f"/console/sign-in?next={form}")
        await enters(page, desk.site.token_for(SESSION_S), form)
        async with tabs(page, "", "/tasks", "/inbox", "/workers", f"/tasks/{task_id}") as opened:
            for tab in opened:
                await expect(tab.locator("#fresh")).to_contain_text("session is over", timeout=wait)
                assert await desk.grave_findings(tab) == []
            await page.get_by_role("radio", name="Yes").check()
            await page.get_by_role("button", name="Approve").click()
            await expect(page.locator("main")).to_contain_text("was not sent")
            last, place = opened[-1], opened[-1].url
            await last.locator("#fresh a").click()
            await enters(last, desk.site.token_for(AN_HOUR_S), place)
            await expect(last.locator("#fresh")).to_have_text("")
            await expect(last.locator("[data-status=input_required]").first).to_be_visible()


async def test_a_service_that_is_away_is_said_on_every_page_until_it_is_back(desk: Desk):
    task_id = await desk.site.asking("alice")
    async with desk.visitor() as page:
        await signs_in(page, "alice")
        async with tabs(page, "", "/tasks", "/inbox", f"/tasks/{task_id}") as opened:
            desk.site.server.kill()
            for tab in opened:
                told = tab.locator("#fresh")
                await expect(told).to_contain_text("connection is lost", timeout=LIVE_MS)
            desk.site.server.start()
            await desk.site.until_ready()
            for tab in opened:
                await expect(tab.locator("#fresh")).to_have_text("", timeout=2 * LIVE_MS)
    desk.faults.forgive_the_lost()


FIGURES = "**/console?part=1"
HASTY = """{
  const of = AbortSignal.timeout.bind(AbortSignal);
  AbortSignal.timeout = (ms) => of(ms / 20);
}"""


async def holding(page: Page) -> list[Route]:
    """The figures that are asked for from now on, none of them answered."""
    asked: list[Route] = []

    def holds(route: Route) -> None:
        asked.append(route)

    await page.route(FIGURES, holds)
    return asked


async def test_an_answer_that_never_comes_is_said_and_does_not_end_the_looking(desk: Desk):
    async with desk.visitor("alice") as page:
        await page.add_init_script(HASTY)
        asked = await holding(page)
        await page.goto("/console")
        told = page.locator("#fresh")
        await expect(told).to_contain_text("connection is lost", timeout=LIVE_MS)
        assert asked
        await page.unroute(FIGURES)
        await expect(told).to_have_text("", timeout=LIVE_MS)


async def test_figures_are_asked_for_once_at_a_time(desk: Desk):
    async with desk.visitor("alice") as page:
        await page.clock.install()
        asked = await holding(page)
        await page.goto("/console")
        for _ in range(4):
            await page.clock.run_for(5_000)
        await expect(page.locator("#figures h2").first).to_be_visible()
        (first,) = asked
        await first.fulfill(content_type="text/html", body="<p>anew</p>")
        await expect(page.locator("#figures")).to_have_text("anew")
        async with page.expect_request(FIGURES):
            await page.clock.run_for(5_000)


OPENED_AND_CLOSED = """async () => {
  const { live } = await import("/console/static/live.js");
  for (let n = 0; n < 9; n++) live({ ids: ["none"], onTask() {} }).close();
}"""


async def test_a_closed_connection_leaves_no_listener_and_a_kept_page_comes_back_anew(desk: Desk):
    async with desk.visitor("alice") as page:
        await page.goto("/console/inbox")
        before = await listeners(page)
        await page.evaluate(OPENED_AND_CLOSED)
        assert await listeners(page) == before
        assert before.count("pageshow") == 1
        await page.evaluate("window.isOld = true; dispatchEvent(new Event('pagehide'))")
        shown = "dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))"
        async with page.expect_event("load"):
            await page.evaluate(shown)
        assert not await page.evaluate("window.isOld ?? false")


async def listeners(page: Page) -> list[str]:
    """What the window listens to, once for each listener."""
    wire = await page.context.new_cdp_session(page)
    window = await wire.send("Runtime.evaluate", {"expression": "window"})
    asked = {"objectId": window["result"]["objectId"]}
    found = await wire.send("DOMDebugger.getEventListeners", asked)
    return sorted(each["type"] for each in found["listeners"])
