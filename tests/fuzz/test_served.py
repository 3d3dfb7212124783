"""Generated inputs against the real server on real sockets: nothing of them may make it stumble.

Whatever comes, the same process answers; an answer is JSON-RPC with the right id; there is no 500
and no -32603; and a request that was refused has written nothing.
"""

import json
from typing import Any

import anyio.from_thread
import anyio.to_thread
import pytest

from outlast.delivery.events.cursors import Cursors
from outlast.delivery.webhook.signing import parse_secret
from outlast.tests.delivery.posting import signed
from outlast.tests.fuzz import judging
from outlast.tests.fuzz.chance import Chance
from outlast.tests.fuzz.messages import EVENT_NAMES, headers_of
from outlast.tests.fuzz.targets import Endpoint, Socket, Target
from outlast.tests.fuzz.wire import Line, Request
from outlast.tests.fuzz.world import ALICE, BOB, TOKENS, World, key_of
from outlast.tests.support.mcp import IDEMPOTENCY_KEY

pytestmark = pytest.mark.anyio

ALIVE = {"action": "accept", "content": {"name": "Alice", "count": 1, "colour": "red"}}
DRAFT = {"role": "assistant", "content": {"type": "text", "text": "x"}, "model": "m"}
ROOTS = {"roots": [{"uri": "file:///srv", "name": "srv"}]}
CALLBACK_STATUSES = frozenset({204, 400, 401, 404, 408, 409, 410, 413, 429})


# --- POST /mcp


@pytest.mark.promise("no-input-makes-it-stumble")
async def test_no_request_makes_the_endpoint_stumble(here: World, line: Line):
    target = Endpoint(here, line)
    await target.runs("endpoint", target.trial)


# --- /ws


@pytest.mark.promise("no-input-makes-it-stumble")
async def test_no_frame_makes_the_socket_stumble(here: World, line: Line):
    target = Socket(here, line)
    await target.runs("socket", target.trial)
    await anyio.to_thread.run_sync(target.close)


# --- cursors of events/poll


class Polls(Target):
    """Cursors as a client may spell them; bob's is one of them."""

    def __init__(self, here: World, line: Line) -> None:
        super().__init__(here, line)
        first = self._cursor_of(ALICE)
        self._known = (first, self._cursor_of(BOB))
        self._sealed_elsewhere = Cursors("another key", 1).seal(key_of(ALICE), 1)

    def trial(self, chance: Chance) -> str:
        cursor: Any = chance.choice((*self._known, self._sealed_elsewhere, "v1."))
        for _ in range(chance.randrange(3)):
            cursor = chance.mutated(cursor)
        answer, is_refused = self.posts(self._asking(cursor, chance.choice(EVENT_NAMES)))
        if not is_refused:
            result = answer.body["result"]
            is_own = cursor is None or cursor == self._known[0]
            assert is_own or result["truncated"], "a cursor of nobody's was taken for alice's"
            tasks = {event["data"]["taskId"] for event in result["events"]}
            assert self.here.task_of_bob not in tasks, result
        return self.told(is_refused=is_refused)

    def _asking(self, cursor: Any, name: str = EVENT_NAMES[0]) -> dict[str, Any]:
        body = self.messages.request(Chance(0), "events/list")
        params = {"name": name, "cursor": cursor, "_meta": body["params"]["_meta"]}
        return {**body, "method": "events/poll", "params": params}

    def _cursor_of(self, token: str) -> str:
        answer, _ = self.posts(self._asking(None), token)
        return answer.body["result"]["cursor"]


@pytest.mark.promise("no-input-makes-it-stumble")
async def test_no_cursor_leads_where_it_may_not(here: World, line: Line):
    target = await anyio.to_thread.run_sync(Polls, here, line)
    await target.runs("polls", target.trial)


# --- the Authorization header


class Authorization(Target):
    """Everybody without a token of ours is told the same, to the byte."""

    refusal: tuple[Any, ...] | None = None

    def trial(self, chance: Chance) -> str:
        token = chance.choice((*TOKENS, "eyJhbGciOiJub25lIn0.e30.", chance.string()))
        given = chance.choice((f"Bearer {token}", f"bearer  {token} ", f"Basic {token}", token))
        for _ in range(chance.randrange(3)):
            given = str(chance.mutated(given))
        value = given.encode("utf-8", "surrogatepass").replace(b"\r", b"").replace(b"\n", b"")
        is_clean = all(byte >= 0x20 and byte != 0x7F for byte in value)
        body = self.messages.request(Chance(0), "server/discover")
        headers = [pair for pair in headers_of(body, "") if pair[0] != b"authorization"]
        headers.append((b"authorization", value))
        content = json.dumps(body).encode()
        self.last = Request("POST", b"/mcp", headers, content)
        answer = self.line.ask(self.last)
        if answer is None or (not is_clean and not answer.is_json):
            assert not is_clean, "the server hung up"
            return self.told(is_refused=True)
        is_refused = judging.is_refused(answer, content, was_bent=False)
        assert answer.status in {200, 401}, answer
        if answer.status == 401:
            assert value.strip() not in _accepted(), "a good token was refused"
            told = answer.status, answer.content, dict(answer.headers)["www-authenticate"]
            self.refusal = self.refusal or told
            assert told == self.refusal, answer
        return self.told(is_refused=is_refused)


def _accepted() -> set[bytes]:
    return {f"Bearer {token}".encode() for token in TOKENS}


@pytest.mark.promise("no-input-makes-it-stumble")
async def test_no_header_gets_in_and_all_are_refused_alike(here: World, line: Line):
    target = Authorization(here, line)
    await target.runs("authorization", target.trial)


# --- idempotency keys


class Keys(Target):
    """A key that was taken leads to its task, and a key that was not leads to none."""

    def __init__(self, here: World, line: Line) -> None:
        super().__init__(here, line)
        self._tasks: dict[str, str] = {}

    def trial(self, chance: Chance) -> str:
        key: Any = chance.choice((f"key-{chance.randrange(20)}", chance.string(), chance.value()))
        body = self.messages.request(chance, "tools/call")
        meta = {name: value for name, value in body["params"]["_meta"].items() if "/" in name}
        meta = {**meta, IDEMPOTENCY_KEY: key}
        meta["io.modelcontextprotocol/clientCapabilities"] = {
            "extensions": {"io.modelcontextprotocol/tasks": {}}
        }
        meta.pop("dev.outlast/webhook", None)
        call = {"name": "echo_task", "arguments": {"text": "a"}}
        answer, is_refused = self.posts({**body, "params": {**call, "_meta": meta}})
        if not is_refused and key is not None:
            task_id = answer.body["result"]["taskId"]
            assert self._tasks.setdefault(key, task_id) == task_id, "two tasks of one key"
        return self.told(is_refused=is_refused)


@pytest.mark.promise("no-input-makes-it-stumble")
async def test_no_key_opens_two_tasks(here: World, line: Line):
    target = Keys(here, line)
    await target.runs("keys", target.trial)


# --- what jobs call back with


class CallbackUrls(Target):
    """Posts to callback URLs, with a good signature or none."""

    def __init__(self, here: World, line: Line) -> None:
        super().__init__(here, line)
        self._callback: tuple[str, str] | None = None

    def trial(self, chance: Chance) -> str:
        if self._callback is None:
            self._callback = anyio.from_thread.run(self.here.delegated)
            self.here.store.has_changed()  # by us
        path, secret = self._callback
        body: Any = chance.choice(
            (
                {"type": "progress", "progress": 1, "total": 4, "message": "compiling"},
                {"type": "completed", "result": {"content": [], "structuredContent": {"size": 3}}},
                {"type": "failed", "error": {"code": -32000, "message": "no", "data": [1]}},
            )
        )
        for _ in range(chance.choice((0, 1, 1, 2, 3))):
            body = chance.mutated(body)
        content = chance.encoded(body)
        if chance.one_in(8):
            content = chance.damaged(content)
        headers = self._signed(chance, secret, content)
        if chance.one_in(4):
            path = chance.mutated(path)
        self.last = Request("POST", _path(path), headers, content)
        answer = self.line.ask(self.last)
        assert answer is not None, "the server hung up"
        assert answer.status in CALLBACK_STATUSES, answer
        assert answer.status == 204 or answer.is_json or answer.status == 404, answer
        outcome = self.told(is_refused=answer.status != 204)
        if outcome == "wrote":
            self._callback = None
        return outcome

    def _signed(self, chance: Chance, secret: str, content: bytes) -> list[tuple[bytes, bytes]]:
        key = parse_secret(secret) if chance.randrange(5) else bytes(32)
        given = signed(key, "none", f"evt_{chance.randrange(2**32)}", content)
        headers = [(name.encode(), value.encode()) for name, value in given.items()]
        if chance.one_in(5):
            place = chance.randrange(len(headers))
            text = str(chance.mutated(headers[place][1].decode()))
            headers[place] = headers[place][0], _printable(text)
        return [(b"host", b"127.0.0.1"), *headers]


def _printable(text: str) -> bytes:
    return bytes(
        byte for byte in text.encode(errors="surrogatepass") if byte > 0x20 and byte != 0x7F
    )


def _path(path: Any) -> bytes:
    """A path that HTTP can carry, with what it cannot carry escaped."""
    raw = str(path).encode("utf-8", "surrogatepass")
    return b"/" + b"".join(
        bytes([byte]) if 0x21 <= byte < 0x7F else b"%%%02X" % byte for byte in raw
    ).lstrip(b"/")


@pytest.mark.promise("no-input-makes-it-stumble")
async def test_no_callback_makes_the_service_stumble(here: World, line: Line):
    target = CallbackUrls(here, line)
    await target.runs("callbacks", target.trial)


# --- answers


class Answers(Target):
    """Answers to a form, to a sampling request and to a question for roots."""

    def __init__(self, here: World, line: Line) -> None:
        super().__init__(here, line)
        self._task_id: str | None = None

    def trial(self, chance: Chance) -> str:
        if self._task_id is None:
            self._task_id = anyio.from_thread.run(self.here.parked)
            self.here.store.has_changed()  # by us
        good = {"in-1": ALIVE, "in-2": DRAFT, "in-3": ROOTS}
        named = chance.sample(list(good), chance.randrange(1, 4))
        responses: Any = {name: good[name] for name in named}
        for _ in range(chance.choice((0, 1, 1, 1, 2, 4))):
            responses = chance.mutated(responses)
        body = self.messages.request(Chance(0), "tasks/get")
        meta = body["params"]["_meta"]
        meta["io.modelcontextprotocol/clientCapabilities"] = {
            "extensions": {"io.modelcontextprotocol/tasks": {}}
        }
        params = {"taskId": self._task_id, "inputResponses": responses, "_meta": meta}
        _, is_refused = self.posts({**body, "method": "tasks/update", "params": params})
        outcome = self.told(is_refused=is_refused)
        if outcome == "wrote":
            self._task_id = None
        return outcome


@pytest.mark.promise("no-input-makes-it-stumble")
async def test_no_answer_makes_an_update_stumble(here: World, line: Line):
    target = Answers(here, line)
    await target.runs("answers", target.trial)
