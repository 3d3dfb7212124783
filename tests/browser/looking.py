"""One Chromium, and pages of it that keep count of all that a page must not do."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from outlast.tests.browser.site import Site, token_of
from outlast.tests.support import chromium, node

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Page

HERE = Path(__file__).resolve().parent
PATIENCE_MS = 60_000.0
NARROW, WIDE = 390, 1600
HEIGHT = 900
THEMES = ("light", "dark")
# What axe calls less than this is a matter of taste.
GRAVE = frozenset({"serious", "critical"})
# Chromium tells of every answer that is no success as an error of the console.
ANSWERED = "Failed to load resource: the server responded with a status of 4"
# How a connection ends whose server was killed: before, while or after it began to answer.
LOST = (
    "net::ERR_CONNECTION_REFUSED",
    "net::ERR_CONNECTION_RESET",
    "net::ERR_EMPTY_RESPONSE",
    "net::ERR_INCOMPLETE_CHUNKED_ENCODING",
    "net::ERR_CONTENT_LENGTH_MISMATCH",
    "WebSocket connection to",
)


@dataclass
class Faults:
    """What pages did that they must not: requests abroad, errors of the console."""

    origin: str
    abroad: list[str] = field(default_factory=list[str])
    errors: list[str] = field(default_factory=list[str])

    def watch(self, page: "Page") -> None:
        page.on("request", lambda request: self._asked(request.url))
        page.on("websocket", lambda socket: self._asked(socket.url))
        page.on("console", lambda said: self._said(said.type, said.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _asked(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"data", "blob"} and parts.netloc != urlsplit(self.origin).netloc:
            self.abroad.append(url)

    def _said(self, kind: str, text: str) -> None:
        if kind == "error" and not text.startswith(ANSWERED):
            self.errors.append(text)

    def forgive_the_lost(self) -> None:
        """A server that was killed on purpose is no fault of the page."""
        self.errors = [each for each in self.errors if not any(word in each for word in LOST)]


@dataclass
class Desk:
    """A browser before one site. `faults` are those of all its pages."""

    site: Site
    browser: "Browser"
    axe: str
    faults: Faults

    @asynccontextmanager
    async def visitor(
        self, person: str | None = None, width: int = WIDE, theme: str = "light"
    ) -> AsyncGenerator["Page"]:
        """A page of a browser that knows nothing yet; of a person, who has signed in."""
        context: BrowserContext = await self.browser.new_context(
            base_url=self.site.url,
            viewport={"width": width, "height": HEIGHT},
            color_scheme=theme,  # pyright: ignore[reportArgumentType]  # one of THEMES
            reduced_motion="reduce",
        )
        context.set_default_timeout(PATIENCE_MS)
        try:
            page = await context.new_page()
            self.faults.watch(page)
            if person is not None:
                await signs_in(page, person)
            yield page
        finally:
            await context.close()

    async def grave_findings(self, page: "Page") -> list[str]:
        """What axe-core finds of weight, each with the first place that it was found at."""
        await page.evaluate(self.axe)
        found: list[dict[str, Any]] = (await page.evaluate("axe.run(document)"))["violations"]
        return [
            f"{each['id']}: {each['nodes'][0]['html'][:200]}"
            for each in found
            if each["impact"] in GRAVE
        ]


async def signs_in(page: "Page", person: str, then: str = "/console/tasks") -> None:
    """By the form, as a person does."""
    await page.goto(f"/console/sign-in?next={then}")
    await enters(page, token_of(person), then)


async def enters(page: "Page", token: str, then: str) -> None:
    """On the page that asks for it."""
    await page.locator("input[name=token]").fill(token)
    await page.locator("main form button[type=submit]").first.click()
    await page.wait_for_url(f"**{then}*")


async def reaches_beyond(page: "Page") -> bool:
    """Whether the page as a whole scrolls sideways."""
    return await page.evaluate(
        "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    )


@asynccontextmanager
async def desk(site: Site) -> AsyncGenerator[Desk]:
    """One browser process. Raises BrowserMissing and NodeMissing."""
    # Not while tests are only collected.
    from playwright.async_api import async_playwright, expect

    expect.set_options(timeout=PATIENCE_MS)

    path = chromium.executable()
    axe = node.install(HERE) / "node_modules" / "axe-core" / "axe.min.js"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            yield Desk(site, browser, axe.read_text(), Faults(site.url))
        finally:
            await browser.close()
