"""The console's doors, over HTTP: by a token, by an issuer, and whoever is kept out."""

import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
import websockets
from websockets.asyncio.client import connect

from outlast.tests.console.signin_world import (
    ADMIN,
    ALICE,
    CLIENT_SECRET,
    COOKIE,
    FORBIDDEN,
    MISDIRECTED,
    NOT_FOUND,
    OK,
    SEE_OTHER,
    TOO_LARGE,
    UNAUTHORIZED,
    Browser,
    Doors,
    browsing,
    doors_on,
)
from outlast.tests.service.conftest import desk_config
from outlast.tests.support.mcp import envelope
from outlast.tests.support.serving import serving

pytestmark = [pytest.mark.anyio, pytest.mark.promise("the-console-lets-in-who-may")]

WAIT_S_MAX = 60.0


@pytest.fixture(scope="module")
async def doors(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Doors]:
    async with doors_on(tmp_path_factory.mktemp("doors"), module_database_url) as opened:
        yield opened


@pytest.fixture
async def browser(doors: Doors) -> AsyncIterator[Browser]:
    async with browsing(doors.base) as opened:
        yield opened


# --- by a token


async def test_who_pastes_a_token_is_in_and_led_on(browser: Browser):
    reply = await browser.sign_in(ALICE, "/console/inbox?page=2")
    assert (reply.status_code, reply.headers["location"]) == (SEE_OTHER, "/console/inbox?page=2")
    page = await browser.get("/console")
    assert page.status_code == OK
    assert "alice" in page.text
    assert "Sign out" in page.text


@pytest.mark.parametrize("token", ["", " ", "wrong", "ö", "x" * 20_000, "a\nb", ALICE + "x"])
async def test_a_token_that_opens_nothing_is_refused_on_the_same_page(browser: Browser, token: str):
    reply = await browser.sign_in(token)
    assert reply.status_code == UNAUTHORIZED
    assert 'role="alert"' in reply.text
    assert browser.cookie is None
    assert token.strip() == "" or len(token) == 1 or token not in reply.text


async def test_no_token_is_in_a_cookie_a_page_or_the_log(browser: Browser, doors: Doors):
    reply = await browser.sign_in(ALICE)
    page = await browser.get("/console")
    told = str(reply.headers) + page.text + doors.log
    digest = hashlib.sha256(ALICE.encode()).hexdigest()
    for secret in (ALICE, digest, ADMIN, CLIENT_SECRET):
        assert secret not in told


async def test_the_operators_token_shows_what_is_for_operators(browser: Browser):
    await browser.sign_in(ADMIN)
    assert (await browser.get("/console/workers")).status_code == OK
    assert 'href="/console/webhooks"' in (await browser.get("/console")).text


async def test_who_does_not_operate_is_told_what_it_needs(browser: Browser):
    await browser.sign_in(ALICE)
    reply = await browser.get("/console/workers")
    assert reply.status_code == FORBIDDEN
    assert "operate" in reply.text
    assert 'href="/console/workers"' not in (await browser.get("/console")).text


# --- who is not signed in


async def test_a_stranger_is_sent_to_sign_in_and_comes_back_to_where_he_was_going(
    browser: Browser,
):
    reply = await browser.get("/console/tasks/abc?upto=3")
    assert reply.status_code == SEE_OTHER
    assert reply.headers["location"] == "/console/sign-in?next=%2Fconsole%2Ftasks%2Fabc%3Fupto%3D3"
    page = await browser.get(reply.headers["location"])
    assert 'name="next" value="/console/tasks/abc?upto=3"' in page.text


async def test_a_strangers_form_and_fragment_are_refused_and_not_redirected(browser: Browser):
    for reply in (
        await browser.post("/console/sign-out", {}),
        await browser.get("/console/inbox?part=1"),
        await browser.get("/console/inbox", **{"sec-fetch-mode": "cors"}),
    ):
        assert reply.status_code == UNAUTHORIZED
        assert "/console/sign-in" in reply.text


@pytest.mark.parametrize(
    "then", ["https://evil.example", "//evil.example", "/mcp", "/console/../x"]
)
async def test_nobody_is_led_elsewhere_by_signing_in(browser: Browser, then: str):
    reply = await browser.sign_in(ALICE, then)
    assert reply.headers["location"] == "/console"
    page = await browser.get(f"/console/sign-in?next={then}")
    assert "evil" not in page.text


async def test_a_cookie_that_was_tampered_with_is_nobodys(browser: Browser):
    await browser.sign_in(ALICE)
    cookie = browser.cookie
    assert cookie is not None
    middle = len(cookie) // 2
    other = "A" if cookie[middle] != "A" else "B"
    browser.http.cookies.clear()
    changed = f"{COOKIE}={cookie[:middle]}{other}{cookie[middle + 1 :]}"
    assert (await browser.get("/console", cookie=changed)).status_code == SEE_OTHER
    assert (await browser.get("/console", cookie=f"{COOKIE}={cookie}")).status_code == OK


async def test_who_signs_out_is_out(browser: Browser):
    await browser.sign_in(ALICE)
    reply = await browser.post("/console/sign-out", {"csrf": await browser.csrf()})
    assert (reply.status_code, reply.headers["location"]) == (SEE_OTHER, "/console/sign-in")
    assert "You have signed out." in (await browser.get("/console/sign-in")).text
    assert "You have signed out." not in (await browser.get("/console/sign-in")).text
    assert (await browser.get("/console")).status_code == SEE_OTHER


# --- forms


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example", "sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"origin": "null", "sec_fetch_site": ""},
        {"origin": "", "sec_fetch_site": ""},
    ],
    ids=str,
)
async def test_a_form_of_another_site_changes_nothing(browser: Browser, headers: Mapping[str, str]):
    assert (await browser.post("/console/sign-in", {"token": ALICE}, **headers)).status_code == (
        FORBIDDEN
    )
    await browser.sign_in(ALICE)
    fields = {"csrf": await browser.csrf()}
    assert (await browser.post("/console/sign-out", fields, **headers)).status_code == FORBIDDEN
    assert (await browser.get("/console")).status_code == OK


async def test_a_form_without_the_token_of_this_session_changes_nothing(
    browser: Browser, doors: Doors
):
    async with browsing(doors.base) as other:
        await other.sign_in(ALICE)
        foreign = await other.csrf()
    await browser.sign_in(ALICE)
    for fields in ({"other": "x"}, {"csrf": ""}, {"csrf": "x"}, {"csrf": foreign}):
        assert (await browser.post("/console/sign-out", fields)).status_code == FORBIDDEN
    assert (await browser.get("/console")).status_code == OK


async def test_a_form_that_is_too_large_or_no_form_is_refused(browser: Browser):
    await browser.sign_in(ALICE)
    large = await browser.post("/console/sign-out", {"csrf": "x" * 1_100_000})
    assert large.status_code == TOO_LARGE
    headers = {"origin": browser.base, "content-type": "application/json"}
    reply = await browser.http.post(f"{browser.base}/console/sign-out", json={}, headers=headers)
    assert reply.status_code == httpx2.codes.BAD_REQUEST


# --- what every page carries


async def test_every_answer_keeps_scripts_frames_and_forms_to_our_own(browser: Browser):
    await browser.sign_in(ALICE)
    static = (await browser.get("/console")).text.partition('href="/console/static/')[2]
    places = ["/console", "/console/sign-in", "/console/nothing", "/console/workers"]
    places += [f"/console/static/{static.partition(chr(34))[0]}", "/console/static/nothing"]
    for place in places:
        headers = (await browser.get(place)).headers
        policy = headers["content-security-policy"]
        for part in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"):
            assert part in policy, place
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        is_file = place.startswith("/console/static/") and "?v=" in place
        assert ("immutable" if is_file else "no-") in headers.get("cache-control", "no-"), place


async def test_a_page_has_no_script_or_style_of_its_own_and_asks_nobody_else(browser: Browser):
    await browser.sign_in(ADMIN)
    for place in ("/console", "/console/inbox", "/console/workers", "/console/nothing"):
        page = (await browser.get(place)).text
        for wrong in ("<style", " style=", " onclick=", "javascript:", "http://", "https://"):
            assert wrong not in page, (place, wrong)


async def test_the_console_with_a_slash_leads_to_the_console(browser: Browser):
    await browser.sign_in(ALICE)
    answer = await browser.get("/console/")
    assert (answer.status_code, answer.headers["location"]) == (SEE_OTHER, "/console")
    assert "content-security-policy" in answer.headers


async def test_a_page_that_is_not_there_says_so(browser: Browser):
    await browser.sign_in(ALICE)
    reply = await browser.get("/console/nothing/here")
    assert reply.status_code == NOT_FOUND
    assert "Nothing here" in reply.text


async def test_a_request_for_another_host_is_refused(browser: Browser):
    reply = await browser.get("/console/sign-in", host="evil.example")
    assert reply.status_code == MISDIRECTED


# --- the socket


async def _heard(base: str, cookie: str | None, origin: str | None) -> int:
    """The HTTP status of the refusal; 101 once a watch was acknowledged."""
    headers = {} if cookie is None else {"Cookie": f"{COOKIE}={cookie}"}
    place = f"ws://{urlsplit(base).netloc}/ws"
    with anyio.fail_after(WAIT_S_MAX):
        try:
            async with connect(place, additional_headers=headers, origin=origin) as opened:  # pyright: ignore[reportArgumentType]  # a str, which it names by a type of its own
                asked = envelope("subscriptions/listen", {"notifications": {"taskIds": []}})
                await opened.send(json.dumps(asked))
                assert "acknowledged" in str(await opened.recv())
                return 101
        except websockets.InvalidStatus as refused:
            return refused.response.status_code


async def test_a_page_of_ours_may_listen_under_the_cookie(browser: Browser):
    await browser.sign_in(ALICE)
    assert await _heard(browser.base, browser.cookie, browser.base) == 101


@pytest.mark.parametrize("origin", ["http://evil.example", "http://localhost:1", "null", None])
async def test_no_other_page_may_listen_under_the_cookie(browser: Browser, origin: str | None):
    await browser.sign_in(ALICE)
    status = await _heard(browser.base, browser.cookie, origin)
    assert status in (UNAUTHORIZED, FORBIDDEN)


async def test_a_changed_cookie_opens_no_socket(browser: Browser):
    await browser.sign_in(ALICE)
    assert browser.cookie is not None
    assert await _heard(browser.base, browser.cookie[:-8], browser.base) == UNAUTHORIZED


async def test_a_cookie_opens_nothing_of_the_protocol_itself(browser: Browser, doors: Doors):
    await browser.sign_in(ALICE)
    headers = {"origin": browser.base, "content-type": "application/json"}
    reply = await browser.http.post(doors.server.url, json=envelope("tools/list"), headers=headers)
    assert reply.status_code == UNAUTHORIZED


# --- other configurations


async def test_a_console_that_is_switched_off_is_not_there(database_url: str, tmp_path: Path):
    config = desk_config() + "[console]\nenabled = false\n"
    async with (
        serving(tmp_path, config, database_url, ["--no-work"]) as server,
        browsing(server.base_url) as browser,
    ):
        for place in ("/console", "/console/sign-in", "/console/static/console.css"):
            assert (await browser.get(place)).status_code == NOT_FOUND


async def test_on_loopback_without_tokens_everybody_is_the_local_owner(
    database_url: str, tmp_path: Path
):
    async with (
        serving(tmp_path, desk_config(), database_url, ["--no-work"]) as server,
        browsing(server.base_url) as browser,
    ):
        page = await browser.get("/console")
        assert page.status_code == OK
        assert "local" in page.text
        assert (await browser.get("/console", host="evil.example")).status_code == MISDIRECTED
