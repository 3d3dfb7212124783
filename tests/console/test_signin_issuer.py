"""Signing in to the console by an OAuth issuer: authorization code with PKCE."""

from collections.abc import AsyncIterator

import pytest

from outlast.tests.console.signin_world import (
    COOKIE,
    RESOURCE,
    SEE_OTHER,
    UNAUTHORIZED,
    Browser,
    Doors,
    browsing,
    doors_on,
    here,
)

pytestmark = [pytest.mark.anyio, pytest.mark.promise("the-console-lets-in-who-may")]


@pytest.fixture(scope="module")
async def doors(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Doors]:
    async with doors_on(tmp_path_factory.mktemp("doors"), module_database_url) as opened:
        yield opened


@pytest.fixture
async def browser(doors: Doors) -> AsyncIterator[Browser]:
    doors.issuer.claims, doors.issuer.named, doors.issuer.refuses = {}, None, False
    async with browsing(doors.base) as opened:
        yield opened


async def at_issuer(browser: Browser, then: str = "/console/inbox") -> str:
    """Goes to the issuer, and returns where it sends the browser back to."""
    begun = await browser.get(f"/console/sign-in/oidc?next={then}")
    assert begun.status_code == SEE_OTHER
    answer = await browser.get(begun.headers["location"])
    return here(answer.headers["location"], browser.base)


async def test_who_comes_by_the_issuer_is_in_and_led_on(browser: Browser, doors: Doors):
    reply = await browser.get(await at_issuer(browser))
    assert (reply.status_code, reply.headers["location"]) == (SEE_OTHER, "/console/inbox")
    assert "anna" in (await browser.get("/console")).text
    asked = doors.issuer.asked[-1]
    assert asked["code_challenge_method"] == "S256"
    assert asked["redirect_uri"] == "http://127.0.0.1:1/console/sign-in/oidc/callback"
    assert asked["resource"] == RESOURCE
    token = doors.issuer.tokens[-1]
    assert token not in str(reply.headers) + doors.log
    assert token.split(".")[1] not in str(reply.headers)


async def test_a_session_by_an_issuer_ends_with_its_token(browser: Browser):
    reply = await browser.get(await at_issuer(browser))
    cookie = next(c for c in reply.headers.get_list("set-cookie") if c.startswith(f"{COOKIE}="))
    seconds = int(cookie.lower().partition("max-age=")[2].partition(";")[0])
    assert 0 < seconds <= 600 + 30  # and not the eight hours


async def test_an_answer_of_the_issuer_counts_once_and_for_who_asked(
    browser: Browser, doors: Doors
):
    back = await at_issuer(browser)
    async with browsing(doors.base) as other:
        assert (await other.get(back)).status_code == UNAUTHORIZED
        await other.get("/console/sign-in/oidc")
        assert (await other.get(back)).status_code == UNAUTHORIZED
        assert other.cookie is None
    assert (await browser.get(back)).status_code == SEE_OTHER
    assert (await browser.get(back)).status_code == UNAUTHORIZED


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "https://another.example"},
        {"exp": 1_000_000_000},
        {"iss": "https://another.example"},
    ],
    ids=str,
)
async def test_a_token_that_no_client_could_use_lets_nobody_in(
    browser: Browser, doors: Doors, claims: dict[str, object]
):
    doors.issuer.claims = claims
    reply = await browser.get(await at_issuer(browser))
    assert reply.status_code == UNAUTHORIZED
    assert "not for here" in reply.text
    assert browser.cookie is None


async def test_who_does_not_agree_at_the_issuer_is_not_let_in(browser: Browser, doors: Doors):
    doors.issuer.refuses = True
    reply = await browser.get(await at_issuer(browser))
    assert reply.status_code == UNAUTHORIZED
    assert "did not agree" in reply.text


async def test_an_answer_in_another_issuers_name_is_not_taken(browser: Browser, doors: Doors):
    doors.issuer.named = "https://another.example"
    reply = await browser.get(await at_issuer(browser))
    assert reply.status_code == UNAUTHORIZED
    assert doors.issuer.codes  # the code was not even sent
