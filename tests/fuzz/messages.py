"""Requests that a client could send in good faith, and what becomes of them on their way."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mcp.shared.inbound import encode_header_value

from outlast.tests.delivery.webhook_world import SECRET
from outlast.tests.fuzz.chance import Chance
from outlast.tests.fuzz.wire import Request
from outlast.tests.support.mcp import DECLARED, IDEMPOTENCY_KEY, PREFIX, UNDECLARED, VERSION

EVENTS = f"{PREFIX}events"
AFTER = "dev.outlast/after"
WEBHOOK = "dev.outlast/webhook"
TOOLS = (
    "echo_direct",
    "echo_auto",
    "echo_task",
    "echo_only",
    "sign_before",
    "sign_during",
    "region",
    "measured",
)
EVENT_NAMES = ("task.updated", "task.finished", "task.progress")
ANSWER = {"action": "accept", "content": {"name": "Alice"}}
KINDS = (
    b"application/json",
    b"application/json; charset=utf-8",
    b"APPLICATION/JSON",
    b"application/json;charset=utf-16",
    b"text/plain",
    b"application/x-www-form-urlencoded",
    b"multipart/form-data; boundary=x",
    b"application/jsonx",
    b"",
    b"\xff",
)
ENDINGS = (b" ", b"\t", b",", b";", b"\x00", b"\xff")
ROUTING = (b"mcp-method", b"mcp-name", b"mcp-protocol-version", b"mcp-param-region")
OTHERS = (b"accept", b"content-type", b"last-event-id", b"mcp-session-id", b"x-forwarded-for")

Body = dict[str, Any]
Headers = list[tuple[bytes, bytes]]


class Messages:
    """Draws requests about these tasks, with webhooks to this endpoint."""

    def __init__(self, task_ids: Sequence[str], hook: str) -> None:
        self._task_ids, self._hook = task_ids, hook
        self._methods: Mapping[str, Callable[[Chance], Body]] = {
            "server/discover": lambda _: {},
            "tools/list": lambda chance: {} if chance.one_in(2) else {"cursor": "AAAA"},
            "tools/call": self._call,
            "tasks/get": self._task,
            "tasks/update": lambda chance: {
                **self._task(chance),
                "inputResponses": {chance.choice(("in-1", "in-2", "in-9")): ANSWER},
            },
            "tasks/cancel": self._task,
            "subscriptions/listen": self._listen,
            "events/list": lambda _: {},
            "events/poll": self._events,
            "events/stream": self._events,
            "events/subscribe": self._subscribe,
            "events/unsubscribe": self._subscribe,
            "initialize": lambda _: {"protocolVersion": VERSION, "capabilities": {}},
        }

    def request(self, chance: Chance, method: str | None = None) -> Body:
        """A whole request, as the specification has it."""
        # Calls have most to read.
        name = method or chance.choice((*self._methods, *["tools/call"] * 4))
        params = self._methods[name](chance)
        declared = chance.choice((DECLARED, DECLARED, DECLARED, UNDECLARED))
        capabilities = {**declared, "extensions": {**declared.get("extensions", {}), EVENTS: {}}}
        meta = {
            f"{PREFIX}protocolVersion": VERSION,
            f"{PREFIX}clientInfo": {"name": "fuzz", "version": "1"},
            f"{PREFIX}clientCapabilities": capabilities,
            **self._meta(chance),
        }
        request_id = chance.choice((f"id-{chance.randrange(10**6)}", chance.randrange(2**63), ""))
        return {
            "jsonrpc": "2.0",
            "id": request_id,
            "method": name,
            "params": {**params, "_meta": meta},
        }

    def _meta(self, chance: Chance) -> Body:
        extra: Body = {}
        if chance.one_in(6):
            extra[IDEMPOTENCY_KEY] = chance.choice(("k1", "k2", chance.string()))
        if chance.one_in(6):
            extra[AFTER] = {self._some(chance): chance.randrange(4)}
        if chance.one_in(8):
            extra["progressToken"] = chance.choice(("p", 7, chance.value()))
        if chance.one_in(12):
            extra[WEBHOOK] = {"url": self._hook, "secret": SECRET}
        if chance.one_in(12):
            extra["traceparent"] = chance.string()
        return extra

    def _some(self, chance: Chance) -> str:
        return chance.choice(self._task_ids)

    def _task(self, chance: Chance) -> Body:
        return {"taskId": self._some(chance)}

    def _call(self, chance: Chance) -> Body:
        tool = chance.choice(TOOLS)
        arguments: Body = {"text": "a", "count": 1, "tags": ["x"], "more": {"deep": [1, None]}}
        if tool.startswith("sign"):
            arguments = {"document": "d"}
        elif tool == "region":
            arguments = {"region": "eu"}
        elif tool == "measured":
            arguments = {"size": 3}
        call: Body = {"name": tool, "arguments": arguments}
        if chance.one_in(6):
            call["inputResponses"] = {"__main__:who": ANSWER}
            call["requestState"] = chance.choice(("v1.AAAA", chance.string()))
        return call

    def _listen(self, chance: Chance) -> Body:
        ids = [self._some(chance) for _ in range(chance.randrange(4))]
        return {"notifications": {"taskIds": ids, "toolsListChanged": chance.one_in(2)}}

    def _events(self, chance: Chance) -> Body:
        asked: Body = {"name": chance.choice(EVENT_NAMES), "cursor": None}
        if chance.one_in(2):
            asked["arguments"] = {"taskIds": [self._some(chance)]}
        if chance.one_in(2):
            asked["cursor"] = chance.string()
        if chance.one_in(3):
            asked["maxEvents"] = chance.choice((1, 10, chance.number()))
        if chance.one_in(3):
            asked["maxAgeMs"] = chance.choice((1, 60_000, chance.number()))
        return asked

    def _subscribe(self, chance: Chance) -> Body:
        delivery = {"mode": "webhook", "url": self._hook, "secret": SECRET}
        ttl_ms = chance.choice((60_000, chance.number()))
        return {**self._events(chance), "delivery": delivery, "ttlMs": ttl_ms}


def headers_of(body: Any, token: str) -> Headers:
    """The headers that go with a request, as far as it is one."""
    headers: Headers = [
        (b"host", b"127.0.0.1"),
        (b"authorization", f"Bearer {token}".encode()),
        (b"accept", b"application/json, text/event-stream"),
        (b"content-type", b"application/json"),
        (b"mcp-protocol-version", VERSION.encode()),
    ]
    params = body.get("params") if isinstance(body, dict) else None
    method = body.get("method") if isinstance(body, dict) else None
    named = params.get("name", params.get("taskId")) if isinstance(params, dict) else None
    for header, value in ((b"mcp-method", method), (b"mcp-name", named)):
        if isinstance(value, str):
            headers.append((header, _spelled(value)))
    return headers


def _spelled(value: str) -> bytes:
    """A value as a header carries it. There is no right spelling of a lone surrogate."""
    return encode_header_value(value.encode("utf-8", "replace").decode()).encode()


def bent(chance: Chance, headers: Headers) -> tuple[Headers, bool]:
    """Headers with one thing changed, and whether that may be more than HTTP allows."""
    changed = list(headers)
    place = chance.randrange(len(changed))
    name, value = changed[place]
    match chance.randrange(8):
        case 0:
            del changed[place]
        case 1:
            changed.append((name, value))
        case 2:
            changed.append((chance.choice((*ROUTING, *OTHERS)), _header(chance)))
        case 3:
            named = {name: place for place, (name, _) in enumerate(changed)}
            changed[named[b"content-type"]] = (b"content-type", chance.choice(KINDS))
        case 4:
            routing = [at for at, (name, _) in enumerate(changed) if name in ROUTING] or [place]
            place = chance.choice(routing)
            changed[place] = (changed[place][0], _header(chance))
        case 5:
            changed[place] = (name, value[: chance.randrange(len(value) + 1)])
        case 6:
            changed[place] = (
                name,
                value + chance.choice(ENDINGS),
            )
        case _:
            odd = chance.choice((b"x y", b"x\x00", b"", b"content-length", b"transfer-encoding"))
            changed.append((odd, _header(chance)))
    # What is not clean, whoever reads it, is for the parser of HTTP to judge.
    return changed, not all(_is_clean(*pair) for pair in changed) or _is_doubtful(changed)


def _header(chance: Chance) -> bytes:
    text = chance.string().replace("\r", "").replace("\n", "")
    value = chance.choice((text.encode("utf-8", "surrogatepass"), _spelled(text)))
    return value[: chance.choice((20, 4_000))]


def _is_clean(name: bytes, value: bytes) -> bool:
    return name.replace(b"-", b"").isalnum() and all(0x20 <= byte < 0x7F for byte in value)


def _is_doubtful(headers: Headers) -> bool:
    names = [name for name, _ in headers]
    framing = {b"content-length", b"transfer-encoding"}
    return bool(framing & set(names)) or names.count(b"host") != 1


def _changed(chance: Chance, body: Any) -> Any:
    """The body with one change: mostly of what its method reads, as all else is refused early."""
    params = body.get("params") if isinstance(body, dict) else None
    if not isinstance(params, dict) or chance.one_in(8):
        return chance.mutated(body)
    meta = params.get("_meta")
    if chance.one_in(6):
        return {**body, "params": {**params, "_meta": chance.mutated(meta)}}
    own = chance.mutated({name: value for name, value in params.items() if name != "_meta"})
    if not isinstance(own, dict):
        return {**body, "params": own}
    return {**body, "params": {**own, "_meta": meta}}


def request_of(chance: Chance, body: Body, token: str) -> tuple[Request, bool]:
    """The request, changed in up to four ways; and whether its head may be no HTTP."""
    given: Any = body
    for _ in range(chance.choice((0, 0, 1, 1, 1, 1, 2, 4))):
        given = _changed(chance, given)
    if chance.one_in(40):
        given = chance.choice(([given], [], [given, given], given, None))
    # Headers follow the change more often than not, so that it gets past them.
    headers = headers_of(given if chance.randrange(4) else body, token)
    is_bent = False
    if chance.one_in(6):
        headers, is_bent = bent(chance, headers)
    content = chance.encoded(given)
    if chance.one_in(12):
        content = chance.damaged(content)
    cut = chance.randrange(1, 50) if chance.one_in(40) else 0
    return Request("POST", b"/mcp", headers, content, cut), is_bent
