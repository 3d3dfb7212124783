"""Sessions of the console: what is in a cookie, how long it counts, and whose forms do."""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from outlast.adapters.identity import LocalIdentity, OperatorToken
from outlast.domain.owner import LOCAL_CALLER, Caller, Owner, Scope
from outlast.service.console.frame import ago, own_path
from outlast.service.console.session import COOKIE, Sessions, Visit, is_own_page
from outlast.service.console.signing import Seal
from outlast.service.guard import Guard

pytestmark = [pytest.mark.anyio, pytest.mark.promise("a-console-session-is-sealed-and-ends")]

OWNER = Owner("https://issuer.example", "anna", "desk")
SCOPES = frozenset({Scope.CALL, Scope.WATCH})
HOST = "outlast.example"


class Clock:
    def __init__(self) -> None:
        self.now = datetime.now(UTC).timestamp()

    def __call__(self) -> float:
        return self.now


def request_of(**headers: str) -> Request:
    named = {"host": HOST, **{name.replace("_", "-"): value for name, value in headers.items()}}
    raw = [(name.encode(), value.encode()) for name, value in named.items()]
    scope = {"type": "http", "method": "GET", "path": "/console", "query_string": b""}
    return Request({**scope, "scheme": "http", "server": (HOST, 80), "headers": raw})


def sessions_of(clock: Clock, **changed: Any) -> Sessions:
    given: dict[str, Any] = {
        "seal": Seal("k" * 32, clock),
        "identity": OperatorToken("o" * 32),
        "guard": Guard([HOST], []),
        "knows": lambda _owner: True,
        **changed,
    }
    return Sessions(**given)


def cookie_of(response: Response) -> str:
    return response.headers["set-cookie"].partition(";")[0].removeprefix(f"{COOKIE}=")


def begun(sessions: Sessions, until: datetime | None = None, **headers: str) -> Response:
    response = Response()
    sessions.begin(request_of(**headers), response, Caller(OWNER, SCOPES, until))
    return response


async def visit_of(sessions: Sessions, cookie: str) -> Visit | None:
    return await sessions.visit(request_of(cookie=f"{COOKIE}={cookie}"))


async def test_a_cookie_says_who_has_signed_in():
    sessions = sessions_of(Clock())
    visit = await visit_of(sessions, cookie_of(begun(sessions)))
    assert visit is not None
    assert (visit.caller.owner, visit.caller.scopes) == (OWNER, SCOPES)
    assert not visit.operates


async def test_a_cookie_with_any_letter_changed_or_left_out_counts_for_nothing():
    sessions = sessions_of(Clock())
    cookie = cookie_of(begun(sessions))
    for at in range(len(cookie)):
        other = "A" if cookie[at] != "A" else "B"
        for wrong in (cookie[:at] + other + cookie[at + 1 :], cookie[:at] + cookie[at + 1 :]):
            found = await visit_of(sessions, wrong)
            # The last letter's spare bits say nothing, so some changes of it change nothing.
            assert found is None or _raw(wrong) == _raw(cookie), at


def _raw(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


async def test_a_cookie_under_another_key_counts_for_nothing():
    cookie = cookie_of(begun(sessions_of(Clock(), seal=Seal("another" * 5))))
    assert await visit_of(sessions_of(Clock()), cookie) is None


async def test_what_was_sealed_for_another_purpose_opens_no_session():
    seal = Seal("k" * 32)
    said = {"owner": ["a", "b", "c"], "scopes": ["operate"], "csrf": "x", "until": 2e9}
    assert await visit_of(sessions_of(Clock()), seal.seal("said", said, 2e9)) is None


async def test_a_session_ends_with_the_token_that_it_was_made_from():
    clock = Clock()
    sessions = sessions_of(clock)
    until = datetime.fromtimestamp(clock.now, UTC) + timedelta(seconds=60)
    cookie = cookie_of(begun(sessions, until))
    clock.now += 55
    assert await visit_of(sessions, cookie) is not None
    clock.now += 10
    assert await visit_of(sessions, cookie) is None


async def test_a_session_of_a_token_without_an_end_lasts_eight_hours():
    clock = Clock()
    sessions = sessions_of(clock)
    cookie = cookie_of(begun(sessions))
    clock.now += 8 * 3600 - 60
    visit = await visit_of(sessions, cookie)
    assert visit is not None
    assert visit.caller.until == visit.until  # a watch under it ends then too
    clock.now += 120
    assert await visit_of(sessions, cookie) is None


async def test_who_is_no_longer_known_is_out():
    cookie = cookie_of(begun(sessions_of(Clock())))
    assert await visit_of(sessions_of(Clock(), knows=lambda owner: owner != OWNER), cookie) is None


def test_a_cookie_is_for_no_script_and_for_no_other_site_and_under_https_for_https_alone():
    plain = begun(sessions_of(Clock())).headers["set-cookie"].lower()
    assert "httponly" in plain
    assert "samesite=lax" in plain
    assert "secure" not in plain
    for told in ({"origin": f"https://{HOST}"}, {"sec_fetch_site": "cross-site"}):
        secured = begun(sessions_of(Clock()), None, **told).headers["set-cookie"]
        assert "secure" in secured.lower()


async def test_without_any_token_to_ask_for_the_local_caller_needs_no_session():
    sessions = sessions_of(Clock(), identity=LocalIdentity())
    visit = await sessions.visit(request_of())
    assert visit is not None
    assert visit.caller == LOCAL_CALLER
    assert not visit.is_signed_in
    assert sessions.is_meant(visit, visit.csrf)
    assert not sessions.is_meant(visit, "something else")
    assert not sessions.is_meant(visit, None)


@pytest.mark.parametrize(
    ("headers", "is_own"),
    [
        ({"origin": f"https://{HOST}"}, True),
        ({"origin": f"http://{HOST}", "sec_fetch_site": "same-origin"}, True),
        ({"sec_fetch_site": "same-origin"}, True),
        ({}, False),
        ({"origin": "null"}, False),
        ({"origin": "https://evil.example"}, False),
        ({"origin": f"https://{HOST}.evil.example"}, False),
        ({"origin": f"https://{HOST}:8443"}, False),
        ({"origin": f"https://{HOST}", "sec_fetch_site": "cross-site"}, False),
        ({"origin": f"https://{HOST}", "sec_fetch_site": "same-site"}, False),
        ({"sec_fetch_site": "none"}, False),
    ],
    ids=str,
)
def test_a_form_counts_only_from_a_page_of_ours(headers: Mapping[str, str], is_own: bool):
    assert is_own_page(request_of(**headers)) is is_own


@pytest.mark.parametrize(
    "place",
    [
        None,
        "",
        "/",
        "/mcp",
        "/consolex",
        "//evil.example",
        "//evil.example/console/",
        "https://evil.example/console",
        "/console/../mcp",
        "/console/\\evil.example",
        "\\\\evil.example",
        "/console/\r\nset-cookie: a=b",
        "javascript:alert(1)",
    ],
)
def test_nobody_is_led_out_of_the_console(place: str | None):
    assert own_path(place) == "/console"


@pytest.mark.parametrize("place", ["/console", "/console/tasks?status=failed", "/console/tasks/a"])
def test_a_place_in_the_console_stays_as_it_is(place: str):
    assert own_path(place) == place


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.4, "just now"),
        (5, "5 s ago"),
        (150, "2 min ago"),
        (7_300, "2 h ago"),
        (90_000, "1 day ago"),
        (864_000, "10 days ago"),
        (-150, "in 2 min"),
    ],
)
def test_times_are_told_in_words(seconds: float, told: str):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert ago(now - timedelta(seconds=seconds), now) == told
