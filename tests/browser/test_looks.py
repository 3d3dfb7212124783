"""Every page in both themes and at both widths: read by axe-core, and never wider than a screen."""

import pytest

from outlast.tests.browser.looking import NARROW, THEMES, WIDE, Desk, reaches_beyond
from outlast.tests.browser.tour import EMPTY, Stop, furnished

pytestmark = [pytest.mark.anyio, pytest.mark.promise("the-console-is-readable-for-all")]


@pytest.fixture(scope="module")
async def stops(desk: Desk) -> list[Stop]:
    return [*await furnished(desk.site), *EMPTY]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", [NARROW, WIDE])
async def test_no_page_has_a_grave_finding_or_scrolls_sideways(
    desk: Desk, stops: list[Stop], width: int, theme: str
):
    found: dict[str, list[str]] = {}
    for person in dict.fromkeys(stop.person for stop in stops):
        async with desk.visitor(person, width, theme) as page:
            for stop in (each for each in stops if each.person == person):
                answer = await page.goto(stop.path)
                assert answer is not None
                assert answer.status == stop.status, stop.path
                findings = await desk.grave_findings(page)
                if await reaches_beyond(page):
                    findings.append(f"the page is wider than {width}")
                if findings:
                    found[stop.name] = findings
    assert found == {}


async def test_nothing_was_asked_of_others_and_no_page_had_an_error(desk: Desk, stops: list[Stop]):
    """Stands last: what all pages of this file did."""
    assert (desk.faults.abroad, desk.faults.errors) == ([], [])
