"""Generated addresses, queries and forms at what is no JSON-RPC: the console, /admin and /audit.

Whatever comes, the same process answers, with no 5xx and in the form that its part promises; and a
request that was refused, or that only asks, has written nothing.
"""

import http.cookies
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

import anyio.to_thread
import pytest

from outlast.tests.fuzz.chance import Chance
from outlast.tests.fuzz.targets import Target
from outlast.tests.fuzz.wire import Answer, Line, Request
from outlast.tests.fuzz.world import ALICE, OPERATOR, World

pytestmark = pytest.mark.anyio

WRONG_METHOD = 405
FORM, JSON = b"application/x-www-form-urlencoded", b"application/json"
TASK = "/console/tasks/{task}"
SHOWN = (
    *("", "/tasks", "/inbox", "/webhooks", "/workers", "/proofs", "/proofs/proof.json", "/sign-in"),
    *("/inbox/{task}/{key}", "/webhooks/{any}", "/static/{any}", "/{any}"),
)
GETS = (
    *(f"/console{place}" for place in SHOWN),
    *(TASK, f"{TASK}/versions", f"{TASK}/versions/{{number}}", f"{TASK}/arguments.json"),
    *(f"{TASK}/versions/{{number}}/state.json", f"{TASK}/result.json", "/console/{any}"),
    *(f"/admin/webhooks{place}" for place in ("", "/{any}", "/{any}/attempts")),
    *("/audit/tasks/{task}", "/audit/checkpoint", "/audit/{any}"),
)
DEEDS = ("resend", "resume", "test")
POSTS = (
    *("/console/sign-in", "/console/sign-out", f"{TASK}/cancel", "/console/inbox/{task}/{key}"),
    *(
        f"{root}/{{any}}/{deed}"
        for root in ("/console/webhooks", "/admin/webhooks")
        for deed in DEEDS
    ),
)
# The names of all parameters and fields there are, each with values that mean something.
KNOWN: dict[str, Sequence[str]] = {
    "part": ("1",),
    "by": ("id", "message", "key"),
    "q": ("x", "%", "a\\", "_"),
    "status": ("working", "completed"),
    "question": ("1",),
    "since": ("2026-01-01", "2026-01-01T00:00:00Z", "9999-12-31", "0001-01-01"),
    "until": ("2026-01-01", "9999-12-31"),
    "upto": ("2", "1"),
    "version": ("2", "1"),
    "n": ("1", "2"),
    "at": ("1", "2", "999999999"),
    "limit": ("1", "100"),
    "only": ("failing", "suspended"),
    "owner": ('["i","s","c"]', "alice"),
    "action": ("accept", "decline", "cancel"),
    "which": ("all", "failed"),
    "f.name": ("Ada", "x" * 30),
    "f.count": ("1", "-1", "1e9"),
    "f.colour": ("red", "green"),
    "next": ("/console/inbox", "//example.org", "/console/../x"),
    "token": (ALICE, "x"),
    **dict.fromkeys(("tool", "event", "task", "after", "before", "proof", "position"), ()),
}
HOLES = {"number": ("1", "2", "3", "0", "-1", "9" * 30, "01"), "key": ("who", "draft", "roots")}


class Pages(Target):
    """All of it, as alice's browser, as an operator's, and as an operator's program."""

    def __init__(self, here: World, line: Line) -> None:
        super().__init__(here, line)
        host, port = here.address
        self._host = f"{host}:{port}"
        self._visits = [self._signed_in(token) for token in (ALICE, OPERATOR)]

    def trial(self, chance: Chance) -> str:
        request = self._drawn(chance)
        self.last = request
        answer = self.line.ask(request)
        assert answer is not None, "the server hung up"
        assert answer.status < 500, answer
        if request.path.startswith(b"/console"):
            is_no_path = answer.status == WRONG_METHOD or b"%0A" in request.path
            assert is_no_path or is_page(answer), answer
        elif answer.status not in {200, 404, WRONG_METHOD}:
            assert isinstance(answer.body["error"], str), answer
        if answer.status < 400 and request.method == "GET":
            self.told(is_refused=True)  # it has written no more than a refused one may
            return "shown"
        return self.told(is_refused=answer.status >= 400)

    def _drawn(self, chance: Chance) -> Request:
        method, place = chance.choice(
            [("GET", chance.choice(GETS)), ("POST", chance.choice(POSTS))]
        )
        path = place.format(**self._holes(chance))
        is_console = path.startswith("/console")
        cookie, csrf = chance.choice(self._visits)
        pairs = self._pairs(chance)
        headers = [(b"host", self._host.encode()), (b"origin", f"http://{self._host}".encode())]
        headers.append((b"cookie", cookie.encode()))
        if not is_console:
            headers.append((b"authorization", f"Bearer {OPERATOR}".encode()))
        if method == "GET":
            return Request(method, f"{path}?{encoded(pairs)}".encode(), headers, b"")
        if is_console:
            body = encoded([*pairs, ("csrf", csrf)]).encode()
            return Request(method, path.encode(), [*headers, (b"content-type", FORM)], body)
        body = chance.encoded(chance.mutated(dict(pairs)))
        return Request(method, path.encode(), [*headers, (b"content-type", JSON)], body)

    def _holes(self, chance: Chance) -> dict[str, str]:
        known = {"task": self.here.task_ids, "any": ("console.css", "x"), **HOLES}
        drawn = {name: self._text(chance, given) for name, given in known.items()}
        return {name: quote(text.encode(*LOOSE), safe="") for name, text in drawn.items()}

    def _text(self, chance: Chance, known: Sequence[str]) -> str:
        text = chance.choice(known) if known and not chance.one_in(3) else chance.string()
        return str(chance.mutated(text)) if chance.one_in(4) else text

    def _pairs(self, chance: Chance) -> list[tuple[str, str]]:
        names = [chance.choice((*KNOWN, chance.string())) for _ in range(chance.randrange(5))]
        tasks = self.here.task_ids
        return [(name, self._text(chance, KNOWN.get(name) or tasks)) for name in names]

    def _signed_in(self, token: str) -> tuple[str, str]:
        """The cookie of a session, and the token that its forms bring."""
        own = f"http://{self._host}".encode()
        headers = [(b"host", self._host.encode()), (b"origin", own), (b"content-type", FORM)]
        body = urlencode({"token": token}).encode()
        answer = self.line.ask(Request("POST", b"/console/sign-in", headers, body))
        assert answer is not None
        assert answer.status == 303, answer
        [given] = [value for name, value in answer.headers if name.lower() == "set-cookie"]
        (kept,) = http.cookies.SimpleCookie(given).values()
        cookie = f"{kept.key}={kept.value}"
        page = self.line.ask(
            Request(
                "GET", b"/console", [(b"host", headers[0][1]), (b"cookie", cookie.encode())], b""
            )
        )
        assert page is not None
        return cookie, page.content.decode().partition('name="csrf" value="')[2].partition('"')[0]


LOOSE = ("utf-8", "surrogatepass")


def encoded(pairs: Sequence[tuple[str, Any]]) -> str:
    return urlencode([(name.encode(*LOOSE), text.encode(*LOOSE)) for name, text in pairs])


def is_page(answer: Answer) -> bool:
    """Whether it is an answer of the console's: guarded by its policy, and leading nowhere else."""
    headers = {name.lower(): value for name, value in answer.headers}
    leads = headers.get("location", "/console")
    is_guarded = "default-src 'none'" in headers.get("content-security-policy", "")
    return is_guarded and (leads == "/console" or leads.startswith(("/console/", "/console?")))


@pytest.mark.promise("no-input-makes-it-stumble")
async def test_no_address_and_no_form_makes_a_page_stumble(here: World, line: Line):
    target = await anyio.to_thread.run_sync(Pages, here, line)
    await target.runs("pages", target.trial)
