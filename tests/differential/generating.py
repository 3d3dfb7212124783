"""What is asked of both: valid requests of every method, and the ways to spoil one."""

import base64
import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st
from mcp.shared.inbound import encode_header_value

from outlast.tests.support.mcp import PREFIX, envelope, headers_of

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
ODD_TOOLS = ("dots.in.it", "Schrägstrich-Ü", "with space", "a_b__c", "CASE", "case")
LISTS = ("tools/list", "resources/list", "resources/templates/list", "prompts/list")
CAPABILITIES: Mapping[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
}
# Of one character more than JSON needs: what JavaScript and lines of text trip over.
TEXT = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from('\u2028\u2029"\\/\0\x7f🌍'),
    max_size=12,
)
INTEGERS = st.integers(-(2**31), 2**31) | st.sampled_from([2**53 + 1, -(2**63), 2**63, 2**64 - 1])
HUGE = st.sampled_from([2**64, -(2**70), 10**40])
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | INTEGERS
# Progress is a float to the SDK's client, which Outlast listens with: none that a float rounds.
STEPS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)
SCALARS = st.none() | st.booleans() | NUMBERS | HUGE | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@dataclass(frozen=True)
class Asked:
    """One request as it is sent. `spoilt` says in which ways it is none, or not a good one."""

    body: Any
    headers: Mapping[str, str]
    spoilt: tuple[str, ...] = ()
    raw: bytes | None = None

    @property
    def method(self) -> str:
        """Its method, where it has one."""
        method = self.body.get("method") if isinstance(self.body, dict) else None
        return method if isinstance(method, str) else ""

    @property
    def content(self) -> bytes:
        """Its bytes."""
        return json.dumps(self.body).encode() if self.raw is None else self.raw

    def with_params(self, **more: Any) -> "Asked":
        """With these parameters beside its own."""
        body = {**self.body, "params": {**self.body["params"], **more}}
        return replace(self, body=body, headers=sent_with(body))


def sent_with(body: Mapping[str, Any]) -> dict[str, str]:
    """The headers of a good request, the mirrored arguments of `forecast` among them."""
    headers = headers_of(body)
    params = body["params"]
    if params.get("name") == "forecast":
        for name, value in (params.get("arguments") or {}).items():
            if name in {"region", "days", "sure"} and value is not None:
                text = json.dumps(value) if isinstance(value, bool | int) else value
                headers[f"mcp-param-{name}"] = encode_header_value(text)
    return headers


def uri(scheme: str, what: Any) -> str:
    """A resource that does this."""
    text = base64.urlsafe_b64encode(json.dumps(what).encode()).decode().rstrip("=")
    return f"{scheme}://{text}"


# --- results, news, questions


@st.composite
def results(draw: st.DrawFn, member: str) -> dict[str, Any]:
    """A result as no server sends it, and as one may."""
    known = ["isError", "structuredContent", "_meta", "ttlMs", "cacheScope", "resultType", "x-ü"]
    result: dict[str, Any] = {member: draw(st.lists(BLOCKS, max_size=3))}
    for name in draw(st.lists(st.sampled_from(known), max_size=3, unique=True)):
        result[name] = draw(MEMBERS.get(name, VALUES))
    return result


BLOCKS = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": TEXT, "_meta": st.just({"k": None})}),
    st.fixed_dictionaries(
        {"type": st.just("resource_link"), "name": TEXT, "uri": st.just("note://a"), "x": VALUES}
    ),
    st.fixed_dictionaries(
        {"type": st.just("resource"), "resource": st.just({"uri": "note://a", "text": "a"})}
    ),
    st.fixed_dictionaries({"type": st.just("image"), "data": st.just("AAAA"), "more": VALUES}),
    st.fixed_dictionaries({"type": TEXT, "new": VALUES}),
)
MEMBERS: Mapping[str, st.SearchStrategy[Any]] = {
    "isError": st.booleans(),
    "_meta": st.dictionaries(TEXT, VALUES, max_size=3),
    "ttlMs": st.integers(0, 10**9),
    "cacheScope": st.sampled_from(["public", "private"]),
    "resultType": st.just("complete"),
}
NEWS = st.lists(
    st.one_of(
        st.fixed_dictionaries({"progress": STEPS}, optional={"total": STEPS, "message": TEXT}),
        st.fixed_dictionaries(
            {"level": st.sampled_from(LEVELS), "data": VALUES}, optional={"logger": TEXT}
        ),
    ),
    max_size=6,
)
SCHEMA = {"type": "object", "properties": {"who": {"type": "string"}}}
FORM = {"mode": "form", "message": "Who?", "requestedSchema": SCHEMA}
SAMPLE = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "ü"}}],
    "maxTokens": 5,
}
QUESTIONS = st.sampled_from(
    [
        {"method": "elicitation/create", "params": FORM},
        {"method": "sampling/createMessage", "params": SAMPLE},
        {"method": "roots/list"},
    ]
)
ASKING = st.one_of(
    st.fixed_dictionaries(
        {"requests": st.dictionaries(TEXT, QUESTIONS, min_size=1, max_size=2)},
        optional={"state": TEXT},
    ),
    st.fixed_dictionaries({"state": TEXT}),
)
FAILURES = st.fixed_dictionaries(
    {"code": st.integers(-32_099, 100), "text": TEXT}, optional={"data": VALUES}
)


# --- valid requests

META = st.fixed_dictionaries(
    {},
    optional={
        "progressToken": TEXT | st.integers(-(2**31), 2**53),
        f"{PREFIX}logLevel": st.sampled_from(LEVELS),
        "traceparent": st.just("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        "dev.example/ü": VALUES,
        "plain": VALUES,
    },
)
IDS = st.one_of(st.integers(-(2**63), 2**63), TEXT, st.sampled_from(["", "ü", 2**53, 0, -1]))


def requests_of(method: str, params: st.SearchStrategy[Any]) -> st.SearchStrategy[Asked]:
    """Good requests of one method."""

    def made(given: tuple[Any, Any, Any]) -> Asked:
        own, meta, request_id = given
        body = {**envelope(method, own, CAPABILITIES, meta), "id": request_id}
        return Asked(body, sent_with(body))

    return st.tuples(params, META, IDS).map(made)


def calls(name: Any, arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Parameters of a call."""
    names = name if isinstance(name, st.SearchStrategy) else st.just(name)
    return st.fixed_dictionaries({"name": names, "arguments": arguments})


def one(name: str, value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object with one member."""
    return st.fixed_dictionaries({name: value})


CALLS = st.one_of(
    calls("say", one("result", results("content"))),
    calls("saw", st.dictionaries(TEXT, VALUES, max_size=3)),
    calls(st.sampled_from(ODD_TOOLS), one("anything", VALUES)),
    calls("tell", one("news", NEWS)),
    calls("ask", ASKING),
    calls("fail", FAILURES),
    calls("broken", one("why", TEXT)),
    calls(st.sampled_from(["crash", "shapes", "many_3"]), st.just({})),
    calls("add", st.fixed_dictionaries({"a": INTEGERS}, optional={"b": INTEGERS})),
    calls(
        "forecast",
        st.fixed_dictionaries(
            {"region": TEXT}, optional={"days": st.integers(0, 2**31), "sure": st.booleans()}
        ),
    ),
)
READS = st.one_of(
    st.sampled_from(["note://a", "blob://pixel", "many://69", "pair://x/y", "pair://%C3%BC/%20"]),
    results("contents").map(lambda what: uri("say", what)),
    ASKING.map(lambda what: uri("ask", what)),
    NEWS.map(lambda what: uri("tell", {"news": what})),
    FAILURES.map(lambda what: uri("fail", what)),
)
GETS = st.one_of(
    calls("say", one("what", results("messages").map(json.dumps))),
    calls("ask", one("what", ASKING.map(json.dumps))),
    calls("fail", one("what", FAILURES.map(json.dumps))),
    calls("greet", st.fixed_dictionaries({"who": TEXT}, optional={"mood": TEXT})),
)
COMPLETIONS = st.fixed_dictionaries(
    {
        "ref": st.sampled_from(
            [
                {"type": "ref/prompt", "name": "greet"},
                {"type": "ref/prompt", "name": "greet", "title": "ü"},
                {"type": "ref/resource", "uri": "pair://{one}/{two}"},
            ]
        ),
        "argument": st.fixed_dictionaries({"name": TEXT, "value": TEXT | st.just("more")}),
    },
    optional={"context": one("arguments", st.dictionaries(TEXT, TEXT, max_size=2))},
)
# Most of what there is to get wrong is in the first three.
WEIGHTED = [
    *6 * [requests_of("tools/call", CALLS)],
    *4 * [requests_of("resources/read", one("uri", READS))],
    *4 * [requests_of("prompts/get", GETS)],
    *2 * [requests_of("completion/complete", COMPLETIONS)],
    *(requests_of(method, st.just({})) for method in ("server/discover", *LISTS)),
]
GOOD = st.sampled_from(WEIGHTED).flatmap(lambda requests: requests)


# --- ways to spoil one

Spoil = Callable[[Asked, st.DataObject], Asked]
WRONG = st.sampled_from([None, True, 7, 1.5, "ü", "", [], [{}], {}, {"ü": 1}])


def _body(asked: Asked, how: str, **members: Any) -> Asked:
    return replace(asked, body={**asked.body, **members}, spoilt=(*asked.spoilt, how))


def _headers(asked: Asked, how: str, **changed: str | None) -> Asked:
    wanted = {**asked.headers, **{name.replace("_", "-"): v for name, v in changed.items()}}
    kept = {name: value for name, value in wanted.items() if value is not None}
    return replace(asked, headers=kept, spoilt=(*asked.spoilt, how))


def a_wrong_parameter(asked: Asked, data: st.DataObject) -> Asked:
    """Of another type, or of a value that nobody knows."""
    names = [name for name in asked.body["params"] if name != "_meta"] or ["cursor"]
    name = data.draw(st.sampled_from(names))
    value = data.draw(WRONG)
    return _body(asked, f"{name}={value!r}", params={**asked.body["params"], name: value})


def a_missing_parameter(asked: Asked, data: st.DataObject) -> Asked:
    """One less."""
    name = data.draw(st.sampled_from(list(asked.body["params"])))
    params = {key: value for key, value in asked.body["params"].items() if key != name}
    return _body(asked, f"without {name}", params=params)


def another_parameter(asked: Asked, data: st.DataObject) -> Asked:
    """One that nobody knows."""
    return _body(asked, "x", params={**asked.body["params"], "x-ü": data.draw(VALUES)})


def an_unknown_name(asked: Asked, data: st.DataObject) -> Asked:
    """Nobody has this one, and the headers say it, too."""
    key = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}.get(asked.method)
    if key is None:
        return asked
    name = data.draw(TEXT | st.sampled_from(["no", "no://such", "SAY", "say ", " say", "note://A"]))
    return replace(asked.with_params(**{key: name}), spoilt=(*asked.spoilt, "name"))


def an_odd_id(asked: Asked, data: st.DataObject) -> Asked:
    """None that JSON-RPC has."""
    return _body(asked, "id", id=data.draw(st.sampled_from([None, True, 1.5, [], {}])))


def a_notification(asked: Asked, data: st.DataObject) -> Asked:
    """Without an id."""
    body = {key: value for key, value in asked.body.items() if key != "id"}
    body["method"] = data.draw(st.sampled_from(["notifications/cancelled", "x/y", asked.method]))
    headers = {**asked.headers, "mcp-method": encode_header_value(body["method"])}
    return replace(asked, body=body, headers=headers, spoilt=(*asked.spoilt, "notification"))


def odd_meta(asked: Asked, data: st.DataObject) -> Asked:
    """A member of the envelope is wrong, or is not there."""
    params = copy.deepcopy(asked.body["params"])
    meta = params.get("_meta")
    if not isinstance(meta, dict):
        return asked
    own = ["protocolVersion", "clientInfo", "clientCapabilities", "logLevel"]
    key = data.draw(st.sampled_from([*(PREFIX + name for name in own), "progressToken"]))
    if data.draw(st.booleans()):
        meta.pop(key, None)
        return _body(asked, f"_meta without {key}", params=params)
    meta[key] = value = data.draw(WRONG | st.sampled_from(["2025-11-25", "1999-01-01"]))
    return _body(asked, f"_meta.{key}={value!r}", params=params)


def odd_headers(asked: Asked, data: st.DataObject) -> Asked:
    """One is not there, or says something else."""
    name = data.draw(st.sampled_from(["mcp-method", "mcp-name", "mcp-protocol-version"]))
    value = data.draw(
        st.sampled_from([None, "", "no", "2025-03-26", "=?base64?bm8=?=", "=?base64?"])
    )
    return _headers(asked, f"{name}={value!r}", **{name: value})


def an_encoded_name(asked: Asked, data: st.DataObject) -> Asked:
    """Base64 where none is needed, and a method in capitals."""
    name = asked.headers.get("mcp-name")
    if name is None or name.startswith("=?") or data.draw(st.booleans()):
        return _headers(asked, "capitals", mcp_method=asked.headers.get("mcp-method", "").upper())
    encoded = base64.b64encode(name.encode()).decode()
    return _headers(asked, "encoded", mcp_name=f"=?base64?{encoded}?=")


def another_accept(asked: Asked, data: st.DataObject) -> Asked:
    """Other wishes for the answer."""
    kinds = ["application/json", "text/event-stream", "*/*", "text/html", "application/*", None]
    kind = data.draw(st.sampled_from(kinds))
    return _headers(asked, f"accept={kind}", accept=kind)


def another_content_type(asked: Asked, data: st.DataObject) -> Asked:
    """Other words for what is sent."""
    kinds = ["application/json; charset=utf-8", "text/plain", "APPLICATION/JSON", None]
    kind = data.draw(st.sampled_from(kinds))
    return _headers(asked, f"content-type={kind}", content_type=kind)


def an_unknown_method(asked: Asked, data: st.DataObject) -> Asked:
    """Nobody has this one, or this revision does not."""
    unknown = ["x/y", "", "TOOLS/LIST", "ping", "resources/subscribe", "logging/setLevel", "ü"]
    method = data.draw(st.sampled_from(unknown))
    spoilt = _body(asked, f"method={method!r}", method=method)
    return _headers(spoilt, "its header", mcp_method=encode_header_value(method))


def another_frame(asked: Asked, data: st.DataObject) -> Asked:
    """No JSON-RPC, or no JSON."""
    how = data.draw(st.sampled_from(["batch", "cut", "text", "version", "params", "response"]))
    spoilt = replace(asked, spoilt=(*asked.spoilt, how))
    match how:
        case "batch":
            return replace(spoilt, raw=b"[" + asked.content + b"]")
        case "cut":
            return replace(spoilt, raw=asked.content[:-1])
        case "text":
            return replace(
                spoilt, raw=data.draw(st.sampled_from([b"", b"x", b'"x"', b"7", b"null"]))
            )
        case "version":
            return _body(asked, how, jsonrpc=data.draw(st.sampled_from(["1.0", 2.0, None])))
        case "params":
            params = data.draw(st.sampled_from([None, [], 7, "x"]))
            return _body(asked, f"params={params}", params=params)
        case _:
            return replace(spoilt, raw=b'{"jsonrpc":"2.0","id":1,"result":{}}')


def a_wrong_cursor(asked: Asked, data: st.DataObject) -> Asked:
    """None that was ever given."""
    method = data.draw(st.sampled_from(LISTS))
    cursor = data.draw(st.sampled_from(["", "x", "ü", 7, True, [], {}, "ZnJvbS0w"]))
    body = envelope(method, {"cursor": cursor}, CAPABILITIES)
    return Asked(body, sent_with(body), (*asked.spoilt, f"cursor={cursor!r}"))


SPOILS: tuple[Spoil, ...] = (
    a_wrong_parameter,
    a_missing_parameter,
    another_parameter,
    an_unknown_name,
    an_odd_id,
    a_notification,
    odd_meta,
    odd_headers,
    an_encoded_name,
    another_accept,
    another_content_type,
    an_unknown_method,
    another_frame,
    a_wrong_cursor,
)
